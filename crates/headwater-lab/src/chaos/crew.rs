//! The processes of a check and what they reported: two publishers, and groups with several processes each.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use headwater::{GroupName, Headwater, Start, TopicName, TopicSettings};

use super::child::ChaosJob;
use crate::check::{Job, Place, Process, Record, eventually};
use crate::soak::history::now_us;

pub(super) const TOPIC: &str = "chaos";
pub(super) const GROUPS: [&str; 2] = ["first", "second"];
/// How many numbers a publisher may use; the numbers of the next one begin there.
const NUMBERS: u64 = 1_000_000;

/// One acknowledged message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// When its call began.
    pub(super) from_us: u64,
    /// When it was answered.
    pub(super) to_us: u64,
}

/// The health that a process reported: its state, and its last error.
#[derive(Clone, Debug)]
pub(super) struct Health {
    state: String,
    error_us: u64,
}

impl Health {
    fn parse(line: &str) -> Self {
        let mut fields = line.splitn(3, ' ');
        let state = fields.next().unwrap_or_default().to_owned();
        let error_ms: u64 = fields.next().and_then(|field| field.parse().ok()).unwrap_or_default();
        Health { state, error_us: error_ms * 1_000 }
    }

    /// Whether it runs and nothing has failed since a point in time.
    pub(super) fn is_well_since(&self, at_us: u64) -> bool {
        self.state == "Running" && self.error_us < at_us
    }
}

/// The reports of all processes. Times are the parent's where the children's clock is under test.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) acknowledged: BTreeMap<u64, Sent>,
    /// Calls that failed, with the last reason.
    pub(super) failed: u64,
    pub(super) failure: Option<String>,
    /// By group.
    pub(super) handled: HashMap<&'static str, Record>,
    /// The last health report of each process, by its number.
    pub(super) health: HashMap<usize, Health>,
    last: HashMap<usize, u64>,
}

/// The processes.
pub(super) struct Crew {
    url: String,
    env: Vec<(String, String)>,
    /// Whether the children's own times count.
    own_times: bool,
    pub(super) heard: Arc<Mutex<Heard>>,
    pub(super) publishers: Vec<Process>,
    /// With group and number.
    pub(super) consumers: Vec<(&'static str, usize, Process)>,
    started: usize,
}

impl Crew {
    /// No processes yet. If the children get environment variables, their clocks are not trusted.
    pub(super) fn new(place: &Place<'_>, env: Vec<(String, String)>) -> Self {
        let own_times = env.is_empty();
        let heard = Arc::new(Mutex::new(Heard::default()));
        Crew {
            url: place.url.clone(),
            env,
            own_times,
            heard,
            publishers: vec![],
            consumers: vec![],
            started: 0,
        }
    }

    /// The topic and its groups.
    pub(super) async fn create_topic(headwater: &Headwater, groups: &[&str]) -> Result<()> {
        let settings = TopicSettings { max_attempts: 1_000, ..TopicSettings::pub_sub() };
        let topic = TopicName::new(TOPIC)?;
        headwater.store().create_topic(&topic, &settings).await?;
        for group in groups {
            headwater.store().subscribe(&topic, &GroupName::new(*group)?, Start::Beginning).await?;
        }
        Ok(())
    }

    /// Starts a publisher of numbers that no other one uses.
    pub(super) fn publish(&mut self, pause_ms: u64) -> Result<()> {
        self.started += 1;
        let first = self.started as u64 * NUMBERS;
        let job = ChaosJob::Numbers { topic: TOPIC.into(), first, pause_ms };
        let process = self.start(job, Heard::note_sent)?;
        self.publishers.push(process);
        Ok(())
    }

    /// Starts a process of a group.
    pub(super) fn consume(&mut self, group: &'static str, handlers: usize, handle_ms: u64) -> Result<()> {
        self.started += 1;
        let number = self.started;
        let job = ChaosJob::Handle { topic: TOPIC.into(), group: group.into(), handlers, handle_ms };
        let process =
            self.start(job, move |heard, line, at_us| heard.note_handled(group, number, line, at_us))?;
        self.consumers.push((group, number, process));
        Ok(())
    }

    fn start(
        &self,
        job: ChaosJob,
        mut note: impl FnMut(&mut Heard, &str, Option<u64>) + Send + 'static,
    ) -> Result<Process> {
        let (heard, own_times) = (Arc::clone(&self.heard), self.own_times);
        Process::start_with(&self.url, &Job::Chaos(job), &self.env, move |line| {
            let at_us = (!own_times).then(now_us);
            note(&mut heard.lock().expect("no panic while held"), line, at_us);
        })
    }

