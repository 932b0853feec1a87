//! The life of subscriptions where this engine differs: plain SQL, two processes, spans of offsets.

use super::*;
use crate::clock::{Clock, ManualClock};
use crate::message::Offset;
use crate::store::{Served, Signal};
use crate::subscription::{Activity, DeliveryPolicy, SubscriptionState};
use crate::topic::{Ordering, Tracking};

fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

fn owner(name: &str) -> Owner {
    Owner::new(name).unwrap()
}

async fn fan_out(store: &SqliteStore, settings: TopicSettings, groups: &[&str]) -> Vec<Subscription> {
    store.create_topic(&topic("events"), &settings).await.unwrap();
    let mut all = Vec::new();
    for name in groups {
        all.push(store.subscribe(&topic("events"), &group(name), Start::Beginning).await.unwrap());
    }
    all
}

/// What the detector does once heartbeats are missing for long enough.
fn kill(place: &Place, name: &str) {
    let killed = place
        .connect()
        .execute("UPDATE headwater_subscription SET state = 'dead' WHERE group_name = ?1", [name])
        .unwrap();
    assert_eq!(killed, 1);
}

fn number(place: &Place, sql: &str) -> i64 {
    place.connect().query_row(sql, [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a_topic_that_blocks_accepts_nothing_while_no_group_counts() {
    let place = Place::new();
    let store = place.open().await;
    let blocking = TopicSettings { block_writes_on_zero_subscriptions: true, ..TopicSettings::pub_sub() };
    store.create_topic(&topic("events"), &blocking).await.unwrap();
    let mut own = place.connect();
    let by_sql = |own: &Connection| {
        own.execute("INSERT INTO headwater_publish (topic, payload) VALUES ('events', 'sql')", [])
    };
    let mut refused = async |store: &SqliteStore, why: &str| {
        let error = store.publish(&topic("events"), &messages(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSubscriptions, "{why}");
        let transaction = own.transaction().unwrap();
        let error = publish(&transaction, "events", &messages(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSubscriptions, "{why}");
        drop(transaction);
        let error = by_sql(&own).unwrap_err().to_string();
        assert!(error.contains("no subscriptions") && error.contains("subscribe a group"), "{why}: {error}");
    };
    refused(&store, "no group yet").await;
    let subscription = store.subscribe(&topic("events"), &group("a"), Start::Beginning).await.unwrap();
    store.publish(&topic("events"), &messages(1)).await.unwrap();
    store.pause(&topic("events"), &group("a"), None).await.unwrap();
    by_sql(&place.connect()).unwrap();
    kill(&place, "a");
    refused(&store, "dead").await;
    store.heartbeat(&owner("p"), None, &[served(&subscription, 0)]).await.unwrap();
    by_sql(&place.connect()).unwrap();
    store.cancel(&topic("events"), &group("a")).await.unwrap();
    refused(&store, "cancelled").await;
    assert_eq!(store.topics().await.unwrap()[0].head, Offset(3), "refused messages took no offset");
    let queue = TopicSettings::default();
    store.create_topic(&topic("work"), &queue).await.unwrap();
    store.publish(&topic("work"), &messages(1)).await.unwrap();
}

fn served(subscription: &Subscription, processed: u64) -> Served {
    let activity = Activity { processed, rate: 2.0, ..Activity::default() };
    Served { subscription_id: subscription.subscription_id, activity }
}

#[tokio::test]
async fn another_process_stops_at_a_pause_and_loses_its_leases_at_a_cancel() {
    let place = Place::new();
    let (here, there) = (place.open().await, place.open().await);
    let subscription = fan_out(&here, TopicSettings::pub_sub(), &["a"]).await.remove(0);
    here.publish(&topic("events"), &messages(3)).await.unwrap();
    let wanted = request(&subscription, 1);
    let mut leases = Vec::new();
    for _ in 0..2 {
        leases.append(&mut there.claim(&wanted).await.unwrap().leases);
    }
    let wake = there.arm(&[subscription.topic.topic_id]).await.unwrap();
    here.pause(&topic("events"), &group("a"), None).await.unwrap();
    assert!(wake.wait(Duration::from_secs(10)).await, "the pause wakes waiters");
    let claimed = there.claim(&wanted).await.unwrap();
    assert_eq!(claimed.leases, []);
    assert_eq!(claimed.inactive, [(subscription.subscription_id, SubscriptionState::Paused)]);
    there.settle(&[Settlement::ack_all(&leases[0])]).await.unwrap().remove(0).unwrap();
    here.cancel(&topic("events"), &group("a")).await.unwrap();
    let lost = there.settle(&[Settlement::ack_all(&leases[1])]).await.unwrap().remove(0).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::LeaseLost);
    let answer = there.heartbeat(&owner("p"), None, &[served(&subscription, 0)]).await.unwrap();
    assert_eq!(answer.signals, [Signal::Cancelled]);
    let error = here.resume(&topic("events"), &group("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidTransition, "{error}");
    let again = there.subscribe(&topic("events"), &group("a"), Start::Beginning).await.unwrap();
    assert_ne!(again.subscription_id, subscription.subscription_id);
    let listed = here.subscriptions(&topic("events")).await.unwrap();
    let states: Vec<_> = listed.iter().map(|status| status.state).collect();
    assert_eq!(states, [SubscriptionState::Active, SubscriptionState::Cancelled]);
    here.remove(&topic("events"), &group("a")).await.unwrap();
    assert_eq!(here.subscriptions(&topic("events")).await.unwrap().len(), 1);
    assert_eq!(there.claim(&wanted).await.unwrap_err().kind(), ErrorKind::NoSuchSubscription);
    let acts: Vec<String> = here.audit(10).await.unwrap().into_iter().map(|entry| entry.act).collect();
    assert_eq!(acts, ["remove", "cancel", "pause"]);
    assert_eq!(here.doctor().await.unwrap(), []);
}

#[tokio::test]
async fn a_heartbeat_writes_of_a_group_only_what_changed() {
    let place = Place::new();
    let clock = ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap());
    let options = OpenOptions::default().clock(Clock::Manual(clock.clone()));
    let store = open_at(&place.path(), options).await.unwrap();
    let subscription = fan_out(&store, TopicSettings::pub_sub(), &["a"]).await.remove(0);
    let stored_at = || number(&place, "SELECT served_at_ms FROM headwater_activity");
    let begun = clock.now().as_millisecond();
    // Counts that are stored are written again only if the clock was ahead when they were written.
    for (after_s, done, stored_s) in [(0, 4, 0), (15, 4, 0), (1, 5, 16), (5, 5, 16), (-600, 5, -579)] {
        let now = clock.now().as_millisecond() + after_s * 1_000;
        clock.set(Timestamp::from_millisecond(now).unwrap());
        let answer = store.heartbeat(&owner("one"), None, &[served(&subscription, done)]).await.unwrap();
        assert_eq!(answer.signals, [Signal::Active]);
        assert_eq!(stored_at() - begun, stored_s * 1_000, "after {after_s} s");
        let shown = store.subscriptions(&topic("events")).await.unwrap().remove(0).heartbeat_at;
        assert_eq!(shown, Some(clock.now()), "each heartbeat counts");
    }
    let own = "SELECT count(*) FROM headwater_subscription WHERE heartbeat_at_ms IS NOT NULL";
    assert_eq!(number(&place, own), 0, "the group's row is not written");
    store.heartbeat(&owner("two"), None, &[served(&subscription, 7)]).await.unwrap();
    let status = async || store.subscriptions(&topic("events")).await.unwrap().remove(0);
    let shown = status().await;
    assert_eq!((shown.activity.processed, shown.processes), (12, 2));
    assert!((shown.activity.rate - 4.0).abs() < 1e-9, "{:?}", shown.activity);
    store.depart(&owner("two")).await.unwrap();
    store.depart(&owner("one")).await.unwrap();
    let shown = status().await;
    assert_eq!((shown.activity.processed, shown.processes), (12, 0), "their activity is kept");
    assert!(shown.activity.rate.abs() < 1e-9, "{:?}", shown.activity);
    assert_eq!(number(&place, "SELECT count(*) FROM headwater_activity"), 1);
}

#[tokio::test]
async fn the_ack_log_of_lanes_names_who_held_the_messages_lane() {
    let place = Place::new();
    let store = place.open().await;
    let settings =
        TopicSettings { ordering: Ordering::Key, lanes: 4, ack_log: true, ..TopicSettings::pub_sub() };
    let subscription = fan_out(&store, settings, &["a"]).await.remove(0);
    let batch: Vec<NewMessage> = (0..8).map(|n| NewMessage::new("x").key(format!("k{n}"))).collect();
    store.publish(&topic("events"), &batch).await.unwrap();
    let mut holders = std::collections::HashMap::new();
    for number in 0..4 {
        let want = Want::new(subscription.subscription_id, 8);
        let name = format!("owner {number}");
        let lease = store
            .claim(&ClaimRequest { owner: owner(&name), wants: vec![want] })
            .await
            .unwrap()
            .leases
            .remove(0);
        store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
        holders.insert(lease.lane.unwrap(), name);
    }
    let fetched =
        store.fetch(subscription.topic.topic_id, OffsetRange::new(Offset(1), Offset(8))).await.unwrap();
    for message in fetched {
        let lane = crate::message::lane_of(message.key.as_deref(), message.message_id, 4);
        let acks = store.acks(&topic("events"), message.offset).await.unwrap();
        let owners: Vec<&str> = acks.iter().map(|ack| ack.owner.as_str()).collect();
        assert_eq!(owners, [holders[&lane].as_str()], "offset {}", message.offset);
    }
}

#[tokio::test]
async fn whole_and_partial_acks_are_logged_and_other_topics_are_not() {
    let place = Place::new();
    let store = place.open().await;
    let settings = TopicSettings { ack_log: true, ..TopicSettings::pub_sub() };
    let logged = fan_out(&store, settings, &["a"]).await.remove(0);
    let silent = subscribed(&store, "silent").await;
    for name in ["events", "silent"] {
        store.publish(&topic(name), &messages(6)).await.unwrap();
    }
    for subscription in [&logged, &silent] {
        let lease = store.claim(&request(subscription, 3)).await.unwrap().leases.remove(0);
        store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
        let lease = store.claim(&request(subscription, 3)).await.unwrap().leases.remove(0);
        let parts = vec![
            (OffsetRange::one(Offset(4)), Outcome::Ack),
            (OffsetRange::one(Offset(5)), Outcome::Bury { error: "no".into() }),
            (OffsetRange::one(Offset(6)), Outcome::Release),
        ];
        store.settle(&[Settlement::each(&lease, parts)]).await.unwrap().remove(0).unwrap();
        let stale = store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0);
        assert!(stale.is_err(), "a lost lease logs nothing");
    }
    let count = async |name: &str, offset| store.acks(&topic(name), Offset(offset)).await.unwrap().len();
    let mut found = Vec::new();
    for offset in 1..=6 {
        found.push(count("events", offset).await);
        assert_eq!(count("silent", offset).await, 0);
    }
    assert_eq!(found, [1, 1, 1, 1, 0, 0]);
    assert_eq!(number(&place, "SELECT count(*) FROM headwater_ack_log"), 2);
}

#[tokio::test]
async fn a_seek_does_what_its_dry_run_says() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = fan_out(&store, TopicSettings::pub_sub(), &["a"]).await.remove(0);
    store.publish(&topic("events"), &messages(10)).await.unwrap();
    // 1 to 3 done, 4 and 5 leased, 6 waits, 7 done, 8 to 10 never handed out.
    let retry = Outcome::Retry { after: Duration::from_secs(3_600), error: "later".into(), key: None };
    for (count, outcome) in [(3, Some(Outcome::Ack)), (2, None), (1, Some(retry)), (1, Some(Outcome::Ack))] {
        let lease = store.claim(&request(&subscription, count)).await.unwrap().leases.remove(0);
        if let Some(outcome) = outcome {
            let parts = vec![(lease.range, outcome)];
            store.settle(&[Settlement::each(&lease, parts)]).await.unwrap().remove(0).unwrap();
        }
    }
    let status = store.subscriptions(&topic("events")).await.unwrap().remove(0);
    assert_eq!((status.next, status.floor), (Offset(8), Offset(3)));
    assert_eq!((status.lag, status.in_flight, status.retrying), (6, 2, 1));
    for (to, to_offset, replayed, skipped) in
        [(Start::Offset(Offset(2)), 2, 3, 0), (Start::Now, 11, 0, 9), (Start::BeginningBounded(4), 7, 4, 0)]
    {
        let before = store.subscriptions(&topic("events")).await.unwrap();
        let dry = store.seek(&topic("events"), &group("a"), to, true).await.unwrap();
        assert_eq!(store.subscriptions(&topic("events")).await.unwrap(), before, "a dry run changes nothing");
        let moved = store.seek(&topic("events"), &group("a"), to, false).await.unwrap();
        assert_eq!(moved, dry);
        assert_eq!(
            (moved.to, moved.replayed, moved.skipped),
            (Offset(to_offset), replayed, skipped),
            "{to:?}"
        );
    }
    assert_eq!(drain(&store, &subscription).await.len(), 4);
    let acts: Vec<String> = store.audit(10).await.unwrap().into_iter().map(|entry| entry.act).collect();
    assert_eq!(acts, ["seek", "seek", "seek"]);
    assert_eq!(store.doctor().await.unwrap(), []);
}

#[tokio::test]
async fn a_bounded_resurrection_leaves_the_rest_behind_and_calls_it_not_missed() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = fan_out(&store, TopicSettings::pub_sub(), &["a"]).await.remove(0);
    store.publish(&topic("events"), &messages(10)).await.unwrap();
    let lease = store.claim(&request(&subscription, 8)).await.unwrap().leases.remove(0);
    kill(&place, "a");
    let claimed = store.claim(&request(&subscription, 1)).await.unwrap();
    assert_eq!(claimed.inactive, [(subscription.subscription_id, SubscriptionState::Dead)]);
    let back = store.resurrect(&topic("events"), &group("a"), Some(5)).await.unwrap();
    assert!(back.resurrected && back.missed.count == 0, "{back:?}");
    let status = store.subscriptions(&topic("events")).await.unwrap().remove(0);
    assert_eq!((status.floor, status.next, status.lag), (Offset(5), Offset(9), 5));
    store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
    assert_eq!(drain(&store, &subscription).await, ["message 8", "message 9"]);
    let again = store.resurrect(&topic("events"), &group("a"), Some(0)).await.unwrap();
    assert!(!again.resurrected && again.next == Offset(11), "{again:?}");
    assert_eq!(store.audit(10).await.unwrap().len(), 1);
    assert_eq!(store.doctor().await.unwrap(), []);
}

#[tokio::test]
async fn messages_only_dead_groups_have_not_done_are_given_up_and_counted() {
    let place = Place::new();
    let clock = ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap());
    let options = OpenOptions::default().clock(Clock::Manual(clock.clone()));
    let store = open_at(&place.path(), options).await.unwrap();
    let subscriptions = fan_out(&store, TopicSettings::pub_sub(), &["a", "dead"]).await;
    store.publish(&topic("events"), &messages(6)).await.unwrap();
    clock.advance(Duration::from_secs(7_200));
    store.publish(&topic("events"), &messages(4)).await.unwrap();
    let lease = store.claim(&request(&subscriptions[1], 3)).await.unwrap().leases.remove(0);
    let stuck = store.stuck(&topic("events"), Duration::from_secs(3_600)).await.unwrap();
    let counts: Vec<_> = stuck.iter().map(|stuck| (stuck.group.as_str(), stuck.messages)).collect();
    assert_eq!(counts, [("a", 6), ("dead", 6)]);
    assert_eq!(stuck[0].oldest.as_second(), 1_800_000_000);
    kill(&place, "dead");
    let first = store.claim(&request(&subscriptions[0], 5)).await.unwrap().leases.remove(0);
    store.settle(&[Settlement::ack_all(&first)]).await.unwrap().remove(0).unwrap();
    let hour = Duration::from_secs(3_600);
    let dry = store.force_complete(&topic("events"), hour, true).await.unwrap();
    let done = store.force_complete(&topic("events"), hour, false).await.unwrap();
    assert_eq!(dry, done);
    assert_eq!(
        (done.len(), done[0].messages, done[0].until),
        (1, 5, Offset(5)),
        "group a has not done the sixth either"
    );
    let status = store.subscriptions(&topic("events")).await.unwrap().remove(1);
    assert_eq!((status.floor, status.next), (Offset(5), Offset(6)));
    assert_eq!((status.missed.count, status.missed.range), (5, Some((Offset(1), Offset(5)))));
    let lost = store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::LeaseLost);
    assert_eq!(store.force_complete(&topic("events"), hour, false).await.unwrap(), []);
    let answer = store.heartbeat(&owner("p"), None, &[served(&subscriptions[1], 0)]).await.unwrap();
    assert_eq!(answer.signals, [Signal::Resurrected(status.missed)]);
}

