//! Operators' actions on a group: move its cursor, release a lease, force completion, set its policy; and the audit.

use std::time::Duration;

use super::case::{Case, Scene, bury, failed, group, offsets_of, owner, range, retry};
use super::heartbeat::at_rest;
use super::life::{HOUR, MODES, MOMENT, counted, lively, missed};
use super::wake::arm;
use crate::backfill::BackfillLimits;
use crate::error::ErrorKind;
use crate::lease::LeaseToken;
use crate::limits::SAFETY_POLL;
use crate::message::{NewMessage, Offset};
use crate::settle::{Outcome, Settlement};
use crate::store::{AuditEntry, ForceCompleted, Moved, Signal, Stuck};
use crate::subscription::{DeliveryPolicy, MissedMessages, NewSubscription, Start, SubscriptionState};
use crate::topic::TopicSettings;
use std::collections::HashMap;

/// A topic that keeps everything, so that cursors can be moved anywhere.
fn kept() -> TopicSettings {
    TopicSettings { message_retention: None, ..lively() }
}

fn moved(from: i64, to: i64, replayed: u64, skipped: u64, leases_lost: u64) -> Moved {
    Moved { from: Offset(from), to: Offset(to), replayed, skipped, leases_lost }
}

/// Ten messages, one a second.
async fn ten_messages(case: &Case) -> Scene {
    let scene = case.scene(kept()).await;
    for n in 1..=10 {
        scene.publish_all(&[NewMessage::new(n.to_string())]).await;
        case.advance_ms(1_000);
    }
    scene
}

/// For every kind of target, the dry run returns exactly what the real seek does and changes nothing. Afterwards the
/// group gets exactly the messages from its new cursor on.
pub async fn a_cursor_is_moved_to_every_kind_of_start(case: &Case) {
    let began = case.now();
    let scene = ten_messages(case).await;
    let at = |ms| Start::Timestamp(began + Duration::from_millis(ms));
    for (name, to, expected) in [
        ("beginning", Start::Beginning, moved(6, 1, 5, 0, 0)),
        ("now", Start::Now, moved(6, 11, 0, 5, 0)),
        ("back", Start::Offset(Offset(3)), moved(6, 3, 3, 0, 0)),
        ("ahead", Start::Offset(Offset(8)), moved(6, 8, 0, 2, 0)),
        ("here", Start::Offset(Offset(6)), moved(6, 6, 0, 0, 0)),
        ("time back", at(1_500), moved(6, 3, 3, 0, 0)),
        ("time ahead", at(8_000), moved(6, 9, 0, 3, 0)),
        ("last two", Start::BeginningBounded(2), moved(6, 9, 0, 3, 0)),
        ("last seven", Start::BeginningBounded(7), moved(6, 4, 2, 0, 0)),
        ("last hundred", Start::BeginningBounded(100), moved(6, 1, 5, 0, 0)),
    ] {
        let reader = scene.subscribe(name, Start::Beginning).await;
        reader.ack_next(5).await;
        let before = reader.status().await;
        for _ in 0..2 {
            let dry = reader.store.seek(&reader.topic, &group(name), to, true).await.unwrap();
            assert_eq!(dry, expected, "{name}, dry");
            assert_eq!(reader.status().await, before, "{name}: a dry run changed something");
        }
        let real = reader.store.seek(&reader.topic, &group(name), to, false).await.unwrap();
        assert_eq!(real, expected, "{name}");
        let status = reader.status().await;
        assert_eq!((status.next, status.floor.0), (real.to, real.to.0 - 1), "{name}");
        let left: Vec<_> = (expected.to.0..=10).collect();
        assert_eq!(reader.reads().await, left, "{name}");
    }
}

