//! Retention: how long messages stay, which may be removed unread, and that every such removal is counted and logged.

use uuid::Uuid;

use super::case::{Case, Scene, bury, failed, group, offsets_of, owner, payloads_of, retry};
use super::effects::{Effects, handle};
use super::life::{HOUR, MODES, MOMENT, lively, missed, without_groups};
use super::log_capture;
use crate::error::ErrorKind;
use crate::message::{NewMessage, Offset};
use crate::name::{Owner, TopicName};
use crate::settle::{Outcome, Verdict};
use crate::subscription::{MissedMessages, Start, SubscriptionState};
use crate::topic::{Semantics, TopicSettings, Tracking};

/// A separate scene for a tracking mode.
async fn scene_in(case: &Case, tracking: Tracking, settings: TopicSettings) -> Scene {
    Scene::new(case.open().await, tracking.as_str(), TopicSettings { tracking, ..settings }).await
}

/// Retention counts from when the last group was done with the message, not from its publishing, to the millisecond.
pub async fn a_message_stays_for_its_time_after_it_was_done(case: &Case) {
    for tracking in MODES {
        let settings = TopicSettings { message_retention: Some(HOUR), ..lively() };
        let scene = scene_in(case, tracking, settings).await;
        let slow = scene.subscribe("slow", Start::Beginning).await;
        scene.publish(4).await;
        assert_eq!(scene.reads().await, [1, 2, 3, 4]);
        assert_eq!(scene.clean_all().await.removed, 0);
        case.advance(HOUR * 10);
        assert_eq!(scene.clean_all().await.removed, 0, "one group is not done");
        slow.ack_next(3).await;
        assert_eq!(scene.clean_all().await.removed, 0, "the message was done only now");
        case.advance(HOUR - MOMENT);
        assert_eq!(scene.clean_all().await.removed, 0);
        case.advance(MOMENT);
        let step = scene.clean_all().await;
        assert_eq!((step.removed, step.missed), (3, vec![]), "{tracking:?}");
        assert_eq!(scene.stored().await, [4]);
        assert_eq!(scene.topic_status().await.first.0, 4);
        assert_eq!(slow.reads().await, [4]);
    }
}

/// Without a retention limit nothing is ever removed: everything can be replayed.
pub async fn for_ever_keeps_everything(case: &Case) {
    for tracking in MODES {
        let scene = scene_in(case, tracking, TopicSettings { message_retention: None, ..lively() }).await;
        scene.publish(3).await;
        assert_eq!(scene.reads().await, [1, 2, 3]);
        scene.clean_all().await;
        case.advance(HOUR * 24 * 3_650);
        assert_eq!(scene.clean_all().await.removed, 0);
        let replay = scene.subscribe("replay", Start::Beginning).await;
        assert_eq!(replay.reads().await, [1, 2, 3]);
    }
}

/// A message that is published while there is no group stays for `zero_subscription_retention`, for groups that
/// subscribe in that time.
pub async fn messages_without_subscribers_stay_for_the_minimum_retention(case: &Case) {
    let settings = TopicSettings { zero_subscription_retention: HOUR, ..lively() };
    let unread = without_groups(case, &settings).await;
    let publish = async |count: usize| {
        let batch = vec![NewMessage::new("x"); count];
        unread.store.publish(&unread.name, &batch).await.unwrap();
    };
    publish(3).await;
    assert_eq!(unread.clean_all().await, 0);
    case.pass(HOUR - MOMENT).await;
    assert_eq!(unread.clean_all().await, 0);
    case.pass(MOMENT).await;
    assert_eq!(unread.clean_all().await, 3, "no group subscribed");
    publish(3).await;
    assert_eq!(unread.clean_all().await, 0);
    // A group subscribes and handles them at once: they still stay for their minimum time, for other groups.
    let scene = unread.subscribe(Start::Beginning).await;
    assert_eq!(scene.reads().await, [4, 5, 6]);
    scene.clean_all().await;
    assert_eq!(unread.stored().await, [4, 5, 6]);
    case.advance(HOUR - MOMENT);
    scene.clean_all().await;
    assert_eq!(unread.stored().await, [4, 5, 6]);
    case.advance(MOMENT);
    assert_eq!(scene.clean_all().await.removed, 3);
    // With a group that counts the rule does not apply.
    scene.publish(2).await;
    assert_eq!(scene.reads().await, [7, 8]);
    assert_eq!(scene.clean_all().await.removed, 2);
    // The last group is cancelled: the rule applies again.
    scene.cancel().await;
    publish(1).await;
    assert_eq!(unread.clean_all().await, 0);
    case.pass(HOUR).await;
    assert_eq!(unread.clean_all().await, 1);
}