#[tokio::test]
async fn a_topic_is_changed_while_it_is_used_and_the_change_is_audited() {
    let place = Place::new();
    let store = open_at(&place.path(), OpenOptions::default().actor("ada")).await.unwrap();
    let subscription = fan_out(&store, TopicSettings::pub_sub(), &["a", "b"]).await.remove(0);
    let odd = TopicSettings {
        lease: Duration::from_micros(7_500),
        message_retention: None,
        max_retention: Some(Duration::from_micros(1)),
        zombie_subscription_ttl: Duration::from_nanos(1),
        tracking: Tracking::ReferenceCounting,
        ack_log: true,
        ..TopicSettings::pub_sub()
    };
    let altered = store.alter_topic(&topic("events"), &odd).await.unwrap();
    assert_eq!(store.topic(&topic("events")).await.unwrap(), altered, "as it reads back");
    assert_eq!(altered.settings.lease, Duration::from_millis(8));
    store.create_topic(&topic("events"), &odd).await.unwrap();
    let entry = store.audit(1).await.unwrap().remove(0);
    assert_eq!(
        (entry.actor.as_str(), entry.act.as_str(), entry.topic.as_deref()),
        ("ada", "alter_topic", Some("events"))
    );
    let detail: serde_json::Value = serde_json::from_str(&entry.detail).unwrap();
    assert_eq!(detail["lease_ms"], serde_json::json!({ "from": 300_000, "to": 8 }));
    assert_eq!(detail.as_object().unwrap().len(), 6, "{detail}");
    let queue = TopicSettings::default();
    let error = store.alter_topic(&topic("events"), &queue).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let policy = DeliveryPolicy { lease: Some(Duration::from_secs(9)), ..DeliveryPolicy::default() };
    store.set_policy(&topic("events"), &group("a"), &policy).await.unwrap();
    assert_eq!(store.policy(&topic("events"), &group("a")).await.unwrap(), policy);
    let again = store.subscribe(&topic("events"), &group("a"), Start::Now).await.unwrap();
    assert_eq!((again.topic.settings.lease, again.topic.settings.max_attempts), (Duration::from_secs(9), 10));
    store.publish(&topic("events"), &messages(1)).await.unwrap();
    let lease = store.claim(&request(&subscription, 1)).await.unwrap().leases.remove(0);
    let left = lease.deadline.unwrap().duration_since(Timestamp::now());
    assert!(left > jiff::SignedDuration::from_secs(5), "the group's own lease, not the topic's: {left}");
    store.release_lease(lease.token).await.unwrap();
    assert_eq!(store.release_lease(lease.token).await.unwrap_err().kind(), ErrorKind::LeaseLost);
    let again = store.claim(&request(&subscription, 1)).await.unwrap().leases.remove(0);
    assert_eq!((again.attempt, again.suspect), (1, false));
    let dedicated =
        TopicSettings { storage: crate::topic::Storage::Dedicated(crate::topic::Partition::Day), ..odd };
    let error = store.alter_topic(&topic("events"), &dedicated).await.unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("storage"), "{error}");
    store.create_topic(&topic("empty"), &TopicSettings::default()).await.unwrap();
    let settings = TopicSettings { storage: dedicated.storage, ..TopicSettings::default() };
    assert_eq!(
        store.alter_topic(&topic("empty"), &settings).await.unwrap().settings.storage,
        settings.storage
    );
    let error = store.alter_topic(&topic("none"), &settings).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchTopic);
}

