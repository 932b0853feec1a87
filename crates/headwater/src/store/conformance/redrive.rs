//! Dead letters under an operator's control: selected, redriven, purged.

use std::time::Duration;

use uuid::Uuid;

use super::case::{Case, Scene, bury, failed, payloads_of, retry, spanned};
use super::wake::{arm, woken};
use crate::error::ErrorKind;
use crate::limits::{DEAD_LETTER_IDS_MAX, DEAD_LETTERS_PER_STEP};
use crate::message::NewMessage;
use crate::settle::Outcome;
use crate::store::{DeadLetterSelection, Redriven};
use crate::subscription::Start;
use crate::topic::{Ordering, TopicSettings};

/// Claims everything available and buries it with this error.
async fn bury_all(scene: &Scene, error: &str) {
    for lease in scene.claim("undertaker", 10_000).await {
        let all = (lease.range.first.0, lease.range.last.0);
        scene.settle_each(&lease, vec![(all, bury(error))]).await.unwrap();
    }
}

fn ordered(lanes: u16) -> TopicSettings {
    TopicSettings { ordering: Ordering::Key, lanes, ..TopicSettings::default() }
}

async fn redrive(scene: &Scene, selection: &DeadLetterSelection) -> (u64, u64) {
    let done = scene.store.redrive(selection).await.expect("redriven");
    (done.redriven, done.gone)
}

/// A redriven message is delivered as if for the first time: no attempts, not suspect, no dead letter left.
pub async fn a_redriven_message_is_delivered_as_new(case: &Case) {
    let scene = case.queue().await;
    scene.publish(3).await;
    // Their worker disappeared, so the rest of the lease is suspect and has an attempt.
    scene.claim_one("gone", 3).await;
    case.advance(Duration::from_secs(400));
    let lease = scene.claim_one("a", 3).await;
    scene.settle_each(&lease, vec![((1, 1), retry(0, "x")), ((2, 2), Outcome::Ack)]).await.unwrap();
    bury_all(&scene, "hopeless").await;
    scene.drain("a").await;
    let letter = scene.dead_letters().await.remove(0);
    assert_eq!((letter.offset.0, letter.attempts), (3, 2));

    assert_eq!(redrive(&scene, &scene.dead_letter_selection()).await, (1, 0));
    assert_eq!(scene.dead_letters().await, []);
    let status = scene.status().await;
    assert_eq!((status.waiting, status.dead_letters), (1, 0));
    let lease = scene.claim_one("a", 3).await;
    assert_eq!((lease.range.first.0, lease.range.last.0), (3, 3));
    assert_eq!((lease.attempt, lease.suspect, lease.lane), (1, false, None));
    assert_eq!(payloads_of(&scene.fetch(&lease).await), ["3"]);
    scene.ack(&lease).await;
    scene.claim_nothing("a", 3).await;
    assert_eq!(scene.status().await.floor.0, 3);
}

/// Another group of the topic, which handled the message long ago, does not receive it again.
pub async fn a_redrive_reaches_its_own_subscription_only(case: &Case) {
    let gave_up = case.pub_sub().await;
    let other = gave_up.subscribe("other", Start::Beginning).await;
    gave_up.publish(2).await;
    bury_all(&gave_up, "x").await;
    other.drain("b").await;
    assert_eq!(
        redrive(&other, &other.dead_letter_selection()).await,
        (0, 0),
        "the group has no dead letters of its own"
    );
    let foreign =
        other.dead_letter_selection().ids(gave_up.dead_letters().await.iter().map(|one| one.dead_letter_id));
    assert_eq!(redrive(&other, &foreign).await, (0, 0), "nor can it redrive another group's");
    assert_eq!(other.store.purge(&foreign).await.unwrap(), 0);
    assert_eq!(redrive(&gave_up, &gave_up.dead_letter_selection()).await, (2, 0));
    other.claim_nothing("b", 10).await;
    assert_eq!(gave_up.drain("a").await.len(), 2);
}