/// More such messages than a step reads do not delay the removal of what was published later, to a group that counts.
pub async fn a_minimum_retention_delays_no_other_removal(case: &Case) {
    for tracking in MODES {
        let settings = TopicSettings { zero_subscription_retention: HOUR, tracking, ..lively() };
        let name = TopicName::new(tracking.as_str()).unwrap();
        let store = case.open().await;
        store.create_topic(&name, &settings).await.unwrap();
        store.publish(&name, &vec![NewMessage::new("x"); 30]).await.unwrap();
        let subscription = store.subscribe(&name, &group("workers"), Start::Now).await.unwrap();
        let scene = Scene { store, topic: name, subscription };
        scene.publish(30).await;
        assert_eq!(scene.reads().await.len(), 30);
        assert_eq!(scene.clean_in_steps_of(10).await.removed, 30, "{tracking:?}");
        assert_eq!(scene.stored().await, (1..=30).collect::<Vec<i64>>());
        case.advance(HOUR);
        assert_eq!(scene.clean_in_steps_of(10).await.removed, 30, "{tracking:?}");
    }
}

/// Every way of publishing is refused with a reason while no group counts, and nothing is written.
pub async fn writes_are_blocked_while_no_group_counts(case: &Case) {
    let settings = TopicSettings { block_writes_on_zero_subscriptions: true, ..lively() };
    let unread = without_groups(case, &settings).await;
    let refused = async |when: &str| {
        let batch = [NewMessage::new("1")];
        let error = failed(unread.store.publish(&unread.name, &batch).await, ErrorKind::NoSubscriptions);
        assert!(error.to_string().contains("orders"), "{when}: {error}");
        let answer = case.harness().publish_in_transaction(&unread.name, &batch, true).await;
        failed(answer, ErrorKind::NoSubscriptions);
        let answer = case.harness().publish_by_sql(&unread.name, "1", None, true).await;
        assert!(answer.is_err(), "{when}: plain SQL was not refused");
        let tick = unread.store.cron_fire("job", case.now(), &unread.name, &batch[0]).await;
        failed(tick, ErrorKind::NoSubscriptions);
        assert_eq!(unread.stored().await, [] as [i64; 0], "{when}");
    };
    let accepted = async |scene: &Scene, when: &str| {
        let batch = [NewMessage::new("1")];
        scene.publish_all(&batch).await;
        case.harness().publish_in_transaction(&unread.name, &batch, true).await.unwrap();
        case.harness().publish_by_sql(&unread.name, "1", None, true).await.unwrap();
        assert_eq!(scene.stored().await.len(), 3, "{when}");
        if scene.state().await == SubscriptionState::Active {
            assert_eq!(scene.drain_until("a", 3).await.len(), 3, "{when}");
            assert_eq!(scene.clean_all().await.removed, 3, "{when}");
        }
    };
    refused("no group ever subscribed").await;
    let scene = unread.subscribe(Start::Beginning).await;
    accepted(&scene, "subscribed").await;
    scene.pause().await;
    accepted(&scene, "paused").await;
    scene.resume().await;
    assert_eq!(scene.drain_until("a", 3).await.len(), 3, "resumed");
    scene.let_die(case).await;
    assert_eq!(scene.clean_all().await.removed, 3);
    refused("dead").await;
    scene.heartbeat("a").await;
    accepted(&scene, "resurrected").await;
    scene.cancel().await;
    refused("cancelled").await;
}