#[tokio::test]
async fn registering_over_and_over_is_counted_until_the_floor_moves() {
    let place = Place::new();
    let clock = ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap());
    let options = OpenOptions::default().clock(Clock::Manual(clock.clone()));
    let store = open_at(&place.path(), options).await.unwrap();
    let subscription = fan_out(&store, TopicSettings::pub_sub(), &["a"]).await.remove(0);
    store.publish(&topic("events"), &messages(2)).await.unwrap();
    let register = async || {
        store.subscribe(&topic("events"), &group("a"), Start::Now).await.unwrap();
        store.subscriptions(&topic("events")).await.unwrap().remove(0)
    };
    for expected in 1..=5 {
        assert_eq!(register().await.restarts, expected);
        clock.advance(Duration::from_secs(60));
    }
    assert!(store.subscriptions(&topic("events")).await.unwrap()[0].is_flapping());
    let lease = store.claim(&request(&subscription, 1)).await.unwrap().leases.remove(0);
    store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
    assert_eq!(store.subscriptions(&topic("events")).await.unwrap()[0].restarts, 0, "it makes progress");
    assert_eq!(register().await.restarts, 1);
    clock.advance(Duration::from_secs(601));
    assert_eq!(store.subscriptions(&topic("events")).await.unwrap()[0].restarts, 0, "long ago");
}

