//! The world's shape: sizes of 1 to 8 dimensions, torus or bounded, and the way from flat indexes to coordinates and back.

/// The shape of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {}
