//! The tail: reads a topic's log without a group. Nothing is claimed or acked, no group sees or waits for it, and retention does not
//! wait for it either.
//!
//! Every message is returned once. Most come by rising offset; on PostgreSQL a late message comes after higher ones. The tail
//! keeps the gaps that it has read past, and fetches what was in a gap once [`Delivery::head`](crate::store::Delivery::head)
//! no longer names it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::lease::OffsetRange;
use crate::limits::SAFETY_POLL;
use crate::message::{Message, Offset};
use crate::store::{FetchBound, Head, Store};
use crate::subscription::Start;
use crate::topic::Topic;

/// Most messages of a page, unless set otherwise.
const PAGE_MESSAGES_MAX: u32 = 1_000;
/// Most bytes of a page, except for a single larger message.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How soon a head with open transactions is checked again, first and at most.
const RECHECK_MIN: Duration = Duration::from_millis(5);
const RECHECK_MAX: Duration = Duration::from_millis(100);
/// How far back a search by time examines messages one by one: those published concurrently are not in the order of their
/// times.
const DISORDER_MESSAGES_MAX: i64 = 1_000;

/// Reads a topic without a group; from [`Headwater::tail`](crate::Headwater::tail).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// # use std::time::Duration;
/// # let headwater = headwater::Headwater::in_memory().await?;
/// use headwater::Start;
///
/// headwater.producer("orders").send(&1).await?;
/// let mut tail = headwater.tail("orders", Start::Beginning).await?;
/// for message in tail.next(Duration::ZERO).await? {
///     println!("{}: {:?}", message.offset, message.payload);
/// }
/// assert!(tail.next(Duration::from_millis(1)).await?.is_empty(), "waits that long for the next message");
/// # headwater.close().await }
/// ```
#[derive(Debug)]
pub struct Tail {
    store: Arc<dyn Store>,
    topic: Topic,
    /// Everything below was read, except what is in `late`.
    next: Offset,
    /// Offsets read past while their transactions were open; rising, disjoint.
    late: Vec<OffsetRange>,
    messages_max: u32,
}

impl Tail {
    pub(crate) async fn open(store: Arc<dyn Store>, topic: Topic, start: Start) -> Result<Self> {
        let mut tail =
            Tail { store, topic, next: Offset(1), late: Vec::new(), messages_max: PAGE_MESSAGES_MAX };
        let head = tail.head().await?;
        tail.next = match start {
            Start::Beginning => Offset(1),
            Start::Now => {
                // What commits there from now on is new.
                tail.late.clone_from(&head.gaps);
                Offset(head.offset.0 + 1)
            }
            Start::Offset(offset) => Offset(offset.0.clamp(1, head.offset.0 + 1)),
            Start::Timestamp(at) => tail.first_since(at, head.offset).await?,
            Start::BeginningBounded(back) => {
                let back = i64::try_from(back).unwrap_or(i64::MAX);
                Offset(head.offset.0.saturating_sub(back).max(0) + 1)
            }
        };
        Ok(tail)
    }

    /// At most this many messages per page, 1,000 by default.
    #[must_use]
    pub fn messages_max(mut self, messages: u32) -> Self {
        self.messages_max = messages.max(1);
        self
    }

    /// The next offset to read. Late messages below it may follow.
    pub fn position(&self) -> Offset {
        self.next
    }

    /// The next messages, at least one if there is one; waits for one up to this time, and is empty if none arrived.
    ///
    /// May be dropped at any moment: what was not returned is returned by the next call.
    pub async fn next(&mut self, at_most: Duration) -> Result<Vec<Message>> {
        let page = self.page().await?.0;
        if !page.is_empty() || at_most.is_zero() {
            return Ok(page);
        }
        let (until, mut recheck) = (Instant::now() + at_most, RECHECK_MIN);
        loop {
            // Armed first, then read once more: what commits after that read wakes, or was pending in it.
            let wake = self.store.arm(&[self.topic.topic_id]).await?;
            let (page, pending) = self.page().await?;
            let left = until.saturating_duration_since(Instant::now());
            if !page.is_empty() || left.is_zero() {
                return Ok(page);
            }
            let wait = if pending { recheck } else { SAFETY_POLL };
            if wake.wait(wait.min(left)).await {
                recheck = RECHECK_MIN;
            } else {
                recheck = (recheck * 2).min(RECHECK_MAX);
            }
        }
    }

    /// What can be read now, and whether to check again soon.
    async fn page(&mut self) -> Result<(Vec<Message>, bool)> {
        let head = self.head().await?;
        if head.offset.0 + 1 < self.next.0 {
            tracing::warn!(
                topic = self.topic.name.as_str(),
                head = head.offset.0,
                position = self.next.0,
                "log is behind the tail, which continues at its head: the store was restored or failed over"
            );
            (self.next, self.late) = (Offset(head.offset.0 + 1), head.gaps.clone());
        }
        let mut messages = self.read_late(&head.gaps).await?;
        if messages.is_empty() {
            messages = self.read_page(&head).await?;
        }
        Ok((messages, head.pending))
    }

    async fn head(&self) -> Result<Head> {
        let head = self.store.head(self.topic.topic_id).await?;
        head.ok_or_else(|| Error::no_such_topic(self.topic.name.as_str()))
    }

