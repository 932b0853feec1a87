//! Acts of operators on one message of a group: show, skip, bury, retry now.

use std::time::Duration;

use super::case::{Case, Scene, bury, failed, group, owner, payloads_of, retry, spanned};
use super::lane_consumer::{Handled, LaneConsumer};
use super::life::{HOUR, counted, groups_of};
use super::wake::{arm, woken};
use crate::error::ErrorKind;
use crate::lease::Lease;
use crate::message::{Message, NewMessage, Offset};
use crate::settle::{Outcome, Settlement};
use crate::store::{MessageAct, MessageState};
use crate::subscription::Start;
use crate::topic::{Ordering, TopicSettings};

fn ordered(lanes: u16) -> TopicSettings {
    TopicSettings { ordering: Ordering::Key, lanes, ..TopicSettings::pub_sub() }
}

fn give_up() -> MessageAct {
    MessageAct::Bury { reason: "by hand".into() }
}

impl Scene {
    async fn act(&self, offset: i64, act: MessageAct, force: bool) -> crate::Result<()> {
        self.store.act_on_message(&self.topic, &self.subscription.group, Offset(offset), &act, force).await
    }

    /// The state of a message in the scene's group.
    async fn state_of(&self, offset: i64) -> MessageState {
        let states =
            self.store.message_states(&self.topic, Offset(offset)).await.expect("the message exists");
        let of = states.into_iter().find(|(group, _)| *group == self.subscription.group);
        of.expect("the group is listed").1
    }

    async fn states_of(&self, offsets: impl IntoIterator<Item = i64>) -> Vec<&'static str> {
        let mut states = Vec::new();
        for offset in offsets {
            states.push(self.state_of(offset).await.as_str());
        }
        states
    }
}

/// Every state is shown, for each group on its own, in plain and in ordered groups.
pub async fn a_message_shows_its_state_in_every_group(case: &Case) {
    for settings in [TopicSettings::pub_sub(), ordered(1)] {
        let name = format!("{:?}", settings.ordering).to_lowercase();
        let scene = Scene::new(case.open().await, &name, settings).await;
        let messages: Vec<_> = (1..=6).map(|n| NewMessage::new(n.to_string()).key(format!("k{n}"))).collect();
        scene.publish_all(&messages).await;
        let late = scene.subscribe("late", Start::Beginning).await;
        let lease = scene.claim_one("a", 4).await;
        let key = scene.subscription.lanes > 0;
        let wait = Outcome::Retry {
            after: Duration::from_secs(60),
            error: "not now".into(),
            key: key.then(|| "k2".into()),
        };
        scene
            .settle_each(&lease, vec![((1, 1), Outcome::Ack), ((2, 2), wait), ((3, 3), bury("no"))])
            .await
            .unwrap();
        assert_eq!(
            scene.states_of(1..=6).await,
            ["done", "waiting", "buried", "leased", "not_handed_out", "not_handed_out"]
        );
        assert_eq!(late.states_of(1..=6).await, ["not_handed_out"; 6]);
        let MessageState::Outstanding(waiting) = scene.state_of(2).await else { panic!("it waits") };
        assert_eq!((waiting.attempts, waiting.last_error.as_deref()), (1, Some("not now")));
        let due = (case.now() + Duration::from_secs(60)).as_millisecond();
        assert_eq!(waiting.due_at.map(jiff::Timestamp::as_millisecond), Some(due));
        let MessageState::Outstanding(leased) = scene.state_of(4).await else { panic!("it is leased") };
        assert_eq!(leased.owner, Some(owner("a")));
        let buried = scene.dead_letters().await.remove(0).dead_letter_id;
        assert_eq!(scene.state_of(3).await, MessageState::Buried(buried));
        failed(scene.store.message_states(&scene.topic, Offset(7)).await, ErrorKind::InvalidInput);
        failed(scene.act(7, MessageAct::Skip, false).await, ErrorKind::InvalidInput);
        // Settled, so that nothing is left that the doctor could find.
        scene.settle_each(&lease, vec![((4, 4), Outcome::Ack)]).await.unwrap();
    }
}