#[tokio::test]
async fn redrives_and_purges_are_in_the_audit_and_a_cancelled_group_gets_nothing_back() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = fan_out(&store, TopicSettings::pub_sub(), &["a"]).await.remove(0);
    store.publish(&topic("events"), &messages(1_200)).await.unwrap();
    let bury_all = async || {
        let lease = store.claim(&request(&subscription, 1_200)).await.unwrap().leases;
        for lease in lease {
            let parts = vec![(lease.range, Outcome::Bury { error: "no".into() })];
            store.settle(&[Settlement::each(&lease, parts)]).await.unwrap().remove(0).unwrap();
        }
    };
    bury_all().await;
    let all = DeadLetterSelection::all(subscription.subscription_id);
    assert_eq!(store.redrive(&all).await.unwrap().redriven, 1_200);
    assert_eq!(drain(&store, &subscription).await.len(), 1_200);
    store.seek(&topic("events"), &group("a"), Start::Beginning, false).await.unwrap();
    bury_all().await;
    store.cancel(&topic("events"), &group("a")).await.unwrap();
    let error = store.redrive(&all).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidTransition, "{error}");
    assert_eq!(store.purge(&all).await.unwrap(), 1_200);
    let audit = store.audit(10).await.unwrap();
    let entries: Vec<(&str, &str)> =
        audit.iter().map(|entry| (entry.act.as_str(), entry.detail.as_str())).collect();
    assert_eq!(entries[0], ("purge", r#"{"purged":1200}"#));
    assert_eq!(entries[3], ("redrive", r#"{"gone":0,"redriven":1200}"#));
    assert_eq!(entries.len(), 4, "one entry per call: {entries:?}");
    let own = place.connect();
    let error = own.execute("DELETE FROM headwater_audit", []).unwrap_err().to_string();
    assert!(error.contains("append-only"), "{error}");
}

/// The group is cancelled with the first commit. Its waiting ranges are removed in steps after that, and a step that
/// fails is left to maintenance: an error would mean that nothing happened.
#[tokio::test]
async fn a_cancel_that_happened_does_not_fail_after_it() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = fan_out(&store, TopicSettings::pub_sub(), &["a"]).await.remove(0);
    store.publish(&topic("events"), &messages(3)).await.unwrap();
    let lease = store.claim(&request(&subscription, 3)).await.unwrap().leases.remove(0);
    let back = Settlement::each(&lease, vec![(lease.range, Outcome::Release)]);
    store.settle(&[back]).await.unwrap().remove(0).unwrap();
    let own = place.connect();
    own.execute_batch(
        "CREATE TRIGGER stays BEFORE DELETE ON headwater_outstanding WHEN old.owner IS NULL
         BEGIN SELECT RAISE(ABORT, 'on purpose'); END",
    )
    .unwrap();
    store.cancel(&topic("events"), &group("a")).await.unwrap();
    let waiting =
        || own.query_row("SELECT count(*) FROM headwater_outstanding", [], |row| row.get::<_, i64>(0));
    assert_eq!(waiting().unwrap(), 1);
    let status = store.subscriptions(&topic("events")).await.unwrap().remove(0);
    assert_eq!(status.state, SubscriptionState::Cancelled);
    own.execute_batch("DROP TRIGGER stays").unwrap();
    store.clean_subscriptions(Duration::from_secs(3_600)).await.unwrap();
    assert_eq!(waiting().unwrap(), 0, "maintenance removes the rest");
}

/// A count of waiting ranges that is too high, as in an edited file: the steps end once one of them finds nothing.
#[tokio::test]
async fn a_wrong_count_of_what_waits_does_not_keep_a_cancel_from_its_end() {
    let place = Place::new();
    let store = place.open().await;
    fan_out(&store, TopicSettings::pub_sub(), &["a"]).await;
    place.connect().execute("UPDATE headwater_subscription SET waiting = 7", []).unwrap();
    let (topic, group) = (topic("events"), group("a"));
    let cancel = store.cancel(&topic, &group);
    tokio::time::timeout(Duration::from_secs(20), cancel).await.expect("it ends").unwrap();
}