/// A second redrive delivers nothing again, whether it comes later or at the same time from another process.
pub async fn redriving_twice_delivers_once(case: &Case) {
    let scene = case.queue().await;
    scene.publish(200).await;
    bury_all(&scene, "x").await;
    let all = scene.dead_letter_selection();
    let one = all.clone().ids([scene.dead_letters().await[0].dead_letter_id]);
    assert_eq!(redrive(&scene, &one).await, (1, 0));
    assert_eq!(redrive(&scene, &one).await, (0, 0));
    let other = case.open().await;
    let (here, there) = tokio::join!(scene.store.redrive(&all), other.redrive(&all));
    let (here, there): (Redriven, Redriven) = (here.unwrap(), there.unwrap());
    assert_eq!((here.redriven + there.redriven, here.gone + there.gone), (199, 0));
    let leases = scene.claim("a", 1_000).await;
    let mut offsets = spanned(&leases);
    offsets.sort_unstable();
    assert_eq!(offsets, (1..=200).collect::<Vec<_>>());
    for lease in &leases {
        scene.ack(lease).await;
    }
    assert_eq!((redrive(&scene, &all).await, scene.status().await.floor.0), ((0, 0), 200));
}

/// Each field of a selection narrows it, for listing, redriving and purging alike.
pub async fn a_selection_matches_all_of_its_fields(case: &Case) {
    let scene = case.queue().await;
    let message = |key: &str, kind: &str| NewMessage::new("x").key(key).message_type(kind);
    let messages = [message("a", "paid"), message("b", "paid"), message("a", "sent"), NewMessage::new("x")];
    scene.publish_all(&messages).await;
    let lease = scene.claim_one("a", 4).await;
    let errors = ["timed out: '50%_x'", "no such customer", "Timed out", "no such 'customer'"];
    let mut times = Vec::new();
    for (offset, error) in (1..).zip(errors) {
        times.push(case.now());
        scene.settle_each(&lease, vec![((offset, offset), bury(error))]).await.unwrap();
        case.advance_ms(10);
    }
    let all = || scene.dead_letter_selection();
    let listed = async |selection: DeadLetterSelection| {
        let found = scene.store.dead_letters(&selection, 100).await.unwrap();
        found.iter().map(|one| one.offset.0).collect::<Vec<_>>()
    };
    let ids: Vec<Uuid> = scene.dead_letters().await.iter().map(|one| one.dead_letter_id).collect();
    assert_eq!(listed(all()).await, [1, 2, 3, 4]);
    assert_eq!(listed(all().ids([ids[2], ids[0], Uuid::now_v7()])).await, [1, 3]);
    assert_eq!(listed(all().ids([])).await, [] as [i64; 0]);
    assert_eq!(listed(all().key("a")).await, [1, 3]);
    assert_eq!(listed(all().message_type("paid")).await, [1, 2]);
    assert_eq!(listed(all().error_contains("imed out")).await, [1, 3]);
    assert_eq!(listed(all().error_contains("'50%_x'")).await, [1]);
    assert_eq!(listed(all().error_contains("%")).await, [1], "no pattern, just text");
    assert_eq!(listed(all().buried_after(times[2])).await, [3, 4]);
    assert_eq!(listed(all().buried_before(times[2])).await, [1, 2]);
    assert_eq!(listed(all().buried_after(times[1]).buried_before(times[3]).key("a")).await, [3]);
    assert_eq!(listed(all().key("a' OR 1=1 --")).await, [] as [i64; 0]);

    assert_eq!(redrive(&scene, &all().key("a").error_contains("Timed")).await, (1, 0));
    assert_eq!(listed(all()).await, [1, 2, 4]);
    assert_eq!(scene.store.purge(&all().message_type("paid").key("b")).await.unwrap(), 1);
    assert_eq!(listed(all()).await, [1, 4]);
    assert_eq!(spanned(&scene.claim("a", 10).await), [3], "what was purged is not handed out");
}

/// A dead letter whose message was removed from the log cannot be redriven; it stays for an operator to read.
pub async fn a_dead_letter_without_its_message_stays(case: &Case) {
    let scene = case.queue().await;
    scene.publish(3).await;
    bury_all(&scene, "x").await;
    case.harness().remove_message(2).await;
    assert_eq!(redrive(&scene, &scene.dead_letter_selection()).await, (2, 1));
    let left = scene.dead_letters().await;
    assert_eq!((left.len(), left[0].offset.0, &left[0].payload[..]), (1, 2, &b"2"[..]));
    assert_eq!(redrive(&scene, &scene.dead_letter_selection()).await, (0, 1));
    assert_eq!(scene.drain("a").await.len(), 2);
    assert_eq!(scene.store.purge(&scene.dead_letter_selection()).await.unwrap(), 1);
}

