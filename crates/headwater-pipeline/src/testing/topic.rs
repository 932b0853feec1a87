//! A topic with one group, in memory.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};

use super::{Faults, lock};
use crate::error::Result;
use crate::resource::{Delivery, Handler, Reading, TopicReader, TopicWriter, Verdict};
use crate::service::{Stop, Stopper};

/// Longer than anything here takes; a wait of this length has failed. Of virtual time where time is paused.
const DEADLINE: Duration = Duration::from_secs(600);

/// A topic with one group in memory: offsets from 1, leases that last until they are taken away. Clones are the same topic.
#[derive(Clone)]
pub struct MemoryTopic<T> {
    state: Arc<Mutex<State<T>>>,
    changed: Arc<Notify>,
    /// Of sends.
    pub sends: Faults,
}

struct State<T> {
    messages: Vec<Stored<T>>,
    keys: BTreeSet<String>,
    readers: Vec<AbortHandle>,
    deliveries: Vec<Delivery>,
    leases_lost: u64,
}

struct Stored<T> {
    message: T,
    attempt: u32,
    /// Changes with each delivery: an outcome under another token is ignored.
    token: u64,
    place: Place,
}

#[derive(Clone, PartialEq, Eq)]
enum Place {
    Waiting,
    Leased,
    Acked,
    Buried(String),
}

impl<T> Default for MemoryTopic<T> {
    fn default() -> Self {
        let state = State {
            messages: Vec::new(),
            keys: BTreeSet::new(),
            readers: Vec::new(),
            deliveries: Vec::new(),
            leases_lost: 0,
        };
        MemoryTopic { state: Arc::new(Mutex::new(state)), changed: Arc::default(), sends: Faults::default() }
    }
}

impl<T: Clone + Send + Sync + 'static> MemoryTopic<T> {
    /// The messages sent.
    pub fn messages(&self) -> Vec<T> {
        lock(&self.state).messages.iter().map(|stored| stored.message.clone()).collect()
    }

    /// The offsets acked.
    pub fn acked(&self) -> Vec<i64> {
        self.offsets(|place| *place == Place::Acked)
    }

    /// The offsets buried, with the reasons.
    pub fn buried(&self) -> Vec<(i64, String)> {
        let state = lock(&self.state);
        let buried = state.messages.iter().zip(1..).filter_map(|(stored, offset)| match &stored.place {
            Place::Buried(reason) => Some((offset, reason.clone())),
            _ => None,
        });
        buried.collect()
    }

    /// Every call of a handler so far.
    pub fn deliveries(&self) -> Vec<Delivery> {
        lock(&self.state).deliveries.clone()
    }

    /// Outcomes that came under an old token.
    pub fn leases_lost(&self) -> u64 {
        lock(&self.state).leases_lost
    }

    /// Messages neither acked nor buried.
    pub fn unsettled(&self) -> u64 {
        self.offsets(|place| matches!(place, Place::Waiting | Place::Leased)).len() as u64
    }

    /// The readers crash: running calls are dropped, and their messages come again.
    pub fn crash(&self) {
        let mut state = lock(&self.state);
        state.readers.drain(..).for_each(|reader| reader.abort());
        for stored in state.messages.iter_mut().filter(|stored| stored.place == Place::Leased) {
            stored.again(1);
        }
    }

    /// The lease of a message is lost: it comes again, while the former call still runs.
    pub fn lose_lease(&self, offset: i64) {
        lock(&self.state).messages[at(offset)].again(1);
        self.changed.notify_waiters();
    }

    /// Waits until exactly these offsets are acked.
    pub async fn until_acked(&self, offsets: &[i64]) {
        until(&format!("{offsets:?} to be acked"), &self.changed, || self.acked() == offsets).await;
    }

    /// Waits until the predicate holds; checked whenever a message is sent, delivered or settled.
    pub async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        until(what, &self.changed, || is_so(self)).await;
    }

    fn offsets(&self, is_wanted: impl Fn(&Place) -> bool) -> Vec<i64> {
        let state = lock(&self.state);
        let wanted = state.messages.iter().zip(1..).filter(|(stored, _)| is_wanted(&stored.place));
        wanted.map(|(_, offset)| offset).collect()
    }

    fn claim(&self) -> Option<(T, Delivery, u64)> {
        let mut state = lock(&self.state);
        let (stored, offset) =
            state.messages.iter_mut().zip(1..).find(|(stored, _)| stored.place == Place::Waiting)?;
        stored.place = Place::Leased;
        stored.token += 1;
        let delivery = Delivery { offset, attempt: stored.attempt };
        let claimed = (stored.message.clone(), delivery, stored.token);
        state.deliveries.push(delivery);
        drop(state);
        self.changed.notify_waiters();
        Some(claimed)
    }

    fn settle(&self, offset: i64, token: u64, verdict: Verdict) {
        let mut state = lock(&self.state);
        let stored = &mut state.messages[at(offset)];
        if stored.token != token || stored.place != Place::Leased {
            state.leases_lost += 1;
            return;
        }
        match verdict {
            Verdict::Done => stored.place = Place::Acked,
            Verdict::Retry(_) => stored.again(1),
            Verdict::GiveBack => stored.again(0),
            Verdict::Bury(reason) => stored.place = Place::Buried(reason),
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Calls the handler for what waits, until the stop; then waits for running calls.
    async fn read(self, concurrency: usize, handler: Arc<dyn Handler<T>>, mut stop: Stop) {
        let mut calls = JoinSet::new();
        loop {
            let is_stopping = stop.is_requested();
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            while !is_stopping
                && calls.len() < concurrency
                && let Some((message, delivery, token)) = self.claim()
            {
                let (topic, handler) = (self.clone(), Arc::clone(&handler));
                calls.spawn(async move {
                    let verdict = handler.handle(message, delivery).await;
                    topic.settle(delivery.offset, token, verdict);
                });
            }
            if is_stopping && calls.is_empty() {
                return;
            }
            tokio::select! {
                () = stop.requested(), if !is_stopping => {}
                Some(ended) = calls.join_next(), if !calls.is_empty() => ended.expect("no panic"),
                () = changed => {}
            }
        }
    }
}

impl<T> Stored<T> {
    fn again(&mut self, attempts: u32) {
        self.attempt += attempts;
        self.token += 1;
        self.place = Place::Waiting;
    }
}

fn at(offset: i64) -> usize {
    usize::try_from(offset - 1).expect("an offset from 1")
}

#[async_trait]
impl<T: Clone + Send + Sync + 'static> TopicWriter<T> for MemoryTopic<T> {
    async fn send(&self, message: &T, dedup_key: &str) -> Result<()> {
        self.sends.meet().await?;
        let mut state = lock(&self.state);
        if !dedup_key.is_empty() && !state.keys.insert(dedup_key.to_owned()) {
            return Ok(());
        }
        let message = message.clone();
        state.messages.push(Stored { message, attempt: 1, token: 0, place: Place::Waiting });
        drop(state);
        self.changed.notify_waiters();
        Ok(())
    }
}

