//! The pipeline as its users see it: services, files, topics and indexes together, on both databases.

#[path = "pipeline/bindings.rs"]
mod bindings;
#[path = "pipeline/buffering.rs"]
mod buffering;
#[path = "pipeline/claim_check.rs"]
mod claim_check;
#[path = "pipeline/config.rs"]
mod config;
#[path = "pipeline/drill.rs"]
mod drill;
#[path = "pipeline/environment.rs"]
mod environment;
#[path = "pipeline/index.rs"]
mod index;
#[path = "pipeline/indexer.rs"]
mod indexer;
#[path = "pipeline/manager.rs"]
mod manager;
#[path = "pipeline/page.rs"]
mod page;
#[path = "pipeline/persistence.rs"]
mod persistence;
#[path = "pipeline/query.rs"]
mod query;
#[path = "pipeline/running.rs"]
mod running;
#[path = "pipeline/runs.rs"]
mod runs;
#[cfg(feature = "aws")]
#[path = "pipeline/s3.rs"]
mod s3;
#[path = "pipeline/scene.rs"]
mod scene;
#[path = "pipeline/source.rs"]
mod source;
#[path = "pipeline/storage.rs"]
mod storage;
#[path = "pipeline/ticks.rs"]
mod ticks;
