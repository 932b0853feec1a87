//! Unread messages are kept: for the workers of a queue, for groups that died, and whatever the clock shows.

use std::time::Duration;

use uuid::Uuid;

use super::case::{Case, Scene, group};
use super::life::{HOUR, INTERVAL, MODES, TIMEOUT, Unread, lively, missed};
use super::log_capture;
use crate::message::NewMessage;
use crate::name::TopicName;
use crate::store::{CleanStep, Signal};
use crate::subscription::{MissedMessages, Start, SubscriptionState};
use crate::topic::{Semantics, TopicSettings, Tracking};

const DAY: Duration = Duration::from_secs(24 * 3_600);
/// The most that one step of the clock may age messages.
const STEP: Duration = Duration::from_secs(300);
/// How long maintenance keeps dead and cancelled subscriptions.
const SUBSCRIPTIONS_KEPT: Duration = Duration::from_secs(30 * 24 * 3_600);

/// The default settings of topics, with groups that die soon.
fn by_default(semantics: Semantics, tracking: Tracking) -> TopicSettings {
    let settings = match semantics {
        Semantics::Queue => TopicSettings::default(),
        Semantics::PubSub => TopicSettings::pub_sub(),
    };
    TopicSettings { tracking, heartbeat_interval: INTERVAL, heartbeat_timeout: TIMEOUT, ..settings }
}

/// Runs every job that may remove something.
async fn maintain(scene: &Scene) -> CleanStep {
    scene.detect().await;
    let step = scene.clean_all().await;
    let cleaned =
        scene.store.clean_subscriptions(SUBSCRIPTIONS_KEPT).await.expect("subscriptions are cleaned");
    assert_eq!(cleaned.deleted, [], "no subscription is deleted");
    step
}

/// The watermark of the topic in the view of cleanup.
async fn shown(case: &Case, scene: &Scene) -> i64 {
    let of_topic = |view: &str| format!("SELECT watermark FROM {view} WHERE topic = '{}'", scene.topic);
    case.harness().number(&of_topic("headwater_cleanup"), &of_topic("{schema}.cleanup")).await
}

/// The workers of a queue may be gone for any time, dead or not: what they have not done is kept, and so is what is
/// published meanwhile.
pub async fn a_queue_keeps_its_messages_without_workers(case: &Case) {
    for tracking in MODES {
        let settings = by_default(Semantics::Queue, tracking);
        let busy = Scene::new(case.open().await, &format!("busy-{tracking:?}"), settings.clone()).await;
        let idle = busy.beside(&format!("idle-{tracking:?}"), settings).await;
        busy.publish(5).await;
        busy.ack_next(1).await;
        busy.claim_one("a", 1).await;
        idle.publish(1).await;
        assert_eq!(idle.reads().await, [1]);
        for scene in [&busy, &idle] {
            scene.let_die(case).await;
        }
        for day in 0..40 {
            for scene in [&busy, &idle] {
                let step = maintain(scene).await;
                assert_eq!(step.missed, [], "day {day}");
            }
            if day == 35 {
                idle.publish(2).await;
            }
            case.pass(DAY).await;
        }
        for scene in [&busy, &idle] {
            maintain(scene).await;
            assert_eq!(scene.state().await, SubscriptionState::Dead);
        }
        assert_eq!(busy.topic_status().await.watermark.0, 1, "the watermark waits for the dead group");
        assert_eq!(shown(case, &busy).await, 1, "also in the view of cleanup");
        assert_eq!(busy.heartbeat("a").await, Signal::Resurrected(MissedMessages::default()));
        let mut got = busy.reads().await;
        got.sort_unstable();
        assert_eq!(got, [2, 3, 4, 5], "{tracking:?}");
        assert_eq!(idle.heartbeat("a").await, Signal::Resurrected(MissedMessages::default()));
        assert_eq!(idle.reads().await, [2, 3], "{tracking:?}");
        // Messages that the group has done are removed as usual.
        for scene in [&busy, &idle] {
            assert_eq!(scene.status().await.missed, MissedMessages::default());
            maintain(scene).await;
            case.pass(DAY * 2).await;
            scene.heartbeat("a").await;
            scene.clean_all().await;
            assert_eq!(scene.stored().await, [] as [i64; 0], "{tracking:?}");
        }
    }
}

