//! Cursors moved by an operator: seeking, and force-completing messages that only dead groups have not done.

use std::time::Duration;

use tokio_postgres::Row;

use super::status::counted;
use super::subscribe::{catch_up, words};
use super::time::{millis, stored};
use super::{PostgresStore, topic};
use crate::error::Result;
use crate::message::Offset;
use crate::name::{GroupName, TopicName};
use crate::store::{ForceCompleted, Moved, Stuck};
use crate::subscription::Start;
use crate::topic::TopicId;

pub(super) async fn seek(
    store: &PostgresStore,
    name: &TopicName,
    group: &GroupName,
    to: Start,
    dry_run: bool,
) -> Result<Moved> {
    let topic = topic::get(store, name).await?;
    catch_up(store, topic.topic_id, to).await?;
    let (word, number, time) = words(to);
    let rows = store
        .connections
        .query(
            &format!("moving group {group} of topic {name}"),
            &store.statements.seek,
            &[
                &name.as_str(),
                &group.as_str(),
                &word,
                &number,
                &time,
                &dry_run,
                &&*store.actor.now(),
                &store.clock.injected(),
            ],
        )
        .await?;
    let row = &rows[0];
    if !dry_run {
        store.hub.wake(TopicId(stored(row, "topic_id")?));
    }
    Ok(Moved {
        from: Offset(stored(row, "from_offset")?),
        to: Offset(stored(row, "to_offset")?),
        replayed: counted(stored(row, "replayed")?),
        skipped: counted(stored(row, "skipped")?),
        leases_lost: counted(stored(row, "leases_lost")?),
    })
}

pub(super) async fn force_complete(
    store: &PostgresStore,
    topic: &TopicName,
    older_than: Duration,
    dry_run: bool,
) -> Result<Vec<ForceCompleted>> {
    let rows = store
        .connections
        .query(
            &format!("completing messages that only dead groups of topic {topic} have not done"),
            &store.statements.clean_force_complete,
            &[&topic.as_str(), &millis(older_than), &dry_run, &&*store.actor.now(), &store.clock.injected()],
        )
        .await?;
    let completed = |row: &Row| {
        Ok(ForceCompleted {
            group: GroupName::new(stored::<_, String>(row, "group_name")?)?,
            messages: counted(stored(row, "messages")?),
            until: Offset(stored(row, "until")?),
        })
    };
    rows.iter().map(completed).collect()
}

pub(super) async fn stuck(
    store: &PostgresStore,
    name: &TopicName,
    older_than: Duration,
) -> Result<Vec<Stuck>> {
    let topic = topic::get(store, name).await?;
    let rows = store
        .connections
        .query(
            &format!("reading stuck messages of topic {name}"),
            &store.statements.log_stuck,
            &[&topic.topic_id.0, &millis(older_than), &store.clock.injected()],
        )
        .await?;
    let stuck = |row: &Row| {
        Ok(Stuck {
            group: GroupName::new(stored::<_, String>(row, "group_name")?)?,
            messages: counted(stored(row, "messages")?),
            oldest: stored(row, "oldest")?,
        })
    };
    rows.iter().map(stuck).collect()
}