/// A seek clears what is outstanding: leases are lost at once, retries are dropped, dead letters stay. Each message
/// is counted as replayed or skipped.
pub async fn seeking_clears_what_is_outstanding(case: &Case) {
    let scene = ten_messages(case).await;
    for (name, to, expected) in [
        ("ahead", 9, moved(7, 9, 0, 5, 1)),
        ("between", 4, moved(7, 4, 1, 1, 1)),
        ("back", 1, moved(7, 1, 3, 0, 1)),
    ] {
        let reader = scene.subscribe(name, Start::Beginning).await;
        // Done: 1, 2 and, buried, 6. Leased: 3 and 4. To be retried: 5.
        reader.ack_next(2).await;
        let held = reader.claim_one("a", 2).await;
        let others = reader.claim_one("a", 2).await;
        let parts = vec![((5, 5), retry(0, "again")), ((6, 6), bury("no"))];
        reader.settle_each(&others, parts).await.unwrap();
        let to = Start::Offset(Offset(to));
        assert_eq!(
            reader.store.seek(&reader.topic, &group(name), to, true).await.unwrap(),
            expected,
            "{name}"
        );
        reader.extend(&held, HOUR).await.unwrap();
        assert_eq!(
            reader.store.seek(&reader.topic, &group(name), to, false).await.unwrap(),
            expected,
            "{name}"
        );
        failed(reader.settle(Settlement::ack_all(&held)).await, ErrorKind::LeaseLost);
        failed(reader.extend(&held, HOUR).await, ErrorKind::LeaseLost);
        assert_eq!(reader.outstanding().await, [], "{name}");
        assert_eq!(reader.dead_letters().await.len(), 1, "{name}");
        let left: Vec<_> = (expected.to.0..=10).collect();
        assert_eq!(reader.reads().await, left, "{name}: each once, as a first attempt");
    }
}

/// The cursor is moved back before a buried message and the dead letter is redriven too: the message is delivered
/// once.
pub async fn a_dead_letter_redriven_after_a_seek_is_delivered_once(case: &Case) {
    let scene = case.scene(kept()).await;
    scene.publish(3).await;
    let lease = scene.claim_one("a", 3).await;
    let parts = vec![((1, 1), Outcome::Ack), ((2, 2), bury("no")), ((3, 3), Outcome::Ack)];
    scene.settle_each(&lease, parts).await.unwrap();
    scene.store.seek(&scene.topic, &group("workers"), Start::Beginning, false).await.unwrap();
    scene.store.redrive(&scene.dead_letter_selection()).await.unwrap();
    assert_eq!(scene.dead_letters().await, []);
    let mut got = scene.reads().await;
    got.sort_unstable();
    assert_eq!(got, [1, 2, 3]);
    assert_eq!(scene.store.doctor().await.unwrap(), []);
}

/// A seek of a paused group leaves it paused, of a dead group dead; for a cancelled group it is refused.
pub async fn seeking_changes_no_state(case: &Case) {
    let store = case.open().await;
    for state in SubscriptionState::ALL {
        let scene = Scene::new(store.clone(), state.as_str(), kept()).await;
        scene.publish(4).await;
        scene.ack_next(2).await;
        scene.bring_to(case, state).await;
        let before = scene.status().await;
        let answer = store.seek(&scene.topic, &group("workers"), Start::Beginning, false).await;
        if state == SubscriptionState::Cancelled {
            failed(answer, ErrorKind::InvalidTransition);
            assert_eq!(scene.status().await, before);
            continue;
        }
        assert_eq!(answer.unwrap(), moved(3, 1, 2, 0, 0), "{state}");
        let after = scene.status().await;
        assert_eq!((after.state, after.next.0), (state, 1));
    }
}

/// After a seek back the messages ahead of the cursor are not done: cleanup keeps them. The seek wakes waiters at
/// once.
pub async fn what_is_replayed_is_kept_and_waiters_are_woken(case: &Case) {
    for tracking in MODES {
        let settings = TopicSettings { tracking, message_retention: Some(HOUR), ..lively() };
        let scene = Scene::new(case.open().await, tracking.as_str(), settings).await;
        scene.publish(4).await;
        assert_eq!(scene.reads().await, [1, 2, 3, 4]);
        scene.clean_all().await;
        case.advance(HOUR);
        at_rest(&scene).await;
        let wake = arm(&scene).await;
        let elsewhere = case.open().await;
        elsewhere.seek(&scene.topic, &group("workers"), Start::Offset(Offset(3)), false).await.unwrap();
        assert!(wake.wait(SAFETY_POLL / 2).await, "the waiter was not woken");
        scene.clean_all().await;
        assert_eq!(scene.stored().await, [3, 4], "{tracking:?}");
        assert_eq!(scene.reads().await, [3, 4]);
        assert_eq!(scene.status().await.missed, MissedMessages::default());
    }
}

