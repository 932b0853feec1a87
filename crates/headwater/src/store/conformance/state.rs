//! The states of a subscription: which transitions exist, which do not, and what each state means for messages.

use std::time::Duration;

use super::case::{Case, DEADLINE, Scene, bury, failed, group, offsets_of, owner, retry, topic};
use super::heartbeat::at_rest;
use super::life::{TIMEOUT, counted, lively};
use super::wake::arm;
use crate::backfill::BackfillLimits;
use crate::error::{ErrorKind, Result};
use crate::limits::{REASON_BYTES_MAX, SAFETY_POLL};
use crate::message::{NewMessage, Offset};
use crate::name::{GroupName, TopicName};
use crate::settle::{Outcome, Settlement};
use crate::store::{Signal, Store};
use crate::subscription::{
    DeliveryPolicy, HealthIssue, Start, SubscriptionId, SubscriptionState, Transition,
};
use crate::topic::{Partition, Semantics, Storage, TopicSettings, Tracking};

/// The transitions an operator makes.
const BY_OPERATORS: [Transition; 3] = [Transition::Pause, Transition::Resume, Transition::Cancel];

async fn change(
    store: &dyn Store,
    topic: &TopicName,
    group: &GroupName,
    transition: Transition,
) -> Result<()> {
    match transition {
        Transition::Pause => store.pause(topic, group, None).await,
        Transition::Resume => store.resume(topic, group).await,
        Transition::Cancel => store.cancel(topic, group).await,
        // The detector and `resurrect` make these; no other call names them.
        Transition::Die | Transition::Resurrect => unreachable!("{transition:?} is not made by operators"),
    }
}

/// The reason of a pause is in the status while it lasts, and in the audit.
pub async fn a_pause_keeps_its_reason_until_it_ends(case: &Case) {
    let scene = case.scene(lively()).await;
    let (store, topic, workers) = (&scene.store, &scene.topic, group("workers"));
    let reason = "the mail server is down: \"ü\"";
    store.pause(topic, &workers, Some(reason)).await.unwrap();
    let paused = scene.status().await;
    assert_eq!(paused.state_reason.as_deref(), Some(reason));
    assert!(paused.health_issues(case.now()).contains(&HealthIssue::Paused));
    let error = failed(store.pause(topic, &workers, Some("another")).await, ErrorKind::InvalidTransition);
    assert!(error.to_string().contains("is paused"), "{error}");
    assert_eq!(scene.status().await.state_reason.as_deref(), Some(reason), "the first one stays");
    let entry = store.audit(1).await.unwrap().remove(0);
    let detail: serde_json::Value = serde_json::from_str(&entry.detail).unwrap();
    assert_eq!((entry.act.as_str(), detail["reason"].as_str()), ("pause", Some(reason)));
    scene.resume().await;
    assert_eq!(scene.status().await.state_reason, None);
    scene.pause().await;
    let paused = scene.status().await;
    assert_eq!((paused.state_reason.as_deref(), paused.health_issues(case.now())), (None, vec![]));
    scene.resume().await;
    for bad in ["", "  ", "a\0b", &"x".repeat(REASON_BYTES_MAX + 1)] {
        let error = failed(store.pause(topic, &workers, Some(bad)).await, ErrorKind::InvalidInput);
        assert!(error.to_string().starts_with("invalid reason: "), "{error}");
    }
    store.pause(topic, &workers, Some(&"x".repeat(REASON_BYTES_MAX))).await.unwrap();
    scene.cancel().await;
    assert_eq!(scene.status().await.state_reason, None);
}

/// Every transition is tried from every state: an allowed one leads to its target, any other is refused and changes
/// nothing.
pub async fn only_the_allowed_transitions_exist(case: &Case) {
    let store = case.open().await;
    for state in SubscriptionState::ALL {
        for transition in BY_OPERATORS {
            let name = format!("{state}-{}", transition.as_str());
            let scene = Scene::new(store.clone(), &name, lively()).await;
            scene.publish(3).await;
            scene.claim_one("a", 1).await;
            scene.bring_to(case, state).await;
            let before = scene.status().await;
            let answer = change(&*scene.store, &scene.topic, &group("workers"), transition).await;
            if transition.from().contains(&state) {
                assert!(answer.is_ok(), "{name}: {answer:?}");
                let after = scene.status().await;
                assert_eq!((after.state, after.state_since), (transition.to(), case.now()), "{name}");
            } else {
                let error = failed(answer, ErrorKind::InvalidTransition);
                let text = error.to_string();
                assert!(text.contains(&name) && text.contains("workers"), "{name}: {text}");
                assert_eq!(scene.status().await, before, "{name} changed something");
            }
        }
    }
}

