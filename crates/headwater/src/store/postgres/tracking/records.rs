//! Lists completion records, with the names of groups.

use tokio_postgres::Row;

use crate::error::Result;
use crate::lease::OffsetRange;
use crate::message::Offset;
use crate::name::{GroupName, TopicName};
use crate::store::Record;
use crate::store::postgres::time::stored;
use crate::store::postgres::{PostgresStore, topic};

/// The most records returned at once.
const RECORDS_MAX: i32 = 10_000;

pub(super) async fn list(store: &PostgresStore, name: &TopicName, range: OffsetRange) -> Result<Vec<Record>> {
    let topic = topic::get(store, name).await?;
    let rows = store
        .connections
        .query(
            &format!("reading the records of topic {name}"),
            &store.statements.tracking_records,
            &[&topic.name.as_str(), &range.first.0, &range.last.0, &RECORDS_MAX, &store.clock.injected()],
        )
        .await?;
    rows.iter().map(record_of).collect()
}

fn record_of(row: &Row) -> Result<Record> {
    let groups = |column: &str| {
        stored::<_, Vec<String>>(row, column)?.into_iter().map(GroupName::new).collect::<Result<Vec<_>>>()
    };
    Ok(Record {
        offset: Offset(stored(row, "message_offset")?),
        required: groups("required")?,
        completed: groups("completed")?,
        completed_at: stored(row, "completed_at")?,
    })
}