/// The messages of a lease that an operator releases are claimable at once, with no attempt counted and not suspect.
pub async fn a_lease_is_released_by_hand(case: &Case) {
    let settings = TopicSettings { lease: Duration::ZERO, ..kept() };
    let scene = case.scene(settings).await;
    scene.publish(3).await;
    let stuck = scene.claim_one("stuck", 2).await;
    assert_eq!(stuck.deadline, None, "the lease has no deadline");
    scene.store.release_lease(stuck.token).await.unwrap();
    failed(scene.settle(Settlement::ack_all(&stuck)).await, ErrorKind::LeaseLost);
    let again = scene.claim_one("b", 2).await;
    assert_eq!((again.range, again.attempt, again.suspect), (range(1, 2), 1, false));
    for token in [stuck.token, LeaseToken(i64::MAX), LeaseToken(-1)] {
        failed(scene.store.release_lease(token).await, ErrorKind::LeaseLost);
    }
    scene.ack(&again).await;
    assert_eq!(scene.reads().await, [3]);
}

/// A lease past its deadline is lost: releasing it by hand would take back the attempt that it counts as.
pub async fn an_expired_lease_is_not_released_by_hand(case: &Case) {
    let scene = case.scene(TopicSettings { lease: Duration::from_secs(1), ..kept() }).await;
    scene.publish(1).await;
    let expired = scene.claim_one("stuck", 1).await;
    case.advance(Duration::from_secs(2));
    failed(scene.store.release_lease(expired.token).await, ErrorKind::LeaseLost);
    let again = scene.claim_one("b", 1).await;
    assert_eq!((again.range, again.attempt, again.suspect), (range(1, 1), 2, true));
    scene.ack(&again).await;
}

/// Old messages that only dead groups have not done are given up: a dry run lists them, and they count as missed.
pub async fn messages_only_dead_groups_wait_for_are_given_up(case: &Case) {
    for tracking in MODES {
        let settings = TopicSettings { tracking, ..kept() };
        let scene = Scene::new(case.open().await, tracking.as_str(), settings).await;
        let dead = scene.subscribe("dead", Start::Beginning).await;
        let done = scene.subscribe("done", Start::Beginning).await;
        scene.publish(6).await;
        scene.ack_next(4).await;
        done.ack_next(6).await;
        dead.ack_next(1).await;
        let force = async |dry: bool| scene.store.force_complete(&scene.topic, HOUR, dry).await.unwrap();
        case.advance(HOUR + MOMENT);
        let audited = async || {
            let detail = scene.store.audit(1).await.unwrap().remove(0).detail;
            serde_json::from_str::<serde_json::Value>(&detail).expect("the detail is JSON")
        };
        let nothing = serde_json::json!({ "older_than_ms": 3_600_000, "until": null, "groups": {} });
        assert_eq!(force(false).await, [], "no group is dead");
        assert_eq!(audited().await, nothing);
        dead.let_die(case).await;
        scene.publish(2).await;
        let given_up = [ForceCompleted { group: group("dead"), messages: 3, until: Offset(4) }];
        let before = dead.status().await;
        assert_eq!(force(true).await, given_up, "the workers have not done 5 and 6; 7 and 8 are young");
        assert_eq!(dead.status().await, before, "a dry run changed something");
        assert_eq!(force(false).await, given_up);
        let detail = serde_json::json!({ "older_than_ms": 3_600_000, "until": 4, "groups": { "dead": 3 } });
        assert_eq!(audited().await, detail);
        let status = dead.status().await;
        assert_eq!((status.state, status.next.0, status.floor.0), (SubscriptionState::Dead, 5, 4));
        assert_eq!(status.missed, missed(3, 2, 4), "{tracking:?}");
        assert_eq!(force(false).await, [], "once");
        assert_eq!(audited().await, nothing);
        assert_eq!(dead.heartbeat("a").await, Signal::Resurrected(missed(3, 2, 4)));
        assert_eq!(dead.reads().await, [5, 6, 7, 8]);
        assert_eq!(scene.reads().await, [5, 6, 7, 8], "an active group loses nothing");
        for one in [&scene, &dead, &done] {
            one.cancel().await;
        }
    }
}