    /// Starts two publishers and two processes of each group, and waits until they are ready.
    pub(super) async fn start_all(&mut self, pause_ms: u64) -> Result<()> {
        for group in GROUPS {
            for _ in 0..2 {
                self.consume(group, 4, 5)?;
            }
        }
        for _ in 0..2 {
            self.publish(pause_ms)?;
        }
        for process in self.publishers.iter_mut().chain(self.consumers.iter_mut().map(|(_, _, one)| one)) {
            process.ready().await?;
        }
        Ok(())
    }

    /// Reads the reports.
    pub(super) fn with<T>(&self, read: impl FnOnce(&Heard) -> T) -> T {
        read(&self.heard.lock().expect("no panic while held"))
    }

    /// Waits until this many messages are acknowledged whose call began after a point in time.
    pub(super) async fn acknowledged_since(&self, from_us: u64, count: usize) -> Result<()> {
        let what = format!("{count} more messages are acknowledged");
        eventually(&what, Duration::from_secs(30), async || {
            Ok(self.with(|heard| heard.since(from_us).len() >= count))
        })
        .await
    }

    /// Waits until both groups have handled these; returns how many they have not within the time.
    pub(super) async fn unhandled(
        &self,
        numbers: &BTreeSet<u64>,
        at_most: Duration,
    ) -> Vec<(&'static str, u64)> {
        let missing = || {
            self.with(|heard| {
                GROUPS.map(|group| {
                    let of_group = heard.handled.get(group);
                    let done = |n: &&u64| of_group.is_some_and(|record| record.is_finished(**n));
                    (group, numbers.iter().filter(|n| !done(n)).count() as u64)
                })
            })
        };
        let done = async || Ok(missing().iter().all(|(_, count)| *count == 0));
        let _ = eventually("all are handled", at_most, done).await;
        missing().to_vec()
    }

    /// Ends the publishers.
    pub(super) async fn stop_publishers(&mut self) -> Result<()> {
        for process in self.publishers.drain(..) {
            process.kill().await?;
        }
        Ok(())
    }

    /// Ends all processes, whatever their state.
    pub(super) async fn kill_all(&mut self) -> Result<()> {
        self.stop_publishers().await?;
        for (_, _, process) in self.consumers.drain(..) {
            process.kill().await?;
        }
        Ok(())
    }
}

impl Heard {
    fn note_sent(&mut self, line: &str, at_us: Option<u64>) {
        let fields: Vec<&str> = line.splitn(5, ' ').collect();
        match fields.as_slice() {
            ["a", n, from, to] => {
                let (Ok(n), Ok(from), Ok(to)) = (n.parse(), from.parse(), to.parse()) else { return };
                // By the parent's clock a call began when the last line arrived, at the earliest.
                let publisher = usize::try_from(n / NUMBERS).unwrap_or_default();
                let began = self.last.insert(publisher, at_us.unwrap_or(to)).unwrap_or(from);
                let from_us = if at_us.is_some() { began } else { from };
                self.acknowledged.insert(n, Sent { from_us, to_us: at_us.unwrap_or(to) });
            }
            ["f", _, _, _, reason] => {
                self.failed += 1;
                self.failure = Some((*reason).to_owned());
            }
            _ => {}
        }
    }

    fn note_handled(&mut self, group: &'static str, process: usize, line: &str, at_us: Option<u64>) {
        if let Some(health) = line.strip_prefix("h ") {
            self.health.insert(process, Health::parse(health));
            return;
        }
        let record = self.handled.entry(group).or_default();
        match (at_us, line.rsplit_once(' ')) {
            (Some(us), Some((rest, _))) => record.note(process, &format!("{rest} {us}")),
            _ => record.note(process, line),
        }
    }

    /// The numbers acknowledged by calls that began after a point in time.
    pub(super) fn since(&self, from_us: u64) -> BTreeSet<u64> {
        self.acknowledged.iter().filter(|(_, sent)| sent.from_us > from_us).map(|(n, _)| *n).collect()
    }
}

/// The numbers that the topic stores.
pub(super) async fn stored(headwater: &Headwater) -> Result<BTreeSet<u64>> {
    let messages = headwater.published(TOPIC).await?;
    messages.iter().map(|message| Ok(serde_json::from_slice(&message.payload)?)).collect()
}

/// The file of an embedded store.
pub(super) fn file<'p>(place: &'p Place<'_>) -> Result<&'p std::path::Path> {
    place.file().context("only an embedded store is a file")
}
