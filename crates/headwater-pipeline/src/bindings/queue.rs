//! Ticks put into a queue, with the back-pressure that holds their source.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use headwater::{Headwater, NewMessage, Producer};

use super::{BindingHandle, QUEUE_GROUP, UsageState, backlog, message_of};
use crate::claim_check::{ClaimChecks, ClaimProducer};
use crate::contracts::TickData;
use crate::error::{Error, ErrorCode, Result};
use crate::health::Counter;
use crate::resource::TickQueueWriter;

/// The ticks and bytes of one statement.
const STATEMENT_TICKS_MAX: usize = 500;
const STATEMENT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The pauses between two readings of a queue that is full.
const PAUSE_FIRST: Duration = Duration::from_millis(5);
const PAUSE_LONGEST: Duration = Duration::from_millis(100);

/// Puts ticks into a queue.
pub(crate) struct TickSender {
    headwater: Headwater,
    queue: String,
    producer: Producer,
    /// Publishes what may be too large for a message.
    large: Option<ClaimProducer>,
    binding: Arc<BindingHandle>,
    /// One call at a time: each adds what it has sent.
    pending: tokio::sync::Mutex<Pending>,
}

/// What is in the queue at most: the last reading, and what was sent since. A queue is read again only when this reaches a limit.
#[derive(Debug, Default)]
struct Pending {
    ticks: u64,
    /// The sizes of what was sent last, oldest first. A queue is read about in order, so its messages are the last of these.
    sizes: VecDeque<u64>,
    bytes: u64,
    is_read: bool,
}

impl Pending {
    fn sent(&mut self, bytes: u64) {
        self.ticks += 1;
        self.bytes += bytes;
        self.sizes.push_back(bytes);
    }

    /// The queue has so many messages.
    fn read(&mut self, lag: u64) {
        let known = self.sizes.len() as u64;
        while self.sizes.len() as u64 > lag {
            self.bytes -= self.sizes.pop_front().unwrap_or(0);
        }
        // Those before the start of this process are as large as what it sent, as far as that is known.
        self.ticks = lag;
        self.is_read = true;
        debug_assert!(self.sizes.len() as u64 <= known);
    }

    /// The bytes of all messages, those of unknown size taken for average ones.
    fn bytes(&self) -> u64 {
        let known = self.sizes.len() as u64;
        self.bytes.saturating_mul(self.ticks.max(known)).checked_div(known).unwrap_or(0)
    }

    fn has_room(&self, ticks_max: u64, bytes_max: u64) -> bool {
        self.is_read && self.ticks <= ticks_max && self.bytes() <= bytes_max
    }
}

impl TickSender {
    /// A queue whose group is subscribed: what is sent before its first reader runs counts as pending too.
    pub(crate) fn new(
        headwater: &Headwater,
        queue: &str,
        checks: Option<ClaimChecks>,
        binding: Arc<BindingHandle>,
    ) -> Self {
        let producer = headwater.producer(queue);
        TickSender {
            headwater: headwater.clone(),
            queue: queue.to_owned(),
            large: checks.map(|checks| ClaimProducer::new(producer.clone(), checks)),
            producer,
            binding,
            pending: tokio::sync::Mutex::default(),
        }
    }

    /// Waits until the queue has room.
    async fn room(&self, pending: &mut Pending) -> Result<()> {
        let values = self.binding.config().values;
        let (ticks_max, bytes_max) = (values.pending_max, values.pending_bytes_max);
        let mut pause = PAUSE_FIRST;
        while !pending.has_room(ticks_max, bytes_max) {
            let status = backlog::status(&self.headwater, &self.queue, QUEUE_GROUP).await?;
            pending.read(status.status.lag);
            if pending.has_room(ticks_max, bytes_max) {
                break;
            }
            self.binding.set_state(UsageState::Waiting);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
        Ok(())
    }

    async fn publish(&self, messages: Vec<NewMessage>) -> Result<()> {
        if let Some(large) = &self.large {
            return large.send_batch(messages).await.map(drop);
        }
        let sent = self.producer.send_batch(&messages).await;
        sent.map(drop).map_err(|error| Error::from_store(ErrorCode::WriteFailed, &error))
    }
}

#[async_trait]
impl TickQueueWriter for TickSender {
    async fn send_ticks(&self, ticks: &[TickData]) -> Result<()> {
        let mut pending = self.pending.lock().await;
        let all: Vec<NewMessage> =
            ticks.iter().map(|tick| message_of(tick).dedup_key(dedup_key(tick))).collect();
        let mut rest = all.into_iter().peekable();
        while rest.peek().is_some() {
            self.binding.record("read the lag", self.room(&mut pending)).await?;
            let (mut messages, mut bytes) = (Vec::new(), 0);
            while let Some(message) = rest.next_if(|next| {
                let fits =
                    messages.len() < STATEMENT_TICKS_MAX && bytes + next.payload.len() <= STATEMENT_BYTES_MAX;
                messages.is_empty() || fits
            }) {
                bytes += message.payload.len();
                messages.push(message);
            }
            // Counted before the call: after an error they may be in the queue.
            messages.iter().for_each(|message: &NewMessage| pending.sent(message.payload.len() as u64));
            let count = messages.len() as u64;
            self.binding.record("publish", self.publish(messages)).await?;
            self.binding.health().count(Counter::MessagesSent, count);
        }
        Ok(())
    }
}

/// A tick that is sent again after a crash of its source changes nothing.
fn dedup_key(tick: &TickData) -> String {
    format!("{}/{}", tick.run_id, tick.tick_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_is_bounded_by_ticks_and_bytes() {
        let mut pending = Pending::default();
        assert!(!pending.has_room(10, 1_000), "unknown until it is read");
        pending.read(0);
        for _ in 0..11 {
            assert!(pending.has_room(10, 1_000));
            pending.sent(50);
        }
        assert!(!pending.has_room(10, 1_000), "11 ticks");
        pending.read(4);
        assert_eq!((pending.ticks, pending.bytes()), (4, 200));
        pending.sent(900);
        assert!(!pending.has_room(10, 1_000), "1,100 bytes");
        pending.read(1);
        assert_eq!(pending.bytes(), 900, "the last one is still there");
    }

    #[test]
    fn messages_of_a_former_process_count_as_average_ones() {
        let mut pending = Pending::default();
        pending.read(8);
        assert_eq!(pending.bytes(), 0, "nothing is known of them");
        pending.sent(100);
        pending.sent(300);
        assert_eq!((pending.ticks, pending.bytes()), (10, 2_000));
    }
}