/// A queue waits for its workers: it never blocks, with or without a group.
pub async fn a_queue_never_blocks(case: &Case) {
    let settings = TopicSettings { semantics: Semantics::Queue, ..lively() };
    let unread = without_groups(case, &settings).await;
    unread.store.publish(&unread.name, &[NewMessage::new("1")]).await.unwrap();
    case.harness().publish_by_sql(&unread.name, "2", None, true).await.unwrap();
    let scene = unread.subscribe(Start::Beginning).await;
    assert_eq!(scene.drain_until("a", 2).await.len(), 2);
    scene.cancel().await;
    unread.store.publish(&unread.name, &[NewMessage::new("3")]).await.unwrap();
}

/// `max_retention` removes messages by age whatever the groups do: to the millisecond, counted and logged. The group
/// continues.
pub async fn max_retention_removes_unread_messages_and_reports_them(case: &Case) {
    for tracking in MODES {
        // A name that is used once, so that its log line can be found.
        let name = format!("slow-{}", Uuid::now_v7());
        let settings =
            TopicSettings { tracking, max_retention: Some(HOUR), message_retention: None, ..lively() };
        let done = Scene::new(case.open().await, tracking.as_str(), settings).await;
        let scene = done.subscribe(&name, Start::Beginning).await;
        scene.publish(5).await;
        scene.ack_next(2).await;
        assert_eq!(done.reads().await, [1, 2, 3, 4, 5]);
        assert_eq!(scene.clean_all().await.removed, 0);
        case.pass(HOUR - MOMENT).await;
        assert_eq!(scene.clean_all().await.removed, 0);
        scene.publish(1).await;
        case.pass(MOMENT).await;
        let step = scene.clean_all().await;
        assert_eq!((step.removed, step.missed), (5, vec![(group(&name), missed(3, 3, 5))]), "{tracking:?}");
        assert_eq!(scene.status().await.missed, missed(3, 3, 5));
        assert_eq!(done.status().await.missed, MissedMessages::default());
        let lines = log_capture::lines_with(&name);
        let expected = ["WARN", "messages removed unread", "messages=3", "first=3", "last=5"];
        assert!(expected.iter().all(|part| lines[0].contains(part)) && lines.len() == 1, "{lines:?}");
        let status = scene.status().await;
        assert_eq!((status.next.0, status.floor.0, status.lag), (6, 5, 1), "the group continues after them");
        assert!(status.health_issues(case.now()).contains(&crate::store::HealthIssue::Missed));
        assert_eq!(scene.reads().await, [6]);
        // A second removal adds to the count.
        scene.publish(2).await;
        assert_eq!(scene.clean_all().await.removed, 0);
        case.pass(HOUR).await;
        let step = scene.clean_all().await;
        let mut listed = step.missed;
        listed.sort_by(|(one, _), (other, _)| one.cmp(other));
        let expected = [(group(&name), missed(2, 7, 8)), (group("workers"), missed(3, 6, 8))];
        assert_eq!(listed, expected, "{tracking:?}");
        assert_eq!(scene.status().await.missed, missed(5, 3, 8));
        assert_eq!(scene.publish(1).await, [9]);
        assert_eq!(scene.reads().await, [9]);
    }
}

/// Messages that are leased or wait for a retry when `max_retention` removes them are missed too; the owner may still
/// settle.
pub async fn max_retention_removes_leased_messages(case: &Case) {
    let settings =
        TopicSettings { max_retention: Some(HOUR), message_retention: None, lease: HOUR * 5, ..lively() };
    let scene = case.scene(settings).await;
    scene.publish(6).await;
    let held = scene.claim_one("a", 2).await;
    let waiting = scene.claim_one("a", 2).await;
    let parts = vec![((3, 3), Outcome::Ack), ((4, 4), retry(10_000_000, "later"))];
    scene.settle_each(&waiting, parts).await.unwrap();
    assert_eq!(scene.clean_all().await.removed, 0);
    case.pass(HOUR).await;
    let step = scene.clean_all().await;
    let expected = vec![(group("workers"), missed(5, 1, 6))];
    assert_eq!((step.removed, step.missed), (6, expected), "all but the third");
    assert_eq!(scene.status().await.missed, missed(5, 1, 6));
    assert_eq!(scene.status().await.waiting, 0, "a removed message waits for no retry");
    scene.ack(&held).await;
    let status = scene.status().await;
    assert_eq!((status.floor.0, status.leased, status.lag), (6, 0, 0));
    scene.publish(1).await;
    assert_eq!(scene.reads().await, [7]);
}

