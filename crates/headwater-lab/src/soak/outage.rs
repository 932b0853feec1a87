//! The soak with database outages: the server crashes and recovers, or a standby takes over, while publishers and
//! consumers keep running.
//!
//! It tests what clients hold across the outage: tokens, offsets, pages and settlements of a history that the
//! database may have lost in part. So leases last longer than an outage, and every client settles what it had.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use headwater::TopicSettings;
use headwater::topic::Ordering;
use headwater_servers::Stop;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::check::{Facts, Fate, Outage};
use super::children::Children;
use super::handled::{CREATE_EFFECTS, HandlerKind, effects};
use super::history::now_us;
use super::member::MemberJob;
use super::order::{inversions, tokens_issued_twice};
use super::publish::{Ledger, id_of};
use super::stage::Stage;
use super::verdict::Verdict;
use super::{SoakArgs, spawn_publishers};
use crate::check::OWN_POSTGRES;
use crate::server::replica::{Pair, Replication};
use crate::server::{Server, connect};

const DATABASE: &str = "headwater_lab_soak";
/// Longer than an outage, and short enough that a lease whose claim was never answered expires during the run.
const LEASE: Duration = Duration::from_secs(30);
/// Bare verbs, a running consumer, and a running consumer with exactly-once handlers; all on one topic.
const GROUPS: [(&str, Option<HandlerKind>); 3] =
    [("verbs", None), ("running", Some(HandlerKind::Plain)), ("once", Some(HandlerKind::Once))];
/// A running consumer on a topic that is ordered by key.
const ORDERED: &str = "ordered";
/// Settlements and rolled-back numbers are not on the disk until something is committed: a crash then loses more.
const FORGETFUL: (&str, &str) = ("wal_writer_delay", "10s");
/// Acknowledged after the standby was cut off, at least.
const TAIL_MESSAGES: usize = 200;

/// How much the standby has received when it takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Standby {
    /// Everything acknowledged.
    Synchronous,
    /// What had been sent by then.
    Asynchronous,
    /// Nothing of the last moments: it is cut off first, and then more is published and acknowledged.
    TailLost,
}

/// The database of the run.
enum Database {
    Alone(Server),
    Pair(Box<Pair>, Standby),
}

impl Database {
    async fn start(args: &SoakArgs) -> Result<(Self, String)> {
        if args.crashes > 0 {
            let server = Server::start(&args.work, &[FORGETFUL]).await?;
            let url = server.create_database(DATABASE).await?;
            return Ok((Database::Alone(server), url));
        }
        let replication = match args.replication {
            Standby::Synchronous => Replication::Synchronous,
            Standby::Asynchronous | Standby::TailLost => Replication::Asynchronous,
        };
        let pair = Pair::start(&args.work, replication, &[]).await?;
        let url = pair.create_database(DATABASE).await?;
        Ok((
            Database::Pair(Box::new(pair), args.replication),
            format!("{url}?target_session_attrs=read-write"),
        ))
    }

    /// The URL of the current primary.
    fn url(&self) -> String {
        match self {
            Database::Alone(server) => server.url(DATABASE),
            Database::Pair(pair, _) => pair.primary_url(DATABASE),
        }
    }
}

/// The state of the run.
struct Run<'a> {
    args: &'a SoakArgs,
    database: Database,
    stage: Stage,
    ledger: Ledger,
    random: StdRng,
    outages: Vec<Outage>,
    /// Acknowledged, and not stored on the server that took over.
    tail: HashSet<String>,
}

