//! Exactly once into Kafka: the relay process and the broker are killed at random moments, and a reader at `read_committed` must find each
//! message once, the messages of a key in order.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater::Headwater;
use headwater_relay::testing::checker;
use headwater_servers::Stop;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rusqlite::Connection;
use tokio_postgres::Client;

use super::brokers::{Kind, Live};
use super::load::fill;
use super::{RelayJob, Setting};
use crate::check::{Floor, Job, Judged, Place, Process, Unit, progress, soundness};
use crate::server::connect;

const TOPIC: &str = "once";
const GROUP: &str = "to-kafka";
const BATCH: u32 = 500;
/// The longest time without progress: a broker starts, and an abandoned transaction is completed.
const STALLED_MAX: Duration = Duration::from_secs(180);
/// One in so many kills is the broker's.
const BROKER_SHARE: u64 = 5;
/// How long acks are held before a kill: a relay that has committed to Kafka waits then.
const HELD: Duration = Duration::from_millis(300);

/// What was killed.
#[derive(Debug, Default)]
struct Kills {
    relay: u64,
    /// Of these while acks were held.
    held: u64,
    broker: u64,
}

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let (messages, kills) = (setting.count(1_000_000, 50_000), setting.count(100, 10));
    let mut kafka = Live::start(Kind::Kafka, &setting.work).await?;
    kafka.create(TOPIC).await?;
    let headwater = place.open().await?;
    headwater.topic(TOPIC).create().await?;
    progress("filling a backlog");
    let published = fill(&headwater, TOPIC, messages).await?;
    let begun = Instant::now();
    let (target, id) = (kafka.target(TOPIC), "the-lab".to_owned());
    let job = Job::Relay(RelayJob::ExactlyOnce {
        topic: TOPIC.into(),
        group: GROUP.into(),
        target,
        id,
        batch: BATCH,
    });
    let mut random = StdRng::seed_from_u64(setting.seed);
    let mut relay = Process::start(&place.url, &job, |_| {})?;
    let (mut done, step) = (Kills::default(), messages / (kills + 1));
    for kill in 1..=kills {
        until_lag(&headwater, messages - kill * step, &mut relay).await?;
        tokio::time::sleep(Duration::from_millis(random.random_range(0..100))).await;
        // The middle one of a few is always the broker's.
        if kill % BROKER_SHARE == BROKER_SHARE / 2 {
            progress(&format!("kill {kill} of {kills}: the broker"));
            kafka.stop(Stop::Kill)?;
            kafka.recover().await?;
            done.broker += 1;
            continue;
        }
        progress(&format!("kill {kill} of {kills}: the relay"));
        let held = if random.random_bool(0.5) { Some(AcksHeld::new(place).await?) } else { None };
        if held.is_some() {
            tokio::time::sleep(HELD).await;
            done.held += 1;
        }
        relay.kill().await?;
        if let Some(held) = held {
            held.release().await?;
        }
        done.relay += 1;
        relay = Process::start(&place.url, &job, |_| {})?;
    }
    until_lag(&headwater, 0, &mut relay).await?;
    let seconds = begun.elapsed().as_secs_f64();
    relay.kill().await?;
    one_more(place, &job).await?;
    let dead = headwater.dead_letters().of(TOPIC, GROUP).count().await?;
    let sound = soundness(&headwater).await?;
    headwater.close().await?;
    let found = kafka.read(TOPIC).await?;
    let wrong = checker::exactly_once(&published, &found);
    let mut judged = judge(&wrong, found.len() as u64, messages);
    judged.push(Judged::none_of("dead letters", dead as u64));
    judged.push(Judged::all_of("kills", done.relay + done.broker, kills).note(format!(
        "{} of the relay, {} of these with acks held; {} of the broker",
        done.relay, done.held, done.broker
    )));
    let rate = messages as f64 / seconds;
    judged.push(Judged::new("relayed, kills included", rate, Unit::MessagesPerSecond, Floor::None));
    judged.push(sound);
    Ok(judged)
}

fn judge(wrong: &[String], found: u64, messages: u64) -> Vec<Judged> {
    let count = |what: &str, prefixes: &[&str]| {
        let of: Vec<&str> = wrong
            .iter()
            .map(String::as_str)
            .filter(|text| prefixes.iter().any(|prefix| text.starts_with(prefix)))
            .collect();
        Judged::none_of(what, of.len() as u64).note(of[..of.len().min(3)].join("; "))
    };
    vec![
        Judged::all_of("records found", found, messages),
        count("messages lost", &["missing"]),
        count("messages twice", &["duplicate"]),
        count("keys out of order, or foreign records", &["order", "key", "never"]),
        Judged::none_of("complaints of the checker", wrong.len() as u64),
    ]
}

/// One more instance, which must send nothing.
async fn one_more(place: &Place<'_>, job: &Job) -> Result<()> {
    let mut relay = Process::start(&place.url, job, |_| {})?;
    relay.ready().await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    relay.ensure_alive()?;
    relay.stop().await
}

/// Waits until the group is at most so far behind; an error if it makes no progress for long, or the relay has ended.
async fn until_lag(headwater: &Headwater, at_most: u64, relay: &mut Process) -> Result<()> {
    let (mut least, mut since) = (u64::MAX, Instant::now());
    loop {
        // There is no group before the first relay has made one.
        let lag = headwater.groups(TOPIC).get(GROUP).await.map_or(u64::MAX, |group| group.status.lag);
        if lag <= at_most {
            return Ok(());
        }
        if lag < least {
            (least, since) = (lag, Instant::now());
        }
        ensure!(since.elapsed() < STALLED_MAX, "lag {lag} for {STALLED_MAX:?}");
        relay.ensure_alive()?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// While this exists nothing is acked: a relay that has committed to Kafka waits there.
enum AcksHeld {
    Sqlite(Connection),
    Postgres(Client),
}

impl AcksHeld {
    async fn new(place: &Place<'_>) -> Result<Self> {
        if let Some(file) = place.file() {
            return AcksHeld::in_file(file);
        }
        let client = connect(&place.url).await?;
        client.batch_execute("BEGIN; LOCK TABLE headwater.outstanding IN SHARE MODE").await?;
        Ok(AcksHeld::Postgres(client))
    }

    fn in_file(file: &Path) -> Result<Self> {
        let connection = Connection::open(file)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        connection.execute_batch("BEGIN IMMEDIATE").context("holding acks")?;
        Ok(AcksHeld::Sqlite(connection))
    }

    async fn release(self) -> Result<()> {
        match self {
            AcksHeld::Sqlite(connection) => connection.execute_batch("ROLLBACK")?,
            AcksHeld::Postgres(client) => {
                // The ack of a relay that was killed would continue in the server.
                let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))";
                client.batch_execute(end).await?;
                client.batch_execute("ROLLBACK").await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_complaint_is_counted_where_it_belongs() {
        let of = |wrong: &[&str], found| {
            let wrong: Vec<String> = wrong.iter().map(|text| (*text).to_owned()).collect();
            judge(&wrong, found, 3)
                .iter()
                .map(|one| (one.figure.amount as u64, one.is_met()))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&[], 3), [(3, true), (0, true), (0, true), (0, true), (0, true)]);
        assert!(!of(&[], 4)[0].1);
        for (text, at) in [("missing: 1", 1), ("duplicate: 1", 2), ("order of key a", 3), ("key a is", 3)] {
            let judged = of(&[text], 3);
            assert!(!judged[at].1 && !judged[4].1, "{text}");
        }
    }
}
