//! Publishers on SQLite: their own connections and transactions, through the view that any program can insert into.
//!
//! One writer commits at a time here, so long delays or open transactions would test nothing.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use headwater::store::{SqlitePath, StoreUrl};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rusqlite::{Connection, TransactionBehavior};

use super::history::now_us;
use super::publish::{Ledger, PAUSE_AFTER_GOAL, TransactionPlan, key_of, payload};

/// The file and topic that publishers publish to.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    file: PathBuf,
    topic: String,
}

impl Target {
    /// Reads the file from a store's URL.
    pub(crate) fn parse(store: &str, topic: &str) -> Result<Self> {
        match StoreUrl::parse(store, None)? {
            StoreUrl::Sqlite(SqlitePath::File(file)) => Ok(Target { file, topic: topic.to_owned() }),
            _ => bail!("the soak needs a file that several processes can open"),
        }
    }

    /// Publishes transaction after transaction until the ledger requests a stop. Blocks: needs a thread of its own.
    pub(crate) fn flood(&self, ledger: &Ledger, number: usize, seed: u64, goal: usize) -> Result<()> {
        let mut random = StdRng::seed_from_u64(seed ^ number as u64);
        let prefix = format!("p{number}");
        let mut connection = self.connect()?;
        while !ledger.is_stopped() {
            let plan = TransactionPlan::draw(&mut random, ledger, &prefix, Duration::from_millis(20));
            self.run(&mut connection, &plan, ledger)?;
            // The lock is not fair: without a pause one publisher would keep it.
            std::thread::sleep(Duration::from_micros(random.random_range(500..5_000)));
            if ledger.committed() > goal {
                std::thread::sleep(PAUSE_AFTER_GOAL);
            }
        }
        Ok(())
    }

    /// Publishes one small transaction at a time at a slow pace, for latency.
    pub(crate) fn probe(&self, ledger: &Ledger, number: usize, seed: u64) -> Result<()> {
        let mut random = StdRng::seed_from_u64(seed ^ (1_000 + number as u64));
        let mut connection = self.connect()?;
        while !ledger.is_stopped() {
            let kept = (0..random.random_range(1..=3)).map(|_| ledger.new_id("probe")).collect();
            let rolls_back = random.random_range(0..10) == 0;
            let plan = TransactionPlan { kept, undone: vec![], delay: Duration::ZERO, rolls_back };
            self.run(&mut connection, &plan, ledger)?;
            std::thread::sleep(Duration::from_millis(random.random_range(100..250)));
        }
        Ok(())
    }

    fn connect(&self) -> Result<Connection> {
        let connection =
            Connection::open(&self.file).with_context(|| format!("opening {}", self.file.display()))?;
        connection.busy_timeout(Duration::from_secs(60))?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        Ok(connection)
    }

    fn run(&self, connection: &mut Connection, plan: &TransactionPlan, ledger: &Ledger) -> Result<()> {
        let mut transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        self.publish(&transaction, &plan.kept)?;
        if !plan.undone.is_empty() {
            // Dropped without a commit, a savepoint rolls back.
            let savepoint = transaction.savepoint()?;
            self.publish(&savepoint, &plan.undone)?;
        }
        std::thread::sleep(plan.delay);
        let sent_us = now_us();
        if plan.rolls_back {
            transaction.rollback()?;
        } else {
            transaction.commit()?;
        }
        plan.note(ledger, sent_us);
        Ok(())
    }

    fn publish(&self, connection: &Connection, ids: &[String]) -> Result<()> {
        let mut insert = connection.prepare_cached(
            "INSERT INTO headwater_publish (topic, key, payload) VALUES (?1, ?2, CAST(?3 AS BLOB))",
        )?;
        for id in ids {
            let key = key_of(id).map(|(key, _)| key);
            insert.execute((&self.topic, key, payload(id).to_string()))?;
        }
        Ok(())
    }
}