/// Old messages that are not done are counted per counting group: leased, to be retried or never handed out.
pub async fn stuck_messages_are_counted_per_group(case: &Case) {
    let began = case.now();
    let scene = case.scene(kept()).await;
    let held = scene.subscribe("held", Start::Beginning).await;
    let paused = scene.subscribe("paused", Start::Beginning).await;
    let done = scene.subscribe("done", Start::Beginning).await;
    let dead = scene.subscribe("dead", Start::Beginning).await;
    scene.publish(2).await;
    case.advance_ms(1_000);
    scene.publish(1).await;
    scene.ack_next(1).await;
    held.ack_next(2).await;
    held.claimed_for("a", 1, Some(Duration::ZERO)).await;
    paused.pause().await;
    assert_eq!(done.reads().await, [1, 2, 3]);
    dead.let_die(case).await;
    case.advance(HOUR + MOMENT);
    scene.publish(5).await;
    let stuck = |name: &str, messages: u64, after_ms: u64| Stuck {
        group: group(name),
        messages,
        oldest: began + Duration::from_millis(after_ms),
    };
    let mut listed = scene.store.stuck(&scene.topic, HOUR).await.unwrap();
    listed.sort_by(|a, b| a.group.cmp(&b.group));
    assert_eq!(listed, [stuck("held", 1, 1_000), stuck("paused", 3, 0), stuck("workers", 2, 0)]);
    assert_eq!(scene.store.stuck(&scene.topic, HOUR * 2).await.unwrap(), []);
    let issues = scene.status().await.health_issues(case.now());
    assert!(issues.contains(&crate::store::HealthIssue::Stuck), "{issues:?}");
}

/// A group's own lease and attempts override the topic's, for this group alone, and can be removed again.
pub async fn a_groups_own_policy_wins(case: &Case) {
    let scene = case.scene(TopicSettings { max_attempts: 5, ..kept() }).await;
    let other = scene.subscribe("other", Start::Beginning).await;
    let name = group("workers");
    assert_eq!(scene.store.policy(&scene.topic, &name).await.unwrap(), DeliveryPolicy::default());
    let own = DeliveryPolicy {
        lease: Some(Duration::from_secs(7)),
        max_attempts: Some(2),
        backoff_initial: Some(Duration::from_millis(20)),
        backoff_max: Some(Duration::from_millis(30)),
        heartbeat_interval: Some(Duration::from_secs(11)),
        heartbeat_timeout: Some(Duration::from_secs(22)),
    };
    scene.store.set_policy(&scene.topic, &name, &own).await.unwrap();
    assert_eq!(scene.store.policy(&scene.topic, &name).await.unwrap(), own);
    let both = [&scene, &other].map(|scene| scene.subscription.subscription_id);
    let of_both: HashMap<_, _> = scene.store.settings_of(&both).await.unwrap().into_iter().collect();
    let of = |id| of_both.get(id).map(|settings: &TopicSettings| (settings.lease, settings.max_attempts));
    assert_eq!(of(&both[0]), Some((Duration::from_secs(7), 2)), "the group's own");
    assert_eq!(of(&both[1]), Some((Duration::from_secs(300), 5)), "the topic's");
    let settings = scene.subscribe("workers", Start::Beginning).await.subscription.topic.settings;
    assert_eq!((settings.lease, settings.max_attempts), (Duration::from_secs(7), 2));
    assert_eq!(settings.backoff_initial, Duration::from_millis(20));
    assert_eq!(settings.backoff_max, Duration::from_millis(30));
    assert_eq!(settings.heartbeat_interval, Duration::from_secs(11));
    assert_eq!(scene.status().await.heartbeat_timeout, Duration::from_secs(22));
    assert_eq!(
        scene.topic_status().await.heartbeat_timeout,
        Duration::from_secs(22),
        "the shortest of its groups"
    );
    let others = other.subscribe("other", Start::Beginning).await.subscription.topic.settings;
    assert_eq!((others.lease, others.max_attempts), (Duration::from_secs(300), 5));
    scene.publish(1).await;
    for attempt in 1..=2 {
        let lease = scene.claim_one(&format!("dies-{attempt}"), 1).await;
        assert_eq!((lease.attempt, lease.deadline), (attempt, Some(case.now() + Duration::from_secs(7))));
        case.advance(Duration::from_secs(7) + MOMENT);
    }
    scene.claim_nothing("next", 1).await;
    assert_eq!(scene.dead_letters().await.len(), 1, "buried after two attempts");
    let lease = other.claim_one("a", 1).await;
    assert_eq!(lease.deadline, Some(case.now() + Duration::from_secs(300)));
    scene.store.set_policy(&scene.topic, &name, &DeliveryPolicy::default()).await.unwrap();
    scene.publish(1).await;
    let lease = scene.claim_one("a", 1).await;
    assert_eq!(lease.deadline, Some(case.now() + Duration::from_secs(300)), "the topic's again");
}