/// However often and in however small steps cleanup runs, what a counting group has not done stays. In reference
/// counting completed messages are removed from the middle too.
pub async fn what_a_slow_group_has_not_done_is_never_removed(case: &Case) {
    for tracking in MODES {
        let scene = scene_in(case, tracking, lively()).await;
        let slow = scene.subscribe("slow", Start::Beginning).await;
        scene.publish(10).await;
        assert_eq!(scene.reads().await.len(), 10);
        slow.ack_next(2).await;
        let held = slow.claim_one("a", 5).await;
        slow.settle_each(&held, vec![((5, 6), Outcome::Ack)]).await.unwrap();
        for _ in 0..3 {
            case.advance(HOUR * 24);
            scene.clean_in_steps_of(1).await;
        }
        let kept = scene.stored().await;
        let not_done = [3, 4, 7, 8, 9, 10];
        assert!(not_done.iter().all(|offset| kept.contains(offset)), "{tracking:?}: {kept:?}");
        assert!(!kept.contains(&1) && !kept.contains(&2), "{tracking:?}: {kept:?}");
        if tracking == Tracking::ReferenceCounting {
            assert_eq!(kept, not_done, "completed messages are removed from the middle");
        }
        assert_eq!(slow.status().await.missed, MissedMessages::default());
        let mut got = slow.reads().await;
        got.sort_unstable();
        assert_eq!(got, not_done, "what expired is redelivered");
        scene.clean_in_steps_of(1).await;
        assert_eq!(scene.stored().await, [] as [i64; 0]);
    }
}

/// A group that subscribes after a cleanup starts at the first stored message, whatever its start, and has missed
/// nothing.
pub async fn a_late_subscriber_starts_at_the_first_stored(case: &Case) {
    let began = case.now();
    let scene = case.scene(lively()).await;
    scene.publish(6).await;
    scene.ack_next(4).await;
    assert_eq!(scene.clean_all().await.removed, 4);
    assert_eq!(scene.topic_status().await.first.0, 5);
    for (name, start) in [
        ("beginning", Start::Beginning),
        ("offset", Start::Offset(Offset(2))),
        ("bounded", Start::BeginningBounded(100)),
        ("time", Start::Timestamp(began)),
    ] {
        let late = scene.subscribe(name, start).await;
        assert_eq!(late.status().await.lag, 2, "{name}");
        assert_eq!(late.reads().await, [5, 6], "{name}");
        assert_eq!(late.status().await.missed, MissedMessages::default(), "{name}");
    }
}

/// Offsets rise and are never reused, also when no message is left and after restarts.
pub async fn offsets_are_not_reused_after_everything_was_removed(case: &Case) {
    let mut scene = case.scene(lively()).await;
    for round in 0..4_i64 {
        assert_eq!(scene.publish(3).await, [round * 3 + 1, round * 3 + 2, round * 3 + 3]);
        assert_eq!(scene.reads().await.len(), 3);
        assert_eq!(scene.clean_all().await.removed, 3);
        assert_eq!(scene.stored().await, [] as [i64; 0]);
        let status = scene.topic_status().await;
        assert_eq!((status.first.0, status.watermark.0), (round * 3 + 4, round * 3 + 3));
        scene.store.close().await.unwrap();
        scene = scene.through(&case.open().await);
    }
    let late = scene.subscribe("late", Start::Beginning).await;
    assert_eq!(late.status().await.lag, 0);
    scene.publish(1).await;
    assert_eq!(late.reads().await, [13]);
}

