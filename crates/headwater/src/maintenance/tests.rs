//! Maintenance against a store that only records calls, with paused time.

mod backfills;
mod terms;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::time::Instant;

use super::jobs::Worker;
use super::settings::Plan;
use super::stop::StopSignal;
use super::*;
use crate::backfill::{Backfill, BackfillLimits, BackfillState, BackfillStep};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::OffsetRange;
use crate::message::Offset;
use crate::name::{GroupName, Owner, TopicName};
use crate::store::{
    self, CleanStep, Detected, EntryRetention, EntryStep, Maintained, PartitionStep, SubscriptionStep,
    TrackStep,
};
use crate::topic::{Partition, Storage, Topic, TopicId, TopicSettings, TopicStatus, Tracking};

/// A topic with a hundred messages, all done.
pub(crate) fn topic(id: i32) -> TopicStatus {
    TopicStatus {
        topic: Topic {
            topic_id: TopicId(id),
            name: TopicName::new(format!("topic-{id}")).unwrap(),
            settings: TopicSettings::default(),
        },
        head: Offset(100),
        gaps: 0,
        scheduled: 0,
        subscriptions: 1,
        counting: 1,
        heartbeat_timeout: TopicSettings::default().heartbeat_timeout,
        first: Offset(1),
        watermark: Offset(100),
        tracking_change: None,
    }
}

/// A store that several processes share.
#[derive(Debug, Default)]
pub(crate) struct Fake {
    topics: Mutex<Vec<TopicStatus>>,
    /// Steps that cleanup still has to do, per topic.
    to_clean: Mutex<HashMap<TopicId, u64>>,
    /// Rounds of heads until no message that is due is left.
    rounds: Mutex<u64>,
    backfills: Mutex<Vec<Backfill>>,
    elected: Mutex<Option<(Owner, Instant)>>,
    /// Verbs that fail.
    broken: Mutex<HashSet<&'static str>>,
    /// Verbs that never answer.
    mute: Mutex<HashSet<&'static str>>,
    /// Verbs that panic.
    cursed: Mutex<HashSet<&'static str>>,
    asked: Mutex<Vec<(Instant, &'static str)>>,
    recorded: Mutex<Vec<JobRun>>,
    batches: Mutex<Vec<u32>>,
    /// Rows that each call of `clean_subscriptions` deletes.
    forgotten: Mutex<u64>,
    /// Entries that are past their retention; a step deletes ten.
    entries: Mutex<u64>,
    probe_takes: Mutex<Duration>,
    step_takes: Mutex<Duration>,
    /// How long the answer to an election takes after it is decided.
    elect_takes: Mutex<Duration>,
    topics_take: Mutex<Duration>,
}

impl Fake {
    fn note(&self, verb: &'static str) -> Result<()> {
        self.asked.lock().unwrap().push((Instant::now(), verb));
        assert!(!self.cursed.lock().unwrap().contains(verb), "{verb} panics on purpose");
        if self.broken.lock().unwrap().contains(verb) {
            return Err(Error::new(ErrorKind::Unavailable, format!("{verb} is broken")));
        }
        Ok(())
    }

    fn count(&self, verb: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|(_, asked)| *asked == verb).count()
    }

    fn times(&self, verb: &str) -> Vec<Instant> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|(_, asked)| *asked == verb).map(|(at, _)| *at).collect()
    }

    fn forget(&self) {
        self.asked.lock().unwrap().clear();
    }

    fn worker(&self) -> Option<Owner> {
        let elected = self.elected.lock().unwrap();
        elected.as_ref().filter(|(_, until)| *until > Instant::now()).map(|(worker, _)| worker.clone())
    }

    fn backfill(&self, total: u64, rate_max: u32) {
        self.backfill_of("late", total, rate_max);
    }

    fn backfill_of(&self, group: &str, total: u64, rate_max: u32) {
        self.backfills.lock().unwrap().push(backfill(group, total, rate_max));
    }
}

