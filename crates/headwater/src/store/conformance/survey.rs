//! What operators see: figures of every group and topic, and what needs attention although the store is sound.

use std::time::Duration;

use super::case::{Case, Scene, bury, group, owner};
use super::life::{HOUR, MOMENT, TIMEOUT, counted, lively, without_groups};
use crate::backfill::BackfillLimits;
use crate::maintenance::{Job, JobRun};
use crate::observe::attention::Figures;
use crate::store::{Store, Survey, SurveyedGroup, SurveyedTopic};
use crate::subscription::{HealthIssue, Start, SubscriptionState};
use crate::topic::{Semantics, TopicIssue, TopicSettings};

const MINUTE: Duration = Duration::from_secs(60);

/// The checks that find something, without those of maintenance, which most cases never run.
async fn attention(store: &dyn Store) -> Vec<&'static str> {
    let findings = Figures::read(store).await.expect("the figures are read").attention();
    let checks = findings.into_iter().map(|finding| finding.check);
    checks.filter(|check| *check != "no_maintenance").collect()
}

async fn survey(store: &dyn Store, groups_max: u32) -> Survey {
    store.survey(groups_max).await.expect("the store is surveyed")
}

impl Scene {
    /// The figures of the group.
    async fn surveyed(&self) -> SurveyedGroup {
        let id = self.subscription.subscription_id;
        let found =
            survey(&*self.store, 1_000).await.groups.into_iter().find(|one| one.status.subscription_id == id);
        found.expect("the group is surveyed")
    }

    /// The figures of the topic.
    async fn surveyed_topic(&self) -> SurveyedTopic {
        let found = survey(&*self.store, 1_000).await.topics.into_iter().find(|one| one.topic == self.topic);
        found.expect("the topic is surveyed")
    }

    async fn health(&self, case: &Case) -> Vec<HealthIssue> {
        self.status().await.health_issues(case.now())
    }
}

fn ran(job: Job, backlog: u64, error: Option<&str>) -> JobRun {
    JobRun { job, duration: Duration::ZERO, rows: 0, backlog, error: error.map(str::to_owned) }
}

/// A store that has groups and no maintenance is reported after ten minutes, whether it ran before or never did; a job
/// that alone does not run, fails or leaves work behind is reported by its name.
pub async fn missing_and_failing_maintenance_is_reported(case: &Case) {
    let scene = case.queue().await;
    let found = async || {
        let findings = Figures::read(&*scene.store).await.expect("the figures are read").attention();
        let checks = findings.into_iter().map(|finding| finding.check);
        checks.filter(|check| !check.starts_with("group_")).collect::<Vec<_>>()
    };
    let run_all = async |backlog: u64, error: Option<&str>| {
        scene.detect().await;
        for job in Job::ALL {
            scene.store.jobs_ran(&[ran(job, backlog, error)]).await.expect("the run is recorded");
        }
    };
    assert_eq!(found().await, [] as [&str; 0]);
    case.advance(MINUTE * 10 + MOMENT);
    assert_eq!(found().await, ["no_maintenance"], "it never ran");
    run_all(0, None).await;
    assert_eq!(found().await, [] as [&str; 0]);
    case.advance(MINUTE * 10 + MOMENT);
    assert_eq!(found().await, ["no_maintenance"], "it runs no more");
    scene.store.jobs_ran(&[ran(Job::Heads, 0, None)]).await.unwrap();
    let overdue = found().await;
    assert!(!overdue.is_empty() && overdue.iter().all(|check| *check == "job_overdue"), "{overdue:?}");
    run_all(0, None).await;
    scene.store.jobs_ran(&[ran(Job::Tracking, 0, Some("no luck"))]).await.unwrap();
    scene.store.jobs_ran(&[ran(Job::MessageCleanup, 5, None)]).await.unwrap();
    assert_eq!(found().await, ["job_failing", "cleanup_behind"]);
}

