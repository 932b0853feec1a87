//! Large payloads: a step removes a bounded number of bytes and at least one row, and the steps together remove everything.
//! With the whole budget a step would take megabytes: the tests replace it with a small one.

use super::*;
use crate::store::{DeadLetterSelection, EntryRetention};
use crate::topic::Removal;

const AT_ONCE: &str = "message_retention_ms = 0, zero_subscription_retention_ms = 0";

/// A payload. It is stored as it is: `SET STORAGE EXTERNAL` keeps the server from compressing it.
const PAYLOAD: &str = "decode(repeat('ab', 4000), 'hex')";

/// How many of ten such rows each step takes: the budget is exceeded by the last one of a step at most.
const STEPS: [i64; 4] = [3, 3, 3, 1];

/// A topic, with a budget of 10,000 bytes.
async fn staged(settings: &str) -> Option<Stage> {
    let stage = Stage::set(settings).await?;
    stage
        .run(
            "CREATE OR REPLACE FUNCTION {schema}.removal_bytes() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 10000::bigint';
             ALTER TABLE {schema}.message_shared ALTER COLUMN payload SET STORAGE EXTERNAL;
             ALTER TABLE {schema}.dead_letter ALTER COLUMN payload SET STORAGE EXTERNAL;
             ALTER TABLE {schema}.schedule ALTER COLUMN payload SET STORAGE EXTERNAL;
             ALTER TABLE {schema}.outbox_entry ALTER COLUMN payload SET STORAGE EXTERNAL",
        )
        .await;
    Some(stage)
}

impl Stage {
    async fn publish_large(&self, count: usize) {
        self.store.publish(&orders(), &vec![NewMessage::new(vec![0xab; 4_000]); count]).await.unwrap();
    }

    /// Ten dead letters of a group.
    async fn bury_large(&self, group: &Subscription) {
        self.run(&format!(
            "INSERT INTO {{schema}}.dead_letter
                 (subscription_id, topic_id, message_offset, message_id, payload, created_at, error, attempts, buried_at)
             SELECT {}, {}, n, gen_random_uuid(), {PAYLOAD}, now(), 'no', 1, now() - interval '1 hour' FROM generate_series(1, 10) n",
            group.subscription_id.0, self.topic.0
        ))
        .await;
    }

    /// How many rows of a table each step removes, until none is left.
    async fn removed_by(&self, table: &str, mut step: impl AsyncFnMut()) -> Vec<i64> {
        let count = format!("SELECT count(*) FROM {{schema}}.{table}");
        let (mut steps, mut before) = (Vec::new(), self.number(&count).await);
        while before > 0 {
            step().await;
            let left = self.number(&count).await;
            assert!(left < before, "{table}: a step removed nothing: {steps:?}");
            steps.push(before - left);
            before = left;
        }
        steps
    }
}

#[tokio::test]
async fn cleanup_removes_by_bytes() {
    let Some(stage) = staged(AT_ONCE).await else { return };
    let a = stage.subscribe("a").await;
    stage.publish_large(10).await;
    stage.handle(&a, 10).await;
    let mut more = Vec::new();
    let steps = stage
        .removed_by("message", async || {
            more.push(stage.store.clean(stage.topic, 10_000).await.unwrap().more);
        })
        .await;
    assert_eq!(steps, STEPS);
    assert_eq!(more, [true, true, true, false]);
    assert_eq!(stage.number("SELECT first_offset FROM {schema}.topic_range").await, 11);
    // Small ones are removed all at once.
    stage.publish(1_000).await;
    stage.handle(&a, 1_000).await;
    assert_eq!(stage.store.clean(stage.topic, 10_000).await.unwrap().removed, 1_000);
    assert_eq!(stage.store.doctor().await.unwrap(), []);
    stage.strike().await;
}