/// A dead group of a fan-out topic keeps no messages that others have done, beyond the documented time; what it loses
/// is counted, logged and shown.
pub async fn messages_missed_by_a_dead_group_are_counted_and_logged(case: &Case) {
    for tracking in MODES {
        let name = format!("dead-{}", Uuid::now_v7());
        let other =
            Scene::new(case.open().await, tracking.as_str(), by_default(Semantics::PubSub, tracking)).await;
        let dead = other.subscribe(&name, Start::Beginning).await;
        other.publish(4).await;
        dead.ack_next(1).await;
        assert_eq!(other.reads().await, [1, 2, 3, 4]);
        dead.let_die(case).await;
        assert_eq!(maintain(&other).await.removed, 0);
        case.pass(DAY - HOUR).await;
        assert_eq!(maintain(&other).await.removed, 0, "an hour is left");
        assert_eq!(log_capture::lines_with(&name), [] as [String; 0]);
        case.pass(HOUR).await;
        let step = maintain(&other).await;
        assert_eq!((step.removed, step.missed), (4, vec![(group(&name), missed(3, 2, 4))]), "{tracking:?}");
        let status = dead.status().await;
        assert_eq!(status.missed, missed(3, 2, 4));
        assert!(status.health_issues(case.now()).contains(&crate::store::HealthIssue::Missed));
        let lines = log_capture::lines_with(&name);
        let parts = ["WARN", "messages removed unread", tracking.as_str(), "messages=3", "first=2", "last=4"];
        assert!(lines.len() == 1 && parts.iter().all(|part| lines[0].contains(part)), "{lines:?}");
        assert_eq!(dead.heartbeat("a").await, Signal::Resurrected(missed(3, 2, 4)));
    }
}

/// Without a group that counts the watermark stays. What the dead group has not done waits for `max_retention`; what
/// is published meanwhile stays for `zero_subscription_retention`.
pub async fn the_only_group_died_and_its_messages_stay(case: &Case) {
    for tracking in MODES {
        let settings =
            TopicSettings { max_retention: Some(DAY * 30), ..by_default(Semantics::PubSub, tracking) };
        let scene = Scene::new(case.open().await, tracking.as_str(), settings).await;
        scene.publish(5).await;
        scene.ack_next(2).await;
        scene.let_die(case).await;
        assert_eq!(scene.topic_status().await.watermark.0, 2);
        assert_eq!(maintain(&scene).await.removed, 0);
        scene.publish(3).await;
        maintain(&scene).await;
        assert_eq!(scene.topic_status().await.watermark.0, 2, "the watermark stays");
        assert_eq!(shown(case, &scene).await, 2, "also in the view of cleanup");
        case.pass(DAY - HOUR).await;
        assert_eq!(maintain(&scene).await.missed, []);
        assert_eq!(scene.stored().await.last(), Some(&8), "an hour of their minimum time is left");
        case.pass(HOUR).await;
        let step = scene.clean_in_steps_of(2).await;
        assert_eq!(step.missed, [(group("workers"), missed(3, 6, 8))], "{tracking:?}");
        assert_eq!(scene.stored().await, [3, 4, 5]);
        for _ in 0..28 {
            case.pass(DAY).await;
            assert_eq!(maintain(&scene).await.removed, 0);
        }
        assert_eq!(scene.status().await.missed, missed(3, 6, 8));
        case.pass(DAY).await;
        let step = scene.clean_all().await;
        assert_eq!(step.missed, [(group("workers"), missed(3, 3, 5))], "by max_retention, {tracking:?}");
        assert_eq!(scene.heartbeat("a").await, Signal::Resurrected(missed(6, 3, 8)));
        assert_eq!(scene.publish(1).await, [9]);
        assert_eq!(scene.reads().await, [9]);
    }
}

