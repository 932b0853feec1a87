//! Figures of all groups and topics, read on one snapshot.

use jiff::Timestamp;
use rusqlite::{Connection, params};

use super::clean::watermark_history;
use super::fault::Attempt;
use super::{OFFSET_MAX, decode, millis, row_key, status, topic};
use crate::error::{Error, ErrorKind};
use crate::limits::DEAD_LETTERS_COUNTED_MAX;
use crate::store::{RECORDS_EXAMINED, Survey, SurveyedGroup, SurveyedTopic};
use crate::subscription::SubscriptionState;
use crate::topic::{TopicStatus, Tracking};

pub(super) fn survey(connection: &Connection, groups_max: u32, now_ms: i64) -> Attempt<Survey> {
    let now = Timestamp::from_millisecond(now_ms)
        .map_err(|_| Error::new(ErrorKind::Database, format!("the clock is at {now_ms} ms")))?;
    let (mut groups, mut topics, mut left_out) = (Vec::new(), Vec::new(), 0);
    for topic in topic::list(connection)? {
        topics.push(surveyed(connection, &topic, now_ms)?);
        let room = (groups_max as usize).saturating_sub(groups.len());
        if room == 0 {
            left_out += topic.subscriptions;
            continue;
        }
        let mut listed = status::of_topic(connection, &topic.topic, now_ms, Some(DEAD_LETTERS_COUNTED_MAX))?;
        listed.retain(|status| status.state != SubscriptionState::Cancelled);
        left_out += listed.len().saturating_sub(room) as u64;
        let name = &topic.topic.name;
        groups.extend(
            listed.into_iter().take(room).map(|status| SurveyedGroup { topic: name.clone(), status }),
        );
    }
    Ok(Survey { now, groups, left_out, topics })
}

fn surveyed(connection: &Connection, status: &TopicStatus, now_ms: i64) -> Attempt<SurveyedTopic> {
    let (topic, settings) = (status.topic.topic_id, &status.topic.settings);
    let cleanable = match settings.message_retention {
        None => 0,
        Some(retention) => {
            let done = watermark_history::since(connection, topic, now_ms.saturating_sub(millis(retention)))?;
            u64::try_from(done - status.first.0 + 1).unwrap_or(0)
        }
    };
    let inconsistent = match settings.tracking {
        Tracking::OffsetWatermark => 0,
        Tracking::ReferenceCounting => {
            let mut statement = connection.prepare_cached(super::sql!(tracking.inconsistent))?;
            let bounds = params![row_key(topic, 0), row_key(topic, OFFSET_MAX), RECORDS_EXAMINED];
            statement.query_row(bounds, |row| decode::count(row, 0))?
        }
    };
    Ok(SurveyedTopic { topic: status.topic.name.clone(), cleanable, inconsistent })
}