    /// Messages that were in gaps when the tail read past them, and are in none any more.
    async fn read_late(&mut self, gaps: &[OffsetRange]) -> Result<Vec<Message>> {
        if self.late.is_empty() {
            return Ok(Vec::new());
        }
        for closed in minus(&self.late, gaps) {
            let (messages, read) = self.fetch(closed).await?;
            self.late = minus(&self.late, &[read]);
            if !messages.is_empty() {
                return Ok(messages);
            }
        }
        Ok(Vec::new())
    }

    /// The next messages up to the head.
    async fn read_page(&mut self, head: &Head) -> Result<Vec<Message>> {
        while self.next <= head.offset {
            let rest = OffsetRange::new(self.next, head.offset);
            let (messages, mut read) = self.fetch(rest).await?;
            if messages.is_empty() && read.last < head.offset {
                // Nothing in a whole page: the next message may be far away, behind what retention has removed.
                let beyond = OffsetRange::new(Offset(read.last.0 + 1), head.offset);
                let bound = FetchBound::at_least_one(0);
                let found = self.store.fetch_within(self.topic.topic_id, beyond, bound).await?.messages;
                read.last = found.first().map_or(head.offset, |message| Offset(message.offset.0 - 1));
            }
            let there: Vec<_> = messages.iter().map(|message| OffsetRange::one(message.offset)).collect();
            let open = both(&head.gaps, &[read]);
            self.late.extend(minus(&open, &there));
            self.next = Offset(read.last.0 + 1);
            if !messages.is_empty() {
                return Ok(messages);
            }
        }
        Ok(Vec::new())
    }

    /// The first messages of a range, as many as a page takes, and which part of the range was read.
    async fn fetch(&self, range: OffsetRange) -> Result<(Vec<Message>, OffsetRange)> {
        let last = range.first.0.saturating_add(i64::from(self.messages_max) - 1).min(range.last.0);
        let range = OffsetRange::new(range.first, Offset(last));
        let bound = FetchBound::at_least_one(PAGE_BYTES_MAX);
        let fetched = self.store.fetch_within(self.topic.topic_id, range, bound).await?;
        let read = fetched.read_of(range).expect("the first message is read whatever its size");
        Ok((fetched.messages, read))
    }

    /// The first message published at or after a time: a binary search, because offsets and times rise together, except for
    /// messages published concurrently.
    async fn first_since(&self, at: Timestamp, head: Offset) -> Result<Offset> {
        // Everything below `low` is earlier than `at`; `high` and everything above is not.
        let (mut low, mut high) = (1, head.0 + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            let range = OffsetRange::new(Offset(middle), Offset(high - 1));
            let bound = FetchBound::at_least_one(0);
            let found = self.store.fetch_within(self.topic.topic_id, range, bound).await?.messages;
            match found.first() {
                Some(message) if message.created_at < at => low = message.offset.0 + 1,
                _ => high = middle,
            }
        }
        let mut back = (low - DISORDER_MESSAGES_MAX).max(1);
        while back < low {
            let (messages, read) = self.fetch(OffsetRange::new(Offset(back), Offset(low - 1))).await?;
            if let Some(earlier) = messages.iter().find(|message| message.created_at >= at) {
                return Ok(earlier.offset);
            }
            back = read.last.0 + 1;
        }
        Ok(Offset(low))
    }
}

/// Rising ranges without the offsets of others.
fn minus(ranges: &[OffsetRange], others: &[OffsetRange]) -> Vec<OffsetRange> {
    let mut left = Vec::new();
    for range in ranges {
        let mut first = range.first.0;
        let overlaps = |other: &&OffsetRange| other.last >= range.first && other.first <= range.last;
        for other in others.iter().filter(overlaps) {
            if other.first.0 > first {
                left.push(OffsetRange::new(Offset(first), Offset(other.first.0 - 1)));
            }
            first = first.max(other.last.0 + 1);
        }
        if first <= range.last.0 {
            left.push(OffsetRange::new(Offset(first), range.last));
        }
    }
    left
}

/// The offsets that are in rising ranges and in others.
fn both(ranges: &[OffsetRange], others: &[OffsetRange]) -> Vec<OffsetRange> {
    minus(ranges, &minus(ranges, others))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(of: &[(i64, i64)]) -> Vec<OffsetRange> {
        of.iter().map(|(first, last)| OffsetRange::new(Offset(*first), Offset(*last))).collect()
    }

    #[test]
    fn sets_of_offsets_are_subtracted_and_intersected() {
        let all = ranges(&[(1, 9), (20, 29)]);
        assert_eq!(minus(&all, &[]), all);
        assert_eq!(minus(&all, &all), []);
        assert_eq!(minus(&all, &ranges(&[(0, 1), (5, 5), (9, 21)])), ranges(&[(2, 4), (6, 8), (22, 29)]));
        assert_eq!(
            both(&all, &ranges(&[(0, 1), (5, 5), (9, 21)])),
            ranges(&[(1, 1), (5, 5), (9, 9), (20, 21)])
        );
        assert_eq!(both(&all, &ranges(&[(10, 19)])), []);
    }
}