/// A backfill that is not started.
pub(crate) fn backfill(group: &str, total: u64, rate_max: u32) -> Backfill {
    Backfill {
        topic: TopicName::new("orders").unwrap(),
        group: GroupName::new(group).unwrap(),
        state: BackfillState::NotStarted,
        first: Offset(1),
        last: Offset(i64::try_from(total).unwrap()),
        checkpoint: Offset(0),
        processed: 0,
        total,
        created_at: Timestamp::UNIX_EPOCH,
        progressed_at: None,
        rate: 0.0,
        rate_max,
        batch_max: None,
        target_latency: None,
        error: None,
        left_out: 0,
    }
}

#[async_trait]
impl store::Maintenance for Fake {
    async fn advance_heads(&self) -> Result<Maintained> {
        self.note("advance_heads")?;
        let mut rounds = self.rounds.lock().unwrap();
        *rounds = rounds.saturating_sub(1);
        Ok(Maintained { more: *rounds > 0, ..Maintained::default() })
    }

    async fn topics(&self) -> Result<Vec<TopicStatus>> {
        self.note("topics")?;
        let takes = *self.topics_take.lock().unwrap();
        tokio::time::sleep(takes).await;
        Ok(self.topics.lock().unwrap().clone())
    }

    async fn elect(&self, worker: &Owner, term: Duration) -> Result<bool> {
        self.note("elect")?;
        if self.mute.lock().unwrap().contains("elect") {
            std::future::pending::<()>().await;
        }
        let free = {
            let mut elected = self.elected.lock().unwrap();
            let ours = |(holder, until): &(Owner, Instant)| holder == worker || *until <= Instant::now();
            let free = elected.as_ref().is_none_or(ours);
            if free {
                *elected = Some((worker.clone(), Instant::now() + term));
            }
            free
        };
        let takes = *self.elect_takes.lock().unwrap();
        tokio::time::sleep(takes).await;
        Ok(free)
    }

    async fn resign(&self, worker: &Owner) -> Result<()> {
        self.note("resign")?;
        self.elected.lock().unwrap().take_if(|(holder, _)| holder == worker);
        Ok(())
    }

    async fn detect_dead(&self) -> Result<Detected> {
        self.note("detect_dead").map(|()| Detected::default())
    }

    async fn clean(&self, topic: TopicId, messages_max: u32) -> Result<CleanStep> {
        self.note("clean")?;
        let takes = *self.step_takes.lock().unwrap();
        tokio::time::sleep(takes).await;
        let mut to_clean = self.to_clean.lock().unwrap();
        let left = to_clean.entry(topic).or_default();
        let removed = if *left > 0 { u64::from(messages_max) } else { 0 };
        *left = left.saturating_sub(1);
        Ok(CleanStep { removed, missed: vec![], more: *left > 0 })
    }

    async fn keep_partitions(&self, _: TopicId) -> Result<PartitionStep> {
        self.note("keep_partitions").map(|()| PartitionStep { created: 1, ..PartitionStep::default() })
    }

    async fn clean_processes(&self, _: Duration) -> Result<u64> {
        self.note("clean_processes")?;
        Ok(0)
    }

    async fn clean_subscriptions(&self, _: Duration) -> Result<SubscriptionStep> {
        self.note("clean_subscriptions")?;
        // Takes time, so that a run that loops ends at its limit.
        tokio::time::sleep(Duration::from_millis(10)).await;
        let forgotten = *self.forgotten.lock().unwrap();
        Ok(SubscriptionStep { forgotten, ..SubscriptionStep::default() })
    }

    async fn clean_entries(&self, _: &EntryRetention) -> Result<EntryStep> {
        self.note("clean_entries")?;
        let mut left = self.entries.lock().unwrap();
        let outbox = (*left).min(10);
        *left -= outbox;
        Ok(EntryStep { inbox: 0, outbox, more: *left > 0 })
    }

    async fn probe(&self) -> Result<()> {
        self.note("probe")?;
        let takes = *self.probe_takes.lock().unwrap();
        tokio::time::sleep(takes).await;
        Ok(())
    }

