//! What an operator should act on although the store is sound: pure rules over the figures that every engine has.
//!
//! An error of the store is a broken invariant, which the doctor of each engine finds. What is found here is correct
//! data in a state that will not improve by itself: no process runs maintenance, or none serves a group.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::Headwater;
use crate::backfill::{Backfill, BackfillState};
use crate::error::Result;
use crate::maintenance::{Job, JobStatus};
use crate::store::{Finding, Store, Survey, SurveyedGroup};
use crate::subscription::status::is_older;
use crate::subscription::{HealthIssue, LATELY};
use crate::topic::{TopicId, TopicIssue, TopicStatus, Tracking, written};

/// After how long without any run of a job maintenance counts as not running.
pub(crate) const MAINTENANCE_SILENT: Duration = Duration::from_secs(600);
/// After how long without progress an open backfill counts as stalled; a killed worker is replaced within 15 s.
const BACKFILL_STALLED: Duration = Duration::from_secs(300);
/// How long a backfill whose limit was reached is reported.
const LIMITED_SHOWN_FOR: Duration = Duration::from_secs(24 * 3_600);

/// Figures of everything stored, read one after the other; from [`Headwater::figures`].
#[derive(Clone, Debug)]
pub struct Figures {
    /// The groups that are not cancelled, and what of each topic can be removed.
    pub survey: Survey,
    /// The topics by name, with their progress.
    pub topics: Vec<TopicStatus>,
    /// The history of each maintenance job.
    pub jobs: Vec<JobStatus>,
    /// The backfills, newest first.
    pub backfills: Vec<Backfill>,
}

impl Headwater {
    /// Figures of all topics and groups, maintenance jobs and backfills, for operators: few queries however many there are.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// # let headwater = headwater::Headwater::in_memory().await?;
    /// headwater.producer("orders").send(&1).await?;
    /// headwater.groups("orders").subscribe("email", headwater::Start::Beginning).await?;
    /// let figures = headwater.figures().await?;
    /// assert_eq!(figures.topics[0].head.0, 1);
    /// assert_eq!(figures.survey.groups[0].status.lag, 1);
    /// assert!(headwater.attention_of(&figures).await?.is_empty());
    /// # headwater.close().await }
    /// ```
    pub async fn figures(&self) -> Result<Figures> {
        Figures::read(&**self.store()).await
    }

    /// What an operator should act on, judged by figures that were read before: see [`Headwater::attention`].
    pub async fn attention_of(&self, figures: &Figures) -> Result<Vec<Finding>> {
        let mut findings = figures.attention();
        findings.extend(self.processes().attention().await?);
        #[cfg(feature = "postgres")]
        if let Some(postgres) = self.store().as_postgres() {
            return Ok([findings, postgres.attention().await?].concat());
        }
        Ok(findings)
    }
}

impl Figures {
    pub(crate) async fn read(store: &dyn Store) -> Result<Self> {
        Ok(Figures {
            survey: store.survey(u32::MAX).await?,
            topics: store.topics().await?,
            jobs: store.jobs().await?,
            backfills: store.backfills().await?,
        })
    }

    /// What an operator should act on, most urgent first.
    pub(crate) fn attention(&self) -> Vec<Finding> {
        let mut findings = self.maintenance();
        let topics: HashMap<TopicId, &TopicStatus> =
            self.topics.iter().map(|status| (status.topic.topic_id, status)).collect();
        for group in &self.survey.groups {
            findings.extend(self.group(group, topics.get(&group.status.topic_id).copied()));
        }
        for topic in &self.topics {
            findings.extend(of_topic(topic));
        }
        for backfill in &self.backfills {
            findings.extend(self.backfill(backfill));
        }
        findings
    }

    fn now(&self) -> Timestamp {
        self.survey.now
    }

    /// How long ago something was, in words.
    fn ago(&self, at: Timestamp) -> String {
        in_words(self.now().duration_since(at).unsigned_abs())
    }

