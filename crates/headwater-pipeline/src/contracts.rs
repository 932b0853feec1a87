//! What services exchange and files contain: `proto/pipeline.proto`.

/// The format of files that this program writes, and the newest one that it reads.
pub const FORMAT_VERSION: u32 = 1;

#[allow(missing_docs, clippy::all, reason = "generated; the proto file has the comments")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/headwater.pipeline.v1.rs"));
}

pub use generated::*;