/// There are more dead letters than one step takes, and the messages of some were removed.
pub async fn many_dead_letters_are_redriven_in_steps(case: &Case) {
    let scene = case.queue().await;
    let count = usize::try_from(DEAD_LETTERS_PER_STEP).unwrap() * 2 + 100;
    scene.publish(count).await;
    bury_all(&scene, "x").await;
    for offset in [1, 2, 700] {
        case.harness().remove_message(offset).await;
    }
    assert_eq!(redrive(&scene, &scene.dead_letter_selection()).await, (count as u64 - 3, 3));
    assert_eq!(scene.dead_letters().await.len(), 3);
    assert_eq!(scene.drain("a").await.len(), count - 3);
    scene.publish(count).await;
    bury_all(&scene, "y").await;
    assert_eq!(scene.store.purge(&scene.dead_letter_selection()).await.unwrap(), count as u64 + 3);
    assert_eq!(scene.status().await.dead_letters, 0);
}

/// A redriven message that fails again is buried again, with its own attempts; the first dead letter is gone.
pub async fn a_redriven_message_may_be_buried_again(case: &Case) {
    let scene = case.queue().await;
    scene.publish(1).await;
    bury_all(&scene, "first").await;
    let first = scene.dead_letters().await.remove(0);
    redrive(&scene, &scene.dead_letter_selection()).await;
    case.advance_ms(5);
    bury_all(&scene, "second").await;
    let second = scene.dead_letters().await.remove(0);
    assert_eq!((second.error.as_str(), second.attempts, second.offset), ("second", 1, first.offset));
    assert_ne!(second.dead_letter_id, first.dead_letter_id);
    assert_eq!(second.message_id, first.message_id);
}

/// In an ordered subscription a redriven message precedes later messages of its key, and stays in its lane.
pub async fn a_redriven_message_keeps_the_order_of_its_key(case: &Case) {
    let scene = case.scene(ordered(1)).await;
    let keyed = |text: &str, key: &str| NewMessage::new(text.to_owned()).key(key);
    scene.publish_all(&[keyed("a1", "a"), keyed("a2", "a"), keyed("b1", "b")]).await;
    let lease = scene.claim_one("x", 10).await;
    let wait = Outcome::Retry { after: Duration::from_secs(1), error: "x".into(), key: Some("a".into()) };
    scene
        .settle_each(&lease, vec![((1, 1), bury("x")), ((2, 2), wait), ((3, 3), Outcome::Ack)])
        .await
        .unwrap();
    scene.publish_all(&[keyed("a3", "a")]).await;
    assert_eq!(redrive(&scene, &scene.dead_letter_selection()).await, (1, 0));
    case.advance(Duration::from_secs(2));
    let lease = scene.claim_one("x", 10).await;
    assert_eq!(
        (lease.range.first.0, lease.range.last.0, lease.lane),
        (1, 1, Some(0)),
        "a2 is due, but after a1"
    );
    scene.ack(&lease).await;
    let lease = scene.claim_one("x", 10).await;
    assert_eq!((lease.range.first.0, lease.range.last.0), (2, 2));
    scene.ack(&lease).await;
    assert_eq!(payloads_of(&scene.drain("x").await), ["a3"]);
}

/// Each lane gets its own messages back, once, also where a lane buried a range that spans messages of other lanes.
pub async fn redriven_messages_go_to_their_own_lanes(case: &Case) {
    const LANES: u16 = 4;
    let scene = case.scene(ordered(LANES)).await;
    let messages: Vec<_> = (0..40)
        .map(|n| {
            let message = NewMessage::new(n.to_string());
            if n % 5 == 0 { message } else { message.key(format!("key {}", n % 7)) }
        })
        .collect();
    scene.publish_all(&messages).await;
    // Two lanes bury all they have; the others have not started, or hold a lease.
    for _ in 0..2 {
        let lease = scene.claim_one("undertaker", 40).await;
        let all = (lease.range.first.0, lease.range.last.0);
        scene.settle_each(&lease, vec![(all, bury("x"))]).await.unwrap();
    }
    let held = scene.claim_one("busy", 40).await;
    let buried = scene.dead_letters().await.len() as u64;
    assert_eq!(redrive(&scene, &scene.dead_letter_selection()).await, (buried, 0));
    let mut came = Vec::new();
    let mut leases = vec![held];
    while !leases.is_empty() {
        for lease in leases {
            let own = scene.fetch(&lease).await.into_iter().filter(|one| Some(one.lane(LANES)) == lease.lane);
            came.extend(own.map(|one| one.offset.0));
            scene.ack(&lease).await;
        }
        leases = scene.claim("a", 40).await;
    }
    came.sort_unstable();
    assert_eq!(came, (1..=40).collect::<Vec<_>>(), "every message once");
}