/// A group past its timeout is silent, not near its timeout, until detection declares it dead.
pub async fn a_group_past_its_timeout_is_silent_until_it_is_dead(case: &Case) {
    let scene = case.scene(lively()).await;
    scene.heartbeat("a").await;
    scene.detect().await;
    case.advance(TIMEOUT * 4 / 5);
    assert_eq!(scene.health(case).await, [HealthIssue::NearTimeout]);
    assert_eq!(attention(&*scene.store).await, [] as [&str; 0]);
    case.advance(TIMEOUT);
    assert_eq!(scene.health(case).await, [HealthIssue::Silent]);
    assert_eq!(attention(&*scene.store).await, ["group_silent"]);
    scene.detect().await;
    assert_eq!(scene.health(case).await, [HealthIssue::Dead]);
    assert!(attention(&*scene.store).await.contains(&"group_dead"));
}

/// A group with lag that no process serves is unserved at once, and is reported after its timeout; a heartbeat ends that.
pub async fn a_group_with_lag_and_no_process_is_unserved(case: &Case) {
    let scene = case.scene(lively()).await;
    assert_eq!(scene.health(case).await, [], "there is nothing to do");
    scene.publish(3).await;
    assert_eq!(scene.health(case).await, [HealthIssue::Unserved]);
    assert_eq!(attention(&*scene.store).await, [] as [&str; 0], "its first process may start yet");
    case.advance(TIMEOUT + MOMENT);
    assert_eq!(scene.health(case).await, [HealthIssue::Unserved, HealthIssue::NeverServed]);
    assert_eq!(attention(&*scene.store).await, ["group_unserved", "group_never_served"]);
    scene.heartbeat("a").await;
    assert_eq!(scene.health(case).await, []);
    assert_eq!(attention(&*scene.store).await, [] as [&str; 0]);
    case.advance(TIMEOUT + MOMENT);
    assert!(scene.health(case).await.contains(&HealthIssue::Unserved), "its process is gone");
}

/// A group that never had a heartbeat is never declared dead and holds retention: it is reported after its timeout. A
/// pause is deliberate.
pub async fn a_group_that_was_never_served_is_reported(case: &Case) {
    let scene = case.scene(lively()).await;
    case.advance(TIMEOUT);
    assert_eq!(attention(&*scene.store).await, [] as [&str; 0]);
    case.advance(MOMENT);
    assert_eq!(scene.health(case).await, [HealthIssue::NeverServed]);
    assert_eq!(attention(&*scene.store).await, ["group_never_served"]);
    scene.detect().await;
    assert_eq!(scene.state().await, SubscriptionState::Active, "it is never declared dead");
    scene.pause().await;
    assert_eq!(attention(&*scene.store).await, [] as [&str; 0]);
}

/// Ten dead letters within an hour are reported, for an hour.
pub async fn many_recent_dead_letters_are_reported(case: &Case) {
    let scene = case.queue().await;
    scene.heartbeat("a").await;
    scene.publish(10).await;
    let lease = scene.claim_one("a", 10).await;
    scene.settle_each(&lease, vec![((1, 9), bury("no"))]).await.unwrap();
    let status = scene.status().await;
    assert_eq!((status.dead_letters, status.buried_lately), (9, 9));
    assert!(!scene.health(case).await.contains(&HealthIssue::Burying));
    scene.settle_each(&lease, vec![((10, 10), bury("no"))]).await.unwrap();
    assert_eq!(scene.health(case).await, [HealthIssue::Burying]);
    assert_eq!(attention(&*scene.store).await, ["group_burying"]);
    case.advance(HOUR + MOMENT);
    let status = scene.status().await;
    assert_eq!((status.dead_letters, status.buried_lately), (10, 0));
    assert!(!scene.health(case).await.contains(&HealthIssue::Burying));
}

/// Unread messages are reported once four fifths of `max_retention` have passed.
pub async fn unread_messages_near_their_removal_are_reported(case: &Case) {
    let settings = TopicSettings { max_retention: Some(MINUTE * 50), ..lively() };
    let scene = case.scene(settings).await;
    scene.publish(1).await;
    case.advance(MINUTE * 40 - MOMENT);
    scene.heartbeat("a").await;
    assert_eq!(attention(&*scene.store).await, [] as [&str; 0]);
    case.advance(MOMENT);
    assert_eq!(attention(&*scene.store).await, ["retention_near"]);
    scene.reads().await;
    assert_eq!(attention(&*scene.store).await, [] as [&str; 0]);
}