/// Only a dead group is resurrected by hand: an active one already is active, and an operator decided to pause or
/// cancel.
pub async fn only_a_dead_group_is_resurrected(case: &Case) {
    let store = case.open().await;
    for state in SubscriptionState::ALL {
        let scene = Scene::new(store.clone(), state.as_str(), lively()).await;
        scene.publish(4).await;
        scene.ack_next(2).await;
        scene.bring_to(case, state).await;
        let before = scene.status().await;
        let answer = scene.store.resurrect(&scene.topic, &group("workers"), None).await;
        match state {
            SubscriptionState::Active | SubscriptionState::Dead => {
                let answer = answer.unwrap();
                assert_eq!(answer.resurrected, state == SubscriptionState::Dead);
                assert_eq!((answer.next.0, answer.missed.count), (3, 0));
                assert_eq!(scene.state().await, SubscriptionState::Active);
                assert_eq!(scene.reads().await, [3, 4]);
            }
            _ => {
                failed(answer, ErrorKind::InvalidTransition);
                assert_eq!(scene.status().await, before);
            }
        }
    }
    let unknown = store.resurrect(&topic("active"), &group("unknown"), None).await;
    failed(unknown, ErrorKind::NoSuchSubscription);
}

/// Once the pause has returned, no process hands out messages. What is published meanwhile waits and is delivered
/// after the resume.
pub async fn a_pause_stops_hand_outs_and_loses_nothing(case: &Case) {
    let scene = case.scene(lively()).await;
    let elsewhere = scene.through(&case.open().await);
    scene.publish(5).await;
    assert_eq!(elsewhere.claim_one("b", 1).await.range.first.0, 1);
    scene.pause().await;
    scene.publish(2).await;
    let id = scene.subscription.subscription_id;
    for one in [&scene, &elsewhere] {
        let claimed = one.claimed("a", 10).await;
        assert_eq!(claimed.leases, []);
        assert_eq!(claimed.inactive, [(id, SubscriptionState::Paused)]);
    }
    // Nor are expired leases handed out again.
    case.advance(Duration::from_secs(301));
    elsewhere.claim_nothing("a", 10).await;
    scene.store.advance_heads().await.unwrap();
    let status = scene.status().await;
    assert_eq!((status.state, status.lag), (SubscriptionState::Paused, 7));
    scene.resume().await;
    let mut got = elsewhere.reads().await;
    got.sort_unstable();
    assert_eq!(got, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(elsewhere.claimed("a", 10).await.inactive, []);
}

/// A claim for several subscriptions serves the active ones and names the others.
pub async fn a_claim_names_inactive_subscriptions(case: &Case) {
    let scene = case.scene(lively()).await;
    let mut others = Vec::new();
    for state in [SubscriptionState::Paused, SubscriptionState::Dead, SubscriptionState::Cancelled] {
        others.push((scene.subscribe(state.as_str(), Start::Beginning).await, state));
    }
    scene.publish(2).await;
    for (other, state) in &others {
        other.bring_to(case, *state).await;
    }
    let mut wants = vec![scene.want(5)];
    wants.extend(others.iter().map(|(other, _)| other.want(5)));
    let request = crate::store::ClaimRequest { owner: super::case::owner("a"), wants };
    let claimed = scene.store.claim(&request).await.unwrap();
    let served: Vec<_> = claimed.leases.iter().map(|lease| lease.subscription_id).collect();
    assert_eq!(served, [scene.subscription.subscription_id]);
    let mut inactive = claimed.inactive;
    inactive.sort_by_key(|(id, _)| *id);
    let expected: Vec<_> =
        others.iter().map(|(other, state)| (other.subscription.subscription_id, *state)).collect();
    assert_eq!(inactive, expected);
}

/// An operator pauses a group for a reason and will want its messages: they stay.
pub async fn a_paused_group_still_counts(case: &Case) {
    let scene = case.scene(lively()).await;
    let other = scene.subscribe("other", Start::Beginning).await;
    scene.publish(4).await;
    scene.ack_next(1).await;
    scene.pause().await;
    assert_eq!(other.reads().await, [1, 2, 3, 4]);
    assert_eq!(scene.topic_status().await.watermark.0, 1);
    assert_eq!(scene.clean_all().await.removed, 1);
    assert_eq!(scene.stored().await, [2, 3, 4]);
    scene.resume().await;
    assert_eq!(scene.reads().await, [2, 3, 4]);
    assert_eq!(scene.clean_all().await.removed, 3);
}

/// What was leased before the group was paused or died may be settled: acked, retried, buried, extended.
pub async fn what_was_started_is_settled_under_pause_and_death(case: &Case) {
    for state in [SubscriptionState::Paused, SubscriptionState::Dead] {
        let scene = Scene::new(case.open().await, state.as_str(), lively()).await;
        scene.publish(6).await;
        let whole = scene.claim_one("a", 2).await;
        let parts = scene.claim_one("a", 3).await;
        scene.bring_to(case, state).await;
        scene.extend(&whole, Duration::from_secs(600)).await.unwrap();
        scene.ack(&whole).await;
        let outcomes = vec![((3, 3), Outcome::Ack), ((4, 4), retry(0, "again")), ((5, 5), bury("hopeless"))];
        scene.settle_each(&parts, outcomes).await.unwrap();
        let status = scene.status().await;
        assert_eq!((status.floor.0, status.waiting, status.dead_letters), (3, 1, 1), "{state}");
        assert_eq!(status.state, state, "settling resurrects no group");
        scene.claim_nothing("a", 10).await;
        match state {
            SubscriptionState::Paused => scene.resume().await,
            _ => {
                scene.store.resurrect(&scene.topic, &group("workers"), None).await.unwrap();
            }
        }
        let mut got = scene.reads().await;
        got.sort_unstable();
        assert_eq!(got, [4, 6], "{state}");
    }
}

/// The leases of a cancelled group are lost at once, nothing of it is outstanding, and no message waits for it.
pub async fn a_cancelled_group_holds_and_counts_for_nothing(case: &Case) {
    for from in [SubscriptionState::Active, SubscriptionState::Paused, SubscriptionState::Dead] {
        let scene = Scene::new(case.open().await, from.as_str(), lively()).await;
        let other = scene.subscribe("other", Start::Beginning).await;
        scene.publish(6).await;
        let lease = scene.claim_one("a", 2).await;
        let again = scene.claim_one("a", 1).await;
        scene.settle_each(&again, vec![((3, 3), retry(0, "again"))]).await.unwrap();
        scene.bring_to(case, from).await;
        assert_eq!(other.reads().await, [1, 2, 3, 4, 5, 6]);
        scene.cancel().await;
        failed(scene.settle(Settlement::ack_all(&lease)).await, ErrorKind::LeaseLost);
        failed(scene.extend(&lease, TIMEOUT).await, ErrorKind::LeaseLost);
        assert_eq!(scene.outstanding().await, []);
        let claimed = scene.claimed("a", 10).await;
        let id = scene.subscription.subscription_id;
        assert_eq!((claimed.leases, claimed.inactive), (vec![], vec![(id, SubscriptionState::Cancelled)]));
        let status = scene.topic_status().await;
        assert_eq!((status.watermark.0, status.subscriptions), (6, 1), "{from}");
        assert_eq!(other.clean_all().await.removed, 6);
    }
}

/// Cancelled is a terminal state: subscribing the same name makes a new subscription, with its own start and nothing
/// of the old one.
pub async fn subscribing_after_a_cancel_makes_a_new_one(case: &Case) {
    let scene = case.scene(TopicSettings { message_retention: None, ..lively() }).await;
    scene.publish(4).await;
    let lease = scene.claim_one("a", 1).await;
    scene.settle_each(&lease, vec![((1, 1), bury("hopeless"))]).await.unwrap();
    scene.ack_next(1).await;
    scene.cancel().await;
    let new = scene.subscribe("workers", Start::Offset(crate::Offset(2))).await;
    assert_ne!(new.subscription.subscription_id, scene.subscription.subscription_id);
    let status = new.status().await;
    assert_eq!((status.state, status.next.0, status.dead_letters), (SubscriptionState::Active, 2, 0));
    assert_eq!(new.reads().await, [2, 3, 4]);
    assert_eq!(scene.state().await, SubscriptionState::Cancelled);
    let listed = scene.store.subscriptions(&scene.topic).await.unwrap();
    assert_eq!(listed.len(), 2, "the cancelled one is listed until it is removed: {listed:?}");
    assert_eq!(scene.topic_status().await.subscriptions, 1);
    // Operators' actions apply to the subscription that is not cancelled.
    new.pause().await;
    assert_eq!(
        (new.state().await, scene.state().await),
        (SubscriptionState::Paused, SubscriptionState::Cancelled)
    );
    // The first listed of a name is the current one: the one not cancelled, or else the last that was.
    new.cancel().await;
    let last = scene.subscribe("workers", Start::Now).await;
    let listed = scene.store.subscriptions(&scene.topic).await.unwrap();
    let ids: Vec<_> = listed.iter().map(|status| status.subscription_id).collect();
    assert_eq!(ids, [&last, &new, &scene].map(|one| one.subscription.subscription_id));
}

/// The queue's only group was cancelled: another may subscribe, and gets the queue's messages.
pub async fn a_queue_accepts_another_group_after_a_cancel(case: &Case) {
    let queue = TopicSettings { semantics: crate::topic::Semantics::Queue, ..lively() };
    let scene = case.scene(queue).await;
    scene.publish(3).await;
    scene.ack_next(1).await;
    let others = scene.store.subscribe(&scene.topic, &group("others"), Start::Beginning).await;
    failed(others, ErrorKind::InvalidInput);
    scene.cancel().await;
    let others = scene.subscribe("others", Start::Beginning).await;
    assert_eq!(others.reads().await, [1, 2, 3]);
    let third = scene.store.subscribe(&scene.topic, &group("workers"), Start::Beginning).await;
    failed(third, ErrorKind::InvalidInput);
}

/// Only a cancelled group can be removed; everything of it is removed and nothing of other groups.
pub async fn only_a_cancelled_group_is_removed(case: &Case) {
    let store = case.open().await;
    for state in SubscriptionState::ALL {
        let scene = Scene::new(store.clone(), state.as_str(), lively()).await;
        let other = scene.subscribe("other", Start::Beginning).await;
        scene.publish(2).await;
        for one in [&scene, &other] {
            let lease = one.claim_one("a", 1).await;
            one.settle_each(&lease, vec![((1, 1), bury("hopeless"))]).await.unwrap();
        }
        scene.bring_to(case, state).await;
        scene.track_all().await;
        let answer = store.remove(&scene.topic, &group("workers")).await;
        if state != SubscriptionState::Cancelled {
            failed(answer, ErrorKind::InvalidTransition);
            assert_eq!(scene.state().await, state);
            continue;
        }
        answer.unwrap();
        let listed = store.subscriptions(&scene.topic).await.unwrap();
        assert_eq!(listed.iter().map(|one| one.group.as_str()).collect::<Vec<_>>(), ["other"]);
        assert_eq!(scene.dead_letters().await, []);
        assert_eq!(other.dead_letters().await.len(), 1);
        assert_eq!(scene.heartbeat("a").await, Signal::Gone);
        let again = store.remove(&scene.topic, &group("workers")).await;
        failed(again, ErrorKind::NoSuchSubscription);
        assert_eq!(other.reads().await, [2]);
    }
}

/// A pause, a resume and a cancellation wake waiters of the topic at once, also in another process.
pub async fn a_changed_state_wakes_a_waiter(case: &Case) {
    let scene = case.scene(lively()).await;
    let elsewhere = scene.through(&case.open().await);
    for transition in BY_OPERATORS {
        for (actor, from) in [(&scene, "here"), (&elsewhere, "elsewhere")] {
            let waiter = scene.subscribe(&format!("{}-{from}", transition.as_str()), Start::Now).await;
            if transition == Transition::Resume {
                waiter.pause().await;
            }
            at_rest(&waiter).await;
            let wake = arm(&waiter).await;
            change(&*actor.store, &waiter.topic, &waiter.subscription.group, transition).await.unwrap();
            assert!(wake.wait(SAFETY_POLL / 2).await, "{transition:?} {from} woke no waiter");
        }
    }
}

/// Members claim as fast as they can while the group is paused and resumed: a claim that starts after a pause
/// returned gets nothing, and in the end every message was delivered exactly once.
pub async fn a_pause_among_claims_is_a_clean_cut(case: &Case) {
    const MESSAGES: usize = 120;
    let scene = case.scene(lively()).await;
    scene.publish(MESSAGES).await;
    let stores = [scene.clone(), scene.through(&case.open().await)];
    let members: Vec<_> = (0..4)
        .map(|n| {
            let scene = stores[n % 2].clone();
            tokio::spawn(async move {
                let (mut got, until) = (Vec::new(), std::time::Instant::now() + DEADLINE);
                while std::time::Instant::now() < until {
                    for lease in scene.claim(&format!("member-{n}"), 3).await {
                        got.extend(offsets_of(&scene.fetch(&lease).await));
                        scene.ack(&lease).await;
                    }
                    if scene.status().await.floor.0 == MESSAGES as i64 {
                        return got;
                    }
                    tokio::task::yield_now().await;
                }
                panic!("{:?} never ends", scene.status().await)
            })
        })
        .collect();
    for _ in 0..8 {
        scene.pause().await;
        let next = scene.status().await.next;
        for store in &stores {
            store.claim_nothing("late", 3).await;
        }
        assert_eq!(scene.status().await.next, next, "messages were handed out during a pause");
        scene.resume().await;
        super::case::pause().await;
    }
    let mut got = Vec::new();
    for member in members {
        got.extend(member.await.unwrap());
    }
    got.sort_unstable();
    assert!(got.iter().copied().eq(1..=MESSAGES as i64), "{got:?}");
}

/// Errors distinguish an unknown topic from an unknown group.
pub async fn unknown_groups_and_topics_are_named(case: &Case) {
    let scene = case.scene(lively()).await;
    let (unknown, nowhere, workers) = (group("unknown"), topic("nowhere"), group("workers"));
    for transition in BY_OPERATORS {
        let answer = change(&*scene.store, &scene.topic, &unknown, transition).await;
        let error = failed(answer, ErrorKind::NoSuchSubscription);
        assert!(error.to_string().contains("unknown"), "{error}");
        failed(change(&*scene.store, &nowhere, &workers, transition).await, ErrorKind::NoSuchTopic);
    }
    failed(scene.store.remove(&scene.topic, &unknown).await, ErrorKind::NoSuchSubscription);
    failed(scene.store.seek(&scene.topic, &unknown, Start::Now, false).await, ErrorKind::NoSuchSubscription);
    failed(scene.store.policy(&scene.topic, &unknown).await, ErrorKind::NoSuchSubscription);
    assert_eq!(scene.state().await, SubscriptionState::Active);
}

/// The text of a refusal.
fn said<T: std::fmt::Debug>(answer: Result<T>) -> String {
    answer.expect_err("it is refused").to_string()
}

/// A refusal because of a group's state has the same text on both engines.
pub async fn a_refused_state_is_worded_alike(case: &Case) {
    let scene = case.scene(lively()).await;
    let (store, topic, name) = (&scene.store, &scene.topic, &scene.subscription.group);
    let state = |state: &str, act: &str, needs: &str| {
        let of = "invalid transition: topic orders, group workers is";
        format!("{of} {state}; {act} needs {needs}; nothing was changed")
    };
    let backfill = |state: &str, act: &str, needs: &str| {
        let of = "invalid transition: the backfill of topic orders, group workers is";
        format!("{of} {state}; {act} needs {needs}; nothing was changed")
    };
    assert_eq!(said(store.resume(topic, name).await), state("active", "resume", "paused"));
    assert_eq!(said(store.remove(topic, name).await), state("active", "remove", "cancelled"));
    let needs = "not_started or in_progress";
    assert_eq!(said(store.cancel_backfill(topic, name).await), backfill("missing", "cancel_backfill", needs));
    scene.publish(3).await;
    let limits = BackfillLimits::default();
    store.backfill(topic, name, &limits).await.unwrap();
    assert_eq!(
        said(store.backfill(topic, name, &limits).await),
        "a backfill is under way: topic orders, group workers; wait for it or cancel it"
    );
    assert_eq!(
        said(store.resume_backfill(topic, name).await),
        backfill("in_progress", "resume_backfill", "cancelled or failed")
    );
    store.cancel_backfill(topic, name).await.unwrap();
    scene.let_die(case).await;
    let dead = "invalid transition: topic orders, group workers is dead; a backfill needs active or paused; nothing was changed";
    assert_eq!(said(store.backfill(topic, name, &limits).await), dead);
    assert_eq!(said(store.resume_backfill(topic, name).await), dead);
    scene.cancel().await;
    let alive = "active or paused or dead";
    assert_eq!(said(store.pause(topic, name, None).await), state("cancelled", "pause", "active"));
    assert_eq!(said(store.cancel(topic, name).await), state("cancelled", "cancel", alive));
    assert_eq!(said(store.resurrect(topic, name, None).await), state("cancelled", "resurrect", "dead"));
    assert_eq!(said(store.seek(topic, name, Start::Now, false).await), state("cancelled", "seek", alive));
    let policy = DeliveryPolicy::default();
    assert_eq!(said(store.set_policy(topic, name, &policy).await), state("cancelled", "set_policy", alive));
    assert_eq!(
        said(store.redrive(&scene.dead_letter_selection()).await),
        state("cancelled", "redrive", alive)
    );
}

/// So has a refusal because of what is stored.
pub async fn a_refused_change_is_worded_alike(case: &Case) {
    let scene = case.scene(counted()).await;
    let (store, topic, name) = (&scene.store, &scene.topic, &scene.subscription.group);
    scene.publish(3).await;
    scene.track_all().await;
    let other = scene.subscribe("others", Start::Now).await;
    for (text, altered) in [
        (
            "invalid semantics: topic orders has the groups others, workers; a queue has one: cancel the others first",
            TopicSettings { semantics: Semantics::Queue, ..counted() },
        ),
        (
            "invalid storage: topic orders has messages; storage changes only while it has none",
            TopicSettings { storage: Storage::Dedicated(Partition::None), ..counted() },
        ),
    ] {
        assert_eq!(said(store.alter_topic(topic, &altered).await), text);
    }
    let beyond = "invalid start offset: 99 is beyond the end, 3 is the last offset taken: start at now for what comes next";
    assert_eq!(said(store.seek(topic, name, Start::Offset(Offset(99)), true).await), beyond);
    assert_eq!(said(store.subscribe(topic, &group("late"), Start::Offset(Offset(99))).await), beyond);
    let far = NewMessage::new("far").deliver_at(case.now() + Duration::from_secs(367 * 24 * 3600));
    assert_eq!(said(store.publish(topic, &[far]).await), "invalid deliver_at: more than 366 days from now");
    let large = NewMessage::new(vec![0; 1024 * 1024 + 1]);
    assert_eq!(
        said(store.publish(topic, &[large]).await),
        "payload too large: 1048577 bytes, topic orders allows 1048576; raise its payload_bytes_max or store the payload elsewhere"
    );
    let want = crate::store::Want::new(SubscriptionId(999), 1);
    let request = crate::store::ClaimRequest { owner: owner("a"), wants: vec![want] };
    assert_eq!(said(store.claim(&request).await), "no such subscription: 999; subscribe the group first");
    other.cancel().await;
    scene.cancel().await;
    assert_eq!(
        said(store.remove(topic, name).await),
        "invalid transition: topic orders, group workers is cancelled and not yet released from the completion records; maintenance releases it; nothing was changed"
    );
    let watermark = TopicSettings { tracking: Tracking::OffsetWatermark, ..counted() };
    store.alter_topic(topic, &watermark).await.unwrap();
    assert_eq!(
        said(store.alter_topic(topic, &counted()).await),
        "a change of tracking is under way: topic orders becomes offset_watermark; wait until it is done, see `headwater topic show`"
    );
}