/// A skipped message is never handed out; its neighbours are, each once: those of the same waiting range, and those
/// before it that were not handed out yet.
pub async fn a_skipped_message_is_done_and_its_neighbours_stay(case: &Case) {
    let scene = case.pub_sub().await;
    let other = scene.subscribe("other", Start::Beginning).await;
    scene.publish(10).await;
    let lease = scene.claim_one("a", 4).await;
    scene.settle_each(&lease, vec![((1, 4), retry(60_000, "later"))]).await.unwrap();
    scene.act(2, MessageAct::Skip, false).await.unwrap();
    scene.act(8, MessageAct::Skip, false).await.unwrap();
    assert_eq!(
        scene.states_of([1, 2, 3, 7, 8, 9]).await,
        ["waiting", "done", "waiting", "waiting", "done", "not_handed_out"]
    );
    assert_eq!(scene.state_of(3).await.as_str(), "waiting", "its time has not come");
    let mut offsets = spanned(&scene.claim("a", 100).await);
    offsets.sort_unstable();
    assert_eq!(offsets, [5, 6, 7, 9, 10]);
    case.advance(Duration::from_secs(61));
    let leases = scene.claim("b", 100).await;
    assert!(leases.iter().all(|lease| lease.attempt == 2), "the attempts of its neighbours stay: {leases:?}");
    let mut offsets = spanned(&leases);
    offsets.sort_unstable();
    assert_eq!(offsets, [1, 3, 4]);
    assert_eq!(other.drain("c").await.len(), 10, "other groups get it");
    for (act, offset) in
        [(MessageAct::Skip, 2), (give_up(), 2), (MessageAct::Retry, 2), (MessageAct::Retry, 5)]
    {
        failed(scene.act(offset, act, false).await, ErrorKind::InvalidTransition);
    }
    let entry = scene.store.audit(1).await.unwrap().remove(0);
    let detail: serde_json::Value = serde_json::from_str(&entry.detail).unwrap();
    assert_eq!((entry.act.as_str(), entry.group.as_deref()), ("skip_message", Some("workers")));
    assert_eq!(detail, serde_json::json!({ "offset": 8, "from": "not_handed_out", "owner": null }));
}

/// A message is buried by hand with its reason, whether it waits or was not handed out yet, and can be redriven.
pub async fn a_message_is_buried_by_hand(case: &Case) {
    let scene = case.queue().await;
    scene.publish(3).await;
    let lease = scene.claim_one("a", 1).await;
    scene.settle_each(&lease, vec![((1, 1), retry(60_000, "later"))]).await.unwrap();
    scene.act(1, give_up(), false).await.unwrap();
    scene.act(3, give_up(), false).await.unwrap();
    let letters = scene.dead_letters().await;
    let seen: Vec<_> = letters.iter().map(|one| (one.offset.0, one.error.as_str(), one.attempts)).collect();
    assert_eq!(seen, [(1, "by hand", 1), (3, "by hand", 0)]);
    let refused =
        failed(scene.act(3, MessageAct::Skip, true).await, ErrorKind::InvalidTransition).to_string();
    assert!(refused.contains("is a dead letter"), "{refused}");
    assert_eq!(payloads_of(&scene.drain("a").await), ["2"]);
    assert_eq!(scene.store.redrive(&scene.dead_letter_selection()).await.unwrap().redriven, 2);
    assert_eq!(payloads_of(&scene.drain("a").await), ["1", "3"]);
    for reason in ["", "a\0b"] {
        let bad = MessageAct::Bury { reason: reason.into() };
        failed(scene.act(2, bad, false).await, ErrorKind::InvalidInput);
    }
}

/// A retry that waits is handed out at once, alone of its range, with its attempts; waiters are woken.
pub async fn a_waiting_retry_is_handed_out_at_once(case: &Case) {
    let scene = case.queue().await;
    scene.publish(3).await;
    let lease = scene.claim_one("a", 3).await;
    scene.settle_each(&lease, vec![((1, 3), retry(3_600_000, "later"))]).await.unwrap();
    let wake = arm(&scene).await;
    scene.act(2, MessageAct::Retry, false).await.unwrap();
    woken(&scene, wake, "2").await;
    assert_eq!(scene.states_of(1..=3).await, ["waiting", "done", "waiting"]);
    scene.claim_nothing("a", 10).await;
    case.advance(HOUR);
    assert_eq!(scene.drain("a").await.len(), 2);
}

/// While it is leased a message is changed only by force: the lease is lost, and its other messages are handed out again,
/// no attempt counted.
pub async fn a_leased_message_changes_only_by_force(case: &Case) {
    for act in [MessageAct::Skip, give_up(), MessageAct::Retry] {
        let scene = case.pub_sub().await.subscribe(act.as_str(), Start::Now).await;
        let offsets = scene.publish(3).await;
        let held = scene.claim_one("a", 3).await;
        let refused = failed(scene.act(offsets[1], act.clone(), false).await, ErrorKind::InvalidTransition);
        assert!(refused.to_string().contains("force"), "{refused}");
        scene.extend(&held, HOUR).await.unwrap();
        scene.act(offsets[1], act.clone(), true).await.unwrap();
        failed(scene.settle(Settlement::ack_all(&held)).await, ErrorKind::LeaseLost);
        let entry = scene.store.audit(1).await.unwrap().remove(0);
        let detail: serde_json::Value = serde_json::from_str(&entry.detail).unwrap();
        assert_eq!(detail, serde_json::json!({ "offset": offsets[1], "from": "leased", "owner": "a" }));
        let leases = scene.claim("b", 10).await;
        assert!(leases.iter().all(|lease| lease.attempt == 1), "{leases:?}");
        let mut again = spanned(&leases);
        again.sort_unstable();
        let expected = if act == MessageAct::Retry { offsets.clone() } else { vec![offsets[0], offsets[2]] };
        assert_eq!(again, expected, "{act:?}");
        for lease in leases {
            scene.ack(&lease).await;
        }
    }
}