/// Runs it; true if nothing was violated.
pub(super) async fn soak(args: &SoakArgs, seed: u64) -> Result<bool> {
    let start = Instant::now();
    let (database, url) = Database::start(args).await?;
    connect(&database.url()).await?.batch_execute(CREATE_EFFECTS).await?;
    let settings = TopicSettings { lease: LEASE, max_attempts: 1_000, ..TopicSettings::pub_sub() };
    let mut stage =
        Stage::set(&args.work, &url, "outage", &settings, &GROUPS.map(|(name, _)| name), seed).await?;
    let by_key = TopicSettings { ordering: Ordering::Key, ..settings };
    let ordered_topic = stage.add_topic(ORDERED, &by_key, &[ORDERED]).await?;
    let mut children = stage.children();
    for member in 0..args.members {
        for (group, handler) in GROUPS {
            children.start(member, MemberJob { group: group.into(), handler, ..MemberJob::default() })?;
        }
        let (group, topic) = (ORDERED.into(), ordered_topic.clone());
        let handler = Some(HandlerKind::Plain);
        children.start(member, MemberJob { group, topic, handler, ..MemberJob::default() })?;
    }
    let random = StdRng::seed_from_u64(seed ^ 0x6372_6173);
    let (ledger, outages, tail) = (Ledger::default(), vec![], HashSet::new());
    let mut run = Run { args, database, stage, ledger, random, outages, tail };
    let mut verdict = Verdict::default();
    run.flood(&mut children, seed, &mut verdict).await?;
    eprintln!("· {} acknowledged, waiting until all is settled", run.ledger.committed());
    let drained = run.stage.drained(&mut children, Duration::from_secs(240)).await;
    let stopped = children.stop().await;
    run.judge(&children, &mut verdict).await?;
    for failed in [drained, stopped].into_iter().filter_map(Result::err) {
        verdict.findings.push(format!("{failed:#}"));
    }
    verdict.seconds = start.elapsed().as_secs_f64();
    println!("{}", verdict.table(seed));
    let clean = verdict.is_clean();
    run.stage.clear(clean).await?;
    Ok(clean)
}