/// A redrive wakes waiters of the same process and of another.
pub async fn a_redrive_wakes_a_waiter(case: &Case) {
    let scene = case.queue().await;
    scene.publish(1).await;
    bury_all(&scene, "x").await;
    let wake = arm(&scene).await;
    redrive(&scene, &scene.dead_letter_selection()).await;
    woken(&scene, wake, "1").await;
    bury_all(&scene, "x").await;

    scene.publish(1).await;
    bury_all(&scene, "x").await;
    let other = scene.through(&case.open().await);
    let wake = arm(&scene).await;
    redrive(&other, &other.dead_letter_selection()).await;
    woken(&scene, wake, "1").await;
}

/// A selection outside its limits is refused with the field's name; a selection that matches nothing is no error.
pub async fn a_selection_outside_its_limits_is_refused(case: &Case) {
    let scene = case.queue().await;
    scene.publish(1).await;
    bury_all(&scene, "x").await;
    let many = std::iter::repeat_with(Uuid::now_v7).take(DEAD_LETTER_IDS_MAX + 1);
    for (bad, field) in [
        (scene.dead_letter_selection().ids(many), "ids"),
        (scene.dead_letter_selection().key(""), "key"),
        (scene.dead_letter_selection().key("a\0"), "key"),
        (scene.dead_letter_selection().message_type("x".repeat(256)), "type"),
        (scene.dead_letter_selection().error_contains("a\0b"), "error_contains"),
        (scene.dead_letter_selection().error_contains(""), "error_contains"),
    ] {
        let errors = [
            failed(scene.store.dead_letters(&bad, 1).await, ErrorKind::InvalidInput),
            failed(scene.store.redrive(&bad).await, ErrorKind::InvalidInput),
            failed(scene.store.purge(&bad).await, ErrorKind::InvalidInput),
        ];
        assert!(
            errors.iter().all(|error| error.to_string().contains(&format!("invalid {field}"))),
            "{errors:?}"
        );
    }
    let none = DeadLetterSelection::all(crate::store::SubscriptionId(4_711));
    assert_eq!(redrive(&scene, &none).await, (0, 0));
    assert_eq!(scene.store.purge(&none).await.unwrap(), 0);
    let (first, last) = (jiff::Timestamp::MIN, jiff::Timestamp::MAX);
    let ever = scene.dead_letter_selection().buried_after(first).buried_before(last);
    assert_eq!(scene.store.dead_letters(&ever, 10).await.unwrap().len(), 1);
    let never = scene.dead_letter_selection().buried_before(first);
    assert_eq!(scene.store.dead_letters(&never, 10).await.unwrap(), []);
}

/// The count of a selection is what a redrive of it does, and changes nothing.
pub async fn dead_letters_are_counted_as_a_redrive_finds_them(case: &Case) {
    let scene = case.queue().await;
    scene
        .publish_all(&[NewMessage::new("1").key("a"), NewMessage::new("2"), NewMessage::new("3").key("a")])
        .await;
    bury_all(&scene, "x").await;
    case.harness().remove_message(2).await;
    let count = async |selection: &DeadLetterSelection| {
        let counted = scene.store.count_dead_letters(selection).await.unwrap();
        (counted.redriven, counted.gone)
    };
    let all = scene.dead_letter_selection();
    assert_eq!(count(&all).await, (2, 1));
    assert_eq!(count(&all.clone().key("a").error_contains("x")).await, (2, 0));
    assert_eq!(count(&all.clone().key("b")).await, (0, 0));
    assert_eq!(count(&all.clone().at_most(1)).await, (1, 1));
    assert_eq!(scene.dead_letters().await.len(), 3, "counting changes nothing");
    assert_eq!(redrive(&scene, &all).await, (2, 1));
    assert_eq!(count(&all).await, (0, 1));
    // The removed message is no damage.
    scene.store.purge(&all).await.unwrap();
}

