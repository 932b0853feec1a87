//! Retention: messages that may be removed are removed, messages that a group still needs stay, and the space is used
//! again.

use super::*;

/// Messages stay for an hour after they are done, and at most a day.
const KEPT: &str =
    "message_retention_ms = 3600000, max_retention_ms = 86400000, zero_subscription_retention_ms = 0";

#[tokio::test]
async fn messages_are_removed_an_hour_after_all_groups_were_done() {
    let scene = Scene::new(KEPT).await;
    let (a, b) = (scene.group("a", Start::Beginning).await, scene.group("b", Start::Beginning).await);
    scene.publish(10).await;
    scene.consume(&a, 10).await;
    scene.consume(&b, 4).await;
    assert_eq!(scene.clean().await, 0);
    scene.clock.advance(Duration::from_secs(1_800));
    scene.consume(&b, 2).await;
    assert_eq!(scene.clean().await, 0);
    scene.clock.advance(Duration::from_secs(1_799));
    assert_eq!(scene.clean().await, 0);
    scene.clock.advance(Duration::from_secs(1));
    assert_eq!(scene.clean().await, 4);
    assert_eq!(scene.stored().await, [5, 6, 7, 8, 9, 10]);
    assert_eq!(scene.number("SELECT first_offset FROM headwater_topic"), Some(5));
    scene.clock.advance(HOUR);
    assert_eq!(scene.clean().await, 2, "b has not done the rest");
    assert_eq!(scene.number("SELECT removed FROM headwater_topic"), Some(6));
    assert_eq!(
        scene.number("SELECT count(*) FROM headwater_watermark_history"),
        Some(1),
        "superseded watermarks are removed"
    );
    scene.assert_sound().await;
}

#[tokio::test]
async fn what_is_to_be_done_again_is_done_later_than_it_was() {
    let scene = Scene::new(KEPT).await;
    let a = scene.group("a", Start::Beginning).await;
    scene.publish(3).await;
    scene.consume(&a, 3).await;
    scene.clean().await;
    scene.clock.advance(HOUR / 2);
    scene.sql("UPDATE headwater_cursor SET next_offset = 1 WHERE subscription_id > 0");
    scene.clean().await;
    scene.consume(&a, 3).await;
    scene.clean().await;
    scene.clock.advance(HOUR / 2);
    assert_eq!(scene.clean().await, 0, "it is only half an hour");
    scene.clock.advance(HOUR);
    assert_eq!(scene.clean().await, 3);
}

#[tokio::test]
async fn watermark_history_stays_short_however_often_cleanup_runs() {
    let scene = Scene::new(KEPT).await;
    let a = scene.group("a", Start::Beginning).await;
    for _ in 0..50 {
        scene.publish(1).await;
        scene.consume(&a, 1).await;
        scene.clock.advance(Duration::from_millis(360));
        scene.clean().await;
    }
    assert_eq!(
        scene.number("SELECT count(*) FROM headwater_watermark_history"),
        Some(5),
        "one in a thousandth of an hour"
    );
}

#[tokio::test]
async fn what_max_retention_removes_unread_is_reported() {
    let scene = Scene::new(KEPT).await;
    let slow = scene.group("slow", Start::Beginning).await;
    let dead = scene.group("dead", Start::Beginning).await;
    scene.publish(10).await;
    assert_eq!(scene.clean().await, 0);
    scene.consume(&slow, 2).await;
    let lease = scene.store.claim(&request(&slow, 2)).await.unwrap().leases.remove(0);
    let retried = scene.store.claim(&request(&slow, 2)).await.unwrap().leases.remove(0);
    let retry = Outcome::Retry { after: HOUR * 99, error: "later".into(), key: None };
    scene.store.settle(&[Settlement::each(&retried, vec![(retried.range, retry)])]).await.unwrap();
    scene.consume(&dead, 9).await;
    scene.set_state(&dead, "dead").await;
    scene.pass(HOUR * 24 - Duration::from_millis(1));
    scene.publish(1).await;
    assert_eq!(scene.clean().await, 0, "two are done, but for a moment only");
    scene.pass(Duration::from_millis(1));
    let step = scene.store.clean(scene.topic, 10_000).await.unwrap();
    let missed: Vec<_> = step.missed.iter().map(|(group, missed)| (group.as_str(), missed.count)).collect();
    assert_eq!((step.removed, missed, step.more), (10, vec![("dead", 1), ("slow", 8)], false));
    let missed = |name: &str| {
        let sql = format!(
            "SELECT missed || ' ' || missed_first || ' ' || missed_last FROM headwater_subscription WHERE group_name = '{name}'"
        );
        scene.place.connect().query_row(&sql, [], |row| row.get::<_, String>(0)).unwrap()
    };
    assert_eq!((missed("slow"), missed("dead")), ("8 3 10".into(), "1 10 10".into()));
    let cursors = "SELECT sum(next_offset) FROM headwater_cursor WHERE subscription_id > 0";
    assert_eq!(scene.number(cursors), Some(22), "both continue at what is left");
    let held = "SELECT group_concat(token) FROM headwater_outstanding";
    let held: String = scene.place.connect().query_row(held, [], |row| row.get(0)).unwrap();
    assert_eq!(held, lease.token.to_string(), "the lease stays, the empty waiting range is removed");
    scene.assert_sound().await;
}

