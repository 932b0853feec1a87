//! The views for people.

use super::*;

#[tokio::test]
async fn the_views_are_readable() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    let batch = [NewMessage::new("größe").key("k"), NewMessage::new(vec![0, 255]), NewMessage::new("dead")];
    store.publish(&topic("orders"), &batch).await.unwrap();
    let lease = store.claim(&request(&subscription, 10)).await.unwrap().leases.remove(0);
    let bury = Outcome::Bury { error: "hopeless".into() };
    let parts = vec![(OffsetRange::one(crate::Offset(3)), bury)];
    store.settle(&[Settlement::each(&lease, parts)]).await.unwrap().remove(0).unwrap();
    let own = place.connect();
    let text = |sql: &str| own.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(
        text("SELECT payload FROM headwater_messages WHERE topic = 'orders' AND message_offset = 1"),
        "größe"
    );
    assert_eq!(text("SELECT payload FROM headwater_messages WHERE message_offset = 2"), "x'00FF'");
    assert_eq!(
        text("SELECT error || payload FROM headwater_dead_letters WHERE group_name = 'workers'"),
        "hopelessdead"
    );
    assert_eq!(
        text("SELECT first_offset || '-' || last_offset || owner FROM headwater_outstanding_ranges"),
        "1-2me"
    );
    assert_eq!(text("SELECT next_offset || '/' || head FROM headwater_subscriptions"), "4/3");
    assert_eq!(text("SELECT topic || head FROM headwater_topics"), "orders3");
    let id = text("SELECT message_id FROM headwater_messages WHERE message_offset = 1");
    assert!(uuid::Uuid::parse_str(&id).is_ok() && id.len() == 36, "{id}");
    assert!(text("SELECT created_at FROM headwater_messages LIMIT 1").parse::<Timestamp>().is_ok());
}

#[tokio::test]
async fn the_views_for_operators_show_what_needs_attention() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    let later = NewMessage::new("later").deliver_at(Timestamp::now() + std::time::Duration::from_secs(3600));
    store.publish(&topic("orders"), &[NewMessage::new("a"), NewMessage::new("b"), later]).await.unwrap();
    let own = place.connect();
    let text = |sql: &str| {
        let mut statement = own.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
        rows.map(Result::unwrap).collect::<Vec<_>>().join("; ")
    };
    let lag = "SELECT group_name || ' ' || state || ' ' || next_offset || ' ' || head || ' ' || lag FROM headwater_subscriptions";
    assert_eq!(text(lag), "workers active 1 2 2");
    store.claim(&request(&subscription, 1)).await.unwrap();
    assert_eq!(text(lag), "workers active 2 2 2", "what is leased is not done");
    assert_eq!(text("SELECT topic || ' ' || payload FROM headwater_scheduled"), "orders later");
    assert_eq!(text("SELECT topic || ' ' || done_and_stored FROM headwater_cleanup"), "orders 0");
    assert_eq!(
        text("SELECT group_name || ' ' || holds_messages FROM headwater_orphaned_groups"),
        "workers 1"
    );
    assert_eq!(
        text("SELECT group_name FROM headwater_near_timeout")
            + &text("SELECT group_name FROM headwater_stuck"),
        ""
    );
    own.execute_batch(
        "UPDATE headwater_subscription SET heartbeat_at_ms = strftime('%s', 'now') * 1000 - 250000;
         UPDATE headwater_message SET created_at_ms = strftime('%s', 'now') * 1000 - 7200000",
    )
    .unwrap();
    let silent = "SELECT group_name || ' ' || (silent_s BETWEEN 249 AND 300) || ' ' || timeout_s FROM headwater_near_timeout";
    assert_eq!(text(silent), "workers 1 300");
    assert_eq!(text("SELECT group_name FROM headwater_orphaned_groups"), "");
    let stuck = "SELECT group_name || ' ' || lag || ' ' || message_offset || ' ' || (oldest_s >= 7200) FROM headwater_stuck";
    assert_eq!(text(stuck), "workers 2 1 1");
    let backfill = format!(
        "UPDATE headwater_topic SET settings = json_set(settings, '$.tracking', 'reference_counting');
         INSERT OR REPLACE INTO headwater_backfill
             (subscription_id, state, first_offset, last_offset, checkpoint, rate_max, created_at_ms, ran_ms)
         VALUES ({}, 'in_progress', 1, 1000, 250, 1000, 0, 500)",
        subscription.subscription_id
    );
    own.execute_batch(&backfill).unwrap();
    let shown = "SELECT state || ' ' || processed || ' ' || total || ' ' || percent || ' ' || per_second || ' ' || eta_s
                 FROM headwater_backfill_progress";
    assert_eq!(text(shown), "in_progress 250 1000 25.0 500.0 2");
}
