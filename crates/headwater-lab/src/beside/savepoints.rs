//! An open transaction publishes message by message, each in a savepoint with a transaction id of its own.

use anyhow::Result;

use super::Place;
use super::open_transaction::judge_publisher;
use crate::check::Judged;

const MESSAGES: u64 = 20_000;

pub(super) async fn run(place: &Place<'_>) -> Result<Vec<Judged>> {
    judge_publisher(place, &format!("publishing {MESSAGES} messages in savepoints"), async |open, topic| {
        open.publish_in_savepoints(topic, MESSAGES).await
    })
    .await
}
