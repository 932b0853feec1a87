//! One consumer process of the soak: claims, records the messages, and only then acks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use headwater::store::{
    ClaimRequest, Lease, OffsetRange, OpenOptions, Outcome, Owner, Settlement, Store, Subscription, Want,
    open,
};
use headwater::{Error, ErrorKind, GroupName, Message, Offset, Start, TopicName, limits::SAFETY_POLL};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::handled::{self, HandlerKind};
use super::history::{MemberEvent, Recorder, now_us};
use super::publish::id_of;
use crate::check::READY;

/// How many messages a claim takes at most, unless the job sets it.
const BATCH_MAX: u32 = 50;

/// The job of one consumer process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MemberJob {
    pub(super) topic: String,
    pub(super) group: String,
    pub(super) owner: String,
    pub(super) history: PathBuf,
    pub(super) seed: u64,
    pub(super) batch_max: Option<u32>,
    /// Is ready after the first delivery, and settles it only once a line arrives.
    pub(super) hold: bool,
    /// Aborts the process when this message is delivered.
    pub(super) abort_on: Option<String>,
    /// Runs a consumer with handlers instead of the bare verbs.
    pub(super) handler: Option<HandlerKind>,
}

/// Requests of the parent over standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Run,
    /// A line arrived: a held delivery may be settled.
    Settle,
    /// The input has ended, also if the parent died: stop after the current batch.
    Stop,
}

struct Member {
    store: Arc<dyn Store>,
    subscription: Subscription,
    owner: Owner,
    recorder: Recorder,
    random: StdRng,
    asked: watch::Receiver<Ask>,
    job: MemberJob,
}

/// Consumes until standard input ends.
pub(crate) async fn run_member(url: &str, job: MemberJob) -> Result<()> {
    let asked = listen_to_parent();
    if let Some(handler) = job.handler {
        return handled::run(url, job, handler, asked).await;
    }
    let (topic, group) = (TopicName::new(job.topic.as_str())?, GroupName::new(job.group.as_str())?);
    // The server may be down when a member is started again.
    let (store, subscription) = persistently(async || {
        let store = open(url, OpenOptions::default().connections_max(3)).await?;
        let subscription = store.subscribe(&topic, &group, Start::Beginning).await?;
        Ok((store, subscription))
    })
    .await?;
    let mut member = Member {
        owner: Owner::new(job.owner.as_str())?,
        recorder: Recorder::create(&job.history)?,
        random: StdRng::seed_from_u64(job.seed),
        asked,
        store,
        subscription,
        job,
    };
    while *member.asked.borrow() != Ask::Stop {
        match member.step().await {
            Ok(()) => {}
            Err(error) if is_retryable(&error) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) => return Err(error.context(format!("member {}", member.job.owner))),
        }
    }
    Ok(member.store.close().await?)
}

/// Reads standard input on a thread of its own: a blocked read must not keep the process from ending.
fn listen_to_parent() -> watch::Receiver<Ask> {
    let (sender, receiver) = watch::channel(Ask::Run);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            if line.is_err() {
                break;
            }
            let _ = sender.send(Ask::Settle);
        }
        let _ = sender.send(Ask::Stop);
    });
    receiver
}

/// Tries again while the store is unavailable, for a minute at most.
pub(super) async fn persistently<T>(mut work: impl AsyncFnMut() -> headwater::Result<T>) -> Result<T> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match work().await {
            Err(error) if may_repeat(&error) && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            done => return Ok(done?),
        }
    }
}

fn is_retryable(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Error>().is_some_and(may_repeat)
}

/// Whether a failed call can be repeated: also one whose answer was lost, because claims and settlements are
/// fenced. A repeated settlement that had been done already is refused, and counts as refused.
fn may_repeat(error: &Error) -> bool {
    error.is_retryable() || error.kind() == ErrorKind::CommitUnknown
}

impl Member {
    /// Claims and handles one batch, or waits for something to do.
    async fn step(&mut self) -> Result<()> {
        let request = self.request()?;
        let claimed = self.store.claim(&request).await?;
        if !claimed.leases.is_empty() {
            return self.handle(claimed.leases).await;
        }
        let wake = self.store.arm(&[self.subscription.topic.topic_id]).await?;
        let claimed = self.store.claim(&request).await?;
        if !claimed.leases.is_empty() {
            return self.handle(claimed.leases).await;
        }
        let pause = claimed.recheck_after.unwrap_or(SAFETY_POLL).min(SAFETY_POLL);
        let mut asked = self.asked.clone();
        tokio::select! {
            _ = wake.wait(pause) => {}
            _ = asked.changed() => {}
        }
        Ok(())
    }