/// A policy outside the rules of the topic's settings is refused with the field's name.
pub async fn bad_policies_are_refused(case: &Case) {
    let scene = case.scene(kept()).await;
    let (good, too_long) = (DeliveryPolicy::default(), Duration::from_secs(367 * 24 * 3_600));
    for (field, bad) in [
        ("lease", DeliveryPolicy { lease: Some(too_long), ..good }),
        ("max_attempts", DeliveryPolicy { max_attempts: Some(0), ..good }),
        ("max_attempts", DeliveryPolicy { max_attempts: Some(1_001), ..good }),
        ("backoff_initial", DeliveryPolicy { backoff_initial: Some(too_long), ..good }),
        ("backoff_max", DeliveryPolicy { backoff_max: Some(too_long), ..good }),
        ("heartbeat_interval", DeliveryPolicy { heartbeat_interval: Some(Duration::from_millis(1)), ..good }),
        ("heartbeat_timeout", DeliveryPolicy { heartbeat_timeout: Some(Duration::from_millis(150)), ..good }),
    ] {
        let new = NewSubscription { policy: bad, ..NewSubscription::default() };
        let answers = [
            scene.store.set_policy(&scene.topic, &group("workers"), &bad).await,
            scene.store.subscribe_with(&scene.topic, &group("new"), &new).await.map(drop),
        ];
        for answer in answers {
            let error = failed(answer, ErrorKind::InvalidInput);
            assert!(error.to_string().contains(field), "{field} is not named: {error}");
        }
    }
    assert_eq!(scene.store.subscriptions(&scene.topic).await.unwrap().len(), 1, "no group was made");
    assert_eq!(scene.store.policy(&scene.topic, &group("workers")).await.unwrap(), good);
}

/// There is one audit entry per change by an operator, newest first, with actor, act and target. Refused calls, dry
/// runs, heartbeats and the detector leave none.
pub async fn every_change_is_audited_once(case: &Case) {
    let store = case.open_with(case.options().actor("ada")).await.unwrap();
    let scene = Scene::new(store.clone(), "orders", counted()).await;
    let (topic, name) = (&scene.topic, group("workers"));
    assert_eq!(store.audit(100).await.unwrap(), [], "creating topics and groups is not audited");
    scene.publish(5).await;
    scene.track_all().await;
    let lease = scene.claim_one("a", 2).await;
    scene.settle_each(&lease, vec![((1, 2), bury("no"))]).await.unwrap();
    let dead_letters = scene.dead_letters().await;
    assert_eq!(dead_letters.len(), 2);
    let held = scene.claim_one("a", 1).await;
    // Nothing of this is audited.
    scene.let_die(case).await;
    scene.heartbeat("a").await;
    scene.subscribe("workers", Start::Now).await;
    store.seek(topic, &name, Start::Now, true).await.unwrap();
    store.force_complete(topic, HOUR, true).await.unwrap();
    failed(scene.store.resume(&scene.topic, &scene.subscription.group).await, ErrorKind::InvalidTransition);
    failed(store.remove(topic, &name).await, ErrorKind::InvalidTransition);
    scene.backfill_all().await;
    assert_eq!(store.audit(100).await.unwrap(), []);

    act_in_every_way(case, &scene, held.token, dead_letters[0].dead_letter_id).await;
    let lines = store.audit(100).await.unwrap();
    let act_and_keys = |line: &AuditEntry| {
        let detail: serde_json::Value = serde_json::from_str(&line.detail).expect("the detail is JSON");
        let mut keys: Vec<_> = detail.as_object().expect("the detail is an object").keys().cloned().collect();
        keys.sort_unstable();
        format!("{}: {}", line.act, keys.join(" "))
    };
    assert_eq!(lines.iter().rev().map(act_and_keys).collect::<Vec<_>>(), ACTS_AND_KEYS);
    for line in &lines {
        assert_eq!(line.actor, "ada", "{line:?}");
        assert_eq!(line.topic.as_deref(), Some("orders"), "{line:?}");
        let of_group = !["alter_topic", "force_complete"].contains(&line.act.as_str());
        assert!(!of_group || line.group.as_deref() == Some("workers"), "{line:?}");
    }
    assert_eq!(lines[0].at, case.now());
    assert_eq!(store.audit(3).await.unwrap(), lines[..3]);
}