    async fn survey(&self, _: u32) -> Result<store::Survey> {
        self.note("survey")?;
        Ok(store::Survey { now: Timestamp::UNIX_EPOCH, groups: vec![], left_out: 0, topics: vec![] })
    }

    async fn jobs(&self) -> Result<Vec<JobStatus>> {
        unreachable!("maintenance does not read it")
    }

    async fn jobs_ran(&self, runs: &[JobRun]) -> Result<()> {
        self.note("jobs_ran")?;
        self.recorded.lock().unwrap().extend_from_slice(runs);
        Ok(())
    }
}

#[async_trait]
impl store::Tracking for Fake {
    async fn track(&self, _: TopicId, _: u32) -> Result<TrackStep> {
        self.note("track").map(|()| TrackStep::default())
    }

    async fn records(&self, _: &TopicName, _: OffsetRange) -> Result<Vec<store::Record>> {
        unreachable!("maintenance reads none")
    }

    async fn backfill(&self, _: &TopicName, _: &GroupName, _: &BackfillLimits) -> Result<Backfill> {
        unreachable!("maintenance starts none")
    }

    async fn cancel_backfill(&self, _: &TopicName, _: &GroupName) -> Result<Backfill> {
        unreachable!("maintenance cancels none")
    }

    async fn resume_backfill(&self, _: &TopicName, _: &GroupName) -> Result<Backfill> {
        unreachable!("maintenance resumes none")
    }

    async fn backfills(&self) -> Result<Vec<Backfill>> {
        self.note("backfills").map(|()| self.backfills.lock().unwrap().iter().rev().cloned().collect())
    }

    async fn step_backfill(&self, _: &Owner, messages_max: u32) -> Result<Option<BackfillStep>> {
        self.note("step_backfill")?;
        let takes = *self.step_takes.lock().unwrap();
        tokio::time::sleep(takes).await;
        self.batches.lock().unwrap().push(messages_max);
        let mut backfills = self.backfills.lock().unwrap();
        let Some(open) = backfills.iter_mut().find(|backfill| backfill.state.is_open()) else {
            return Ok(None);
        };
        let processed = u64::from(messages_max).min(open.total - open.processed);
        open.processed += processed;
        open.state =
            if open.processed == open.total { BackfillState::Completed } else { BackfillState::InProgress };
        Ok(Some(BackfillStep { backfill: open.clone(), processed, changed: processed }))
    }
}

fn fake(topics: Vec<TopicStatus>) -> Arc<Fake> {
    Arc::new(Fake { topics: Mutex::new(topics), ..Fake::default() })
}

fn maintenance(fake: &Arc<Fake>) -> Maintenance {
    Maintenance::new(Arc::clone(fake) as _)
}

