//! Indexers.

use async_trait::async_trait;

use crate::contracts::{SimulationMetadata, TickData};
use crate::error::Result;

/// What an indexer does with the ticks of one run. Everything else is done around it.
#[async_trait]
pub trait Indexer: Send + Sync {
    /// Creates what is missing. Any number of processes may do so at once, and each does it again after a restart. The metadata is there
    /// unless the indexer was built without that component.
    async fn prepare_schema(&self, metadata: Option<&SimulationMetadata>) -> Result<()>;

    /// Writes ticks in one transaction, durable when this returns: messages are acked after it. After an error nothing is left of it.
    /// Ticks may come again, alone or with others, and must then change nothing: write them as upserts by tick number.
    async fn flush_ticks(&self, ticks: &[TickData]) -> Result<()>;
}
