//! One transaction publishes very many messages and stays open.

use anyhow::Result;

use super::open_transaction::judge_publisher;
use super::{Place, Setting};
use crate::check::Judged;

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let messages = setting.count(1_000_000, 100_000);
    judge_publisher(
        place,
        &format!("publishing {messages} messages in one transaction"),
        async |open, topic| open.publish(topic, messages).await,
    )
    .await
}
