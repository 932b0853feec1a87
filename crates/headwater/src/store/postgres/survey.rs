//! Figures of all groups and topics: one query for each.

use super::PostgresStore;
use super::status::{Listing, status_of};
use super::time::{count, stored};
use crate::error::Result;
use crate::limits::DEAD_LETTERS_COUNTED_MAX;
use crate::name::TopicName;
use crate::store::{RECORDS_EXAMINED, Survey, SurveyedGroup, SurveyedTopic};

pub(super) async fn survey(store: &PostgresStore, groups_max: u32) -> Result<Survey> {
    let listing = Listing {
        dead_letters_max: Some(DEAD_LETTERS_COUNTED_MAX),
        groups_max: Some(groups_max.into()),
        ..Listing::new(store)
    };
    let sql = &store.statements.subscribe_list;
    let rows = store.connections.query("surveying groups", sql, &listing.parameters()).await?;
    let groups = rows.iter().map(|row| {
        Ok(SurveyedGroup {
            topic: TopicName::new(stored::<_, String>(row, "topic")?)?,
            status: status_of(row)?,
        })
    });
    let groups = groups.collect::<Result<Vec<_>>>()?;
    let sql = &store.statements.topic_survey;
    let rows = store
        .connections
        .query("surveying topics", sql, &[&store.clock.injected(), &RECORDS_EXAMINED])
        .await?;
    let mut topics = Vec::with_capacity(rows.len());
    for row in &rows {
        if let Some(topic) = stored::<_, Option<String>>(row, "topic")? {
            topics.push(SurveyedTopic {
                topic: TopicName::new(topic)?,
                cleanable: count(row, "cleanable")?,
                inconsistent: count(row, "inconsistent")?,
            });
        }
    }
    let left_out = count(&rows[0], "groups")?.saturating_sub(groups.len() as u64);
    Ok(Survey { now: stored(&rows[0], "now")?, groups, left_out, topics })
}
