//! Retention of messages and subscriptions: see `migrations/0017_retention.sql`.

use std::time::Duration;

use tokio_postgres::Row;

use super::PostgresStore;
use super::detect::name_of;
use super::fault::translate;
use super::time::millis;
use super::track::{advance, batch};
use crate::error::Result;
use crate::limits::{INBOX_FORGET_MAX, INBOX_RETENTION};
use crate::name::GroupName;
use crate::store::{CleanStep, SubscriptionStep};
use crate::topic::TopicId;

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
        freshen(store, topic).await;
    }
    Ok(CleanStep { removed: count(row, "removed"), missed: missed_of(row)?, more: row.get("more") })
}

/// Vacuums what cleanup has left full of dead rows. The server would do it too, but looks only once a minute, and a busy topic
/// has by then more dead rows than living ones. Whoever may not vacuum, or finds the table in use, leaves it to the server.
async fn freshen(store: &PostgresStore, topic: TopicId) {
    let tables = [
        "record".into(),
        "ack_log".into(),
        "message_shared".into(),
        format!("message_t{topic}"),
        format!("message_t{topic}_rest"),
    ];
    let done = async {
        let worn = store
            .connections
            .query("looking for worn tables", &store.statements.clean_worn, &[&&tables[..]])
            .await?;
        for row in worn {
            // One of the names above: nothing else is ever pasted.
            let table: String = row.get("table_name");
            let vacuum = format!("VACUUM (SKIP_LOCKED, TRUNCATE false) {}.{table}", store.namespace.quoted());
            let client = store.connections.get().await?;
            client.batch_execute(&vacuum).await.map_err(|error| translate("vacuuming", error))?;
        }
        Ok::<(), crate::Error>(())
    };
    if let Err(error) = done.await {
        tracing::debug!(%error, "vacuuming is left to the server");
    }
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
    let rows = store
        .connections
        .query("cleaning subscriptions", &store.statements.clean_subscriptions, &[&millis(older_than), &now])
        .await?;
    let mut step = SubscriptionStep::default();
    for row in &rows {
        let named = name_of(row)?;
        match row.get::<_, &str>("kind") {
            "zombie" => step.zombies.push(named),
            _ => step.deleted.push(named),
        }
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

pub(super) fn count(row: &Row, column: &str) -> u64 {
    u64::try_from(row.get::<_, i64>(column)).expect("a count is not negative")
}