/// A pub/sub topic that is published to has a group that counts, or is reported; a queue keeps its messages.
pub async fn a_topic_without_subscriptions_is_reported(case: &Case) {
    let unread = without_groups(case, &TopicSettings::pub_sub()).await;
    let issues = async || {
        unread.store.advance_heads().await.expect("maintenance runs");
        let topics = unread.store.topics().await.expect("the topics are listed");
        (topics[0].counting, topics[0].health_issues())
    };
    assert_eq!(issues().await, (0, vec![]), "nothing was published");
    unread.store.publish(&unread.name, &[crate::message::NewMessage::new("1")]).await.unwrap();
    assert_eq!(issues().await, (0, vec![TopicIssue::ZeroSubscriptions]));
    assert_eq!(attention(&*unread.store).await, ["zero_subscriptions"]);
    let scene = unread.subscribe(Start::Now).await;
    assert_eq!(issues().await, (1, vec![]));
    scene.pause().await;
    assert_eq!(issues().await, (1, vec![]), "a paused group counts");
    scene.cancel().await;
    assert_eq!(issues().await, (0, vec![TopicIssue::ZeroSubscriptions]));
    let queue =
        TopicSettings { semantics: Semantics::Queue, max_retention: None, ..TopicSettings::pub_sub() };
    unread.store.alter_topic(&unread.name, &queue).await.unwrap();
    assert_eq!(issues().await, (0, vec![]));
}

/// Settings that are valid but cannot work together are reported.
pub async fn settings_that_cannot_work_together_are_reported(case: &Case) {
    let settings = TopicSettings { max_retention: Some(MINUTE * 2), ..lively() };
    let scene = case.scene(settings).await;
    scene.heartbeat("a").await;
    assert_eq!(
        attention(&*scene.store).await,
        ["settings_conflict", "settings_conflict"],
        "lease and retries"
    );
}

/// A backfill reports how many messages its limit left out, when it is started and as long as it exists.
pub async fn a_bounded_backfill_reports_what_it_left_out(case: &Case) {
    let scene = case.scene(counted()).await;
    scene.publish(20).await;
    scene.track_all().await;
    let late = scene.subscribe("late", Start::Beginning).await;
    late.heartbeat("a").await;
    scene.heartbeat("a").await;
    let backfill = scene.store.backfills().await.unwrap().remove(0);
    assert_eq!((backfill.total, backfill.left_out), (20, 0), "within the limit");
    scene.store.cancel_backfill(&scene.topic, &group("late")).await.unwrap();
    let limits = BackfillLimits { messages_max: 5, ..BackfillLimits::default() };
    let backfill = scene.store.backfill(&scene.topic, &group("late"), &limits).await.unwrap();
    assert_eq!((backfill.total, backfill.left_out), (5, 15));
    scene.backfill_all().await;
    assert_eq!(scene.store.backfills().await.unwrap()[0].left_out, 15);
    assert_eq!(attention(&*scene.store).await, ["backfill_limited"]);
}

/// A backfill that no worker steps is reported.
pub async fn a_stalled_backfill_is_reported(case: &Case) {
    let scene = case.scene(counted()).await;
    scene.publish(20).await;
    scene.track_all().await;
    scene.subscribe("late", Start::Beginning).await;
    scene.store.step_backfill(&owner("dies"), 5).await.unwrap();
    assert!(!attention(&*scene.store).await.contains(&"backfill_stalled"));
    case.advance(MINUTE * 5 + MOMENT);
    assert!(attention(&*scene.store).await.contains(&"backfill_stalled"));
    scene.backfill_all().await;
    assert!(!attention(&*scene.store).await.contains(&"backfill_stalled"));
}

