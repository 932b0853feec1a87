//! Retention of messages and subscriptions: see `migrations/0017_retention.sql`.

use std::time::Duration;

use tokio_postgres::Row;

use super::PostgresStore;
use super::detect::name_of;
use super::freshen::freshen_aside;
use super::time::millis;
use super::track::{advance, batch};
use crate::error::Result;
use crate::limits::{INBOX_FORGET_MAX, INBOX_RETENTION, UPKEEP_MESSAGES_MAX};
use crate::name::GroupName;
use crate::store::{CleanStep, SubscriptionStep};
use crate::topic::TopicId;

/// Steps over one subscription in a run: what a zombie has left beyond them is the next run's.
const SUBSCRIPTION_STEPS_MAX: u32 = 10_000;

pub(super) async fn clean(store: &PostgresStore, topic: TopicId, messages_max: u32) -> Result<CleanStep> {
    advance(store, topic).await?;
    let rows = store
        .connections
        .query(
            &format!("cleaning topic {topic}"),
            &store.statements.clean,
            &[&topic.0, &batch(messages_max), &store.clock.injected()],
        )
        .await?;
    let row = &rows[0];
    if !row.get::<_, bool>("more") {
        let own = [format!("message_t{topic}"), format!("message_t{topic}_rest")];
        freshen_aside(store, &["record", "ack_log", "message_shared", &own[0], &own[1]], 5_000).await;
    }
    Ok(CleanStep { removed: count(row, "removed"), missed: missed_of(row)?, more: row.get("more") })
}

/// What counting groups missed of what went; said to the log, because it is never silent.
pub(super) fn missed_of(row: &Row) -> Result<Vec<(GroupName, u64)>> {
    let groups: Option<Vec<String>> = row.get("missed_groups");
    let counts: Option<Vec<i64>> = row.get("missed");
    let mut missed: Vec<(GroupName, u64)> = Vec::new();
    for (group, count) in groups.unwrap_or_default().into_iter().zip(counts.unwrap_or_default()) {
        let (group, count) = (GroupName::new(group)?, u64::try_from(count).unwrap_or(0));
        match missed.iter_mut().find(|(known, _)| *known == group) {
            Some((_, sum)) => *sum += count,
            None => missed.push((group, count)),
        }
    }
    let topic: Option<&str> = row.get("topic");
    for (group, messages) in &missed {
        tracing::warn!(topic, %group, messages, "messages were older than max_retention and removed unread");
    }
    Ok(missed)
}

pub(super) async fn clean_subscriptions(
    store: &PostgresStore,
    older_than: Duration,
) -> Result<SubscriptionStep> {
    let now = store.clock.injected();
    let mut step = SubscriptionStep::default();
    let mut after = 0;
    while let Some(done) = clean_subscription(store, after, older_than, &mut step).await? {
        after = done;
    }
    // Each a transaction of its own, until one finds fewer than it may take.
    let most = u64::from(INBOX_FORGET_MAX.unsigned_abs());
    loop {
        let old = store
            .connections
            .query("forgetting", &store.statements.clean_forget, &[&INBOX_FORGET_MAX, &now])
            .await?;
        let inbox = store
            .connections
            .query(
                "forgetting inbox entries",
                &store.statements.forget_inbox,
                &[&millis(INBOX_RETENTION), &INBOX_FORGET_MAX, &now],
            )
            .await?;
        let (old, inbox) = (count(&old[0], "forgotten"), count(&inbox[0], "forgotten"));
        step.forgotten += old + inbox;
        if old < most && inbox < most {
            return Ok(step);
        }
    }
}

/// Works on the next subscription past its time, a bounded transaction at a time, and says which it was.
async fn clean_subscription(
    store: &PostgresStore,
    after: i32,
    older_than: Duration,
    step: &mut SubscriptionStep,
) -> Result<Option<i32>> {
    let (now, most) = (store.clock.injected(), batch(UPKEEP_MESSAGES_MAX));
    let mut moved = None;
    let mut done = None;
    for _ in 0..SUBSCRIPTION_STEPS_MAX {
        let rows = store
            .connections
            .query(
                "cleaning subscriptions",
                &store.statements.clean_subscriptions,
                &[&after, &millis(older_than), &most, &now],
            )
            .await?;
        let row = &rows[0];
        // Another process may have finished it meanwhile: then this is the next one, or none.
        let Some(subscription) = row.get::<_, Option<i32>>("subscription_id") else { break };
        done = Some(subscription);
        let named = name_of(row)?;
        if row.get("moved") && moved != done {
            moved = done;
            step.zombies.push(named.clone());
        }
        if row.get("deleted") {
            step.deleted.push(named);
        }
        if !row.get::<_, bool>("more") {
            break;
        }
    }
    Ok(done)
}

pub(super) fn count(row: &Row, column: &str) -> u64 {
    u64::try_from(row.get::<_, i64>(column)).expect("a count is not negative")
}
