//! A slice of the manager's messages in one transaction: all processes are read by one statement, decided in memory, and
//! written by one statement of each kind.
//!
//! Each message is decided from the log that the messages before it led to, by the same pure rules: several messages of one
//! process lead to what they would lead to one by one. The processes are locked in the order of their ids until the end, so
//! nothing else changes them in between. What is not plain (a message that cannot be read, an unknown process, data that are
//! too large to be held together) is refused, and decided message by message.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, try_join_all};
use uuid::Uuid;

use super::{Decided, Manager, Posted};
use crate::dead_letter::ParkedCommand;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Context, HandleSlice, Messages, OpenSlice};
use crate::message::{Message, NewMessage};
use crate::observe::trace;
use crate::process::message;
use crate::process::rows::{self, Loaded};
use crate::process::turn::Batch;
use crate::settle::Verdict;
use crate::transaction::Transaction;

impl HandleSlice for Manager {
    fn begin(
        self: Arc<Self>,
        tx: Transaction,
        messages: Messages,
        fresh: Vec<usize>,
    ) -> BoxFuture<'static, Result<Arc<dyn OpenSlice>>> {
        async move {
            let id_of = |at: &usize| message::input_of(&messages[*at]).map(|(id, _)| id).map_err(unreadable);
            let ids = fresh.iter().map(id_of).collect::<Result<BTreeSet<Uuid>>>()?;
            let found = if ids.is_empty() { HashMap::new() } else { rows::load_all(&tx, &ids).await? };
            if found.len() < ids.len() {
                let text = "a process is unknown, or the processes are too large to be read together";
                return Err(Error::new(ErrorKind::Conflict, text));
            }
            let state = Mutex::new(State { found, ..State::default() });
            let open: Arc<dyn OpenSlice> = Arc::new(ProcessSlice { manager: self, state });
            Ok(open)
        }
        .boxed()
    }
}

fn unreadable(why: String) -> Error {
    Error::invalid("message", why)
}

struct ProcessSlice {
    manager: Arc<Manager>,
    state: Mutex<State>,
}

/// The processes as the messages so far led to, and what is to be written.
#[derive(Default)]
struct State {
    found: HashMap<Uuid, Loaded>,
    /// How many writes each process has.
    writes: HashMap<Uuid, usize>,
    /// The first write of each process, the second of each, and so on: one statement changes a process once.
    rounds: Vec<Vec<Batch>>,
    /// Commands and timers by topic, in their order. There are few topics.
    published: Vec<(String, Vec<NewMessage>)>,
    cancelled: Vec<Uuid>,
    parked: Vec<ParkedCommand>,
    reports: Vec<Decided>,
}

impl OpenSlice for ProcessSlice {
    fn handle(self: Arc<Self>, _: Transaction, context: Context) -> BoxFuture<'static, Verdict> {
        let decided = self.decide(context.message());
        let verdict = decided.map_or_else(|error| Verdict::Failed(error.to_string()), |()| Verdict::Done);
        std::future::ready(verdict).boxed()
    }

    fn finish(self: Arc<Self>, tx: Transaction) -> BoxFuture<'static, Result<()>> {
        let state = std::mem::take(&mut *self.state.lock().expect("no panic while held"));
        async move { self.write(&tx, state).await }.boxed()
    }
}

impl ProcessSlice {
    fn decide(&self, message: &Message) -> Result<()> {
        let (id, input) = message::input_of(message).map_err(unreadable)?;
        let mut state = self.state.lock().expect("no panic while held");
        let Some((instance, events)) = state.found.get_mut(&id) else {
            return Err(Error::new(ErrorKind::Conflict, format!("process {id} was not read")));
        };
        let mut decided = self.manager.decide(instance.clone(), events, input)?;
        for Batch { instance, entries } in &decided.batches {
            // As the repository numbers them.
            let numbered = (instance.version() + 1..).zip(entries);
            events.extend(numbered.map(|(sequence, (_, event))| (sequence, event.clone())));
        }
        instance.clone_from(&decided.after);
        for outgoing in std::mem::take(&mut decided.outgoing) {
            match self.manager.posted(&outgoing, &decided.after)? {
                Posted::Publish(topic, mut message) => {
                    // While its trace is the current one.
                    trace::inject(&mut message);
                    state.publish(topic, *message);
                }
                Posted::Cancel(id) => state.cancel(id),
            }
        }
        state.parked.extend(self.manager.parked(&decided.batches, &decided.after));
        state.add(decided);
        Ok(())
    }

    /// Sent together, as for one message.
    async fn write(&self, tx: &Transaction, state: State) -> Result<()> {
        let now = tx.time_of(None).await?;
        for parked in &state.parked {
            self.manager.dead_letters.within(tx).park(parked).await?;
        }
        let changes = async {
            for round in &state.rounds {
                rows::change_all(tx, now.clone(), round).await?;
            }
            Ok::<(), Error>(())
        };
        let published = state.published.into_iter();
        let publishes = try_join_all(
            published
                .map(|(topic, messages)| async move { tx.publish_all(&topic, messages).await.map(drop) }),
        );
        let cancels = rows::cancel_timers(tx, &self.manager.topic, &state.cancelled);
        tokio::try_join!(changes, publishes, cancels)?;
        state.reports.iter().for_each(Decided::report);
        Ok(())
    }
}

impl State {
    fn publish(&mut self, topic: String, message: NewMessage) {
        match self.published.iter_mut().find(|(other, _)| *other == topic) {
            Some((_, messages)) => messages.push(message),
            None => self.published.push((topic, vec![message])),
        }
    }

    /// Takes a timer back: one of this slice, which is not published then, or one of before.
    fn cancel(&mut self, id: Uuid) {
        let mut taken_back = false;
        for (_, messages) in &mut self.published {
            let before = messages.len();
            messages.retain(|message| message.message_id != Some(id));
            taken_back |= messages.len() < before;
        }
        self.published.retain(|(_, messages)| !messages.is_empty());
        if !taken_back {
            self.cancelled.push(id);
        }
    }

    fn add(&mut self, decided: Decided) {
        for batch in &decided.batches {
            let write = self.writes.entry(batch.instance.id()).or_default();
            if *write == self.rounds.len() {
                self.rounds.push(Vec::new());
            }
            self.rounds[*write].push(batch.clone());
            *write += 1;
        }
        self.reports.push(decided);
    }
}
