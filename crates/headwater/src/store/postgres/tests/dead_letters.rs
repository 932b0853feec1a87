//! Which roles may redrive, purge and fire, and groups that are removed step by step.

use crate::limits::DEAD_LETTERS_PER_STEP;
use crate::settle::Outcome;
use crate::store::DeadLetterSelection;
use crate::subscription::SubscriptionState;

use super::*;

/// Publishes messages and buries all of them.
async fn buried(store: &PostgresStore, subscription: &Subscription, count: usize) {
    let messages: Vec<_> = (0..count).map(|n| NewMessage::new(n.to_string())).collect();
    store.publish(&orders(), &messages).await.unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    let mut left = count as u64;
    while left > 0 {
        assert!(Instant::now() < until, "{left} were never delivered");
        for lease in store.claim(&request(subscription)).await.unwrap().leases {
            let bury = Outcome::Bury { error: "x".into() };
            let all = Settlement::each(&lease, vec![(lease.range, bury)]);
            store.settle(&[all]).await.unwrap().remove(0).unwrap();
            left -= lease.range.span();
        }
    }
}

#[tokio::test]
async fn consumers_redrive_and_purge_and_producers_fire() {
    let Some(scene) = Scene::new() else { return };
    let owner = scene.open().await;
    let subscription = subscribed(&owner).await;
    buried(&owner, &subscription, 2).await;
    let selection = DeadLetterSelection::all(subscription.subscription_id);
    let one = selection.clone().ids([owner.dead_letters(&selection, 1).await.unwrap()[0].dead_letter_id]);
    let (producer, consumer, reader) = (
        scene.open_as(Some("producer")).await.unwrap(),
        scene.open_as(Some("consumer")).await.unwrap(),
        scene.open_as(Some("reader")).await.unwrap(),
    );
    assert_eq!(reader.dead_letters(&selection, 10).await.unwrap().len(), 2);
    for role in [&producer, &reader] {
        assert_eq!(role.redrive(&selection).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(role.purge(&selection).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    assert_eq!(consumer.redrive(&one).await.unwrap().redriven, 1);
    assert_eq!(consumer.purge(&selection).await.unwrap(), 1);

    let now = jiff::Timestamp::now();
    let message = NewMessage::new("tick");
    producer.cron_last("job", jiff::Timestamp::UNIX_EPOCH).await.unwrap();
    assert!(producer.cron_fire("job", now, &orders(), &message).await.unwrap().is_some());
    for role in [&consumer, &reader] {
        let refused = role.cron_fire("job", now, &orders(), &message).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
    }
    scene.drop().await;
}

/// A group with `count` more dead letters than the one it buried itself, all with the same time.
async fn many_buried(scene: &Scene, store: &PostgresStore, count: i32) -> Subscription {
    let subscription = subscribed(store).await;
    buried(store, &subscription, 1).await;
    let copies = scene.sql(
        "INSERT INTO {schema}.dead_letter
             (subscription_id, topic_id, message_offset, message_id, payload, created_at, error, attempts, buried_at)
         SELECT d.subscription_id, d.topic_id, n, d.message_id, d.payload, d.created_at, d.error, d.attempts,
                d.buried_at + make_interval(secs => n / 300)
         FROM {schema}.dead_letter d, generate_series(1, $1::integer) n",
    );
    scene.client().await.execute(&copies, &[&count]).await.unwrap();
    subscription
}

/// A removal that fails between its steps, as in a crash, leaves a cancelled group that can only be removed.
#[tokio::test]
async fn a_group_is_removed_in_steps_and_one_that_failed_half_way_is_continued() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let count = DEAD_LETTERS_PER_STEP * 4;
    let subscription = many_buried(&scene, &store, count - 1).await;
    let group = GroupName::new("a").unwrap();
    // Records each step, and fails from the third on.
    let watching = scene.sql(&format!(
        "CREATE TABLE {{schema}}.step (xid xid8, deleted bigint);
         CREATE FUNCTION {{schema}}.note_step() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             INSERT INTO {{schema}}.step SELECT pg_current_xact_id(), count(*) FROM gone HAVING count(*) > 0;
             IF (SELECT sum(s.deleted) FROM {{schema}}.step s) > {} THEN
                 RAISE EXCEPTION 'a crash';
             END IF;
             RETURN NULL;
         END $$;
         CREATE TRIGGER note_step AFTER DELETE ON {{schema}}.dead_letter REFERENCING OLD TABLE AS gone
             FOR EACH STATEMENT EXECUTE FUNCTION {{schema}}.note_step()",
        DEAD_LETTERS_PER_STEP * 2
    ));
    let client = scene.client().await;
    client.batch_execute(&watching).await.unwrap();
    store.cancel(&orders(), &group).await.unwrap();
    let failed = store.remove(&orders(), &group).await.unwrap_err();
    assert!(failed.to_string().contains("a crash"), "{failed}");

    let selection = DeadLetterSelection::all(subscription.subscription_id);
    assert_eq!(store.dead_letters(&selection, 10_000).await.unwrap().len(), count as usize / 2);
    let refused = store.redrive(&selection).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidTransition, "{refused}");
    let anew = store.subscribe(&orders(), &group, Start::Beginning).await.unwrap();
    let selection = DeadLetterSelection::all(anew.subscription_id);
    assert!(store.dead_letters(&selection, 1).await.unwrap().is_empty(), "it is another subscription");

    client.batch_execute(&scene.sql("DELETE FROM {schema}.step")).await.unwrap();
    let selection = DeadLetterSelection::all(subscription.subscription_id);
    store.remove(&orders(), &group).await.unwrap();
    assert!(store.dead_letters(&selection, 1).await.unwrap().is_empty());
    let left = store.subscriptions(&orders()).await.unwrap();
    assert_eq!(left.iter().map(|status| status.state).collect::<Vec<_>>(), [SubscriptionState::Active]);
    let steps =
        scene.sql("SELECT count(DISTINCT xid), max(deleted), sum(deleted)::bigint FROM {schema}.step");
    let row = client.query_one(&steps, &[]).await.unwrap();
    let at_most = i64::from(DEAD_LETTERS_PER_STEP);
    assert_eq!((row.get(0), row.get(1), row.get(2)), (2_i64, at_most, 2 * at_most));
    let audit = store.audit(1).await.unwrap().remove(0);
    assert_eq!(
        (audit.act.as_str(), audit.detail),
        ("remove", format!("{{\"dead_letters\": {}, \"subscriptions\": 1}}", 2 * at_most))
    );
    scene.drop().await;
}

/// The second of two removals does not fail: the group is removed, as requested.
#[tokio::test]
async fn of_two_removals_at_once_neither_fails() {
    let Some(scene) = Scene::new() else { return };
    let store = Arc::new(scene.open().await);
    subscribed(&store).await;
    let group = GroupName::new("a").unwrap();
    store.cancel(&orders(), &group).await.unwrap();
    let first = scene.client().await;
    first.batch_execute(&scene.sql("BEGIN; SELECT FROM {schema}.topic_range FOR UPDATE")).await.unwrap();
    let second = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.remove(&orders(), &group).await }
    });
    super::lives::until_a_session_waits(&scene).await;
    first.batch_execute(&scene.sql("DELETE FROM {schema}.subscription; COMMIT")).await.unwrap();
    second.await.unwrap().unwrap();
    scene.drop().await;
}
