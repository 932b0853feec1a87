//! Records of reference counting.

use rusqlite::{Connection, params};

use super::fault::Attempt;
use super::topic;
use super::work::Work;
use crate::lease::OffsetRange;
use crate::name::TopicName;
use crate::store::Record;
use crate::topic::{TopicId, Tracking};

/// A subscription begins to count.
pub(super) fn begin_accounting(_work: &mut Work<'_>, _subscription_id: i32) -> Attempt<()> {
    Ok(())
}

/// A subscription counts no more.
pub(super) fn end_accounting(_work: &mut Work<'_>, _subscription_id: i32) -> Attempt<()> {
    Ok(())
}

/// A topic changes its mode.
pub(super) fn change_tracking(work: &mut Work<'_>, topic: TopicId, target: Tracking) -> Attempt<()> {
    work.connection.execute(
        "UPDATE headwater_topic SET tracking = ?2 WHERE topic_id = ?1",
        params![topic.0, target.as_str()],
    )?;
    Ok(())
}

/// The records of messages, offsets rising.
pub(super) fn records(
    connection: &Connection,
    name: &TopicName,
    _range: OffsetRange,
) -> Attempt<Vec<Record>> {
    topic::get(connection, name)?;
    Ok(Vec::new())
}
