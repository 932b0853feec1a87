//! How much a group has left to do.

use async_trait::async_trait;
use headwater::Headwater;
use headwater::store::GroupHealth;

use super::QUEUE_GROUP;
use crate::error::{Error, ErrorCode, Result};
use crate::resource::Backlog;

/// The status of a group, with the head of its topic as it is now: on PostgreSQL it is otherwise that of the last claim.
pub(super) async fn status(headwater: &Headwater, topic: &str, group: &str) -> Result<GroupHealth> {
    let read = async {
        headwater.topics().advance_heads().await?;
        headwater.groups(topic).get(group).await
    };
    read.await.map_err(|error| Error::from_store(ErrorCode::ReadFailed, &error))
}

/// The messages of a queue that are not settled.
pub(crate) struct QueueBacklog {
    headwater: Headwater,
    queue: String,
}

impl QueueBacklog {
    pub(crate) fn new(headwater: &Headwater, queue: &str) -> Self {
        QueueBacklog { headwater: headwater.clone(), queue: queue.to_owned() }
    }
}

#[async_trait]
impl Backlog for QueueBacklog {
    async fn lag(&self) -> Result<u64> {
        Ok(status(&self.headwater, &self.queue, QUEUE_GROUP).await?.status.lag)
    }
}