#[async_trait]
impl<T: Clone + Send + Sync + 'static> TopicReader<T> for MemoryTopic<T> {
    async fn start(&self, concurrency: usize, handler: Arc<dyn Handler<T>>) -> Result<Box<dyn Reading>> {
        let (stopper, stop) = Stop::new();
        let reader = tokio::spawn(self.clone().read(concurrency, handler, stop));
        lock(&self.state).readers.push(reader.abort_handle());
        Ok(Box::new(MemoryReading { topic: self.clone(), reader, stopper }))
    }
}

struct MemoryReading<T> {
    topic: MemoryTopic<T>,
    reader: tokio::task::JoinHandle<()>,
    stopper: Stopper,
}

#[async_trait]
impl<T: Clone + Send + Sync + 'static> Reading for MemoryReading<T> {
    async fn lag(&self) -> Result<u64> {
        Ok(self.topic.unsettled())
    }

    async fn settled_up_to(&self) -> Result<i64> {
        let state = lock(&self.topic.state);
        let settled = |stored: &Stored<T>| matches!(stored.place, Place::Acked | Place::Buried(_));
        let count = state.messages.iter().take_while(|stored| settled(stored)).count();
        Ok(i64::try_from(count).expect("a small number"))
    }

    async fn stop(mut self: Box<Self>, grace: Duration) -> Result<()> {
        self.stopper.stop();
        if tokio::time::timeout(grace, &mut self.reader).await.is_err() {
            // Calls that take too long are dropped, and their messages given back.
            self.reader.abort();
            let mut state = lock(&self.topic.state);
            for stored in state.messages.iter_mut().filter(|stored| stored.place == Place::Leased) {
                stored.again(0);
            }
        }
        Ok(())
    }
}

/// Waits until something is so, checking after each change.
pub(super) async fn until(what: &str, changed: &Notify, is_so: impl Fn() -> bool) {
    let wait = async {
        loop {
            let change = changed.notified();
            tokio::pin!(change);
            // Registered first: a change between the check and the wait is not missed.
            change.as_mut().enable();
            if is_so() {
                return;
            }
            change.await;
        }
    };
    assert!(tokio::time::timeout(DEADLINE, wait).await.is_ok(), "waited for {what}");
}
