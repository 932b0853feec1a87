//! Dead groups: which groups are declared dead and when, how that affects other groups, and how groups come back.

use std::time::Duration;

use super::case::{Case, Scene, bury, failed, group, retry};
use super::life::{HOUR, INTERVAL, MODES, MOMENT, TIMEOUT, lively, missed};
use crate::error::ErrorKind;
use crate::name::{GroupName, TopicName};
use crate::settle::{Outcome, Settlement};
use crate::store::{Detected, Signal};
use crate::subscription::{DeliveryPolicy, MissedMessages, NewSubscription, Start, SubscriptionState};
use crate::topic::{Semantics, TopicSettings};

fn named(scene: &Scene) -> (TopicName, GroupName) {
    (scene.topic.clone(), scene.subscription.group.clone())
}

/// While detection runs regularly, a silent group dies at the first check after its timeout, not earlier, and once.
pub async fn a_silent_group_dies_when_detection_runs(case: &Case) {
    let scene = case.scene(lively()).await;
    let living = scene.subscribe("living", Start::Beginning).await;
    scene.heartbeat("a").await;
    living.heartbeat("b").await;
    assert_eq!(scene.detect().await, Detected::default());
    case.advance(TIMEOUT);
    living.heartbeat("b").await;
    assert_eq!(scene.detect().await.died, [], "silent for so long, but not for longer");
    case.advance(MOMENT);
    assert_eq!(scene.detect().await.died, [named(&scene)]);
    let status = scene.status().await;
    assert_eq!((status.state, status.state_since), (SubscriptionState::Dead, case.now()));
    assert_eq!(living.state().await, SubscriptionState::Active);
    assert!(status.health_issues(case.now()).contains(&crate::store::HealthIssue::Dead));
}

/// Each topic sets for how long its groups may be silent.
pub async fn every_topic_has_its_own_timeout(case: &Case) {
    let soon = case.scene(lively()).await;
    let late = soon.beside("late", TopicSettings::pub_sub()).await;
    for scene in [&soon, &late] {
        scene.heartbeat("a").await;
    }
    soon.detect().await;
    case.advance(TIMEOUT + MOMENT);
    assert_eq!(soon.detect().await.died, [named(&soon)]);
    for _ in 0..3 {
        case.advance(Duration::from_secs(90) - MOMENT);
        assert_eq!(soon.detect().await.died, []);
    }
    case.advance(MOMENT * 4);
    assert_eq!(soon.detect().await.died, [named(&late)]);
}

/// A group may have a timeout of its own: it dies by that, and the others of its topic by the topic's.
pub async fn a_group_has_its_own_timeout(case: &Case) {
    let scene = case.scene(lively()).await;
    let policy = DeliveryPolicy {
        heartbeat_interval: Some(INTERVAL * 2),
        heartbeat_timeout: Some(TIMEOUT * 2),
        ..DeliveryPolicy::default()
    };
    let new = NewSubscription { policy, ..NewSubscription::default() };
    let subscription = scene.store.subscribe_with(&scene.topic, &group("patient"), &new).await.unwrap();
    let patient = Scene { subscription, ..scene.clone() };
    for scene in [&scene, &patient] {
        scene.heartbeat("a").await;
    }
    scene.detect().await;
    case.advance(TIMEOUT + MOMENT);
    assert_eq!(scene.detect().await.died, [named(&scene)]);
    assert_eq!(patient.status().await.heartbeat_timeout, TIMEOUT * 2);
    case.advance(TIMEOUT - MOMENT);
    assert_eq!(
        scene.detect().await.near_timeout,
        [named(&patient)],
        "silent for so long, but not for longer"
    );
    case.advance(MOMENT);
    assert_eq!(scene.detect().await.died, [named(&patient)]);
}

