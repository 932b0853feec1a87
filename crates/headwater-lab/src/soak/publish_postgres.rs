//! Publishers on PostgreSQL: plain SQL in transactions of their own, with delays, rollbacks, savepoints, a prepared
//! transaction, and one that stays open.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use headwater::{Namespace, StoreUrl};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Statement};

use super::check::Fate;
use super::history::now_us;
use super::publish::{Ledger, PAUSE_AFTER_GOAL, TransactionPlan, payload};
use crate::server::connect;

/// Where publishers publish to.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    url: String,
    namespace: Namespace,
    topic: String,
}

/// What came of the prepared transactions.
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
    topic: String,
}

impl Target {
    /// Reads the database and the schema from a store's URL.
    pub(crate) fn parse(store: &str, topic: &str) -> Result<Self> {
        match StoreUrl::parse(store, None)? {
            StoreUrl::Postgres { url, namespace } => Ok(Target { url, namespace, topic: topic.to_owned() }),
            StoreUrl::Sqlite(_) => anyhow::bail!("not a PostgreSQL store"),
        }
    }

    async fn publisher(&self) -> Result<Publisher> {
        let client = connect(&self.url).await?;
        let sql = format!("SELECT {}.publish($1, $2::jsonb, key => $3)", self.namespace.quoted());
        let statement = client.prepare(&sql).await.context("preparing publish")?;
        Ok(Publisher { client, statement, topic: self.topic.clone() })
    }

    /// Publishes transaction after transaction until the ledger says stop.
    pub(crate) async fn flood(self, ledger: Ledger, number: usize, seed: u64, goal: usize) -> Result<()> {
        let publisher = self.publisher().await?;
        let mut random = StdRng::seed_from_u64(seed ^ number as u64);
        let prefix = format!("p{number}");
        while !ledger.is_stopped() {
            let plan = TransactionPlan::draw(&mut random, &ledger, &prefix, Duration::from_millis(2_500));
            publisher.run(&plan, &ledger).await?;
            if ledger.committed() > goal {
                tokio::time::sleep(PAUSE_AFTER_GOAL).await;
            }
        }
        Ok(())
    }

    /// Publishes small transactions at a gentle pace until the ledger says stop; their latency is what is measured.
    pub(crate) async fn probe(self, ledger: Ledger, number: usize, seed: u64) -> Result<()> {
        let publisher = self.publisher().await?;
        let mut random = StdRng::seed_from_u64(seed ^ (1_000 + number as u64));
        // A connection's first publish plans every statement. That is its own time and not the open transaction's, so it
        // is spent on one that rolls back, and not by all at once.
        tokio::time::sleep(Duration::from_millis(60 * number as u64)).await;
        let plan = TransactionPlan {
            kept: vec![ledger.new_id("warm")],
            undone: vec![],
            delay: Duration::ZERO,
            rolls_back: true,
        };
        publisher.run(&plan, &ledger).await?;
        while !ledger.is_stopped() {
            let kept = (0..random.random_range(1..=3)).map(|_| ledger.new_id("probe")).collect();
            let rolls_back = random.random_range(0..10) == 0;
            let plan = TransactionPlan { kept, undone: vec![], delay: Duration::ZERO, rolls_back };
            publisher.run(&plan, &ledger).await?;
            tokio::time::sleep(Duration::from_millis(random.random_range(100..250))).await;
        }
        Ok(())
    }

    /// Publishes in a transaction and keeps it open for so long, then commits.
    pub(crate) async fn hold_open(self, ledger: Ledger, during: Duration) -> Result<()> {
        let publisher = self.publisher().await?;
        let kept = (0..3).map(|_| ledger.new_id("held")).collect();
        let plan = TransactionPlan { kept, undone: vec![], delay: during, rolls_back: false };
        publisher.run(&plan, &ledger).await
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
    async fn publish(&self, ids: &[String]) -> Result<()> {
        let sends = ids.iter().map(async |id| {
            let payload = payload(id);
            self.client.query_one(&self.statement, &[&self.topic, &payload, id]).await
        });
        try_join_all(sends).await?;
        Ok(())
    }

    /// Publishes and prepares; the transaction's name and its messages. A refused PREPARE rolls back, and is tried
    /// again with other messages.
    async fn prepare_one(&self, ledger: &Ledger) -> Result<Option<(String, Vec<String>)>> {
        for _ in 0..20 {
            let ids: Vec<String> = (0..5).map(|_| ledger.new_id("prepared")).collect();
            let name = format!("headwater-lab-{}-{}", std::process::id(), ids[0]);
            self.client.batch_execute("BEGIN").await?;
            self.publish(&ids).await?;
            match self.client.batch_execute(&format!("PREPARE TRANSACTION '{name}'")).await {
                Ok(()) => return Ok(Some((name, ids))),
                // NOTIFY and PREPARE do not go together, and publishing notifies when a consumer waits.
                Err(error) if error.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED) => {
                    ledger.note(&ids, Fate::RolledBack);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    async fn run(&self, plan: &TransactionPlan, ledger: &Ledger) -> Result<()> {
        self.client.batch_execute("BEGIN").await?;
        self.publish(&plan.kept).await?;
        if !plan.undone.is_empty() {
            self.client.batch_execute("SAVEPOINT undone").await?;
            self.publish(&plan.undone).await?;
            self.client.batch_execute("ROLLBACK TO SAVEPOINT undone").await?;
        }
        tokio::time::sleep(plan.delay).await;
        let sent_us = now_us();
        self.client.batch_execute(if plan.rolls_back { "ROLLBACK" } else { "COMMIT" }).await?;
        plan.note(ledger, sent_us);
        Ok(())
    }
}
