//! The pipeline as its users see it: services, files, topics and indexes together, on both databases.

#[path = "pipeline/source.rs"]
mod source;
#[path = "pipeline/claim_check.rs"]
mod claim_check;
#[path = "pipeline/storage.rs"]
mod storage;
#[cfg(feature = "aws")]
#[path = "pipeline/s3.rs"]
mod s3;
#[path = "pipeline/buffering.rs"]
mod buffering;
#[path = "pipeline/indexer.rs"]
mod indexer;
#[path = "pipeline/persistence.rs"]
mod persistence;
#[path = "pipeline/running.rs"]
mod running;
#[path = "pipeline/index.rs"]
mod index;
#[path = "pipeline/query.rs"]
mod query;
#[path = "pipeline/scene.rs"]
mod scene;
#[path = "pipeline/bindings.rs"]
mod bindings;
#[path = "pipeline/ticks.rs"]
mod ticks;
#[path = "pipeline/config.rs"]
mod config;
#[path = "pipeline/runs.rs"]
mod runs;
#[path = "pipeline/manager.rs"]
mod manager;
#[path = "pipeline/environment.rs"]
mod environment;
#[path = "pipeline/drill.rs"]
mod drill;
