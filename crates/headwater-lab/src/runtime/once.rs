//! Effects exist exactly once, however often the processes that write them are killed.

use std::time::Duration;

use anyhow::{Context, Result};
use headwater::{Headwater, NewMessage, TopicSettings};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::Setting;
use crate::check::{
    Job, Judged, LedgerJob, Place, Process, effects, eventually, progress, settled, soundness,
};
use crate::server::connect;

const TOPIC: &str = "effects";
const GROUP: &str = "ledger";
const PROCESSES: usize = 2;
/// Messages waiting at any time, so that a kill always hits messages in flight.
const AHEAD: u64 = 1_000;
const CREATE: &str = "CREATE TABLE lab_ledger (n bigint NOT NULL, attempt bigint NOT NULL)";
const SELECT: &str = "SELECT n, attempt FROM lab_ledger";
const COUNT: &str = "SELECT count(*) FROM lab_ledger";
pub(crate) const INSERT_SQLITE: &str = "INSERT INTO lab_ledger (n, attempt) VALUES (?1, ?2)";
pub(crate) const INSERT_POSTGRES: &str = "INSERT INTO lab_ledger (n, attempt) VALUES ($1, $2)";

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let (kills, messages) = if setting.quick { (20, 2_000) } else { (200, 20_000) };
    let headwater = place.open().await?;
    // Many attempts: a message that was in flight at several kills must not be buried.
    let settings = TopicSettings { max_attempts: 1_000, ..TopicSettings::default() };
    headwater.topic(TOPIC).settings(settings).create().await?;
    let ledger = Ledger::create(place).await?;
    let mut killing = Killing {
        job: Job::Ledger(LedgerJob {
            topic: TOPIC.into(),
            group: GROUP.into(),
            handlers: 4,
            batch: 10,
            // On SQLite a handler keeps every other writer waiting.
            handle_ms: if place.is_postgres() { 4 } else { 1 },
            lease_ms: 2_000,
        }),
        url: place.url.clone(),
        processes: vec![],
        random: StdRng::seed_from_u64(setting.seed),
        published: 0,
        kills: 0,
    };
    killing.spread(&headwater, &ledger, kills, messages).await?;
    let done = eventually("every message has its row", Duration::from_secs(120), async || {
        killing.ensure_alive()?;
        Ok(ledger.count().await? >= messages)
    });
    let done = done.await;
    if done.is_ok() {
        settled(&headwater, TOPIC, GROUP, Duration::from_secs(60)).await?;
    }
    for process in killing.processes {
        process.stop().await?;
    }
    let found = effects(&ledger.rows().await?, messages);
    let sound = soundness(&headwater).await?;
    headwater.close().await?;
    Ok(vec![
        Judged::none_of("messages without a row", found.missing)
            .note(format!("{messages} messages, {} kills", killing.kills)),
        Judged::none_of("rows too many", found.doubled)
            .note(format!("{} rows were written on a later attempt", found.later_attempts)),
        Judged::none_of("rows of unknown messages", found.strangers),
        sound,
    ])
}

/// The processes and their killer.
struct Killing {
    job: Job,
    url: String,
    processes: Vec<Process>,
    random: StdRng,
    published: u64,
    kills: u64,
}

impl Killing {
    /// Kills processes at random moments, spread evenly over the messages; publishes as they are handled.
    async fn spread(
        &mut self,
        headwater: &Headwater,
        ledger: &Ledger,
        kills: u64,
        messages: u64,
    ) -> Result<()> {
        for _ in 0..PROCESSES {
            self.start()?;
        }
        let portion = messages / kills;
        for kill in 0..kills {
            let moment = kill * portion + self.random.random_range(0..portion);
            self.publish(headwater, messages.min(moment + AHEAD)).await?;
            eventually(&format!("{moment} rows are written"), Duration::from_secs(60), async || {
                self.ensure_alive()?;
                Ok(ledger.count().await? >= moment)
            })
            .await?;
            // A process that has started: a kill during the start would prove nothing.
            let mut ready = vec![];
            eventually("a process is ready", Duration::from_secs(60), async || {
                self.ensure_alive()?;
                ready = (0..self.processes.len()).filter(|at| self.processes[*at].is_ready()).collect();
                Ok(!ready.is_empty())
            })
            .await?;
            tokio::time::sleep(Duration::from_micros(self.random.random_range(0..30_000))).await;
            let victim = self.processes.swap_remove(ready[self.random.random_range(0..ready.len())]);
            victim.kill().await?;
            self.kills += 1;
            self.start()?;
            if (kill + 1) % 20 == 0 {
                progress(&format!("{} kills, {} messages published", kill + 1, self.published));
            }
        }
        self.publish(headwater, messages).await
    }

    fn start(&mut self) -> Result<()> {
        self.processes.push(Process::start(&self.url, &self.job, |_| {})?);
        Ok(())
    }

    fn ensure_alive(&mut self) -> Result<()> {
        self.processes.iter_mut().try_for_each(Process::ensure_alive)
    }

    async fn publish(&mut self, headwater: &Headwater, up_to: u64) -> Result<()> {
        while self.published < up_to {
            let last = up_to.min(self.published + 500);
            let batch: Vec<NewMessage> =
                (self.published..last).map(|n| NewMessage::json(&n)).collect::<headwater::Result<_>>()?;
            headwater.producer(TOPIC).send_batch(&batch).await?;
            self.published = last;
        }
        Ok(())
    }
}

/// The table of effects, in the store's own database.
enum Ledger {
    Postgres(tokio_postgres::Client),
    Sqlite(rusqlite::Connection),
}

impl Ledger {
    async fn create(place: &Place<'_>) -> Result<Self> {
        match place.file() {
            None => {
                let client = connect(&place.url).await?;
                client.batch_execute(CREATE).await?;
                Ok(Ledger::Postgres(client))
            }
            Some(file) => {
                let connection = rusqlite::Connection::open(file)?;
                connection.busy_timeout(Duration::from_secs(10))?;
                connection.execute_batch(CREATE)?;
                Ok(Ledger::Sqlite(connection))
            }
        }
    }

    async fn count(&self) -> Result<u64> {
        let count: i64 = match self {
            Ledger::Postgres(client) => client.query_one(COUNT, &[]).await?.get(0),
            Ledger::Sqlite(connection) => connection.query_row(COUNT, [], |row| row.get(0))?,
        };
        u64::try_from(count).context("a count is not negative")
    }

    async fn rows(&self) -> Result<Vec<(i64, i64)>> {
        match self {
            Ledger::Postgres(client) => {
                let rows = client.query(SELECT, &[]).await?;
                Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
            }
            Ledger::Sqlite(connection) => {
                let mut statement = connection.prepare(SELECT)?;
                let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
                Ok(rows.collect::<Result<_, _>>()?)
            }
        }
    }
}
