//! Transactions of another application beside ours: short reads and writes at a steady pace, and how long they take.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::RngExt;
use tokio::task::JoinSet;

use crate::check::percentile_ms;
use crate::server::connect;

const CONNECTIONS: u64 = 4;
const ROWS: i32 = 100_000;

/// From when to when.
pub(super) type Span = (Instant, Instant);

/// A running foreign application; stops on drop.
pub(super) struct Oltp {
    taken: Arc<Mutex<Vec<(Instant, Duration)>>>,
    tasks: JoinSet<Result<()>>,
}

impl Oltp {
    pub(super) async fn start(url: &str, per_second: u64) -> Result<Self> {
        let client = connect(url).await?;
        client
            .batch_execute(&format!(
                "CREATE TABLE account (id integer PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 80); \
                 INSERT INTO account SELECT n, 0 FROM generate_series(1, {ROWS}) n; ANALYZE account; CHECKPOINT"
            ))
            .await?;
        let taken: Arc<Mutex<Vec<(Instant, Duration)>>> = Arc::default();
        let mut tasks = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let mut client = connect(url).await?;
            let taken = Arc::clone(&taken);
            let every = Duration::from_secs_f64(CONNECTIONS as f64 / per_second as f64);
            tasks.spawn(async move {
                let read = client.prepare("SELECT balance FROM account WHERE id = $1").await?;
                let write = client.prepare("UPDATE account SET balance = balance + $2 WHERE id = $1").await?;
                let mut interval = tokio::time::interval(every);
                loop {
                    interval.tick().await;
                    let (from, to) = {
                        let mut random = rand::rng();
                        (random.random_range(1..=ROWS), random.random_range(1..=ROWS))
                    };
                    let start = Instant::now();
                    let transaction = client.transaction().await?;
                    transaction.query_one(&read, &[&from]).await?;
                    transaction.execute(&write, &[&to, &1i64]).await?;
                    transaction.commit().await?;
                    taken.lock().expect("no panic while held").push((start, start.elapsed()));
                }
            });
        }
        Ok(Oltp { taken, tasks })
    }

    /// The p95 of transactions begun within these spans, in milliseconds, and how many there were per second.
    pub(super) fn p95_within(&mut self, spans: &[Span]) -> Result<(f64, f64)> {
        if let Some(ended) = self.tasks.try_join_next() {
            ended?.context("the foreign application failed")?;
        }
        let taken = self.taken.lock().expect("no panic while held");
        let within = |at: &Instant| spans.iter().any(|(from, to)| (from..to).contains(&at));
        let times: Vec<Duration> = taken.iter().filter(|(at, _)| within(at)).map(|(_, took)| *took).collect();
        anyhow::ensure!(!times.is_empty(), "the foreign application did nothing");
        let long: Duration = spans.iter().map(|(from, to)| *to - *from).sum();
        let rate = times.len() as f64 / long.as_secs_f64();
        Ok((percentile_ms(&times, 0.95), rate))
    }
}