/// A dead letter is a copy: it outlives its message. Redriving it then reports that the message is gone.
pub async fn dead_letters_survive_cleanup(case: &Case) {
    let scene = case.scene(lively()).await;
    scene.publish_all(&[NewMessage::new("hopeless").key("k"), NewMessage::new("fine")]).await;
    let lease = scene.claim_one("a", 2).await;
    scene.settle_each(&lease, vec![((1, 1), bury("no")), ((2, 2), Outcome::Ack)]).await.unwrap();
    let buried = scene.dead_letters().await;
    assert_eq!(scene.clean_all().await.removed, 2);
    assert_eq!(scene.dead_letters().await, buried);
    assert_eq!((buried[0].payload.as_ref(), buried[0].key.as_deref()), (&b"hopeless"[..], Some("k")));
    let redriven = scene.store.redrive(&scene.dead_letter_selection()).await.unwrap();
    assert_eq!((redriven.redriven, redriven.gone), (0, 1));
    assert_eq!(scene.dead_letters().await, buried, "the dead letter stays");
    assert_eq!(scene.store.purge(&scene.dead_letter_selection()).await.unwrap(), 1);
}

/// A redriven message is not done any more: it stays until it is.
pub async fn a_redriven_message_stays_until_it_is_done(case: &Case) {
    for tracking in MODES {
        let settings = TopicSettings { message_retention: Some(HOUR), ..lively() };
        let scene = scene_in(case, tracking, settings).await;
        scene.publish(3).await;
        let lease = scene.claim_one("a", 3).await;
        let parts = vec![((1, 1), Outcome::Ack), ((2, 2), bury("no")), ((3, 3), Outcome::Ack)];
        scene.settle_each(&lease, parts).await.unwrap();
        assert_eq!(scene.clean_all().await.removed, 0);
        case.advance(HOUR - MOMENT);
        assert_eq!(scene.store.redrive(&scene.dead_letter_selection()).await.unwrap().redriven, 1);
        case.advance(MOMENT);
        scene.clean_all().await;
        assert!(scene.stored().await.contains(&2), "{tracking:?}");
        assert_eq!(payloads_of(&scene.drain("a").await), ["2"]);
        // Not in the same moment: the watermark is noted only now and then.
        case.advance_ms(60_000);
        scene.clean_all().await;
        case.advance(HOUR);
        scene.clean_all().await;
        assert_eq!(scene.stored().await, [] as [i64; 0], "{tracking:?}");
    }
}

/// A scheduled message whose time has not come is not in the log yet: no retention applies to it.
pub async fn scheduled_messages_are_left_alone(case: &Case) {
    let scene = case.scene(lively()).await;
    let later = NewMessage::new("later").deliver_at(case.now() + HOUR * 100);
    scene.store.publish(&scene.topic, &[NewMessage::new("now"), later]).await.unwrap();
    assert_eq!(scene.reads().await, [1]);
    assert_eq!(scene.clean_all().await.removed, 1);
    case.advance(HOUR * 99);
    assert_eq!(scene.clean_all().await.removed, 0);
    assert_eq!(scene.topic_status().await.scheduled, 1);
    case.advance(HOUR);
    assert_eq!(payloads_of(&scene.drain("a").await), ["later"]);
    assert_eq!(scene.clean_all().await.removed, 1);
}

/// A step removes no more than its limit and reports whether there is more. With concurrent cleanups each message is
/// removed once.
pub async fn cleanup_goes_in_bounded_steps(case: &Case) {
    for tracking in MODES {
        let scene = scene_in(case, tracking, lively()).await;
        scene.publish(20).await;
        assert_eq!(scene.reads().await.len(), 20);
        scene.track_all().await;
        let step = scene.clean(7).await;
        assert_eq!((step.removed, step.more), (7, true));
        assert_eq!(scene.stored().await.len(), 13);
        let stores = [scene.clone(), scene.through(&case.open().await)];
        let tasks: Vec<_> = (0..6)
            .map(|n| {
                let scene = stores[n % 2].clone();
                tokio::spawn(async move {
                    let mut removed = 0;
                    loop {
                        let step = scene.clean(2).await;
                        removed += step.removed;
                        if !step.more {
                            return removed;
                        }
                    }
                })
            })
            .collect();
        let mut removed = 0;
        for task in tasks {
            removed += task.await.unwrap();
        }
        removed += scene.clean_all().await.removed;
        assert_eq!(removed, 13, "{tracking:?}");
        assert_eq!(scene.stored().await, [] as [i64; 0]);
    }
}

