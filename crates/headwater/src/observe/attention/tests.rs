//! Every rule finds its case, and none finds anything in a store at work.

use super::*;
use crate::maintenance::tests::{backfill, topic};
use crate::message::Offset;
use crate::store::SurveyedTopic;
use crate::subscription::SubscriptionStatus;
use crate::subscription::status::tests::served;
use crate::topic::{Semantics, TopicSettings};

const MINUTE: Duration = Duration::from_secs(60);

fn now() -> Timestamp {
    "2026-03-02T09:00:00Z".parse().expect("a time")
}

fn before(by: Duration) -> Timestamp {
    now() - by
}

fn ran(job: Job, ago: Duration) -> JobStatus {
    JobStatus {
        job,
        runs: 1,
        failures: 0,
        rows: 0,
        backlog: 0,
        last_run_at: before(ago),
        last_duration: Duration::ZERO,
        last_error: None,
    }
}

/// A store at work: one topic, one group that is served, and all jobs ran a minute ago.
fn at_work() -> Figures {
    let topic = topic(1);
    let name = topic.topic.name.clone();
    let group = SurveyedGroup { topic: name.clone(), status: served("email", before(MINUTE)) };
    let surveyed = SurveyedTopic { topic: name, cleanable: 0, inconsistent: 0 };
    Figures {
        survey: Survey { now: now(), groups: vec![group], left_out: 0, topics: vec![surveyed] },
        topics: vec![topic],
        jobs: Job::ALL.map(|job| ran(job, MINUTE)).into(),
        backfills: Vec::new(),
    }
}

/// The checks that find something after a change.
fn found(change: impl FnOnce(&mut Figures)) -> Vec<&'static str> {
    let mut figures = at_work();
    change(&mut figures);
    let findings = figures.attention();
    assert!(findings.iter().all(|finding| !finding.remedy.is_empty()), "{findings:?}");
    findings.into_iter().map(|finding| finding.check).collect()
}

/// The same after a change of the group.
fn found_of(change: impl FnOnce(&mut SubscriptionStatus)) -> Vec<&'static str> {
    found(|figures| change(&mut figures.survey.groups[0].status))
}

#[test]
fn a_store_at_work_needs_no_attention() {
    assert_eq!(found(|_| {}), [] as [&str; 0]);
    let empty = Figures {
        survey: Survey { now: now(), groups: vec![], left_out: 0, topics: vec![] },
        topics: vec![],
        jobs: vec![],
        backfills: vec![],
    };
    assert_eq!(empty.attention(), [], "there is nothing to maintain");
}

#[test]
fn maintenance_that_does_not_run_is_one_finding() {
    let all = |ago: Duration| found(|figures| figures.jobs = Job::ALL.map(|job| ran(job, ago)).into());
    assert_eq!(all(MINUTE * 10), [] as [&str; 0]);
    assert_eq!(all(MINUTE * 11), ["no_maintenance"]);
    let never = |ago: Duration| {
        found(|figures| {
            figures.jobs.clear();
            figures.survey.groups[0].status.state_since = before(ago);
        })
    };
    assert_eq!(never(MINUTE * 9), [] as [&str; 0], "it may start yet");
    assert_eq!(never(MINUTE * 11), ["no_maintenance"]);
}

#[test]
fn a_job_that_alone_does_not_run_or_fails_is_found() {
    let with = |job: Job, change: fn(&mut JobStatus)| {
        found(|figures| {
            let status = figures.jobs.iter_mut().find(|status| status.job == job).expect("every job ran");
            change(status);
        })
    };
    assert_eq!(with(Job::Heads, |job| job.last_run_at = before(MINUTE * 11)), ["job_overdue"]);
    assert_eq!(with(Job::MessageCleanup, |job| job.last_run_at = before(MINUTE * 90)), [] as [&str; 0]);
    assert_eq!(with(Job::MessageCleanup, |job| job.last_run_at = before(MINUTE * 181)), ["job_overdue"]);
    assert_eq!(with(Job::Tracking, |job| job.last_error = Some("no".into())), ["job_failing"]);
    assert_eq!(with(Job::MessageCleanup, |job| job.backlog = 7), ["cleanup_behind"]);
    assert_eq!(with(Job::Backfill, |job| job.backlog = 7), [] as [&str; 0], "that is a backfill under way");
}

