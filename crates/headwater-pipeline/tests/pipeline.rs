//! The pipeline as its users see it: services, files, topics and indexes together, on both databases.

#[path = "pipeline/source.rs"]
mod source;
#[path = "pipeline/claim_check.rs"]
mod claim_check;
#[path = "pipeline/storage.rs"]
mod storage;