    fn request(&mut self) -> Result<ClaimRequest> {
        let messages_max = self.random.random_range(1..=self.job.batch_max.unwrap_or(BATCH_MAX));
        let want = Want::new(self.subscription.subscription_id, messages_max);
        Ok(ClaimRequest { owner: self.owner.clone(), wants: vec![want] })
    }

    async fn handle(&mut self, leases: Vec<Lease>) -> Result<()> {
        for lease in leases {
            let messages = self.fetch(&lease).await?;
            let at_us = now_us();
            let delivered = messages.iter().map(|message| delivered(&lease, message, at_us));
            let delivered = delivered.collect::<Result<Vec<_>>>()?;
            self.recorder.record(&delivered)?;
            self.maybe_abort(&delivered);
            if self.job.hold {
                self.hold().await?;
            } else if self.random.random_range(0..10) == 0 {
                tokio::time::sleep(Duration::from_millis(self.random.random_range(0..4))).await;
            }
            self.settle(&lease).await?;
        }
        Ok(())
    }

    async fn fetch(&self, lease: &Lease) -> Result<Vec<Message>> {
        loop {
            match self.store.fetch(lease.topic_id, lease.range).await {
                Err(error) if may_repeat(&error) => tokio::time::sleep(Duration::from_millis(10)).await,
                fetched => return Ok(fetched?),
            }
        }
    }

    fn maybe_abort(&self, delivered: &[MemberEvent]) {
        let Some(poison) = &self.job.abort_on else { return };
        let got_it = |event: &MemberEvent| matches!(event, MemberEvent::Delivered { id, .. } if id == poison);
        if delivered.iter().any(got_it) {
            std::process::abort();
        }
    }

    /// Reports that it holds a delivery and waits for a line before it settles it.
    async fn hold(&mut self) -> Result<()> {
        println!("{READY}");
        self.asked.wait_for(|ask| *ask != Ask::Run).await?;
        self.job.hold = false;
        Ok(())
    }

    /// Acks the lease, one time in five in two steps, and records the store's answer.
    async fn settle(&mut self, lease: &Lease) -> Result<()> {
        let OffsetRange { first, last } = lease.range;
        if first < last && self.random.random_range(0..5) == 0 {
            let middle = Offset(self.random.random_range(first.0..last.0));
            let half = OffsetRange::new(first, middle);
            let part = Settlement::each(lease, vec![(half, Outcome::Ack)]);
            if !self.settle_one(lease, part, half).await? {
                return Ok(());
            }
            let rest = OffsetRange::new(Offset(middle.0 + 1), last);
            return self.settle_one(lease, Settlement::ack_all(lease), rest).await.map(drop);
        }
        self.settle_one(lease, Settlement::ack_all(lease), lease.range).await.map(drop)
    }

    /// Whether the store accepted the settlement.
    async fn settle_one(
        &mut self,
        lease: &Lease,
        settlement: Settlement,
        range: OffsetRange,
    ) -> Result<bool> {
        let settlements = [settlement];
        let mut tries = 0;
        let outcome = loop {
            let outcome = self.store.settle(&settlements).await.and_then(|mut outcomes| outcomes.remove(0));
            match outcome {
                Err(error) if may_repeat(&error) => {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                outcome => break outcome,
            }
        };
        let token = lease.token.0;
        match outcome {
            Ok(()) => {
                self.recorder.record(&[MemberEvent::Acked {
                    token,
                    first: range.first.0,
                    last: range.last.0,
                    at_us: now_us(),
                }])?;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::LeaseLost => {
                self.recorder.record(&[MemberEvent::Refused { token, at_us: now_us() }])?;
                Ok(false)
            }
            Err(error) => Err(error).with_context(|| format!("settling token {token} after {tries} tries")),
        }
    }
}

fn delivered(lease: &Lease, message: &Message, at_us: u64) -> Result<MemberEvent> {
    let id = id_of(&message.payload)?;
    Ok(MemberEvent::Delivered { token: lease.token.0, offset: message.offset.0, id, at_us })
}