#[tokio::test]
async fn the_log_names_the_topic_and_the_group_that_missed_something() {
    let scene = Scene::new(KEPT).await;
    scene.group("slow", Start::Beginning).await;
    scene.publish(2).await;
    assert_eq!(scene.clean().await, 0);
    scene.pass(HOUR * 24);
    let log = scene.place.directory.path().join("log");
    let lines = Arc::new(std::fs::File::create(&log).unwrap());
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(lines).finish();
    let listening = tracing::subscriber::set_default(subscriber);
    assert_eq!(scene.clean().await, 2);
    drop(listening);
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(
        text.contains("WARN") && text.contains("topic=orders group=slow messages=2 first=1 last=2"),
        "{text}"
    );
}

#[tokio::test]
async fn messages_published_while_no_group_counted_stay_for_their_retention() {
    let settings =
        "message_retention_ms = 0, max_retention_ms = NULL, zero_subscription_retention_ms = 3600000";
    let scene = Scene::new(settings).await;
    scene.publish(2).await;
    scene.clock.advance(HOUR / 2);
    scene.publish(2).await;
    assert_eq!(scene.clean().await, 0);
    let a = scene.group("a", Start::Beginning).await;
    scene.publish(2).await;
    scene.consume(&a, 6).await;
    assert_eq!(
        scene.clean().await,
        2,
        "messages published while a counted are done; the rest is kept for late joiners"
    );
    assert_eq!(scene.stored().await, [1, 2, 3, 4]);
    scene.pass(HOUR / 2);
    assert_eq!(scene.clean().await, 2);
    scene.set_state(&a, "cancelled").await;
    scene.publish(1).await;
    assert_eq!(scene.clean().await, 0);
    scene.pass(HOUR / 2);
    assert_eq!(scene.clean().await, 2);
    assert_eq!(scene.stored().await, [7]);
    scene.pass(HOUR / 2);
    assert_eq!(scene.clean().await, 1);
    assert_eq!(scene.number("SELECT first_offset FROM headwater_topic"), Some(8));
    scene.assert_sound().await;
}

#[tokio::test]
async fn with_records_any_message_that_is_done_goes_whatever_is_pending_before_it() {
    let scene = Scene::new(&format!("{KEPT}, tracking = 'reference_counting', ack_log = json('true')")).await;
    let a = scene.group("a", Start::Beginning).await;
    scene.publish(6).await;
    scene.store.claim(&request(&a, 2)).await.unwrap();
    scene.consume(&a, 3).await;
    scene.track().await;
    scene.clock.advance(HOUR);
    let late = scene.group("late", Start::Offset(Offset(4))).await;
    assert_eq!(scene.clean().await, 1, "a late joiner may still need completed messages");
    assert_eq!(scene.stored().await, [1, 2, 4, 5, 6]);
    scene.consume(&late, 2).await;
    assert_eq!(scene.clean().await, 2);
    assert_eq!(scene.stored().await, [1, 2, 6]);
    assert_eq!(scene.shown().await, ["1:/a", "2:/a", "6:/a"]);
    assert_eq!(scene.number("SELECT first_offset FROM headwater_topic"), Some(1));
    assert_eq!(scene.number("SELECT count(*) FROM headwater_ack_log"), Some(2), "it may still be queried");
    scene.assert_sound().await;
    scene.clock.advance(HOUR);
    for _ in 0..4 {
        // Expired ranges are redelivered in ever smaller parts.
        scene.consume(&a, 9).await;
    }
    scene.track().await;
    scene.clock.advance(HOUR);
    assert_eq!(scene.clean().await, 2, "the last one waits for the late joiner");
    assert_eq!(scene.number("SELECT count(*) FROM headwater_ack_log"), Some(1), "that of the last one");
    scene.assert_sound().await;
}

#[tokio::test]
async fn a_step_that_fails_half_way_leaves_nothing() {
    let settings = "message_retention_ms = 0, zero_subscription_retention_ms = 0";
    let scene = Scene::new(settings).await;
    let a = scene.group("a", Start::Beginning).await;
    scene.publish(10).await;
    scene.consume(&a, 10).await;
    break_at(&scene, "headwater_message", "DELETE", 7);
    let error = scene.store.clean(scene.topic, 100).await.unwrap_err();
    assert!(error.to_string().contains("broken on purpose"), "{error}");
    assert_eq!(scene.stored().await.len(), 10);
    assert_eq!(scene.number("SELECT removed + first_offset FROM headwater_topic"), Some(1));
    assert_eq!(scene.number("SELECT count(*) FROM headwater_watermark_history"), Some(0));
    scene.sql("DROP TRIGGER broken");
    assert_eq!(scene.clean().await, 10);
    scene.assert_sound().await;
}