/// After a time without detection every group appears silent: silent groups become suspected first, and die only if
/// they stay silent for one more interval.
pub async fn no_group_dies_at_the_first_detection_after_a_pause(case: &Case) {
    for first_ever in [true, false] {
        let name = if first_ever { "first" } else { "later" };
        let speaks = Scene::new(case.open().await, name, lively()).await;
        let silent = speaks.subscribe("silent", Start::Beginning).await;
        if !first_ever {
            speaks.detect().await;
        }
        for scene in [&speaks, &silent] {
            scene.heartbeat("a").await;
        }
        case.advance(Duration::from_secs(600));
        let found = speaks.detect().await;
        assert_eq!(found.died, [], "first check ever: {first_ever}");
        let mut suspected = found.suspected;
        suspected.sort();
        assert_eq!(suspected, [named(&silent), named(&speaks)]);
        assert_eq!(silent.state().await, SubscriptionState::Active);
        // A check soon after is no proof either.
        case.advance(INTERVAL / 2);
        assert_eq!(speaks.detect().await.died, []);
        assert_eq!(speaks.heartbeat("a").await, Signal::Active);
        case.advance(INTERVAL / 2 + MOMENT);
        assert_eq!(speaks.detect().await.died, [named(&silent)]);
        assert_eq!(speaks.state().await, SubscriptionState::Active);
        speaks.cancel().await;
    }
}

/// A group that was read by hand, or by a program without heartbeats, is never declared dead.
pub async fn a_group_without_heartbeats_never_dies(case: &Case) {
    let scene = case.scene(lively()).await;
    scene.publish(2).await;
    scene.detect().await;
    for _ in 0..20 {
        case.advance(TIMEOUT * 3);
        assert_eq!(scene.detect().await, Detected::default());
    }
    case.advance(HOUR * 24 * 365);
    assert_eq!(scene.detect().await, Detected::default());
    assert_eq!(scene.reads().await, [1, 2]);
}

/// Detecting again, or from two stores at once, changes nothing twice.
pub async fn detecting_twice_changes_nothing_twice(case: &Case) {
    for tracking in MODES {
        let scene = Scene::new(
            case.open().await,
            tracking.as_str(),
            TopicSettings { tracking, message_retention: None, ..lively() },
        )
        .await;
        let other = scene.subscribe("other", Start::Beginning).await;
        scene.publish(3).await;
        scene.track_all().await;
        scene.heartbeat("a").await;
        scene.detect().await;
        case.advance(TIMEOUT + MOMENT);
        let elsewhere = case.open().await;
        let (here, there) = tokio::join!(scene.store.detect_dead(), elsewhere.detect_dead());
        let died = [here.unwrap().died, there.unwrap().died].concat();
        assert_eq!(died, [named(&scene)], "one of two finds it");
        let (before, records) = (scene.status().await, scene.records().await);
        for _ in 0..3 {
            assert_eq!(scene.detect().await, Detected::default());
        }
        assert_eq!((scene.status().await, scene.records().await), (before, records));
        assert_eq!(other.reads().await, [1, 2, 3]);
        other.cancel().await;
        scene.cancel().await;
    }
}

/// Dead groups hold nothing back: the watermark passes them and retention removes messages they have not done.
pub async fn dead_groups_do_not_count(case: &Case) {
    for tracking in MODES {
        let settings = TopicSettings { tracking, ..lively() };
        let scene = Scene::new(case.open().await, tracking.as_str(), settings).await;
        let other = scene.subscribe("other", Start::Beginning).await;
        scene.publish(5).await;
        assert_eq!(other.reads().await, [1, 2, 3, 4, 5]);
        assert_eq!(scene.topic_status().await.watermark.0, 0);
        assert_eq!(scene.clean_all().await.removed, 0);
        scene.let_die(case).await;
        assert_eq!(scene.topic_status().await.watermark.0, 5);
        let step = scene.clean_all().await;
        let expected = vec![(group("workers"), missed(5, 1, 5))];
        assert_eq!((step.removed, step.missed), (5, expected), "the group keeps none and missed them");
        assert_eq!(scene.status().await.missed, missed(5, 1, 5));
        assert_eq!(other.status().await.missed, MissedMessages::default());
    }
}

