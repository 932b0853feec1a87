//! Publishers on PostgreSQL: plain SQL in transactions of their own, with delays, rollbacks, savepoints, a prepared
//! transaction, and one that stays open.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures_util::future::try_join_all;
use headwater::store::{Namespace, StoreUrl};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Statement};

use super::check::Fate;
use super::history::now_us;
use super::publish::{Ledger, PAUSE_AFTER_GOAL, TransactionPlan, key_of, payload};
use crate::server::connect;

/// How long a publisher waits for a server to be available again.
const AWAY_MAX: Duration = Duration::from_secs(90);

/// The store and topics that publishers publish to.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    url: String,
    namespace: Namespace,
    /// Each message is published to all of them, in one transaction.
    topics: Vec<String>,
    /// Whether publishers survive an outage of the server.
    survives: bool,
}

/// The outcome of the prepared transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prepared {
    /// One was committed, one rolled back.
    Done,
    /// The server is set up without them.
    NotAllowed,
    /// The server refused every PREPARE TRANSACTION.
    Refused,
}

/// A publisher's connection.
struct Publisher {
    client: Client,
    statement: Statement,
    topics: Vec<String>,
}

/// A transaction that got no answer.
struct Failed {
    error: anyhow::Error,
    /// Whether COMMIT was sent.
    sent: bool,
}

impl Target {
    /// Reads the database and the schema from a store's URL.
    pub(crate) fn parse(store: &str, topic: &str) -> Result<Self> {
        match StoreUrl::parse(store, None)? {
            StoreUrl::Postgres { url, namespace, .. } => {
                Ok(Target { url, namespace, topics: vec![topic.to_owned()], survives: false })
            }
            StoreUrl::Sqlite(_) => anyhow::bail!("not a PostgreSQL store"),
        }
    }

    /// The same messages to another topic too.
    pub(crate) fn add_topic(&mut self, topic: &str) {
        self.topics.push(topic.to_owned());
    }

    /// Makes publishers survive an outage of the server.
    pub(crate) fn surviving(mut self) -> Self {
        self.survives = true;
        self
    }

    async fn publisher(&self) -> Result<Publisher> {
        let client = connect(&self.url).await?;
        let sql = format!("SELECT {}.publish($1, $2::jsonb, key => $3)", self.namespace.quoted());
        let statement = client.prepare(&sql).await.context("preparing publish")?;
        Ok(Publisher { client, statement, topics: self.topics.clone() })
    }