    fn maintenance(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let last_run = self.jobs.iter().map(|job| job.last_run_at).max();
        // Before the first run: since there is a group to maintain.
        let first_group = self.survey.groups.iter().map(|group| group.status.state_since).min();
        if let Some(since) = last_run.or(first_group)
            && is_older(since, MAINTENANCE_SILENT, self.now())
        {
            findings.push(finding(
                "no_maintenance",
                format!(
                    "no maintenance ran for {}: no group is declared dead and nothing is removed",
                    self.ago(since)
                ),
                "run `headwater maintain --watch`, or a process with consumers that may run maintenance",
            ));
        } else {
            let is_overdue =
                |job: &&JobStatus| is_older(job.last_run_at, job.job.overdue_after(), self.now());
            findings.extend(self.jobs.iter().filter(is_overdue).map(|job| {
                let (name, ago) = (job.job.as_str(), self.ago(job.last_run_at));
                let problem = format!("job {name} has not run for {ago}, but other jobs have");
                finding("job_overdue", problem, "run all jobs: `headwater maintain --watch`, without --only")
            }));
        }
        for job in &self.jobs {
            if let Some(error) = &job.last_error {
                let problem = format!("job {} failed when it last ran: {error}", job.job.as_str());
                let remedy = "fix the cause; the job is retried automatically";
                findings.push(finding("job_failing", problem, remedy));
            }
        }
        let cleanup = self.jobs.iter().find(|job| job.job == Job::MessageCleanup && job.backlog > 0);
        findings.extend(cleanup.map(|job| {
            finding(
                "cleanup_behind",
                format!("cleanup ended its last run with about {} messages left to remove", job.backlog),
                "if it stays so: `headwater maintain --preset high_throughput`, or partitions for busy topics",
            )
        }));
        findings
    }

    fn group(&self, group: &SurveyedGroup, topic: Option<&TopicStatus>) -> Vec<Finding> {
        let issues = group.status.health_issues(self.now());
        let mut findings: Vec<Finding> =
            issues.iter().filter_map(|issue| self.issue(group, *issue)).collect();
        findings.extend(topic.and_then(|topic| self.expiring(group, topic)));
        findings
    }

    /// The finding for a health issue of a group, unless the issue is only of interest beside the group's figures.
    fn issue(&self, SurveyedGroup { topic, status }: &SurveyedGroup, issue: HealthIssue) -> Option<Finding> {
        let of = format!("topic {topic}, group {}", status.group);
        let timeout = in_words(status.heartbeat_timeout);
        let oldest = status.oldest_pending;
        let (check, problem, remedy) = match issue {
            HealthIssue::Dead => (
                "group_dead",
                format!("{of}: dead for {}, lag {}", self.ago(status.state_since), status.lag),
                "start a process of the group, which resurrects it, or remove it: `headwater group remove`",
            ),
            HealthIssue::Silent => (
                "group_silent",
                format!(
                    "{of}: no heartbeat for {}, longer than its timeout of {timeout}, and not declared dead",
                    in_words(status.heartbeat_age.unwrap_or_default())
                ),
                "start a process of the group; and run maintenance, which declares it dead",
            ),
            // Not at once: a group may be subscribed before its first process starts.
            HealthIssue::Unserved
                if oldest.is_some_and(|at| is_older(at, status.heartbeat_timeout, self.now())) =>
            {
                (
                    "group_unserved",
                    format!("{of}: lag {}, and no process serves it", status.lag),
                    "start a process of the group, or remove it: `headwater group remove`",
                )
            }
            HealthIssue::NeverServed => (
                "group_never_served",
                format!(
                    "{of}: no process served it since it subscribed {} ago, and it is never declared dead: retention waits for it",
                    self.ago(status.state_since)
                ),
                "start a process of the group, or remove it: `headwater group remove`",
            ),
            HealthIssue::Flapping => (
                "group_flapping",
                format!("{of}: its processes registered {} times lately without progress", status.restarts),
                "read the logs of its processes: they end before they ack anything",
            ),
            HealthIssue::Stuck => (
                "group_stuck",
                format!("{of}: {} messages are not done for more than an hour", status.stuck),
                "`headwater group show` has the messages that wait and why; or start more processes",
            ),
            HealthIssue::Paused => (
                "group_paused",
                format!(
                    "{of}: paused for {}: {}",
                    self.ago(status.state_since),
                    status.state_reason.as_deref().unwrap_or("no reason")
                ),
                "correct the cause, then `headwater group resume` and, for what was buried, `headwater dead-letter redrive`",
            ),
            HealthIssue::LaneFull => (
                "group_lane_full",
                format!("{of}: {} lanes are full of messages behind a key that failed", status.lanes_full),
                "`headwater group show` has the message that fails; fix the cause, or lower max_attempts",
            ),
            HealthIssue::Burying => (
                "group_burying",
                format!(
                    "{of}: {} messages became dead letters within {}",
                    status.buried_lately,
                    in_words(LATELY)
                ),
                "`headwater dead-letter list` has their errors; fix the cause and redrive them",
            ),
            // Four fifths of a timeout are no reason to act yet, and what was missed stays as a record.
            HealthIssue::Unserved | HealthIssue::NearTimeout | HealthIssue::Missed => return None,
        };
        Some(finding(check, problem, remedy))
    }