/// The count and the range cover exactly the messages not done: messages acked out of order are excluded.
pub async fn a_resurrection_reports_exactly_what_was_missed(case: &Case) {
    for tracking in MODES {
        let settings = TopicSettings { tracking, ..lively() };
        let scene = Scene::new(case.open().await, tracking.as_str(), settings).await;
        let other = scene.subscribe("other", Start::Beginning).await;
        scene.publish(8).await;
        let lease = scene.claim_one("a", 5).await;
        let parts = vec![((1, 1), Outcome::Ack), ((2, 2), retry(0, "again")), ((3, 4), Outcome::Ack)];
        scene.settle_each(&lease, parts).await.unwrap();
        scene.settle_each(&lease, vec![((5, 5), Outcome::Release)]).await.unwrap();
        scene.let_die(case).await;
        other.ack_next(7).await;
        assert_eq!(scene.clean_all().await.removed, 7);
        // Not done were 2, 5, 6 and 7; 8 is still stored.
        let back = scene.store.resurrect(&scene.topic, &group("workers"), None).await.unwrap();
        assert_eq!((back.resurrected, back.missed), (true, missed(4, 2, 7)), "{tracking:?}");
        assert_eq!(scene.status().await.missed, missed(4, 2, 7));
        scene.publish(1).await;
        assert_eq!(scene.reads().await, [8, 9]);
        // The missed messages stay recorded; what the group did since is not added.
        other.reads().await;
        assert_eq!(scene.clean_all().await.removed, 2);
        assert_eq!(scene.status().await.missed, missed(4, 2, 7));
    }
}

/// With a bound the group comes back at most that far behind, whatever it had outstanding; without one at its cursor.
pub async fn a_bounded_resurrection_limits_the_lag(case: &Case) {
    let store = case.open().await;
    for (bound, next, reads) in [
        (3, 8, vec![8, 9, 10]),
        (0, 11, vec![]),
        (100, 6, vec![4, 5, 6, 7, 8, 9, 10]),
        (5, 6, vec![6, 7, 8, 9, 10]),
    ] {
        let scene = Scene::new(store.clone(), &format!("bound-{bound}"), lively()).await;
        scene.publish(10).await;
        scene.ack_next(3).await;
        let held = scene.claim_one("a", 2).await;
        scene.settle_each(&held, vec![((4, 5), Outcome::Release)]).await.unwrap();
        scene.let_die(case).await;
        let back = scene.store.resurrect(&scene.topic, &group("workers"), Some(bound)).await.unwrap();
        assert_eq!((back.resurrected, back.next.0), (true, next), "bound {bound}");
        let status = scene.status().await;
        assert!(status.lag <= bound, "at most {bound} behind: {status:?}");
        let mut got = scene.reads().await;
        got.sort_unstable();
        assert_eq!(got, reads, "bound {bound}");
    }
}

/// The cursor and the leases of a dead group stay for its resurrection.
pub async fn a_dead_groups_leases_stay_for_its_resurrection(case: &Case) {
    let scene = case.scene(lively()).await;
    scene.publish(5).await;
    let lease = scene.claim_one("a", 2).await;
    let waiting = scene.claim_one("a", 1).await;
    scene.settle_each(&waiting, vec![((3, 3), retry(1_000, "again"))]).await.unwrap();
    let before = scene.outstanding().await;
    scene.let_die(case).await;
    assert_eq!(scene.outstanding().await, before);
    assert_eq!(scene.status().await.next.0, 4);
    assert_eq!(scene.heartbeat("a").await, Signal::Resurrected(MissedMessages::default()));
    scene.ack(&lease).await;
    let mut got = scene.reads().await;
    got.sort_unstable();
    assert_eq!(got, [3, 4, 5]);
    failed(scene.settle(Settlement::ack_all(&lease)).await, ErrorKind::LeaseLost);
}