#[test]
fn a_group_that_is_not_served_is_found() {
    let silent = |status: &mut SubscriptionStatus| {
        status.heartbeat_at = Some(before(MINUTE * 9));
        status.heartbeat_age = Some(MINUTE * 9);
    };
    assert_eq!(found_of(silent), ["group_silent"]);
    let unserved = |oldest: Duration| {
        found_of(|status| {
            (status.processes, status.lag) = (0, 5);
            status.oldest_pending = Some(before(oldest));
        })
    };
    assert_eq!(unserved(MINUTE), [] as [&str; 0], "its first process may start yet");
    assert_eq!(unserved(MINUTE * 6), ["group_unserved"]);
    let never = |since: Duration| {
        found_of(|status| {
            (status.heartbeat_at, status.heartbeat_age, status.processes) = (None, None, 0);
            status.state_since = before(since);
        })
    };
    assert_eq!(never(MINUTE * 5), [] as [&str; 0]);
    assert_eq!(never(MINUTE * 6), ["group_never_served"]);
    assert_eq!(found_of(|status| status.state = crate::SubscriptionState::Dead), ["group_dead"]);
}

#[test]
fn a_group_that_fails_is_found() {
    assert_eq!(found_of(|status| status.buried_lately = 10), ["group_burying"]);
    assert_eq!(found_of(|status| status.lanes_full = 1), ["group_lane_full"]);
    assert_eq!(found_of(|status| (status.lag, status.restarts) = (1, 6)), ["group_flapping"]);
    assert_eq!(found_of(|status| status.oldest_pending = Some(before(MINUTE * 61))), ["group_stuck"]);
    assert_eq!(found_of(|status| status.missed.count = 5), [] as [&str; 0], "that is a record, not a task");
}

#[test]
fn retention_that_is_about_to_remove_unread_messages_is_found() {
    let unread = |age: Duration| {
        found(|figures| {
            figures.topics[0].topic.settings.max_retention = Some(MINUTE * 50);
            figures.topics[0].topic.settings.message_retention = Some(MINUTE);
            figures.topics[0].topic.settings.zero_subscription_retention = MINUTE;
            figures.survey.groups[0].status.oldest_pending = Some(before(age));
        })
    };
    assert_eq!(unread(MINUTE * 39), [] as [&str; 0]);
    assert_eq!(unread(MINUTE * 40), ["retention_near"]);
}

#[test]
fn a_topic_that_no_group_counts_for_is_found() {
    let zero = |head: i64, blocks: bool| {
        found(|figures| {
            let settings =
                TopicSettings { block_writes_on_zero_subscriptions: blocks, ..TopicSettings::pub_sub() };
            figures.topics[0].topic.settings = settings;
            (figures.topics[0].counting, figures.topics[0].head) = (0, Offset(head));
        })
    };
    assert_eq!(zero(1, false), ["zero_subscriptions"]);
    assert_eq!(zero(0, true), ["zero_subscriptions"]);
    assert_eq!(zero(0, false), [] as [&str; 0], "nothing was published yet");
    let queue = found(|figures| {
        figures.topics[0].topic.settings.semantics = Semantics::Queue;
        figures.topics[0].counting = 0;
    });
    assert_eq!(queue, [] as [&str; 0], "the messages of a queue wait for its group");
}

#[test]
fn settings_that_cannot_work_together_are_found() {
    let found = found(|figures| figures.topics[0].topic.settings.max_retention = Some(MINUTE * 1_439));
    assert_eq!(found, ["settings_conflict"]);
}

#[test]
fn a_backfill_that_stands_still_or_left_messages_out_is_found() {
    let with = |change: fn(&mut Backfill)| {
        found(|figures| {
            figures.topics[0].topic.settings.tracking = Tracking::ReferenceCounting;
            let mut one = backfill("late", 100, 50_000);
            one.topic = figures.topics[0].topic.name.clone();
            (one.state, one.created_at) = (BackfillState::InProgress, before(MINUTE));
            change(&mut one);
            figures.backfills.push(one);
        })
    };
    assert_eq!(with(|_| {}), [] as [&str; 0]);
    assert_eq!(with(|one| one.progressed_at = Some(before(MINUTE * 6))), ["backfill_stalled"]);
    assert_eq!(with(|one| one.state = BackfillState::Failed), ["backfill_failed"]);
    assert_eq!(with(|one| one.left_out = 7), ["backfill_limited"]);
    let old = |one: &mut Backfill| {
        (one.left_out, one.state, one.created_at) = (7, BackfillState::Completed, before(MINUTE * 1_441));
    };
    assert_eq!(with(old), [] as [&str; 0]);
}