/// A pass gets past messages that must stay.
#[tokio::test]
async fn cleanup_by_bytes_passes_messages_that_must_stay() {
    let Some(stage) = staged(&format!("tracking = 'reference_counting', {AT_ONCE}")).await else { return };
    let (a, b) = (stage.subscribe("a").await, stage.subscribe("b").await);
    stage.publish_large(20).await;
    stage.handle(&a, 20).await;
    // Of b, 1 to 8 are leased, and the rest is done.
    let wants = vec![Want::new(b.subscription_id, 8)];
    let held = stage.store.claim(&ClaimRequest { wants, ..request(&b) }).await.unwrap().leases.remove(0);
    assert_eq!(stage.handle(&b, 20).await.len(), 12);
    stage.track().await;
    let mut removed = Vec::new();
    loop {
        let step = stage.store.clean(stage.topic, 10_000).await.unwrap();
        removed.push(step.removed);
        assert!(step.removed <= 3 && removed.len() < 20, "{removed:?}");
        if !step.more {
            break;
        }
    }
    assert_eq!(removed.iter().sum::<u64>(), 12, "{removed:?}");
    assert_eq!(removed[..4], [3; 4], "those that stay take nothing of the budget");
    assert_eq!(stage.number("SELECT max(message_offset) FROM {schema}.message").await, 8);
    stage.store.settle(&[Settlement::ack_all(&held)]).await.unwrap().remove(0).unwrap();
    stage.track().await;
    let steps = stage
        .removed_by("message", async || {
            stage.store.clean(stage.topic, 10_000).await.unwrap();
        })
        .await;
    assert_eq!(steps, [3, 3, 2]);
    assert_eq!(stage.store.doctor().await.unwrap(), []);
    stage.strike().await;
}

#[tokio::test]
async fn a_topic_is_purged_by_bytes() {
    let Some(stage) = staged(AT_ONCE).await else { return };
    stage.subscribe("a").await;
    stage.publish_large(10).await;
    let (id, mut from) = (stage.topic.0, 1);
    stage.run("SELECT {schema}.purge_topic('orders', true, 'me', NULL)").await;
    let steps = stage
        .removed_by("message", async || {
            let step = format!("SELECT {{schema}}.remove_purged({id}, '{{[1,11)}}', {from}, 1000)");
            from = stage.number(&step).await;
        })
        .await;
    assert_eq!((steps, from), (STEPS.to_vec(), 11));
    assert_eq!(stage.number("SELECT first_offset FROM {schema}.topic_range").await, 11);
    stage.strike().await;
}

#[tokio::test]
async fn what_a_deleted_topic_left_is_removed_by_bytes() {
    let Some(stage) = staged(AT_ONCE).await else { return };
    let a = stage.subscribe("a").await;
    stage.publish_large(10).await;
    stage.bury_large(&a).await;
    let later = NewMessage::new(vec![0xab; 4_000]).deliver_at(stage.clock.now() + Duration::from_secs(60));
    stage.store.publish(&orders(), &vec![later; 10]).await.unwrap();
    stage.run("SELECT {schema}.delete_topic('orders', true, 'me', NULL)").await;
    for table in ["message", "dead_letter", "schedule"] {
        let steps = stage
            .removed_by(table, async || stage.run("SELECT {schema}.empty_deleted_topic(1000)").await)
            .await;
        assert_eq!(steps, STEPS, "{table}");
    }
    stage.store.clean_subscriptions(Duration::from_secs(3_600)).await.unwrap();
    assert_eq!(stage.number("SELECT count(*) FROM {schema}.deleted_topic").await, 0);
    stage.strike().await;
}

#[tokio::test]
async fn published_entries_of_the_outbox_are_removed_by_bytes() {
    let Some(stage) = staged(AT_ONCE).await else { return };
    stage
        .run(&format!(
            "INSERT INTO {{schema}}.outbox_entry
                 (category, topic, type, payload, status, claimed_by, claimed_at, created_at, published_at)
             SELECT 'event', 'billing', 'paid', {PAYLOAD}, 'PUBLISHED', 'relay', t, t, t
             FROM generate_series(1, 10) n, LATERAL (SELECT now() - interval '30 days' + make_interval(secs => n)) AS x (t)"
        ))
        .await;
    let (day, mut more) = (Duration::from_secs(86_400), Vec::new());
    let steps = stage
        .removed_by("outbox_entry", async || {
            let step = stage.store.clean_entries(&EntryRetention { inbox: day, outbox: day }).await.unwrap();
            more.push(step.more);
        })
        .await;
    assert_eq!(steps, STEPS);
    assert_eq!(more, [true, true, true, false]);
    let step = stage.store.clean_entries(&EntryRetention { inbox: day, outbox: day }).await.unwrap();
    assert!(step.outbox == 0 && !step.more, "{step:?}");
    stage.strike().await;
}

