//! Detection of dead groups: see `schema/functions/maintenance.sql`.

use tokio_postgres::Row;

use super::PostgresStore;
use super::clean::elapse;
use super::time::stored;
use crate::error::Result;
use crate::name::{GroupName, TopicName};
use crate::store::Detected;

pub(super) async fn detect_dead(store: &PostgresStore) -> Result<Detected> {
    elapse(store).await?;
    let rows = store
        .connections
        .query("detecting dead groups", &store.statements.detect, &[&store.clock.injected()])
        .await?;
    let mut detected = Detected::default();
    for row in &rows {
        let named = name_of(row)?;
        match stored::<_, &str>(row, "kind")? {
            "died" => detected.died.push(named),
            "suspected" => detected.suspected.push(named),
            _ => detected.near_timeout.push(named),
        }
    }
    Ok(detected)
}

/// The topic and group a row names.
pub(super) fn name_of(row: &Row) -> Result<(TopicName, GroupName)> {
    let topic = TopicName::new(stored::<_, String>(row, "topic")?)?;
    Ok((topic, GroupName::new(stored::<_, String>(row, "group_name")?)?))
}