/// Every act with the keys of its detail, which are the same on both engines.
const ACTS_AND_KEYS: [&str; 15] = [
    "alter_topic: max_attempts",
    "set_policy: backoff_initial_ms backoff_max_ms heartbeat_interval_ms heartbeat_timeout_ms lease_ms max_attempts",
    "release_lease: first last owner token",
    "redrive: gone redriven",
    "purge: purged",
    "pause: from leases_lost to",
    "resume: from leases_lost to",
    "seek: from leases_lost replayed skipped to",
    "backfill: batch_max first last messages_max rate_max target_latency_ms",
    "cancel_backfill: checkpoint",
    "resume_backfill: checkpoint",
    "force_complete: groups older_than_ms until",
    "resurrect: behind_max missed next",
    "cancel: from leases_lost to",
    "remove: dead_letters subscriptions",
];

/// Performs every operator's action on a topic and its group, each once.
async fn act_in_every_way(case: &Case, scene: &Scene, held: LeaseToken, dead_letter: uuid::Uuid) {
    let (store, topic, name) = (&scene.store, &scene.topic, group("workers"));
    let altered = TopicSettings { max_attempts: 9, ..counted() };
    store.alter_topic(topic, &altered).await.unwrap();
    store.set_policy(topic, &name, &DeliveryPolicy::default()).await.unwrap();
    store.release_lease(held).await.unwrap();
    assert_eq!(store.redrive(&scene.dead_letter_selection().ids([dead_letter])).await.unwrap().redriven, 1);
    assert_eq!(store.purge(&scene.dead_letter_selection()).await.unwrap(), 1);
    scene.pause().await;
    scene.resume().await;
    store.seek(topic, &name, Start::Beginning, false).await.unwrap();
    scene.track_all().await;
    store.backfill(topic, &name, &BackfillLimits::default()).await.unwrap();
    store.cancel_backfill(topic, &name).await.unwrap();
    store.resume_backfill(topic, &name).await.unwrap();
    scene.backfill_all().await;
    scene.let_die(case).await;
    case.advance(HOUR);
    assert_eq!(store.force_complete(topic, HOUR, false).await.unwrap().len(), 1);
    assert!(store.resurrect(topic, &name, None).await.unwrap().resurrected);
    scene.cancel().await;
    scene.track_all().await;
    store.remove(topic, &name).await.unwrap();
}

/// Audit entries cannot be changed, not even with plain SQL.
pub async fn the_audit_is_append_only(case: &Case) {
    let scene = case.scene(kept()).await;
    scene.pause().await;
    let before = scene.store.audit(10).await.unwrap();
    assert_eq!(before.len(), 1);
    for (sqlite, postgres) in [
        ("UPDATE headwater_audit SET actor = 'other'", "UPDATE {schema}.audit SET actor = 'other'"),
        ("DELETE FROM headwater_audit", "DELETE FROM {schema}.audit"),
    ] {
        let error = case.harness().sql(sqlite, postgres).await.expect_err("the audit was changed");
        assert!(error.contains("append-only"), "{error}");
    }
    assert_eq!(scene.store.audit(10).await.unwrap(), before);
}

/// A seek runs while members claim: what they held is lost or was done before, and everything from the cursor is
/// delivered.
pub async fn a_seek_among_claims_replays_everything(case: &Case) {
    let scene = case.scene(kept()).await;
    scene.publish(40).await;
    let members: Vec<_> = (0..3)
        .map(|n| {
            let scene = scene.clone();
            tokio::spawn(async move {
                for _ in 0..15 {
                    for lease in scene.claim(&format!("member-{n}"), 4).await {
                        tokio::task::yield_now().await;
                        match scene.settle(Settlement::ack_all(&lease)).await {
                            Ok(()) => {}
                            Err(error) => assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error:?}"),
                        }
                    }
                }
            })
        })
        .collect();
    scene.store.seek(&scene.topic, &group("workers"), Start::Beginning, false).await.unwrap();
    for member in members {
        member.await.unwrap();
    }
    scene.store.seek(&scene.topic, &group("workers"), Start::Beginning, false).await.unwrap();
    let lease = scene.claim_one("last", 5).await;
    let parts = vec![((1, 2), Outcome::Release), ((3, 5), Outcome::Ack)];
    scene.settle_each(&lease, parts).await.unwrap();
    let mut got = offsets_of(&scene.drain(owner("reader").as_str()).await);
    got.sort_unstable();
    assert!(got.iter().copied().eq([1, 2].into_iter().chain(6..=40)), "{got:?}");
}