/// One topic for each rule under which unread messages may be removed.
struct Unreads {
    /// A group that counts and is slow: `max_retention`.
    slow: Scene,
    /// No group at all: `zero_subscription_retention`.
    unsubscribed: Unread,
    /// The only group is dead: `max_retention`.
    orphan: Scene,
    /// Another group is done: `message_retention`.
    beside: Scene,
    /// A dead group with nothing left to read: its subscription is kept.
    idle: Scene,
}

impl Unreads {
    async fn new(case: &Case, tracking: Tracking) -> Self {
        let settings = TopicSettings {
            message_retention: Some(DAY),
            max_retention: Some(DAY),
            zero_subscription_retention: DAY,
            ..by_default(Semantics::PubSub, tracking)
        };
        let slow = Scene::new(case.open().await, "slow", settings.clone()).await;
        let orphan = slow.beside("orphan", settings.clone()).await;
        let beside = slow.beside("beside", settings.clone()).await;
        let idle = slow.beside("idle", settings.clone()).await;
        let done = beside.subscribe("done", Start::Beginning).await;
        let living = idle.subscribe("living", Start::Beginning).await;
        let name = TopicName::new("unsubscribed").expect("a name");
        let unsubscribed = Unread { store: slow.store.clone(), name };
        unsubscribed.store.create_topic(&unsubscribed.name, &settings).await.expect("the topic is created");
        unsubscribed.store.publish(&unsubscribed.name, &[NewMessage::new("1")]).await.expect("published");
        for scene in [&slow, &orphan, &beside, &idle] {
            scene.publish(2).await;
        }
        assert_eq!(done.reads().await, [1, 2]);
        assert_eq!(living.reads().await, [1, 2]);
        assert_eq!(idle.reads().await, [1, 2]);
        for scene in [&orphan, &beside, &idle] {
            scene.let_die(case).await;
        }
        Unreads { slow, unsubscribed, orphan, beside, idle }
    }

    async fn maintain(&self) {
        for scene in [&self.slow, &self.orphan, &self.beside, &self.idle] {
            maintain(scene).await;
        }
        self.unsubscribed.clean_all().await;
    }

    /// How many unread messages are left in each topic.
    async fn left(&self) -> [usize; 4] {
        [
            self.slow.stored().await.len(),
            self.unsubscribed.stored().await.len(),
            self.orphan.stored().await.len(),
            self.beside.stored().await.len(),
        ]
    }
}

/// With a clock ahead or behind, by an hour or a month, for a moment or permanently: no unread message is removed
/// before its time, no subscription is deleted, and at its time the message is removed.
async fn endures(case: &Case, tracking: Tracking, ahead: bool, by: Duration, permanent: bool) {
    let unreads = Unreads::new(case, tracking).await;
    unreads.maintain().await;
    let set = |ahead: bool| if ahead { case.advance(by) } else { case.turn_back(by) };
    set(ahead);
    for _ in 0..3 {
        unreads.maintain().await;
    }
    if !permanent {
        set(!ahead);
        unreads.maintain().await;
    }
    let which = format!("{tracking:?}, ahead: {ahead}, by {by:?}, permanent: {permanent}");
    assert_eq!(unreads.left().await, [2, 1, 2, 2], "at once: {which}");
    case.pass(DAY - STEP * 3).await;
    unreads.maintain().await;
    assert_eq!(unreads.left().await, [2, 1, 2, 2], "before its time: {which}");
    case.pass(STEP * 3).await;
    for _ in 0..2 {
        unreads.maintain().await;
        case.pass(DAY).await;
    }
    unreads.slow.detect().await;
    let idle = unreads.idle.through(&unreads.slow.store);
    assert_eq!(idle.state().await, SubscriptionState::Dead, "its subscription is kept: {which}");
    for scene in [&unreads.slow, &unreads.orphan] {
        scene.clean_all().await;
        assert_eq!(scene.status().await.missed, missed(2, 1, 2), "in its time: {which}");
    }
    unreads.unsubscribed.clean_all().await;
    assert_eq!(unreads.unsubscribed.stored().await, [] as [i64; 0], "in its time: {which}");
}

