//! One process of the soak that runs a consumer as programs do: the runtime claims, reads ahead and settles, and
//! handlers record the messages they get.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use headwater::{Handling, Headwater, Message, OpenOptions};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::history::{MemberEvent, Recorder, now_us};
use super::member::{Ask, MemberJob, persistently};
use super::publish::id_of;

/// How long handlers may take to finish when the process is asked to end.
const GRACE: Duration = Duration::from_secs(10);
/// One row for each effect of an exactly-once handler.
pub(super) const CREATE_EFFECTS: &str = "CREATE TABLE IF NOT EXISTS lab_effect (id text NOT NULL)";
/// The effect of one message; returns the number of its transaction.
const EFFECT: &str =
    "INSERT INTO public.lab_effect (id) VALUES ($1) RETURNING pg_current_xact_id()::text::bigint";

/// What handlers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HandlerKind {
    /// Record the message.
    Plain,
    /// The same, and write a row in the store's own transaction (PostgreSQL).
    Once,
}

/// What handlers share: the history, and how long each takes.
#[derive(Clone)]
struct Shared(Arc<Mutex<(Recorder, StdRng)>>);

impl Shared {
    fn began(&self, id: &str, message: &Message) -> Result<Duration> {
        let mut shared = self.0.lock().expect("no panic while held");
        let began = MemberEvent::Began { offset: message.offset.0, id: id.to_owned(), at_us: now_us() };
        shared.0.record(&[began])?;
        let slow = shared.1.random_range(0..10) == 0;
        Ok(Duration::from_millis(if slow { shared.1.random_range(0..4) } else { 0 }))
    }

    fn ended(&self, id: String, transaction: i64) -> Result<()> {
        let ended = MemberEvent::Ended { id, transaction, at_us: now_us() };
        self.0.lock().expect("no panic while held").0.record(&[ended])
    }
}

/// Runs a consumer until standard input ends.
pub(super) async fn run(
    url: &str,
    job: MemberJob,
    kind: HandlerKind,
    mut asked: watch::Receiver<Ask>,
) -> Result<()> {
    let recorder = Recorder::create(&job.history)?;
    let shared = Shared(Arc::new(Mutex::new((recorder, StdRng::seed_from_u64(job.seed)))));
    let (headwater, running) = persistently(async || {
        let options = OpenOptions::default().connections_max(6).actor("the lab");
        let headwater = Headwater::open_with(url, options).await?;
        let consumer = headwater.consumer(&job.topic, &job.group).handling("only", handling(kind, &shared));
        let running = consumer.concurrency(8).batch(20).run().await?;
        Ok((headwater, running))
    })
    .await?;
    asked.wait_for(|ask| *ask == Ask::Stop).await?;
    let stopped = running.shutdown(GRACE).await?;
    ensure!(stopped.in_time, "a handler took longer than the grace time");
    Ok(headwater.close().await?)
}

fn handling(kind: HandlerKind, shared: &Shared) -> Handling {
    let shared = shared.clone();
    match kind {
        HandlerKind::Plain => Handling::one(move |message: Message, _| {
            let shared = shared.clone();
            async move {
                let id = id_of(&message.payload).map_err(|error| error.to_string())?;
                let pause = shared.began(&id, &message).map_err(|error| error.to_string())?;
                tokio::time::sleep(pause).await;
                shared.ended(id, 0).map_err(|error| error.to_string())?;
                Ok(())
            }
        }),
        HandlerKind::Once => Handling::in_postgres(move |transaction, message: Message, _| {
            let shared = shared.clone();
            async move {
                let id = id_of(&message.payload).map_err(|error| error.to_string())?;
                let pause = shared.began(&id, &message).map_err(|error| error.to_string())?;
                let row = transaction.query_one(EFFECT, &[&id]).await?;
                tokio::time::sleep(pause).await;
                shared.ended(id, row.get(0)).map_err(|error| error.to_string())?;
                Ok(())
            }
        }),
    }
}

/// Compares the effects with the log: how many messages have none, and how many rows are too many.
pub(super) async fn effects(url: &str, log: &std::collections::HashSet<String>) -> Result<(usize, usize)> {
    let client = crate::server::connect(url).await?;
    let rows = client.query("SELECT id, count(*) FROM public.lab_effect GROUP BY id", &[]).await;
    let rows = rows.context("reading effects")?;
    let mut counts = std::collections::HashMap::new();
    for row in &rows {
        counts.insert(row.get::<_, String>(0), usize::try_from(row.get::<_, i64>(1))?);
    }
    let missing = log.iter().filter(|id| !counts.contains_key(id.as_str())).count();
    let beyond = counts.iter().map(|(id, count)| if log.contains(id) { count - 1 } else { *count }).sum();
    Ok((missing, beyond))
}
