//! Ticks taken from a queue: gathered from many deliveries, acked together once their file is announced.
//!
//! Built on a running consumer and not on pulled batches: its process is known to live by heartbeats and a proof of life, so that the ticks
//! of a killed process are redelivered within seconds and not when their lease expires. Each delivery is a call that waits here until its
//! tick is acked or given up; the consumer extends its lease meanwhile. The number of calls is the number of ticks that a file may have,
//! so a process holds no more of the queue than it can write next.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use headwater::limits::CLAIM_MESSAGES_MAX;
use headwater::{Context, Message, Start};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::reader::{Reader, Seen};
use super::topic::{STOP_GRACE, decode, settled};
use super::{BindingHandle, QUEUE_GROUP};
use crate::backoff::Backoff;
use crate::claim_check::ClaimChecks;
use crate::contracts::TickData;
use crate::error::{Error, ErrorCode, Result};
use crate::resource::{Claim, TickClaims, TickQueueReader, Verdict};
use crate::runs::RunStore;

/// How long ticks that come again wait for others of their lease: those are being handed out at this moment.
const COMPANIONS: Duration = Duration::from_millis(50);

/// How often a payload whose file is damaged is tried before it becomes a dead letter.
const FILE_ATTEMPTS: u32 = 3;

/// A tick in hand.
struct Held {
    tick: TickData,
    bytes: usize,
    attempt: u32,
    /// What becomes of it; dropped to give the tick back.
    done: oneshot::Sender<Verdict>,
}

/// Takes ticks from a queue.
pub(crate) struct TickReceiver {
    reader: Reader,
    seen: Arc<Seen>,
    incoming: mpsc::Receiver<Held>,
    gathered: Vec<Held>,
    /// When the first of them came, and the first that was delivered before.
    first_at: Option<Instant>,
    redelivered_at: Option<Instant>,
    slots: usize,
    bytes_max: usize,
}

impl TickReceiver {
    /// Reads the queue; up to `slots` ticks are in hand at a time. Payloads that were too large for a message are in `checks`.
    pub(crate) async fn open(
        store: &Arc<RunStore>,
        queue: &str,
        slots: usize,
        checks: Option<ClaimChecks>,
        binding: Arc<BindingHandle>,
    ) -> Result<Self> {
        let bytes_max = usize::try_from(binding.config().values.buffer_bytes_max).unwrap_or(usize::MAX);
        let (sender, incoming) = mpsc::channel(slots.max(1));
        let seen = Arc::new(Seen::new(store, queue, QUEUE_GROUP, &binding));
        let calls = Arc::clone(&seen);
        let handle = move |message: Message, context: Context| {
            let (seen, sender, checks) = (Arc::clone(&calls), sender.clone(), checks.clone());
            async move { hold(&seen, &sender, checks.as_ref(), message, &context).await }
        };
        let consumer = store
            .headwater
            .consumer(queue, QUEUE_GROUP)
            .start_from(Start::Beginning)
            .concurrency(slots)
            .batch(u32::try_from(slots).unwrap_or(u32::MAX).min(CLAIM_MESSAGES_MAX))
            .buffer_bytes_max(bytes_max)
            .member(binding.service(), handle);
        let running = consumer.run().await.map_err(|error| {
            let error = Error::from_store(ErrorCode::ClaimFailed, &error);
            binding.failed(&error, "subscribe");
            error
        })?;
        let reader = Reader::new(running, Arc::clone(&seen));
        Ok(TickReceiver {
            reader,
            seen,
            incoming,
            gathered: Vec::new(),
            first_at: None,
            redelivered_at: None,
            slots,
            bytes_max,
        })
    }

    fn gather(&mut self, held: Held) {
        let now = Instant::now();
        self.first_at.get_or_insert(now);
        if held.attempt > 1 {
            self.redelivered_at.get_or_insert(now);
        }
        self.gathered.push(held);
    }

    /// Whether nothing more can come before some of it is acked: the consumer claims while half of its bytes are free.
    fn is_full(&self, max: usize) -> bool {
        let bytes: usize = self.gathered.iter().map(|held| held.bytes).sum();
        self.gathered.len() >= max.min(self.slots) || bytes >= self.bytes_max / 2
    }

    /// When what was gathered has to be written; `None` if there is nothing.
    fn due_at(&self, at_most: Duration) -> Option<Instant> {
        let by_time = self.first_at? + at_most;
        Some(self.redelivered_at.map_or(by_time, |at| by_time.min(at + COMPANIONS)))
    }