/// A limited selection is redriven, purged and listed oldest first, up to its limit, over several steps; dead letters
/// without a message are passed over.
pub async fn a_limited_selection_takes_the_oldest(case: &Case) {
    let scene = case.queue().await;
    let step = usize::try_from(DEAD_LETTERS_PER_STEP).unwrap();
    let count = step * 2 + 10;
    scene.publish(count).await;
    bury_all(&scene, "x").await;
    case.harness().remove_message(1).await;
    let all = scene.dead_letter_selection();
    let most = u32::try_from(step).unwrap() + 5;
    assert_eq!(redrive(&scene, &all.clone().at_most(most)).await, (u64::from(most), 1));
    let first = |count: usize| (2..2 + i64::try_from(count).unwrap()).collect::<Vec<_>>();
    let mut offsets = spanned(&scene.claim("a", 10_000).await);
    offsets.sort_unstable();
    assert_eq!(offsets, first(step + 5));
    assert_eq!(scene.store.dead_letters(&all.clone().at_most(2), 10).await.unwrap().len(), 2);
    assert_eq!(scene.store.purge(&all.clone().at_most(3)).await.unwrap(), 3, "the one without a message too");
    let left = scene.dead_letters().await;
    assert_eq!((left.len(), left[0].offset.0), (count - step - 5 - 3, i64::try_from(step).unwrap() + 9));
    assert_eq!(redrive(&scene, &all.at_most(0)).await, (0, 0));
}

/// An edited copy is published and its dead letter deleted, once however often it is tried. Other groups of the topic
/// must be accepted, because they get the copy too.
pub async fn an_edited_copy_replaces_its_dead_letter(case: &Case) {
    let scene = case.pub_sub().await;
    scene
        .publish_all(&[NewMessage::new("bad").key("k").header("h", "v"), NewMessage::new("later").key("k")])
        .await;
    bury_all(&scene, "no").await;
    let letter = scene.dead_letters().await.remove(0);
    let copy = NewMessage { payload: "good".into(), ..letter.to_message() };
    let (id, of) = (letter.dead_letter_id, scene.subscription.subscription_id);
    let other = case.open().await;
    let (here, there) = tokio::join!(
        scene.store.replace_dead_letter(of, id, &copy, false),
        other.replace_dead_letter(of, id, &copy, false)
    );
    let (published, refused) = if here.is_ok() { (here, there) } else { (there, here) };
    assert_eq!(published.unwrap().offset.map(|offset| offset.0), Some(3));
    failed(refused, ErrorKind::InvalidInput);
    assert_eq!(scene.dead_letters().await.len(), 1, "the other one stays");
    let got = scene.drain("a").await;
    assert_eq!(payloads_of(&got), ["good"]);
    assert_eq!((got[0].key.as_deref(), got[0].headers.get("h").map(String::as_str)), (Some("k"), Some("v")));
    assert_ne!(got[0].message_id, letter.message_id, "it is a message of its own");
    let entry = scene.store.audit(1).await.unwrap().remove(0);
    let detail: serde_json::Value = serde_json::from_str(&entry.detail).unwrap();
    let expected = serde_json::json!({
        "dead_letter": id, "from": 1, "offset": 3, "message_id": got[0].message_id
    });
    assert_eq!((entry.act.as_str(), detail), ("replace_dead_letter", expected));

    let audit = scene.subscribe("audit", Start::Now).await;
    let letter = scene.dead_letters().await.remove(0);
    let replace = |all| scene.store.replace_dead_letter(of, letter.dead_letter_id, &copy, all);
    let refused = failed(replace(false).await, ErrorKind::InvalidInput).to_string();
    assert!(refused.contains("audit") && refused.contains("nothing was changed"), "{refused}");
    assert_eq!(scene.dead_letters().await, std::slice::from_ref(&letter));
    let large = NewMessage::new(vec![0; 2_000_000]);
    let refused = scene.store.replace_dead_letter(of, letter.dead_letter_id, &large, true).await;
    failed(refused, ErrorKind::PayloadTooLarge);
    assert_eq!(
        scene.dead_letters().await,
        std::slice::from_ref(&letter),
        "what a publish refuses keeps the dead letter"
    );
    replace(true).await.unwrap();
    assert_eq!((scene.drain("a").await.len(), audit.drain("a").await.len()), (1, 1));
}