fn worker(fake: &Arc<Fake>, plan: Plan) -> Worker {
    Worker::new(Arc::clone(fake) as _, plan, Owner::new("worker").unwrap())
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn by_hand_each_job_runs_until_nothing_is_left_and_is_recorded() {
    let fake = fake(vec![topic(1), topic(2)]);
    *fake.to_clean.lock().unwrap() = HashMap::from([(TopicId(1), 3), (TopicId(2), 1)]);
    let runs = maintenance(&fake).run_once(&[Job::MessageCleanup, Job::Heads]).await.unwrap();
    assert_eq!((runs[0].rows, runs[0].backlog, runs[0].error.as_deref()), (40_000, 0, None));
    assert_eq!(fake.count("clean"), 4);
    assert_eq!(*fake.recorded.lock().unwrap(), runs);
    assert_eq!(fake.count("elect"), 0, "elected or not");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_fails_or_panics_does_not_stop_the_others() {
    let fake = fake(vec![topic(1)]);
    fake.broken.lock().unwrap().insert("detect_dead");
    fake.cursed.lock().unwrap().insert("clean");
    let runs = maintenance(&fake).run_once(&Job::ALL).await.unwrap();
    let failed: Vec<_> = runs.iter().filter(|run| run.error.is_some()).map(|run| run.job).collect();
    assert_eq!(failed, [Job::DeadDetection, Job::MessageCleanup]);
    assert!(runs[1].error.as_ref().unwrap().contains("detect_dead is broken"));
    assert!(runs[4].error.as_ref().unwrap().contains("it panicked"), "{:?}", runs[4].error);
    assert_eq!(runs.len(), Job::ALL.len());
}

#[tokio::test(start_paused = true)]
async fn one_topic_that_fails_does_not_stop_the_others_and_the_large_one_does_not_starve_them() {
    let mut first = topic(1);
    first.topic.settings.storage = Storage::Dedicated(Partition::Day);
    let fake = fake(vec![first, topic(2)]);
    *fake.to_clean.lock().unwrap() = HashMap::from([(TopicId(1), 1_000_000), (TopicId(2), 2)]);
    *fake.step_takes.lock().unwrap() = Duration::from_secs(1);
    let run = maintenance(&fake).run_once(&[Job::MessageCleanup]).await.unwrap().remove(0);
    assert_eq!(fake.to_clean.lock().unwrap()[&TopicId(2)], 0, "it was not starved");
    assert!(run.backlog > 0 && run.error.is_none(), "{run:?}");
    assert!(run.duration >= Duration::from_secs(600) && run.duration < Duration::from_secs(610));
    // The pause is as long as the step: half of the time is left to applications.
    assert!((290..=310).contains(&fake.count("clean")), "{}", fake.count("clean"));
}

#[tokio::test(start_paused = true)]
async fn only_topics_that_can_have_something_are_asked_about() {
    let (plain, mut empty, mut tracked, mut dedicated) = (topic(1), topic(2), topic(3), topic(4));
    empty.first = Offset(101);
    tracked.topic.settings.tracking = Tracking::ReferenceCounting;
    dedicated.topic.settings.storage = Storage::Dedicated(Partition::Hour);
    let fake = fake(vec![plain, empty, tracked, dedicated]);
    maintenance(&fake).run_once(&Job::ALL).await.unwrap();
    let counts = ["track", "clean", "keep_partitions", "topics"].map(|verb| fake.count(verb));
    assert_eq!(counts, [1, 3, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn jobs_run_when_they_are_due_and_an_idle_store_is_left_alone() {
    let fake = fake(vec![topic(1)]);
    let maintaining = maintenance(&fake).start();
    pass(60).await;
    fake.forget();
    pass(3_600).await;
    let about = |verb: &str, expected: usize| {
        let (count, slack) = (fake.count(verb), expected / 8 + 1);
        assert!(count >= expected.saturating_sub(1) && count <= expected + slack, "{verb}: {count}");
    };
    about("advance_heads", 3_600);
    about("detect_dead", 60);
    about("clean", 12);
    about("clean_entries", 12);
    about("elect", 1_200);
    about("topics", 720);
    about("step_backfill", 720);
    about("survey", 240);
    assert_eq!([fake.count("track"), fake.count("keep_partitions")], [0, 0]);
    // Heads, tracking, backfills and surveys find nothing: one write a minute each, not one a second.
    let recorded = fake.count("jobs_ran");
    assert!(recorded < 60 * 7 + 60, "{recorded}");
    maintaining.stop().await;
    assert_eq!(fake.count("resign"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_topic_with_a_short_timeout_is_watched_as_soon_as_it_is_seen() {
    let fake = fake(vec![topic(1)]);
    let maintaining = maintenance(&fake).start();
    pass(30).await;
    let mut hasty = topic(2);
    hasty.heartbeat_timeout = Duration::from_secs(2);
    fake.topics.lock().unwrap().push(hasty);
    pass(12).await;
    fake.forget();
    pass(60).await;
    let gaps: Vec<_> = fake.times("detect_dead").windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.len() > 50 && gaps.iter().all(|gap| *gap <= Duration::from_millis(401)), "{gaps:?}");
    maintaining.stop().await;
}

#[tokio::test(start_paused = true)]
async fn topics_that_are_slow_to_read_hold_up_no_job() {
    let fake = fake(vec![topic(1)]);
    let maintaining = maintenance(&fake).start();
    pass(30).await;
    *fake.topics_take.lock().unwrap() = Duration::from_secs(1_000);
    fake.forget();
    pass(120).await;
    let times = fake.times("advance_heads");
    let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(longest <= Duration::from_secs(8), "{longest:?}");
    assert!(fake.count("topics") <= 30, "{}", fake.count("topics"));
    maintaining.stop().await;
}

/// A round that promotes large messages has few rows.
#[tokio::test(start_paused = true)]
async fn heads_continue_until_no_message_that_is_due_is_left() {
    let fake = fake(vec![]);
    *fake.rounds.lock().unwrap() = 5;
    let run = maintenance(&fake).run_once(&[Job::Heads]).await.unwrap().remove(0);
    assert_eq!((run.rows, run.backlog, run.error), (0, 0, None));
    assert_eq!(fake.count("advance_heads"), 5);
}

#[tokio::test(start_paused = true)]
async fn what_expires_all_the_time_does_not_keep_the_daily_job_going() {
    let fake = fake(vec![topic(1)]);
    *fake.forgotten.lock().unwrap() = 3;
    let run = maintenance(&fake).run_once(&[Job::SubscriptionCleanup]).await.unwrap().remove(0);
    assert_eq!((run.rows, run.backlog, run.error), (3, 0, None));
    assert_eq!((fake.count("clean_subscriptions"), fake.count("clean_processes")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn entries_are_removed_in_steps_until_none_is_left() {
    let fake = fake(vec![]);
    *fake.entries.lock().unwrap() = 35;
    let run = maintenance(&fake).run_once(&[Job::EntryCleanup]).await.unwrap().remove(0);
    assert_eq!((run.rows, run.backlog, run.error), (35, 0, None));
    assert_eq!(fake.count("clean_entries"), 4);
}

#[tokio::test(start_paused = true)]
async fn a_failing_job_backs_off_and_the_others_keep_their_time() {
    let fake = fake(vec![topic(1)]);
    let maintaining = maintenance(&fake).start();
    pass(20).await;
    fake.broken.lock().unwrap().insert("advance_heads");
    fake.forget();
    pass(600).await;
    let failed = fake.count("advance_heads");
    assert!((8..=14).contains(&failed), "{failed} tries: a second, doubled each time up to five minutes");
    assert!(fake.count("detect_dead") >= 9);
    let errors = fake.recorded.lock().unwrap().iter().filter(|run| run.error.is_some()).count();
    assert_eq!(errors, failed, "failures are always recorded");
    fake.broken.lock().unwrap().clear();
    pass(320).await;
    fake.forget();
    pass(10).await;
    assert!(fake.count("advance_heads") >= 9, "back at its interval");
    maintaining.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cleanup_that_falls_behind_is_shown_until_it_keeps_up() {
    let fake = fake(vec![topic(1)]);
    fake.to_clean.lock().unwrap().insert(TopicId(1), 1_000_000);
    *fake.step_takes.lock().unwrap() = Duration::from_millis(100);
    let plan = Plan { run_max: Duration::from_secs(2), ..Plan::of(MaintenancePreset::Standard) };
    let worker = worker(&fake, plan);
    let clean = async |published: i64| {
        pass(60).await;
        fake.topics.lock().unwrap()[0].head.0 += published;
        let run = worker.run(Job::MessageCleanup, &StopSignal::never()).await.run;
        assert_eq!(run.error, None);
        run.rows
    };
    clean(50_000_000).await;
    assert!(!worker.metrics.set_behind(false), "how much was published is not known at first");
    let removed = clean(50_000_000).await;
    assert!(removed > 0 && !worker.metrics.set_behind(true), "it is shown");
    clean(1_000).await;
    assert!(!worker.metrics.set_behind(false), "it catches up");
    clean(50_000_000).await;
    fake.to_clean.lock().unwrap().clear();
    clean(50_000_000).await;
    assert!(!worker.metrics.set_behind(false), "nothing is removable: cleanup is not behind");
}