    fn take(&mut self, max: usize) -> TickClaims {
        let rest = self.gathered.split_off(max.min(self.gathered.len()));
        let taken = std::mem::replace(&mut self.gathered, rest);
        (self.first_at, self.redelivered_at) = (None, None);
        if !self.gathered.is_empty() {
            let now = Instant::now();
            self.first_at = Some(now);
            self.redelivered_at = self.gathered.iter().any(|held| held.attempt > 1).then_some(now);
        }
        let attempts = taken.iter().map(|held| held.attempt).collect();
        let (ticks, done) = taken.into_iter().map(|held| (held.tick, held.done)).unzip();
        TickClaims { ticks, attempts, claim: Box::new(Acks { done, seen: Arc::clone(&self.seen) }) }
    }
}

/// Hands a tick over and waits until it is acked or given up.
async fn hold(
    seen: &Seen,
    sender: &mpsc::Sender<Held>,
    checks: Option<&ClaimChecks>,
    message: Message,
    context: &Context,
) -> headwater::HandlerResult {
    let offset = message.offset;
    let _active = seen.begin();
    let (tick, bytes) = match read(checks, message).await {
        Ok(read) => read,
        Err(error) => {
            seen.undecodable(&error, offset);
            let reason = format!("{}: {error}", error.code());
            // A file may be readable again; bytes of another type never become a tick.
            let is_file = matches!(error.code(), ErrorCode::DamagedFile | ErrorCode::ReadFailed);
            return match is_file && context.attempt() < FILE_ATTEMPTS {
                true => Err(reason.into()),
                false => Err(headwater::Bury(reason).into()),
            };
        }
    };
    let (done, acked) = oneshot::channel();
    let held = Held { tick, bytes, attempt: context.attempt(), done };
    if sender.send(held).await.is_err() {
        return Err(headwater::Release.into());
    }
    settled(seen, acked.await.unwrap_or(Verdict::GiveBack))
}

/// The tick of a message, and its size. Storage that is away is waited for: it costs no attempt.
async fn read(checks: Option<&ClaimChecks>, message: Message) -> Result<(TickData, usize)> {
    let Some(checks) = checks else { return Ok((decode(&message)?, message.payload.len())) };
    let mut backoff = Backoff::new();
    loop {
        match checks.resolve(message.clone()).await {
            Ok(message) => return Ok((decode(&message)?, message.payload.len())),
            Err(error) if error.is_transient() => {
                tracing::warn!(%error, offset = message.offset.0, "payload not read, repeated after a pause");
                tokio::time::sleep(backoff.pause()).await;
            }
            Err(error) => return Err(error),
        }
    }
}

#[async_trait]
impl TickQueueReader for TickReceiver {
    async fn next(&mut self, max: usize, at_most: Duration) -> Result<Option<TickClaims>> {
        let called_at = Instant::now();
        let max = max.max(1);
        loop {
            if self.is_full(max) {
                return Ok(Some(self.take(max)));
            }
            let until = self.due_at(at_most).unwrap_or(called_at + at_most);
            match tokio::time::timeout_at(until, self.incoming.recv()).await {
                Ok(Some(held)) => self.gather(held),
                Ok(None) => {
                    return Err(Error::permanent(ErrorCode::ClaimFailed, "the queue is read no more"));
                }
                Err(_) if self.gathered.is_empty() => return Ok(None),
                Err(_) => return Ok(Some(self.take(max))),
            }
        }
    }

    async fn lag(&self) -> Result<u64> {
        Ok(self.reader.status().await?.lag)
    }

    async fn close(self: Box<Self>) -> Result<()> {
        let TickReceiver { reader, incoming, gathered, .. } = *self;
        // Their calls return, and release them.
        drop((incoming, gathered));
        reader.end(STOP_GRACE).await
    }
}

/// Settles the ticks of one file.
struct Acks {
    done: Vec<oneshot::Sender<Verdict>>,
    seen: Arc<Seen>,
}

#[async_trait]
impl Claim for Acks {
    /// The calls return, and their acks are stored with the next settlement of the consumer. A crash before that repeats the ticks, which are
    /// then in two files: harmless.
    async fn settle(self: Box<Self>, others: Vec<(usize, Verdict)>) -> Result<()> {
        let mut others: HashMap<usize, Verdict> = others.into_iter().collect();
        let sent = self.done.into_iter().enumerate();
        let gone = sent.filter_map(|(at, done)| done.send(others.remove(&at).unwrap_or(Verdict::Done)).err());
        let gone = gone.count();
        if gone == 0 {
            return Ok(());
        }
        let text = format!("{gone} ticks of {} had been given back before their ack", self.seen.name());
        Err(Error::transient(ErrorCode::LeaseLost, text))
    }
}