impl Run<'_> {
    /// Publishes until there are enough messages, kills and outages, those spread evenly over the messages.
    async fn flood(&mut self, children: &mut Children, seed: u64, verdict: &mut Verdict) -> Result<()> {
        let goal = self.args.messages;
        let wanted = self.args.crashes + self.args.failovers;
        let mut publishers = spawn_publishers(&self.stage, &self.ledger, seed, goal, true)?;
        let mut next = self.moment(wanted);
        let mut said = Instant::now();
        while self.ledger.committed() < goal || verdict.kills < self.args.kills || self.outages.len() < wanted
        {
            tokio::time::sleep(Duration::from_millis(self.random.random_range(5..50))).await;
            let due = verdict.kills * wanted.max(1) <= self.args.kills * self.outages.len();
            if verdict.kills < self.args.kills && due {
                let victim = self.random.random_range(0..children.count());
                children.kill_and_restart(victim).await?;
                verdict.kills += 1;
            }
            if self.outages.len() < wanted && self.ledger.committed() >= next {
                self.strike(children).await?;
                next = self.moment(wanted);
            }
            children.ensure_alive()?;
            if let Some(ended) = publishers.try_join_next() {
                ended??;
            }
            if said.elapsed() > Duration::from_secs(5) {
                said = Instant::now();
                eprintln!("· {} acknowledged, {} outages", self.ledger.committed(), self.outages.len());
            }
        }
        self.ledger.stop();
        while let Some(ended) = publishers.join_next().await {
            ended??;
        }
        Ok(())
    }

    /// After how many acknowledged messages the next outage starts.
    fn moment(&mut self, wanted: usize) -> usize {
        let portion = self.args.messages / wanted.max(1);
        self.outages.len() * portion + self.random.random_range(0..portion.max(1))
    }

    /// One outage.
    async fn strike(&mut self, children: &mut Children) -> Result<()> {
        let how = if self.outages.len().is_multiple_of(2) { Stop::Immediate } else { Stop::Kill };
        let quiet = self.outages.len() % 4 >= 2;
        let mut outage = Outage::default();
        let target = self.stage.postgres().context("outages need a server")?.clone();
        match &mut self.database {
            Database::Alone(server) => {
                if quiet {
                    // Claims and unused numbers without a commit that writes them to disk; more than a sequence logs ahead.
                    self.ledger.pause(true);
                    tokio::time::sleep(Duration::from_millis(self.random.random_range(0..150))).await;
                    target.roll_back(&self.ledger, 40).await?;
                    tokio::time::sleep(Duration::from_millis(self.random.random_range(0..60))).await;
                }
                outage.kept_us = self.ledger.committed_us();
                server.stop(how)?;
                server.recover().await?;
                self.ledger.pause(false);
            }
            Database::Pair(pair, standby) => {
                if *standby == Standby::TailLost {
                    pair.cut().await?;
                    let goal = self.ledger.committed() + TAIL_MESSAGES;
                    let deadline = Instant::now() + Duration::from_secs(30);
                    while self.ledger.committed() < goal && Instant::now() < deadline {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
                let crashed_us = now_us();
                pair.crash(how)?;
                // Children of a killed postmaster may answer their current request before they exit.
                tokio::time::sleep(Duration::from_millis(200)).await;
                let promoted_us = now_us();
                pair.promote().await?;
                let [plain, by_key] = stored(&pair.primary_url(DATABASE), &self.stage).await?;
                for (id, fate) in self.ledger.fates() {
                    let Fate::Committed { at_us } = fate else { continue };
                    if plain.contains(&id) && by_key.contains(&id) {
                        let before = if at_us <= crashed_us { at_us } else { 0 };
                        outage.kept_us = outage.kept_us.max(before);
                    } else if at_us <= promoted_us {
                        self.tail.insert(id);
                    }
                }
                if self.outages.len() % 2 == 1 {
                    pair.take_over_address().await?;
                }
            }
        }
        outage.back_us = now_us();
        self.outages.push(outage);
        if let Database::Pair(pair, _) = &mut self.database {
            pair.rejoin().await?;
        }
        children.ensure_alive()
    }

    /// Compares every history with what was published and what is stored.
    async fn judge(&mut self, children: &Children, verdict: &mut Verdict) -> Result<()> {
        let asynchronous =
            matches!(self.database, Database::Pair(_, Standby::Asynchronous | Standby::TailLost));
        let [plain, by_key] = stored(&self.database.url(), &self.stage).await?;
        let (missing, beyond) = effects(&self.database.url(), &plain).await?;
        let gone = self.gone(&plain);
        let excused = if asynchronous { self.tail.clone() } else { HashSet::new() };
        let mut facts = Facts {
            published: self.ledger.fates(),
            log: Some(plain),
            excused,
            outages: self.outages.clone(),
            lease_us: u64::try_from(LEASE.as_micros())?,
        };
        let mut histories = vec![];
        for (group, _) in GROUPS {
            histories.push(children.histories(group)?);
            verdict.add_group(group, &facts, &histories[histories.len() - 1]);
        }
        facts.log = Some(by_key);
        let ordered = children.histories(ORDERED)?;
        verdict.add_group(ORDERED, &facts, &ordered);
        verdict.outages = self.outages.len();
        let (inverted, examples) = inversions(&ordered);
        verdict.count("inversions of a key in the ordered group", inverted);
        verdict.findings.extend(examples);
        let twice = tokens_issued_twice(histories.iter().map(Vec::as_slice));
        verdict.count("tokens issued twice", twice);
        verdict.count("offsets acknowledged for two messages", self.ledger.reused_offsets());
        verdict.count("messages without their effect", missing);
        verdict.count("effects too many", beyond);
        if asynchronous {
            verdict.show("acknowledged messages that the new primary never had", self.tail.len());
        } else {
            verdict.count("acknowledged messages that are gone", gone);
        }
        let found = self.stage.findings().await.unwrap_or_else(|error| vec![format!("{error:#}")]);
        let reported = found.iter().filter(|finding| finding.starts_with("epoch_changed")).count();
        verdict.count("failovers that doctor does not report", self.args.failovers.saturating_sub(reported));
        // A job that failed in the outage shows its error until it runs again.
        let expected = |finding: &String| {
            finding.starts_with("job_failing")
                || finding.starts_with("epoch_changed") && self.args.failovers > 0
        };
        verdict.findings.extend(found.into_iter().filter(|finding| !expected(finding)));
        Ok(())
    }

    fn gone(&self, log: &HashSet<String>) -> usize {
        let fates = self.ledger.fates();
        let committed = fates.iter().filter(|(_, fate)| matches!(fate, Fate::Committed { .. }));
        committed.filter(|(id, _)| !log.contains(*id)).count()
    }
}

/// The identities of the messages that both topics store, read from the table itself: the library's own view of it is
/// under test.
async fn stored(url: &str, stage: &Stage) -> Result<[HashSet<String>; 2]> {
    const MESSAGES: &str = "SELECT payload FROM headwater.message JOIN headwater.topic USING (topic_id)
        WHERE name = $1";
    let client = connect(url).await?;
    let mut both = [HashSet::new(), HashSet::new()];
    for (ids, topic) in both.iter_mut().zip(std::iter::once(&stage.topic).chain(&stage.second)) {
        let rows = client.query(MESSAGES, &[&topic.as_str()]).await.context("reading the log")?;
        *ids = rows.iter().map(|row| id_of(row.get(0))).collect::<Result<_>>()?;
    }
    Ok(both)
}

/// Checks combinations of options.
pub(super) fn check(args: &SoakArgs) -> Result<()> {
    ensure!(args.store == OWN_POSTGRES, "outages need a server of the lab's own: --store {}", OWN_POSTGRES);
    ensure!(args.crashes == 0 || args.failovers == 0, "--crashes and --failovers need separate runs");
    Ok(())
}
