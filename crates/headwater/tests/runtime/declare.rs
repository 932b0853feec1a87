//! What a program declares of its group: stored when the group is new, compared later.

use std::time::Duration;

use headwater::consumer::GroupOrder;
use headwater::testing::ManualClock;
use headwater::{Context, DeliveryPolicy, Headwater, Json};

use crate::each::{Place, Seen, on_each};
use crate::logs::{capture, lines_of};

on_each!(
    a_group_is_ordered_although_its_topic_is_not,
    attempts_and_backoff_are_the_groups_own,
    a_deploy_undoes_no_tuning_and_warns_once,
    a_program_that_ensures_its_policy_gets_it,
);

const SECOND: Duration = Duration::from_secs(1);

async fn open(place: &Place) -> (Headwater, ManualClock) {
    let clock = ManualClock::at("2026-03-02T09:00:00Z".parse().unwrap());
    (place.open_at(&clock).await, clock)
}

async fn a_group_is_ordered_although_its_topic_is_not(place: Place) {
    let (headwater, clock) = open(&place).await;
    headwater.topic("orders").pub_sub().create().await.unwrap();
    let orders = headwater.producer("orders");
    for n in 1..=3 {
        orders.send(&n).key("a").await.unwrap();
    }
    for (group, order, seen_at_first) in [
        ("free", GroupOrder::AsTopic, vec![1, 2, 3]),
        ("strict", GroupOrder::ByKey { lanes: Some(2) }, vec![1]),
    ] {
        let seen = Seen::<u64>::default();
        let note = seen.clone();
        // The first message fails once: in order the others wait for it.
        let mut consumer = headwater
            .consumer("orders", group)
            .order(order)
            .concurrency(1)
            .member("m", move |Json(n): Json<u64>, context: Context| {
                note.add(n);
                async move { if n == 1 && context.attempt() == 1 { Err("once".into()) } else { Ok(()) } }
            })
            .stepwise()
            .await
            .unwrap();
        consumer.drain().await.unwrap();
        assert_eq!(seen.all(), seen_at_first, "{group}");
        clock.advance(SECOND * 5);
        consumer.drain().await.unwrap();
        let all = if group == "strict" { vec![1, 1, 2, 3] } else { vec![1, 2, 3, 1] };
        assert_eq!(seen.all(), all, "{group}");
    }
    place.leave(&headwater).await;
}

async fn attempts_and_backoff_are_the_groups_own(place: Place) {
    let (headwater, clock) = open(&place).await;
    headwater.topic("orders").create().await.unwrap();
    headwater.producer("orders").send(&1).await.unwrap();
    let mut consumer = headwater
        .consumer("orders", "email")
        .max_attempts(2)
        .backoff(SECOND * 60, SECOND * 60)
        .member("m", |_: Json<u64>, _: Context| async { Err("always".into()) })
        .stepwise()
        .await
        .unwrap();
    let dead_letters = headwater.dead_letters().of("orders", "email");
    assert_eq!(consumer.drain().await.unwrap(), 1);
    clock.advance(SECOND * 25);
    assert_eq!(consumer.step().await.unwrap(), 0, "the topic's back-off of a second does not hold");
    assert_eq!(dead_letters.count().await.unwrap(), 0);
    clock.advance(SECOND * 40);
    assert_eq!(consumer.drain().await.unwrap(), 1);
    assert_eq!(
        dead_letters.count().await.unwrap(),
        1,
        "buried at the second attempt, not at the topic's tenth"
    );
    place.leave(&headwater).await;
}

async fn a_deploy_undoes_no_tuning_and_warns_once(place: Place) {
    capture();
    let (headwater, _) = open(&place).await;
    let topic = format!("declared-{}", headwater.store().engine());
    headwater.topic(&topic).create().await.unwrap();
    let deploy = || {
        headwater.consumer(&topic, "email").ordered_by_key().max_attempts(4).heartbeats(SECOND, SECOND * 9)
    };
    let warnings = || lines_of(&topic).into_iter().filter(|line| line.contains("WARN")).collect::<Vec<_>>();
    for _ in 0..2 {
        let consumer = deploy().open().await.unwrap();
        assert_eq!(consumer.subscription().lanes, 16);
    }
    assert_eq!(warnings(), [""; 0], "as declared");
    let tuned =
        DeliveryPolicy { max_attempts: Some(7), ..headwater.groups(&topic).policy("email").await.unwrap() };
    headwater.groups(&topic).set_policy("email", &tuned).await.unwrap();
    let consumer = deploy().order(GroupOrder::Unordered).open().await.unwrap();
    assert_eq!(consumer.subscription().topic.settings.max_attempts, 7, "the operator's value holds");
    assert_eq!(consumer.subscription().lanes, 16);
    assert_eq!(headwater.groups(&topic).policy("email").await.unwrap(), tuned);
    let warned = warnings();
    assert_eq!(warned.len(), 1, "{warned:?}");
    let both = "order by key in 16 lanes, not none; max_attempts 7, not 4";
    assert!(warned[0].contains(both) && warned[0].contains("group policy"), "{warned:?}");
    place.leave(&headwater).await;
}

async fn a_program_that_ensures_its_policy_gets_it(place: Place) {
    let (headwater, _) = open(&place).await;
    headwater.topic("orders").create().await.unwrap();
    let groups = headwater.groups("orders");
    headwater.consumer("orders", "email").max_attempts(4).open().await.unwrap();
    let lease = Some(SECOND * 77);
    groups
        .set_policy("email", &DeliveryPolicy { lease, max_attempts: Some(7), ..Default::default() })
        .await
        .unwrap();
    for _ in 0..2 {
        let deploy = headwater.consumer("orders", "email").max_attempts(4).ensure_policy();
        let settings = deploy.open().await.unwrap().subscription().topic.settings.clone();
        assert_eq!((settings.max_attempts, Some(settings.lease)), (4, lease));
    }
    let policy = groups.policy("email").await.unwrap();
    assert_eq!((policy.max_attempts, policy.lease), (Some(4), lease), "what the code does not name stays");
    let audit = headwater.audit(10).await.unwrap();
    let changes = audit.iter().filter(|entry| entry.act == "set_policy").count();
    assert_eq!(changes, 2, "the operator's, and one by the first start after it: {audit:?}");
    place.leave(&headwater).await;
}