/// A clock that is ahead for a moment removes nothing unread.
pub async fn a_clock_that_is_ahead_removes_nothing_unread(case: &Case) {
    endures(case, Tracking::OffsetWatermark, true, DAY * 31, false).await;
}

/// The same holds in reference counting.
pub async fn a_clock_that_is_ahead_removes_nothing_counted(case: &Case) {
    endures(case, Tracking::ReferenceCounting, true, DAY * 31, false).await;
}

/// A clock that is set ahead permanently removes nothing unread.
pub async fn a_clock_that_stays_ahead_removes_nothing_unread(case: &Case) {
    endures(case, Tracking::OffsetWatermark, true, DAY * 31, true).await;
}

/// Neither does a clock that is set ahead by an hour.
pub async fn a_clock_that_is_an_hour_ahead_removes_nothing_unread(case: &Case) {
    endures(case, Tracking::OffsetWatermark, true, HOUR, true).await;
}

/// A clock that goes back for a moment steps forward afterwards.
pub async fn a_clock_that_was_back_removes_nothing_unread(case: &Case) {
    endures(case, Tracking::OffsetWatermark, false, DAY * 31, false).await;
}

/// A clock that goes back permanently keeps nothing for ever.
pub async fn a_clock_that_stays_back_removes_nothing_unread(case: &Case) {
    endures(case, Tracking::OffsetWatermark, false, DAY * 31, true).await;
}

/// Unread messages age as maintenance reads the clock: a pause of maintenance counts as one step, however long it
/// was.
pub async fn unread_messages_age_as_maintenance_runs(case: &Case) {
    let settings = TopicSettings { message_retention: None, max_retention: Some(STEP * 4), ..lively() };
    let scene = case.scene(settings).await;
    scene.publish(2).await;
    for steps in [STEP, DAY * 300, STEP, STEP / 2, STEP / 2 - Duration::from_millis(1)] {
        assert_eq!(scene.clean_all().await.removed, 0);
        case.advance(steps);
    }
    assert_eq!(scene.clean_all().await.removed, 0);
    case.advance(Duration::from_millis(1));
    let step = scene.clean_all().await;
    assert_eq!(step.missed, [(group("workers"), missed(2, 1, 2))]);
}

/// A queue that becomes a fan-out topic no longer waits for its dead group, and the other way round.
pub async fn a_change_of_semantics_changes_which_groups_count(case: &Case) {
    for tracking in MODES {
        let queue = TopicSettings { semantics: Semantics::Queue, tracking, ..lively() };
        let pub_sub = TopicSettings { semantics: Semantics::PubSub, ..queue.clone() };
        let scene = Scene::new(case.open().await, tracking.as_str(), queue.clone()).await;
        let alter = async |settings: &TopicSettings| {
            scene.store.alter_topic(&scene.topic, settings).await.expect("it is altered");
            scene.track_all().await;
            scene.backfill_all().await;
            let findings = scene.store.doctor().await.expect("the doctor runs");
            assert_eq!(findings, [], "{tracking:?}");
        };
        scene.publish(3).await;
        scene.track_all().await;
        scene.let_die(case).await;
        assert_eq!(scene.clean_all().await.removed, 0);
        alter(&pub_sub).await;
        let other = scene.subscribe("other", Start::Beginning).await;
        assert_eq!(other.reads().await, [1, 2, 3]);
        assert_eq!(scene.topic_status().await.watermark.0, 3, "{tracking:?}");
        other.cancel().await;
        scene.track_all().await;
        alter(&queue).await;
        assert_eq!(scene.topic_status().await.watermark.0, 0, "{tracking:?}");
        scene.publish(1).await;
        assert_eq!(scene.clean_all().await.removed, 0);
        assert_eq!(scene.heartbeat("a").await, Signal::Resurrected(MissedMessages::default()));
        assert_eq!(scene.reads().await, [1, 2, 3, 4], "{tracking:?}");
        assert_eq!(scene.clean_all().await.removed, 4, "{tracking:?}");
    }
}