/// Five dead letters of 16 MiB are more than a step of a purge may take: four, because the fourth reaches the budget.
#[tokio::test]
async fn dead_letters_are_purged_by_bytes() {
    let Some(stage) = staged(AT_ONCE).await else { return };
    let a = stage.subscribe("a").await;
    stage.bury_large(&a).await;
    stage
        .run(
            "DELETE FROM {schema}.dead_letter WHERE message_offset > 5;
             UPDATE {schema}.dead_letter SET payload = decode(repeat('ab', 16777216), 'hex');
             CREATE TABLE {schema}.step (deleted bigint);
             CREATE FUNCTION {schema}.note_step() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 INSERT INTO {schema}.step SELECT count(*) FROM gone;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER note_step AFTER DELETE ON {schema}.dead_letter REFERENCING OLD TABLE AS gone
                 FOR EACH STATEMENT EXECUTE FUNCTION {schema}.note_step()",
        )
        .await;
    let selection = DeadLetterSelection::all(a.subscription_id);
    assert_eq!(stage.store.purge(&selection).await.unwrap(), 5);
    assert_eq!(stage.text("SELECT string_agg(deleted::text, ' ') FROM {schema}.step").await, "4 1");
    // The doctor knows no functions of others.
    stage.run("DROP FUNCTION {schema}.note_step() CASCADE; DROP TABLE {schema}.step").await;
    stage.strike().await;
}

/// A deleted topic whose rows cannot be removed is reported by each run, and keeps no later one.
#[tokio::test]
async fn a_deleted_topic_that_fails_keeps_no_later_one() {
    let Some(stage) = staged(AT_ONCE).await else { return };
    let other = TopicName::new("other").unwrap();
    stage.store.create_topic(&other, &TopicSettings::pub_sub()).await.unwrap();
    stage.publish_large(10).await;
    stage.store.publish(&other, &[NewMessage::new("x")]).await.unwrap();
    stage
        .run(&format!(
            "CREATE FUNCTION {{schema}}.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'it fails'; END $$;
             CREATE TRIGGER fail BEFORE DELETE ON {{schema}}.message_shared FOR EACH ROW WHEN (OLD.topic_id = {})
                 EXECUTE FUNCTION {{schema}}.fail()",
            stage.topic.0
        ))
        .await;
    stage.store.delete_topic(&orders(), Removal::Forced).await.unwrap();
    assert_eq!(stage.number("SELECT count(*) FROM {schema}.deleted_topic").await, 1);
    stage.run("SELECT {schema}.delete_topic('other', true, 'me', NULL)").await;
    // What else this job removes: the heartbeat of an owner that ended two days ago.
    stage
        .run(&format!(
            "INSERT INTO {{schema}}.owner (owner, seen_at, judged) VALUES ('gone', {}::timestamptz - interval '2 days', false)",
            stage.now()
        ))
        .await;
    let failed = stage.store.clean_subscriptions(Duration::from_secs(3_600)).await.unwrap_err();
    assert!(failed.to_string().contains("it fails"), "{failed}");
    let left = "SELECT count(*) FROM {schema}.deleted_topic d WHERE topic_id <> ";
    assert_eq!(stage.number(&format!("{left}{}", stage.topic.0)).await, 0);
    assert_eq!(stage.number("SELECT count(*) FROM {schema}.message").await, 10);
    assert_eq!(stage.number("SELECT count(*) FROM {schema}.owner").await, 0, "the rest of the job is done");
    stage.run("DROP FUNCTION {schema}.fail() CASCADE").await;
    stage.store.clean_subscriptions(Duration::from_secs(3_600)).await.unwrap();
    assert_eq!(stage.number("SELECT count(*) FROM {schema}.message").await, 0);
    stage.strike().await;
}
