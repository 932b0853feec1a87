//! Retention of messages and subscriptions: see `schema/functions/clean.sql`.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::PostgresStore;
use super::advance_heads::{advance, batch};
use super::detect::name_of;
use super::time::{count, millis, stored};
use super::vacuum::vacuum_aside;
use super::{log, topic};
use crate::error::Result;
use crate::limits::ENTRIES_FORGET_MAX;
use crate::message::Offset;
use crate::name::GroupName;
use crate::store::maintenance::warn_missed;
use crate::store::{CleanStep, EntryRetention, EntryStep, SubscriptionStep};
use crate::subscription::MissedMessages;
use crate::topic::TopicId;

/// Reads the clock and adds to the elapsed time, by which unread messages age.
pub(super) async fn elapse(store: &PostgresStore) -> Result<()> {
    let now = store.clock.injected();
    store.connections.query("reading the clock", &store.statements.clean_clock, &[&now]).await.map(drop)
}

/// Tables beside the log that cleanup leaves full of dead rows.
pub(super) const VACUUMED: [&str; 2] = ["completion_record", "ack_log"];

pub(super) async fn clean(store: &PostgresStore, topic: TopicId, messages_max: u32) -> Result<CleanStep> {
    advance(store, topic).await?;
    elapse(store).await?;
    let rows = store
        .connections
        .query(
            &format!("cleaning topic {topic}"),
            &store.statements.clean_messages,
            &[&topic.0, &batch(messages_max), &store.clock.injected()],
        )
        .await?;
    let row = &rows[0];
    if !stored::<_, bool>(row, "more")? {
        let [shared, own, rest] = log::tables(topic);
        vacuum_aside(store, &[VACUUMED[0], VACUUMED[1], &shared, &own, &rest], 5_000).await;
    }
    Ok(CleanStep { removed: count(row, "removed")?, missed: missed_of(row)?, more: stored(row, "more")? })
}

/// The removed messages that groups had not done.
pub(super) fn missed_of(row: &Row) -> Result<Vec<(GroupName, MissedMessages)>> {
    let groups: Vec<String> = stored::<_, Option<_>>(row, "missed_groups")?.unwrap_or_default();
    let numbers = |column: &str| stored::<_, Option<Vec<i64>>>(row, column).map(Option::unwrap_or_default);
    let (counts, firsts, lasts) = (numbers("missed")?, numbers("missed_first")?, numbers("missed_last")?);
    let mut missed: Vec<(GroupName, MissedMessages)> = Vec::new();
    for (group, (count, (first, last))) in
        groups.into_iter().zip(counts.into_iter().zip(firsts.into_iter().zip(lasts)))
    {
        let (group, count) = (GroupName::new(group)?, u64::try_from(count).unwrap_or(0));
        let range = Some((Offset(first), Offset(last)));
        match missed.iter_mut().find(|(known, _)| *known == group) {
            // Rows of several partitions, lowest first.
            Some((_, so_far)) => {
                so_far.count += count;
                so_far.range = so_far.range.map(|(first, _)| (first, Offset(last)));
            }
            None => missed.push((group, MissedMessages { count, range })),
        }
    }
    if let Some(topic) = stored::<_, Option<&str>>(row, "topic")? {
        warn_missed(topic, &missed);
    }
    Ok(missed)
}

pub(super) async fn clean_subscriptions(
    store: &PostgresStore,
    older_than: Duration,
) -> Result<SubscriptionStep> {
    elapse(store).await?;
    let now = store.clock.injected();
    let mut step = SubscriptionStep::default();
    // A crash between two steps of the deletion of a topic leaves such rows. If they cannot be removed, that is the result of this
    // call, after everything else.
    let emptied = topic::delete::empty_deleted(store).await;
    let mut after = 0;
    while let Some(done) = clean_subscription(store, after, older_than, &mut step).await? {
        after = done;
    }
    // Each step is a transaction of its own; the last one deletes fewer than its limit.
    let most = u64::from(ENTRIES_FORGET_MAX.unsigned_abs());
    loop {
        let old = store
            .connections
            .query("forgetting", &store.statements.clean_forget, &[&ENTRIES_FORGET_MAX, &now])
            .await?;
        let old = count(&old[0], "forgotten")?;
        step.forgotten += old;
        if old < most {
            return emptied.map(|()| step);
        }
    }
}

pub(super) async fn clean_entries(store: &PostgresStore, retention: &EntryRetention) -> Result<EntryStep> {
    let now = store.clock.injected();
    let forget = async |doing: &str, statement: &str, retention: Duration| {
        let params: [&(dyn ToSql + Sync); 3] = [&millis_of(retention), &ENTRIES_FORGET_MAX, &now];
        store.connections.query(doing, statement, &params).await
    };
    let statements = &store.statements;
    let rows = forget("removing inbox entries", &statements.inbox_forget, retention.inbox).await?;
    let inbox = count(&rows[0], "forgotten")?;
    let rows = forget("removing outbox entries", &statements.outbox_forget, retention.outbox).await?;
    let (outbox, more) = (count(&rows[0], "forgotten")?, stored::<_, bool>(&rows[0], "more")?);
    // Sweeps and marks leave dead rows at the beginning of the indexes in which the next sweep begins.
    vacuum_aside(store, &["inbox", "outbox_entry"], 20_000).await;
    Ok(EntryStep { inbox, outbox, more: more || inbox >= u64::from(ENTRIES_FORGET_MAX.unsigned_abs()) })
}

/// At most a hundred years: the caller has checked it.
fn millis_of(retention: Duration) -> i64 {
    i64::try_from(retention.as_millis()).unwrap_or(i64::MAX)
}

/// Cleans the next subscription past its time, in a transaction of its own. Returns which one.
async fn clean_subscription(
    store: &PostgresStore,
    after: i32,
    older_than: Duration,
    step: &mut SubscriptionStep,
) -> Result<Option<i32>> {
    let rows = store
        .connections
        .query(
            "cleaning subscriptions",
            &store.statements.clean_subscriptions,
            &[&after, &millis(older_than), &store.clock.injected()],
        )
        .await?;
    let row = &rows[0];
    let Some(subscription) = stored::<_, Option<i32>>(row, "subscription_id")? else { return Ok(None) };
    let named = name_of(row)?;
    if stored(row, "moved")? {
        step.zombies.push(named.clone());
    }
    if stored(row, "deleted")? {
        step.deleted.push(named);
    }
    Ok(Some(subscription))
}
