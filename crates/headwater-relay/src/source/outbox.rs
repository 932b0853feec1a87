//! The outbox as the source: swept on wake-up and every second, delivered, marked.
//!
//! # Why nothing is lost, and what may be sent twice
//! An entry is marked as published only after the sink has confirmed it. A relay that ends between the two leaves it CLAIMED; after the claim
//! timeout a sweep takes it again, and it is sent a second time, with the same message id. The name of a claimer is new in each life
//! of a relay, so an earlier life marks nothing that a later one holds.

use std::sync::Arc;
use std::time::Duration;

use headwater::outbox::{FailedEntry, HEADER_CORRELATION_ID, Marked, Outbox, OutboxEntry};
use headwater::{Error, ErrorKind, Result};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::courier::Courier;
use crate::relay::RelaySettings;
use crate::sink::{Delivery, Record, SinkError};

/// How often the outbox is swept without a wake-up: entries that become due again wake no one.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// The payload bytes of a sweep above which the next one takes fewer entries.
const SWEEP_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The first sweep takes this many; later ones as many as fit.
const SWEEP_FIRST: u32 = 100;
/// Failures of one statement: their errors are bounded together.
const FAILURES_MAX: usize = 200;
/// The pause before a statement is repeated, and the longest one.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Back-off of failed entries, unless it is set.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// What becomes of entries.
#[derive(Clone, Copy)]
enum Mark<'a> {
    Published(&'a [i64]),
    Failed(&'a [FailedEntry]),
    Refused(&'a [FailedEntry]),
    NotSent(&'a [i64], Option<&'a str>),
}

pub(crate) struct OutboxSource {
    outbox: Outbox,
    courier: Arc<Courier>,
    claimer: String,
    claim_timeout: Duration,
    batch: u32,
    backoff: (Duration, Duration),
    stop: watch::Receiver<bool>,
}

impl OutboxSource {
    pub(crate) fn new(
        outbox: Outbox,
        relay: &str,
        settings: &RelaySettings,
        courier: &Arc<Courier>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let mut outbox = outbox.claim_timeout(settings.claim_timeout);
        if let Some(attempts) = settings.max_attempts {
            outbox = outbox.max_attempts(attempts);
        }
        // A later life of the same relay must not mark what this one lost.
        let mut end = relay.len().min(180);
        while !relay.is_char_boundary(end) {
            end -= 1;
        }
        let claimer = format!("relay {} {}", &relay[..end], uuid::Uuid::now_v7());
        OutboxSource {
            outbox,
            courier: Arc::clone(courier),
            claimer,
            claim_timeout: settings.claim_timeout,
            batch: settings.batch.min(headwater::limits::OUTBOX_ENTRIES_MAX),
            backoff: settings.backoff.unwrap_or(BACKOFF),
            stop,
        }
    }

    /// Runs until it is stopped; returns why, if it ended by itself.
    pub(crate) async fn run(mut self) -> Option<String> {
        let (mut most, mut pause) = (SWEEP_FIRST.min(self.batch), PAUSE);
        loop {
            // Nothing is claimed while nothing can be sent.
            tokio::select! {
                biased;
                () = stopped(&mut self.stop) => return None,
                () = self.courier.breaker.closed() => {}
            }
            match self.step(&mut most).await {
                Ok(()) => pause = PAUSE,
                Err(error) if error.kind() == ErrorKind::Closed => return Some(error.to_string()),
                Err(error) => {
                    let relay = self.courier.meter.relay();
                    tracing::warn!(relay, %error, ?pause, "outbox sweep failed, retrying");
                    tokio::select! {
                        () = stopped(&mut self.stop) => return None,
                        () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSE_MAX),
                    }
                }
            }
        }
    }

    /// Sends what is due, or waits for something.
    async fn step(&mut self, most: &mut u32) -> Result<()> {
        let mut entries = self.sweep(*most).await?;
        if entries.is_empty() {
            // Registered first, swept once more, and only then waited.
            let wake = self.outbox.arm().await?;
            entries = self.sweep(*most).await?;
            if entries.is_empty() {
                tokio::select! {
                    () = stopped(&mut self.stop) => {}
                    _ = wake.wait(SWEEP_EVERY) => {}
                }
                return Ok(());
            }
        }
        *most = next_most(*most, self.batch, &entries);
        self.send(entries).await
    }

    async fn sweep(&self, most: u32) -> Result<Vec<OutboxEntry>> {
        match self.courier.key_order {
            true => self.outbox.sweep_in_key_order(most, &self.claimer).await,
            false => self.outbox.sweep_batch(most, &self.claimer).await,
        }
    }

    async fn send(&self, entries: Vec<OutboxEntry>) -> Result<()> {
        let mut load = self.courier.load(entries.iter().map(record_of).collect());
        let error = load.advance(&self.courier).await.err();
        let unsent: Vec<i64> = load.unsent().map(|at| entries[at].id).collect();
        let results = load.into_results(self.courier.key_order);
        let (mut published, mut failed, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for (entry, result) in entries.iter().zip(results) {
            match result {
                Some(Delivery::Delivered) => published.push(entry.id),
                Some(Delivery::Failed { reason, retry_after }) => {
                    let next = retry_after.unwrap_or_else(|| self.backoff(entry.attempts));
                    let next = next.min(headwater::limits::DELAY_MAX);
                    failed.push(FailedEntry::new(entry.id, reason, next));
                }
                Some(Delivery::Refused { reason }) => {
                    refused.push(FailedEntry::new(entry.id, reason, Duration::ZERO));
                }
                Some(Delivery::Unconfirmed { .. }) | None => {}
            }
        }
        self.insist(Mark::Published(&published)).await?;
        for failed in failed.chunks(FAILURES_MAX) {
            self.insist(Mark::Failed(failed)).await?;
        }
        for refused in refused.chunks(FAILURES_MAX) {
            self.insist(Mark::Refused(refused)).await?;
        }
        let reason = error.as_ref().map(SinkError::to_string);
        self.insist(Mark::NotSent(&unsent, reason.as_deref())).await?;
        if let Some(error) = error {
            self.courier.breaker.trip(error);
        }
        Ok(())
    }

    /// Repeats a mark that fails because the database is locked or disconnected, while the claim lasts: the work is done, and giving
    /// up would repeat it. A mark whose answer was lost is repeated too: what it marked is then reported as lost and left alone.
    async fn insist(&self, mark: Mark<'_>) -> Result<()> {
        let (until, mut pause) = (Instant::now() + self.claim_timeout, PAUSE);
        loop {
            let may_repeat = |error: &Error| error.is_retryable() || error.kind() == ErrorKind::CommitUnknown;
            match self.mark(mark).await {
                Err(error) if may_repeat(&error) && Instant::now() + pause < until => {
                    let relay = self.courier.meter.relay();
                    tracing::warn!(relay, %error, ?pause, "marking outbox entries failed, retrying");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                marked => return marked.map(drop),
            }
        }
    }

    async fn mark(&self, mark: Mark<'_>) -> Result<Marked> {
        let (outbox, claimer) = (&self.outbox, self.claimer.as_str());
        match mark {
            Mark::Published(ids) => outbox.mark_published(ids, claimer).await,
            Mark::Failed(failures) => outbox.mark_failed_each(failures, claimer).await,
            // Its only attempt: parked at once.
            Mark::Refused(failures) => {
                outbox.clone().max_attempts(1).mark_failed_each(failures, claimer).await
            }
            Mark::NotSent(ids, reason) => outbox.reschedule(ids, claimer, Duration::ZERO, reason).await,
        }
    }

    /// When an entry that has failed this often before is due again: between half and all of the back-off.
    fn backoff(&self, failed_before: u32) -> Duration {
        let (initial, longest) = self.backoff;
        let full = initial.saturating_mul(1 << failed_before.min(31)).min(longest);
        full.mul_f64(0.5 + 0.5 * rand::random::<f64>())
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A relay that was dropped has stopped too.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// How many entries the next sweep takes: more while sweeps are full, fewer while they are large.
fn next_most(most: u32, batch: u32, swept: &[OutboxEntry]) -> u32 {
    let bytes: usize = swept.iter().map(|entry| entry.payload.len()).sum();
    match (bytes > SWEEP_BYTES_MAX, swept.len() >= most as usize) {
        (true, _) => (most / 2).max(1),
        (false, true) if bytes <= SWEEP_BYTES_MAX / 2 => most.saturating_mul(2).min(batch),
        _ => most,
    }
}

fn record_of(entry: &OutboxEntry) -> Record {
    Record {
        message_id: format!("outbox-{}", entry.id),
        destination: entry.topic.clone(),
        key: entry.key.clone(),
        message_type: Some(entry.entry_type.clone()),
        content_type: None,
        correlation_id: entry.headers.get(HEADER_CORRELATION_ID).cloned(),
        headers: entry.headers.clone(),
        payload: entry.payload.clone(),
        created_at: entry.created_at,
    }
}