#[tokio::test]
async fn the_space_of_removed_messages_is_used_again() {
    let settings = "message_retention_ms = 0, zero_subscription_retention_ms = 0";
    let scene = Scene::new(settings).await;
    let a = scene.group("a", Start::Beginning).await;
    let batch: Vec<NewMessage> = (0..500).map(|_| NewMessage::new(vec![7; 1_000])).collect();
    let fill = || async {
        scene.store.publish(&topic("orders"), &batch).await.unwrap();
        scene.consume(&a, 500).await;
    };
    fill().await;
    let pages = scene.number("PRAGMA page_count").unwrap();
    assert_eq!(scene.clean().await, 500);
    let free = scene.number("PRAGMA freelist_count").unwrap();
    assert!(free > 100, "{free} of {pages} pages are free");
    for _ in 0..5 {
        fill().await;
        scene.clean().await;
    }
    let grown = scene.number("PRAGMA page_count").unwrap() - pages;
    assert!(grown < 20, "{grown} pages more than {pages}");
}

#[tokio::test]
async fn a_step_is_bounded_and_others_get_in_between() {
    let settings = "message_retention_ms = 0, zero_subscription_retention_ms = 0";
    let scene = Scene::new(settings).await;
    let a = scene.group("a", Start::Beginning).await;
    scene.publish(100).await;
    scene.consume(&a, 100).await;
    let step = scene.store.clean(scene.topic, 30).await.unwrap();
    assert_eq!((step.removed, step.more), (30, true));
    assert_eq!(scene.clean().await, 70);
    let gone = scene.store.clean(TopicId(99), 1).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NoSuchTopic);
}

#[tokio::test]
async fn a_clock_that_was_wrong_costs_time_but_no_message() {
    let scene = Scene::new("message_retention_ms = NULL, max_retention_ms = 3600000").await;
    scene.group("a", Start::Beginning).await;
    scene.publish(3).await;
    let ahead = scene.clock.now() + jiff::Span::new().hours(10);
    scene.sql(&format!(
        "UPDATE headwater_message SET created_at_ms = {} WHERE row_key = {}",
        ahead.as_millisecond(),
        row_key(scene.topic, 2)
    ));
    scene.clock.advance(HOUR);
    let mut removed = 0;
    for _ in 0..3 {
        removed += scene.clean().await;
    }
    assert!(removed <= 2, "{removed}");
    assert!(scene.stored().await.contains(&2), "it is not an hour old by the elapsed time");
    scene.pass(HOUR * 10);
    scene.clean().await;
    assert_eq!(scene.stored().await, [0; 0]);
    scene.assert_sound().await;
}

/// Lets an ordered group do all of 40 messages except those of one lane. Returns how many these are.
async fn stuck_in_one_lane(scene: &Scene, subscription: &Subscription) -> u64 {
    scene.store.claim(&request(subscription, 1)).await.unwrap();
    let id = subscription.subscription_id.0;
    let lane = scene.number(&format!("SELECT lane FROM headwater_outstanding WHERE subscription_id = {id}"));
    for _ in 0..60 {
        scene.consume(subscription, 40).await;
    }
    let messages = scene.store.fetch(scene.topic, OffsetRange::new(Offset(1), Offset(40))).await.unwrap();
    let lane_of = |key: Option<&str>, id| i64::from(crate::message::lane_of(key, id, 4));
    let mine = messages.iter().filter(|m| Some(lane_of(m.key.as_deref(), m.message_id)) == lane);
    let owed = mine.count() as u64;
    assert!(owed > 0 && owed < 40, "{owed}");
    owed
}

async fn with_lanes(settings: &str) -> Scene {
    let scene = Scene::new(&format!("{settings}, ordering = 'key', lanes = 4")).await;
    for name in ["a", "b"] {
        scene.group(name, Start::Beginning).await;
    }
    let keyed: Vec<_> = (0..40).map(|n| NewMessage::new("x").key(format!("k{}", n % 20))).collect();
    scene.store.publish(&topic("orders"), &keyed).await.unwrap();
    scene
}

#[tokio::test]
async fn an_ordered_group_misses_only_what_its_own_lanes_have_not_done() {
    let scene = with_lanes(KEPT).await;
    let a = scene.group("a", Start::Beginning).await;
    let owed = stuck_in_one_lane(&scene, &a).await;
    assert_eq!(scene.clean().await, 0);
    scene.pass(HOUR * 24);
    let step = scene.store.clean(scene.topic, 10_000).await.unwrap();
    let missed: Vec<_> = step.missed.iter().map(|(group, missed)| (group.as_str(), missed.count)).collect();
    assert_eq!((step.removed, missed), (40, vec![("a", owed), ("b", 40)]));
    let missed = scene.number("SELECT missed FROM headwater_subscription WHERE group_name = 'a'");
    assert_eq!(missed.map(i64::cast_unsigned), Some(owed));
    scene.assert_sound().await;
}