    /// A new connection, once a server answers.
    async fn publisher_again(&self, ledger: &Ledger) -> Result<Publisher> {
        let deadline = Instant::now() + AWAY_MAX;
        loop {
            match self.publisher().await {
                Ok(publisher) => return Ok(publisher),
                Err(error) => {
                    let over = Instant::now() > deadline || ledger.is_stopped();
                    anyhow::ensure!(!over, "a publisher found no server in {AWAY_MAX:?}: {error:#}");
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Uses offsets of the log in a transaction that rolls back, as a failing program does.
    pub(crate) async fn roll_back(&self, ledger: &Ledger, messages: usize) -> Result<()> {
        let kept: Vec<String> = (0..messages).map(|_| ledger.new_id("undone")).collect();
        let plan = TransactionPlan { kept, undone: vec![], delay: Duration::ZERO, rolls_back: true };
        self.publisher().await?.run(&plan, ledger).await.map_err(|failed| failed.error)
    }

    /// Publishes transaction after transaction until the ledger requests a stop.
    pub(crate) async fn flood(self, ledger: Ledger, number: usize, seed: u64, goal: usize) -> Result<()> {
        let mut publisher = self.publisher().await?;
        let mut random = StdRng::seed_from_u64(seed ^ number as u64);
        let prefix = format!("p{number}");
        while !ledger.is_stopped() {
            if ledger.is_paused() {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
            let plan = TransactionPlan::draw(&mut random, &ledger, &prefix, Duration::from_millis(2_500));
            match publisher.run(&plan, &ledger).await {
                Ok(()) => {}
                Err(failed) if self.survives => {
                    let unknown = failed.sent && !plan.rolls_back;
                    ledger.note(&plan.kept, if unknown { Fate::Unknown } else { Fate::RolledBack });
                    ledger.note(&plan.undone, Fate::RolledBack);
                    publisher = self.publisher_again(&ledger).await?;
                }
                Err(failed) => return Err(failed.error),
            }
            if ledger.committed() > goal {
                tokio::time::sleep(PAUSE_AFTER_GOAL).await;
            }
        }
        Ok(())
    }

    /// Publishes small transactions at a slow pace until the ledger requests a stop; their latency is measured.
    pub(crate) async fn probe(self, ledger: Ledger, number: usize, seed: u64) -> Result<()> {
        let publisher = self.publisher().await?;
        let mut random = StdRng::seed_from_u64(seed ^ (1_000 + number as u64));
        // A connection's first publish plans every statement. That time is not caused by the open transaction, so it is
        // spent on a publish that rolls back, and not by all connections at once.
        tokio::time::sleep(Duration::from_millis(60 * number as u64)).await;
        let plan = TransactionPlan {
            kept: vec![ledger.new_id("warm")],
            undone: vec![],
            delay: Duration::ZERO,
            rolls_back: true,
        };
        publisher.run(&plan, &ledger).await.map_err(|failed| failed.error)?;
        while !ledger.is_stopped() {
            let kept = (0..random.random_range(1..=3)).map(|_| ledger.new_id("probe")).collect();
            let rolls_back = random.random_range(0..10) == 0;
            let plan = TransactionPlan { kept, undone: vec![], delay: Duration::ZERO, rolls_back };
            publisher.run(&plan, &ledger).await.map_err(|failed| failed.error)?;
            tokio::time::sleep(Duration::from_millis(random.random_range(100..250))).await;
        }
        Ok(())
    }

    /// Publishes in a transaction and keeps it open for this long, then commits.
    pub(crate) async fn hold_open(self, ledger: Ledger, during: Duration) -> Result<()> {
        let publisher = self.publisher().await?;
        let kept = (0..3).map(|_| ledger.new_id("held")).collect();
        let plan = TransactionPlan { kept, undone: vec![], delay: during, rolls_back: false };
        publisher.run(&plan, &ledger).await.map_err(|failed| failed.error)
    }

    /// Prepares two transactions, and later commits one and rolls back the other.
    pub(crate) async fn prepare(self, ledger: Ledger, during: Duration) -> Result<Prepared> {
        let allowed = connect(&self.url).await?;
        let allowed =
            allowed.query_one("SELECT current_setting('max_prepared_transactions')::int", &[]).await?;
        if allowed.get::<_, i32>(0) == 0 {
            return Ok(Prepared::NotAllowed);
        }
        for commits in [true, false] {
            let publisher = self.publisher().await?;
            let Some((name, ids)) = publisher.prepare_one(&ledger).await? else {
                return Ok(Prepared::Refused);
            };
            let start = Instant::now();
            while start.elapsed() < during && !ledger.is_stopped() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let sent_us = now_us();
            let end = if commits { "COMMIT" } else { "ROLLBACK" };
            publisher.client.batch_execute(&format!("{end} PREPARED '{name}'")).await?;
            let fate = if commits { Fate::Committed { at_us: sent_us } } else { Fate::RolledBack };
            ledger.note(&ids, fate);
        }
        Ok(Prepared::Done)
    }
}

impl Publisher {
    /// Publishes to each topic; returns the offsets, topic after topic.
    async fn publish(&self, ids: &[String]) -> Result<Vec<i64>> {
        let each = self.topics.iter().flat_map(|topic| ids.iter().map(move |id| (topic, id)));
        let sends = each.map(async |(topic, id)| {
            let (payload, key) = (payload(id), key_of(id).map(|(key, _)| key));
            let row = self.client.query_one(&self.statement, &[topic, &payload, &key]).await?;
            anyhow::Ok(row.get::<_, i64>(0))
        });
        try_join_all(sends).await
    }

    /// Publishes and prepares; returns the transaction's name and its messages. A refused PREPARE rolls back, and is tried
    /// again with other messages.
    async fn prepare_one(&self, ledger: &Ledger) -> Result<Option<(String, Vec<String>)>> {
        for _ in 0..20 {
            let ids: Vec<String> = (0..5).map(|_| ledger.new_id("prepared")).collect();
            let name = format!("headwater-lab-{}-{}", std::process::id(), ids[0]);
            self.client.batch_execute("BEGIN").await?;
            self.publish(&ids).await?;
            match self.client.batch_execute(&format!("PREPARE TRANSACTION '{name}'")).await {
                Ok(()) => return Ok(Some((name, ids))),
                // PREPARE is refused after NOTIFY, and publishing notifies when a consumer waits.
                Err(error) if error.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED) => {
                    ledger.note(&ids, Fate::RolledBack);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    async fn run(&self, plan: &TransactionPlan, ledger: &Ledger) -> Result<(), Failed> {
        let offsets = self.run_until_end(plan).await.map_err(|error| Failed { error, sent: false })?;
        let sent_us = now_us();
        let end = if plan.rolls_back { "ROLLBACK" } else { "COMMIT" };
        let ended = self.client.batch_execute(end).await;
        ended.map_err(|error| Failed { error: error.into(), sent: true })?;
        plan.note(ledger, sent_us);
        if !plan.rolls_back {
            for (topic, offsets) in self.topics.iter().zip(offsets.chunks(plan.kept.len())) {
                ledger.note_offsets(topic, &plan.kept, offsets);
            }
        }
        Ok(())
    }

    async fn run_until_end(&self, plan: &TransactionPlan) -> Result<Vec<i64>> {
        self.client.batch_execute("BEGIN").await?;
        let offsets = self.publish(&plan.kept).await?;
        if !plan.undone.is_empty() {
            self.client.batch_execute("SAVEPOINT undone").await?;
            self.publish(&plan.undone).await?;
            self.client.batch_execute("ROLLBACK TO SAVEPOINT undone").await?;
        }
        tokio::time::sleep(plan.delay).await;
        Ok(offsets)
    }
}
