//! A crash-safe pipeline from numbered snapshots (ticks) to an index, built on Headwater's public API alone.
//!
//! ```text
//! source (Tidepool) -> tick queue -> persistence -> batch files + batch topic ------> indexers -> index -> query API
//!        \-> metadata queue -> metadata persistence -> metadata file + metadata topic -> metadata indexer -/
//! ```

mod backoff;
pub mod bindings;
pub mod cells;
pub mod claim_check;
pub mod config;
pub mod contracts;
pub mod control;
mod error;
mod follow;
pub mod health;
pub mod index;
pub mod indexer;
pub mod manager;
pub mod metadata;
pub mod persistence;
pub mod pipeline;
pub mod query;
pub mod resource;
pub mod run_id;
pub mod runs;
pub mod service;
pub mod source;
pub mod storage;
pub mod testing;
pub mod tidepool;
pub mod world;

pub use config::Config;
pub use error::{Error, ErrorCode, Result};
pub use pipeline::{Pipeline, RunningPipeline};
pub use run_id::RunId;