/// The ack log shows which owner acked a message and when: one entry per ack, whole or in part, removed with its
/// message.
pub async fn the_ack_log_shows_which_owner_acked_what(case: &Case) {
    let scene = case.scene(TopicSettings { ack_log: true, ..lively() }).await;
    let other = scene.subscribe("other", Start::Beginning).await;
    scene.publish(5).await;
    let lease = scene.claim_one("whole", 2).await;
    let acked_at = case.now();
    scene.ack(&lease).await;
    case.advance_ms(500);
    let parts = scene.claim_one("parts", 2).await;
    let outcomes = vec![((3, 3), Outcome::Release), ((4, 4), Outcome::Ack)];
    scene.settle_each(&parts, outcomes).await.unwrap();
    case.advance_ms(500);
    let all = other.claim_one("all", 5).await;
    other.ack(&all).await;
    let (by_all, workers) = (("other".to_owned(), owner("all")), "workers".to_owned());
    assert_eq!(acked_by(&scene, 1).await, [(workers.clone(), owner("whole")), by_all.clone()]);
    assert_eq!(acked_by(&scene, 2).await, [(workers.clone(), owner("whole")), by_all.clone()]);
    assert_eq!(acked_by(&scene, 3).await, std::slice::from_ref(&by_all), "released is not done");
    assert_eq!(acked_by(&scene, 4).await, [(workers, owner("parts")), by_all]);
    let ack = scene.store.acks(&scene.topic, Offset(1)).await.unwrap().remove(0);
    assert_eq!((ack.range, ack.at), (lease.range, acked_at));
    assert_eq!(scene.store.acks(&scene.topic, Offset(99)).await.unwrap(), []);
    assert_eq!(scene.reads().await, [3, 5]);
    assert_eq!(scene.clean_all().await.removed, 5);
    for offset in 1..=5 {
        assert_eq!(
            scene.store.acks(&scene.topic, Offset(offset)).await.unwrap(),
            [],
            "removed with its message"
        );
    }
    // A topic without an ack log has no entries.
    let plain = scene.beside("plain", lively()).await;
    plain.publish(1).await;
    plain.reads().await;
    assert_eq!(plain.store.acks(&plain.topic, Offset(1)).await.unwrap(), []);
}

/// The groups and owners that acked a message, oldest first.
async fn acked_by(scene: &Scene, offset: i64) -> Vec<(String, Owner)> {
    let acks = scene.store.acks(&scene.topic, Offset(offset)).await.unwrap();
    assert!(acks.iter().all(|ack| ack.range.contains(Offset(offset))), "{acks:?}");
    acks.into_iter().map(|ack| (ack.group.as_str().to_owned(), ack.owner)).collect()
}

/// An ack in the store's own transaction is logged in that transaction.
pub async fn an_ack_in_a_transaction_is_in_the_ack_log(case: &Case) {
    let scene = case.scene(TopicSettings { ack_log: true, ..lively() }).await;
    let _effects = Effects::new(case, &scene.store).await;
    scene.publish(2).await;
    let lease = scene.claim_one("handler", 2).await;
    handle(&scene, &lease, "mailer", std::sync::Arc::new(|_| Verdict::Done)).await.unwrap();
    for offset in 1..=2 {
        assert_eq!(acked_by(&scene, offset).await, [("workers".to_owned(), owner("handler"))]);
    }
}

/// A group that subscribes during a cleanup gets everything from its start on: no message after its cursor is
/// removed.
pub async fn subscribing_among_cleanups_loses_nothing(case: &Case) {
    for tracking in MODES {
        let scene = scene_in(case, tracking, lively()).await;
        for round in 0..10 {
            let first = scene.publish(30).await[0];
            scene.reads().await;
            scene.track_all().await;
            let cleaner = {
                let scene = scene.through(&case.open().await);
                tokio::spawn(async move { while scene.clean(3).await.more {} })
            };
            let late = scene.subscribe(&format!("late-{round}"), Start::Beginning).await;
            let next = late.status().await.next.0;
            cleaner.await.unwrap();
            let got = offsets_of(&late.drain("a").await);
            let expected: Vec<_> = (next.max(first)..first + 30).collect();
            assert_eq!(got, expected, "round {round}, {tracking:?}: from its start, without a hole");
            assert_eq!(late.status().await.missed, MissedMessages::default());
            late.cancel().await;
            scene.clean_all().await;
        }
    }
}