/// A group that is dead for too long gives up what it holds of removed messages, once. It keeps what is stored.
pub async fn a_zombie_gives_up_only_removed_messages(case: &Case) {
    let settings = TopicSettings {
        zombie_subscription_ttl: HOUR,
        message_retention: None,
        max_retention: Some(HOUR * 3),
        lease: Duration::ZERO,
        ..lively()
    };
    let scene = case.scene(settings).await;
    let other = scene.subscribe("other", Start::Beginning).await;
    scene.publish(2).await;
    scene.claim_one("a", 1).await;
    scene.clean_all().await;
    case.pass(HOUR).await;
    scene.publish(6).await;
    assert_eq!(other.reads().await.len(), 8);
    scene.let_die(case).await;
    let keep = HOUR * 24 * 365;
    let zombies = async || scene.store.clean_subscriptions(keep).await.unwrap().zombies;
    case.pass(HOUR).await;
    assert_eq!(zombies().await, [], "everything is stored");
    assert_eq!(scene.status().await.floor.0, 0);
    scene.clean_all().await;
    case.pass(HOUR).await;
    let step = scene.clean_all().await;
    assert_eq!((step.removed, step.missed), (2, vec![(group("workers"), missed(2, 1, 2))]));
    assert_eq!(scene.outstanding().await.len(), 1, "a leased range stays with its owner");
    assert_eq!(zombies().await, [named(&scene)]);
    let status = scene.status().await;
    assert_eq!((status.state, status.floor.0, status.next.0), (SubscriptionState::Dead, 2, 3));
    assert_eq!(scene.outstanding().await, []);
    assert_eq!(zombies().await, [], "there is nothing left to give up");
    assert_eq!(status.missed, missed(2, 1, 2), "what the group gave up was counted before");
    assert!(matches!(scene.heartbeat("a").await, Signal::Resurrected(_)));
    assert_eq!(scene.reads().await, [3, 4, 5, 6, 7, 8]);
}

/// Only a group of a fan-out topic that has been dead for the set time gives something up. A queue waits for its dead
/// group, and a paused group comes back: both keep what they hold, although its messages are removed.
pub async fn only_long_dead_groups_of_fan_out_topics_are_zombies(case: &Case) {
    let settings = TopicSettings {
        zombie_subscription_ttl: HOUR * 3,
        message_retention: None,
        max_retention: Some(HOUR),
        lease: Duration::ZERO,
        ..lively()
    };
    let scene = case.scene(settings.clone()).await;
    let queue = TopicSettings { semantics: Semantics::Queue, ..settings.clone() };
    let (queue, paused) = (scene.beside("queue", queue).await, scene.beside("paused", settings).await);
    for scene in [&scene, &queue, &paused] {
        scene.publish(2).await;
        scene.claim_one("a", 1).await;
        scene.clean_all().await;
    }
    paused.pause().await;
    queue.heartbeat("dying").await;
    scene.let_die(case).await;
    assert_eq!(queue.state().await, SubscriptionState::Dead);
    case.pass(HOUR).await;
    for scene in [&scene, &queue, &paused] {
        assert_eq!(scene.clean_all().await.removed, 2);
    }
    let keep = HOUR * 24 * 365;
    let zombies = async || scene.store.clean_subscriptions(keep).await.unwrap().zombies;
    assert_eq!(zombies().await, [], "not dead for long");
    case.pass(HOUR * 2 - MOMENT).await;
    assert_eq!(zombies().await, [], "a moment before its time");
    case.pass(MOMENT).await;
    assert_eq!(zombies().await, [named(&scene)]);
    assert_eq!(scene.outstanding().await, []);
    case.pass(HOUR * 24).await;
    assert_eq!(zombies().await, [], "never for the others");
    assert_eq!((queue.outstanding().await.len(), paused.outstanding().await.len()), (1, 1));
}

/// A paused group is not expected to send heartbeats: after a resume it has a whole timeout to come back.
pub async fn a_resumed_group_has_the_time_to_come_back(case: &Case) {
    let scene = case.scene(lively()).await;
    let other = scene.subscribe("other", Start::Beginning).await;
    assert_eq!(scene.heartbeat("a").await, Signal::Active);
    scene.pause().await;
    let watch = async |time: Duration| {
        let until = case.now() + time;
        while case.now() < until {
            assert_eq!(other.heartbeat("b").await, Signal::Active);
            assert_eq!(scene.detect().await.died, []);
            case.advance(TIMEOUT / 4);
        }
    };
    watch(TIMEOUT * 3).await;
    scene.resume().await;
    watch(TIMEOUT - MOMENT).await;
    case.advance(MOMENT);
    assert_eq!(scene.detect().await.died, [named(&scene)], "it sent no heartbeat");
}