    /// Messages that retention removes soon although the group has not done them.
    fn expiring(
        &self,
        SurveyedGroup { topic, status }: &SurveyedGroup,
        of_topic: &TopicStatus,
    ) -> Option<Finding> {
        let max = of_topic.topic.settings.max_retention?;
        let age = Duration::try_from(self.now().duration_since(status.oldest_pending?)).ok()?;
        (age * 5 >= max * 4).then(|| {
            finding(
                "retention_near",
                format!(
                    "topic {topic}, group {}: its oldest unread message is {} old, and max_retention removes messages \
                     after {}",
                    status.group,
                    in_words(age),
                    in_words(max)
                ),
                "serve the group, or raise the topic's max_retention: `headwater topic alter --max-retention`",
            )
        })
    }

    fn backfill(&self, backfill: &Backfill) -> Option<Finding> {
        let Backfill { topic, group, state, left_out, .. } = backfill;
        let of = format!("topic {topic}, group {group}");
        let counted = self.topics.iter().any(|status| {
            status.topic.name == *topic && status.topic.settings.tracking == Tracking::ReferenceCounting
        });
        let moved_at = backfill.progressed_at.unwrap_or(backfill.created_at);
        if *state == BackfillState::Failed {
            let error = backfill.error.as_deref().unwrap_or("unknown error");
            let problem = format!("{of}: its backfill failed: {error}");
            return Some(finding(
                "backfill_failed",
                problem,
                "fix the cause, then `headwater backfill resume`",
            ));
        }
        if counted && state.is_open() && is_older(moved_at, BACKFILL_STALLED, self.now()) {
            let problem = format!("{of}: its backfill has made no progress for {}", self.ago(moved_at));
            return Some(finding(
                "backfill_stalled",
                problem,
                "run maintenance: `headwater maintain --watch`",
            ));
        }
        let is_shown = *left_out > 0 && !is_older(backfill.created_at, LIMITED_SHOWN_FOR, self.now());
        is_shown.then(|| {
            finding(
                "backfill_limited",
                format!(
                    "{of}: its backfill reached its limit of {} messages, {left_out} older ones are left out; their \
                     completion records do not wait for the group",
                    backfill.total
                ),
                "to include them: `headwater backfill start --messages-max`; this finding ends by itself after a day",
            )
        })
    }
}

fn of_topic(status: &TopicStatus) -> Vec<Finding> {
    let name = &status.topic.name;
    let mut findings = Vec::new();
    for TopicIssue::ZeroSubscriptions in status.health_issues() {
        let settings = &status.topic.settings;
        let consequence = match settings.block_writes_on_zero_subscriptions {
            true => "publishing fails".to_owned(),
            false => {
                format!("new messages are removed after {}", in_words(settings.zero_subscription_retention))
            }
        };
        findings.push(finding(
            "zero_subscriptions",
            format!("topic {name} is pub_sub and no subscription counts: {consequence}"),
            "start a consumer, or `headwater group subscribe`",
        ));
    }
    findings.extend(status.topic.settings.contradictions().into_iter().map(|contradiction| {
        finding(
            "settings_conflict",
            format!("topic {name}: {contradiction}"),
            "change one: `headwater topic alter`",
        )
    }));
    findings
}

fn finding(check: &'static str, problem: String, remedy: &str) -> Finding {
    Finding { check, problem, remedy: remedy.to_owned() }
}

/// A duration for people; milliseconds are noise in what is compared with a timeout.
fn in_words(duration: Duration) -> String {
    written(if duration.as_secs() >= 10 { Duration::from_secs(duration.as_secs()) } else { duration })
}

#[cfg(test)]
mod tests;
