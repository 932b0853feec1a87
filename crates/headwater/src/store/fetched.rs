//! How much one fetch reads, and what it read.

use crate::lease::OffsetRange;
use crate::message::{Message, Offset};

/// How many bytes one fetch may read, by [`Message::weight`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchBound {
    /// The total size of the messages of one fetch is at most this.
    pub bytes_max: usize,
    /// Whether the first message is read whatever its size, so that a reader makes progress.
    pub at_least_one: bool,
}

impl FetchBound {
    /// Everything, whatever its size.
    pub const NONE: FetchBound = FetchBound { bytes_max: usize::MAX, at_least_one: true };

    /// At most this many bytes, or nothing.
    pub fn strict(bytes_max: usize) -> Self {
        FetchBound { bytes_max, at_least_one: false }
    }

    /// At most this many bytes, or one message.
    pub fn at_least_one(bytes_max: usize) -> Self {
        FetchBound { bytes_max, at_least_one: true }
    }
}

/// What a fetch read of a range.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fetched {
    /// The messages, offsets rising.
    pub messages: Vec<Message>,
    /// The end of the range that was not read, because its first message did not fit.
    pub left: Option<OffsetRange>,
}

impl Fetched {
    /// The start of the range that was read, if any.
    pub fn read_of(&self, range: OffsetRange) -> Option<OffsetRange> {
        match self.left {
            None => Some(range),
            Some(left) if left.first > range.first => {
                Some(OffsetRange::new(range.first, Offset(left.first.0 - 1)))
            }
            Some(_) => None,
        }
    }
}

/// Counts what a fetch reads against its bound.
#[derive(Debug)]
pub(crate) struct Weighing {
    bound: FetchBound,
    bytes: usize,
    count: usize,
}

impl Weighing {
    pub(crate) fn new(bound: FetchBound) -> Self {
        Weighing { bound, bytes: 0, count: 0 }
    }

    /// Whether a message of this size still fits; counted if so.
    pub(crate) fn fits(&mut self, weight: usize) -> bool {
        let bytes = self.bytes.saturating_add(weight);
        let fits = bytes <= self.bound.bytes_max || self.count == 0 && self.bound.at_least_one;
        if fits {
            (self.bytes, self.count) = (bytes, self.count + 1);
        }
        fits
    }
}