/// The dead letters of a cancelled group stay readable: the group is not deleted before they are purged.
pub async fn dead_letters_keep_a_cancelled_group(case: &Case) {
    for tracking in MODES {
        let scene =
            Scene::new(case.open().await, tracking.as_str(), TopicSettings { tracking, ..lively() }).await;
        let other = scene.subscribe("other", Start::Beginning).await;
        scene.publish(1).await;
        let lease = other.claim_one("a", 1).await;
        other.settle(Settlement::each(&lease, vec![(lease.range, bury("why not"))])).await.unwrap();
        other.cancel().await;
        scene.track_all().await;
        case.advance(HOUR);
        let clean = async || scene.store.clean_subscriptions(MOMENT).await.unwrap().deleted;
        assert_eq!(clean().await, [], "{tracking:?}");
        let dead_letters = scene.store.dead_letters(&other.dead_letter_selection(), 10).await.unwrap();
        assert_eq!(dead_letters.len(), 1, "{tracking:?}");
        scene.store.purge(&other.dead_letter_selection()).await.unwrap();
        assert_eq!(clean().await, [named(&other)], "{tracking:?}");
    }
}

/// Dead and cancelled subscriptions with nothing left to do are deleted after the set time, others never.
pub async fn old_dead_and_cancelled_groups_are_deleted(case: &Case) {
    let scene = case.scene(lively()).await;
    let dead = scene.subscribe("dead", Start::Beginning).await;
    let cancelled = scene.subscribe("cancelled", Start::Beginning).await;
    let paused = scene.subscribe("paused", Start::Beginning).await;
    scene.publish(2).await;
    for one in [&scene, &dead, &cancelled] {
        assert_eq!(one.reads().await, [1, 2]);
    }
    paused.pause().await;
    cancelled.cancel().await;
    dead.let_die(case).await;
    scene.track_all().await;
    let older_than = HOUR * 48;
    case.pass(older_than - TIMEOUT * 2).await;
    assert_eq!(scene.store.clean_subscriptions(older_than).await.unwrap().deleted, []);
    case.pass(TIMEOUT * 2 + MOMENT).await;
    let mut deleted = scene.store.clean_subscriptions(older_than).await.unwrap().deleted;
    deleted.sort();
    assert_eq!(deleted, [named(&cancelled), named(&dead)]);
    let left = scene.store.subscriptions(&scene.topic).await.unwrap();
    assert_eq!(left.iter().map(|one| one.group.as_str()).collect::<Vec<_>>(), ["paused", "workers"]);
    assert_eq!(dead.heartbeat("a").await, Signal::Gone);
    assert_eq!(scene.store.clean_subscriptions(older_than).await.unwrap().deleted, []);
}

/// While the database is unreachable no heartbeat is stored and no detection runs. Afterwards all groups send
/// heartbeats again, and none is dead.
pub async fn a_database_outage_kills_no_group(case: &Case) {
    for (outage, name) in [(Duration::from_secs(120), "two minutes"), (HOUR, "an hour")] {
        let settings = TopicSettings { semantics: Semantics::PubSub, ..TopicSettings::default() };
        let first = Scene::new(case.open().await, name, settings).await;
        let groups = [
            first.clone(),
            first.subscribe("second", Start::Beginning).await,
            first.subscribe("third", Start::Beginning).await,
        ];
        let heartbeat_all = async || {
            let mut answers = Vec::new();
            for one in &groups {
                answers.push(one.heartbeat("a").await);
            }
            answers
        };
        for _ in 0..5 {
            assert_eq!(heartbeat_all().await, [Signal::Active, Signal::Active, Signal::Active]);
            first.detect().await;
            case.advance(Duration::from_secs(60));
        }
        case.advance(outage);
        // The detector is the first to reach the database.
        assert_eq!(first.detect().await.died, [], "outage of {name}");
        assert_eq!(heartbeat_all().await, [Signal::Active, Signal::Active, Signal::Active]);
        for _ in 0..8 {
            case.advance(Duration::from_secs(60));
            let found = first.detect().await;
            assert_eq!((found.died, found.suspected), (vec![], vec![]), "outage of {name}");
            assert_eq!(heartbeat_all().await, [Signal::Active, Signal::Active, Signal::Active]);
        }
        for one in &groups {
            one.cancel().await;
        }
    }
}
