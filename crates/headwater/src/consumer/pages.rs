//! Pages: messages read once and shared by every group of the process that is handed their offsets.
//!
//! Groups that keep up are handed the same ranges in the same claim. A group that needs offsets another has read
//! recently finds them here; only the rest is read from the store. Bounded by bytes: the oldest page is dropped first,
//! and a page lives for as long as a group works on it.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::handler::Messages;
use crate::lease::OffsetRange;
use crate::message::{Message, Offset};

/// Bytes of one page at most, unless a single message is larger.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Most pages kept: they are searched one by one.
const PAGES_MAX: usize = 256;

/// The recently read messages of one topic, newest last.
#[derive(Debug)]
pub(crate) struct Pages {
    pages: VecDeque<Page>,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Page {
    range: OffsetRange,
    messages: Arc<[Message]>,
    bytes: usize,
}

impl Pages {
    pub(crate) fn new() -> Self {
        Pages { pages: VecDeque::new(), bytes: 0 }
    }

    /// Keeps what was read of a range, in pages of [`PAGE_BYTES_MAX`] or one message: a message being handled keeps its
    /// page.
    pub(crate) fn keep(&mut self, range: OffsetRange, mut messages: Vec<Message>) {
        let (mut first, mut bytes, mut count) = (range.first, 0, 0);
        while let Some(message) = messages.get(count) {
            let (offset, weight) = (message.offset, message.weight());
            if bytes + weight > PAGE_BYTES_MAX && count > 0 {
                let page = messages.drain(..count).collect();
                self.push(OffsetRange::new(first, Offset(offset.0 - 1)), page, bytes);
                (first, bytes, count) = (offset, 0, 0);
            }
            (bytes, count) = (bytes + weight, count + 1);
        }
        self.push(OffsetRange::new(first, range.last), messages.into(), bytes);
    }

    fn push(&mut self, range: OffsetRange, messages: Arc<[Message]>, bytes: usize) {
        self.bytes += bytes;
        self.pages.push_back(Page { range, messages, bytes });
    }

    /// Drops everything: it was read in another history.
    pub(crate) fn clear(&mut self) {
        self.pages.clear();
        self.bytes = 0;
    }

    /// Drops the oldest pages, down to `bytes_max`. Not part of [`Pages::keep`]: a claim that has read pages must find
    /// all of them until it has its views.
    pub(crate) fn trim(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max || self.pages.len() > PAGES_MAX {
            let oldest = self.pages.pop_front().expect("bytes are of pages");
            self.bytes -= oldest.bytes;
        }
    }

    /// The subranges of a range that are not here, offsets rising.
    pub(crate) fn missing(&self, range: OffsetRange) -> Vec<OffsetRange> {
        let mut missing = Vec::new();
        self.walk(range, |part, page| {
            if page.is_none() {
                missing.push(part);
            }
        });
        missing
    }

    /// How far a range is here, from its first offset on.
    pub(crate) fn prefix(&self, range: OffsetRange) -> Option<OffsetRange> {
        match self.missing(range).first() {
            None => Some(range),
            Some(missing) if missing.first > range.first => {
                Some(OffsetRange::new(range.first, Offset(missing.first.0 - 1)))
            }
            Some(_) => None,
        }
    }

    /// The messages of a range that is completely here, as views into the pages, offsets rising.
    pub(crate) fn view(&self, range: OffsetRange) -> Vec<Messages> {
        let mut views = Vec::new();
        self.walk(range, |part, page| {
            let page = page.expect("the caller read what was missing");
            let at = |offset: Offset| page.messages.partition_point(|message| message.offset < offset);
            let (from, to) = (at(part.first), at(Offset(part.last.0 + 1)));
            if from < to {
                views.push(Messages::new(Arc::clone(&page.messages), from..to));
            }
        });
        views
    }

    /// Splits a range into subranges, each covered by one page or by none.
    fn walk(&self, range: OffsetRange, mut each: impl FnMut(OffsetRange, Option<&Page>)) {
        let mut next = range.first;
        while next <= range.last {
            // Newest first: groups that keep up find their offsets there.
            if let Some(page) = self.pages.iter().rev().find(|page| page.range.contains(next)) {
                let last = page.range.last.min(range.last);
                each(OffsetRange::new(next, last), Some(page));
                next = Offset(last.0 + 1);
            } else {
                let following =
                    self.pages.iter().map(|page| page.range.first).filter(|first| *first > next).min();
                let last = following.map_or(range.last, |first| Offset(first.0 - 1)).min(range.last);
                each(OffsetRange::new(next, last), None);
                next = Offset(last.0 + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::MESSAGE_BYTES;

    fn range(first: i64, last: i64) -> OffsetRange {
        OffsetRange::new(Offset(first), Offset(last))
    }

    fn messages(offsets: impl IntoIterator<Item = i64>) -> Vec<Message> {
        let message = |offset| Message {
            offset: Offset(offset),
            message_id: uuid::Uuid::nil(),
            key: None,
            message_type: None,
            payload: bytes::Bytes::new(),
            content_type: None,
            headers: crate::Headers::new(),
            correlation_id: None,
            created_at: jiff::Timestamp::UNIX_EPOCH,
        };
        offsets.into_iter().map(message).collect()
    }

    fn offsets(views: &[Messages]) -> Vec<i64> {
        views.iter().flatten().map(|message| message.offset.0).collect()
    }

    #[test]
    fn only_unread_offsets_are_missing_and_gaps_are_no_reason_to_read_again() {
        let mut pages = Pages::new();
        pages.keep(range(10, 20), messages((10..=20).filter(|offset| *offset != 15)));
        assert_eq!(pages.missing(range(12, 18)), []);
        assert_eq!(offsets(&pages.view(range(12, 18))), [12, 13, 14, 16, 17, 18]);
        assert_eq!(pages.missing(range(5, 25)), [range(5, 9), range(21, 25)]);
        pages.keep(range(21, 25), messages(21..=25));
        pages.keep(range(5, 9), messages([]));
        assert_eq!(offsets(&pages.view(range(5, 22))), [10, 11, 12, 13, 14, 16, 17, 18, 19, 20, 21, 22]);
    }

    #[test]
    fn the_oldest_goes_when_memory_is_used_up_and_views_live_on() {
        let mut pages = Pages::new();
        pages.keep(range(1, 2), messages(1..=2));
        let view = pages.view(range(1, 2));
        pages.keep(range(3, 4), messages(3..=4));
        assert_eq!(offsets(&pages.view(range(1, 4))), [1, 2, 3, 4], "nothing is dropped before it is viewed");
        pages.trim(3 * MESSAGE_BYTES);
        assert_eq!(pages.missing(range(1, 4)), [range(1, 2)]);
        assert_eq!(offsets(&view), [1, 2]);
        assert!(pages.bytes <= 3 * MESSAGE_BYTES);
    }
}