/// The survey has what no process reports: state, lag, age and number of old messages of a group that nothing serves.
pub async fn a_survey_has_the_figures_of_every_group(case: &Case) {
    let scene = case.scene(lively()).await;
    let ordered = TopicSettings { ordering: crate::topic::Ordering::Key, lanes: 2, ..lively() };
    let ordered = scene.beside("ordered", ordered).await;
    for one in [&scene, &ordered] {
        one.publish(10).await;
    }
    let held = scene.claim_one("a", 2).await;
    scene.ack(&held).await;
    let held = scene.claim_one("a", 3).await;
    scene.settle_each(&held, vec![((3, 3), super::case::retry(1_000, "no"))]).await.unwrap();
    case.advance(HOUR + MOMENT);
    for one in [&scene, &ordered] {
        one.publish(4).await;
    }
    scene.store.advance_heads().await.unwrap();
    let figures = scene.surveyed().await;
    assert_eq!(figures.topic, scene.topic);
    let status = figures.status;
    assert_eq!((status.lag, status.stuck, status.processes), (12, 8, 0));
    assert_eq!(status, scene.status().await, "as in the list of groups");
    let status = ordered.surveyed().await.status;
    assert_eq!((status.lag, status.stuck), (14, 10));
    scene.heartbeat("a").await;
    assert_eq!(scene.surveyed().await.status.processes, 1);
    scene.cancel().await;
    let groups = survey(&*scene.store, 1_000).await.groups;
    assert_eq!(groups.len(), 1, "cancelled groups are not surveyed: {groups:?}");
}

/// A survey reads no more groups than it may, by topic and name, and reports how many it left out.
pub async fn a_survey_is_bounded(case: &Case) {
    let scene = case.pub_sub().await;
    for name in ["b", "a"] {
        scene.subscribe(name, Start::Beginning).await;
    }
    scene.beside("later", TopicSettings::pub_sub()).await;
    let names = |survey: &Survey| -> Vec<String> {
        survey.groups.iter().map(|one| format!("{} {}", one.topic, one.status.group)).collect()
    };
    let all = survey(&*scene.store, 10).await;
    assert_eq!(names(&all), ["later workers", "orders a", "orders b", "orders workers"]);
    assert_eq!((all.left_out, all.now), (0, case.now()));
    let some = survey(&*scene.store, 2).await;
    assert_eq!((names(&some), some.left_out), (names(&all)[..2].to_vec(), 2));
    assert_eq!(some.topics.len(), 2, "topics are not limited");
}

/// A survey of an empty store has the time and nothing else.
pub async fn a_survey_of_nothing_has_the_time(case: &Case) {
    let empty = survey(&*case.open().await, 10).await;
    assert_eq!(empty, Survey { now: case.now(), groups: vec![], left_out: 0, topics: vec![] });
}

/// Messages count as removable once they were done for as long as the topic keeps them, until cleanup removes them.
pub async fn a_survey_has_what_cleanup_may_remove(case: &Case) {
    let settings = TopicSettings { message_retention: Some(HOUR), ..lively() };
    let scene = case.scene(settings).await;
    scene.publish(6).await;
    scene.ack_next(4).await;
    scene.clean_all().await;
    assert_eq!(scene.surveyed_topic().await.cleanable, 0, "done just now");
    case.advance(HOUR + MOMENT);
    assert_eq!(scene.surveyed_topic().await.cleanable, 4);
    assert_eq!(scene.clean_all().await.removed, 4);
    assert_eq!(scene.surveyed_topic().await.cleanable, 0);
}

/// Completion records that contradict themselves are counted, and records that a group is released from.
pub async fn a_survey_counts_contradictory_records(case: &Case) {
    let scene = case.scene(counted()).await;
    let dying = scene.subscribe("dying", Start::Beginning).await;
    scene.publish(5).await;
    scene.track_all().await;
    assert_eq!(scene.surveyed_topic().await.inconsistent, 0);
    dying.cancel().await;
    assert_eq!(scene.track(1_000).await.released, 5);
    assert_eq!(scene.track(1_000).await.released, 0, "each is released once");
    let broken = case
        .harness()
        .sql(
            "UPDATE headwater_completion_record SET completed = required WHERE row_key & 8796093022207 = 3",
            "UPDATE {schema}.completion_record SET completed = required WHERE message_offset = 3",
        )
        .await;
    assert_eq!(broken, Ok(1));
    assert_eq!(scene.surveyed_topic().await.inconsistent, 1);
    let mended = case
        .harness()
        .sql(
            "UPDATE headwater_completion_record SET completed = 0 WHERE row_key & 8796093022207 = 3",
            "UPDATE {schema}.completion_record SET completed = 0 WHERE message_offset = 3",
        )
        .await;
    assert_eq!(mended, Ok(1));
}
