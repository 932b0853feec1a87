//! Indexers: competing services that write the ticks of announced batches into an index, each tick once in effect, whatever crashes.
//!
//! Three levels, as composition. The run loop ([`BatchIndexer`]) discovers the run, opens what is bound to it, waits for its metadata and
//! prepares the schema. The batch loop (`batch`) reads announced files and has the components: metadata, buffering, idempotency. The
//! [`Indexer`] itself prepares its schema and flushes ticks.
//!
//! ```
//! use async_trait::async_trait;
//! use headwater_pipeline::Result;
//! use headwater_pipeline::contracts::{SimulationMetadata, TickData};
//! use headwater_pipeline::indexer::Indexer;
//!
//! /// Prints how many organisms each tick has.
//! struct Population;
//!
//! #[async_trait]
//! impl Indexer for Population {
//!     async fn prepare_schema(&self, _: Option<&SimulationMetadata>) -> Result<()> {
//!         Ok(())
//!     }
//!
//!     async fn flush_ticks(&self, ticks: &[TickData]) -> Result<()> {
//!         for tick in ticks {
//!             println!("{}: {}", tick.tick_number, tick.organisms.len());
//!         }
//!         Ok(())
//!     }
//! }
//! ```
//!
//! See `docs/indexers.md` and `examples/own_indexer.rs` for a whole program.

use async_trait::async_trait;

use crate::contracts::{SimulationMetadata, TickData};
use crate::error::Result;

mod batch;
mod buffer;
mod builtin;
mod idempotency;
mod metadata;
mod metadata_indexer;
mod options;
mod room;
mod service;

pub use builtin::{DummyIndexer, EnvironmentIndexer, OrganismIndexer};
pub use idempotency::Idempotency;
pub use metadata_indexer::MetadataIndexer;
pub use options::{Components, IndexerOptions};
pub use service::BatchIndexer;

/// What an indexer does with the ticks of one run. Everything else is done around it.
#[async_trait]
pub trait Indexer: Send + Sync {
    /// The components it uses; metadata and buffering unless it says otherwise.
    fn components(&self) -> Components {
        Components::ALL
    }

    /// Creates what is missing. Any number of processes may do so at once, and each does it again after a restart. The metadata is there
    /// unless the indexer does without that component.
    async fn prepare_schema(&self, metadata: Option<&SimulationMetadata>) -> Result<()>;

    /// Writes ticks in one transaction, durable when this returns: messages are acked after it. After an error nothing is left of it.
    /// Ticks may come again, alone or with others, and must then change nothing: write them as upserts by tick number.
    ///
    /// Calls come one after the other. A transient error is waited out, a permanent one costs the batches an attempt.
    async fn flush_ticks(&self, ticks: &[TickData]) -> Result<()>;

    /// How many cells of these ticks it has written, for its figures.
    fn cells_written(&self, ticks: &[TickData]) -> u64 {
        ticks.iter().map(|tick| tick.cell_count).sum()
    }
}