/// In an ordered group the followers of a key wait for its failed message. Skipping or burying that one releases them,
/// in their order; other keys are not touched. A parked message itself can be skipped, but not retried.
pub async fn skipping_releases_the_followers_of_a_key(case: &Case) {
    for act in [MessageAct::Skip, give_up()] {
        let name = format!("orders-{}", act.as_str());
        let scene = Scene::new(case.open().await, &name, ordered(2)).await;
        let keyed = |text: &str, key: &str| NewMessage::new(text.to_owned()).key(key);
        let messages =
            [keyed("a1", "a"), keyed("b1", "b"), keyed("a2", "a"), keyed("a3", "a"), keyed("b2", "b")];
        scene.publish_all(&messages).await;
        let mut got = delivered(&scene, "a1").await;
        got.sort_unstable();
        assert_eq!(got, ["b1", "b2"]);
        assert_eq!(scene.state_of(1).await.as_str(), "waiting");
        assert_eq!(scene.states_of([3, 4]).await, ["parked"; 2]);
        let refused = failed(scene.act(3, MessageAct::Retry, false).await, ErrorKind::InvalidTransition);
        assert!(refused.to_string().contains("older message of its key"), "{refused}");
        scene.act(3, MessageAct::Skip, false).await.unwrap();
        assert_eq!(delivered(&scene, "").await, [] as [&str; 0], "the key still waits");
        scene.act(1, act.clone(), false).await.unwrap();
        assert_eq!(delivered(&scene, "").await, ["a3"], "{act:?}");
    }
}

/// A message that its lane has not reached is skipped: what is before it in the lane is delivered in order, and so is
/// what follows.
pub async fn a_message_ahead_in_a_lane_is_skipped(case: &Case) {
    let scene = case.scene(ordered(2)).await;
    let messages: Vec<_> = (1..=6).map(|n| NewMessage::new(n.to_string()).key("k")).collect();
    scene.publish_all(&messages).await;
    scene.act(4, MessageAct::Skip, false).await.unwrap();
    assert_eq!(
        scene.states_of(1..=6).await,
        ["waiting", "waiting", "waiting", "done", "not_handed_out", "not_handed_out"]
    );
    assert_eq!(delivered(&scene, "").await, ["1", "2", "3", "5", "6"]);
}

/// In reference counting a skipped message is complete for the group, as one that it has handled.
pub async fn a_skipped_message_completes_its_record(case: &Case) {
    let scene = case.scene(counted()).await;
    scene.publish(3).await;
    scene.track_all().await;
    scene.act(2, MessageAct::Skip, false).await.unwrap();
    scene.track_all().await;
    assert_eq!(groups_of(&scene.record(2).await), (vec!["workers"], vec!["workers"], true));
    assert_eq!(groups_of(&scene.record(1).await), (vec!["workers"], vec![], false));
    assert_eq!(scene.drain("a").await.len(), 2);
    scene.track_all().await;
    assert!(groups_of(&scene.record(3).await).2);
}

/// Unknown topics and groups are named, and a cancelled group has no messages to act on.
pub async fn acts_need_a_group_that_exists(case: &Case) {
    let scene = case.pub_sub().await;
    scene.publish(1).await;
    let unknown =
        scene.store.act_on_message(&scene.topic, &group("x"), Offset(1), &MessageAct::Skip, false).await;
    failed(unknown, ErrorKind::NoSuchSubscription);
    scene.cancel().await;
    failed(scene.act(1, MessageAct::Skip, false).await, ErrorKind::InvalidTransition);
    assert_eq!(scene.store.message_states(&scene.topic, Offset(1)).await.unwrap(), []);
}

/// What the group gets until nothing is left, handled by a consumer that follows the contract. `failing` fails for an
/// hour.
async fn delivered(scene: &Scene, failing: &str) -> Vec<String> {
    let mut consumer = LaneConsumer::new("a");
    let mut got = Vec::new();
    while consumer.claim(scene, 100).await {
        let mut handle = |message: &Message, _: &Lease| {
            let text = String::from_utf8_lossy(&message.payload).into_owned();
            if text == failing {
                return Handled::Failed(3_600_000);
            }
            got.push(text);
            Handled::Done
        };
        while consumer.handle_next(scene.subscription.lanes, &mut handle) {}
        assert!(consumer.settle(scene).await, "no lease is lost");
    }
    got
}
