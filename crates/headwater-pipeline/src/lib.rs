//! A crash-safe pipeline from numbered snapshots (ticks) to an index, built on Headwater's public API alone.
//!
//! ```text
//! source (Tidepool) -> tick queue -> persistence -> batch files + batch topic ------> indexers -> index -> query API
//!        \-> metadata queue -> metadata persistence -> metadata file + metadata topic -> metadata indexer -/
//! ```

pub mod cells;
pub mod contracts;
mod error;
pub mod health;
pub mod indexer;
pub mod resource;
pub mod service;
pub mod world;

pub use error::{Error, ErrorCode, Result};
