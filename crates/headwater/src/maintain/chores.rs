//! What maintenance asks of a store; a seam for its tests.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::error::Result;
use crate::store::{Maintained, Store, Upkeep};
use crate::topic::TopicStatus;

/// Upkeep, and the two things beside it that jobs need.
#[async_trait]
pub(crate) trait Chores: fmt::Debug + Send + Sync + 'static {
    /// The steps.
    fn upkeep(&self) -> &(dyn Upkeep + Send + Sync);

    /// [`Store::maintain`].
    async fn maintain(&self) -> Result<Maintained>;

    /// [`Store::topics`].
    async fn topics(&self) -> Result<Vec<TopicStatus>>;
}

/// A store's own.
#[derive(Debug)]
pub(crate) struct StoreChores(pub(crate) Arc<dyn Store>);

#[async_trait]
impl Chores for StoreChores {
    fn upkeep(&self) -> &(dyn Upkeep + Send + Sync) {
        &*self.0
    }

    async fn maintain(&self) -> Result<Maintained> {
        self.0.maintain().await
    }

    async fn topics(&self) -> Result<Vec<TopicStatus>> {
        self.0.topics().await
    }
}
