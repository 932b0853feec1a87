//! Metrics of the whole store.

use jiff::Timestamp;

use super::*;
use crate::maintenance::tests::{backfill, topic as topic_status};
use crate::observe::metrics::SurveyMetrics;
use crate::store::{Survey, SurveyedGroup, SurveyedTopic};
use crate::subscription::status::tests::served;
use crate::subscription::{SubscriptionState, SubscriptionStatus};

#[test]
fn groups_that_no_process_serves_are_exported_and_end_as_not_a_number() {
    let exporter = Remembered::default();
    let now: Timestamp = "2026-03-02T09:00:00Z".parse().unwrap();
    let topic = topic_status(1);
    let name = topic.topic.name.clone();
    let dead = SubscriptionStatus {
        state: SubscriptionState::Dead,
        lag: 7,
        stuck: 5,
        oldest_pending: Some(now - Duration::from_secs(7_200)),
        heartbeat_age: Some(Duration::from_secs(400)),
        processes: 0,
        dead_letters: 2,
        ..served("email", now)
    };
    let survey = |groups: Vec<SubscriptionStatus>| Survey {
        now,
        groups: groups.into_iter().map(|status| SurveyedGroup { topic: name.clone(), status }).collect(),
        left_out: 3,
        topics: vec![SurveyedTopic { topic: name.clone(), cleanable: 11, inconsistent: 1 }],
    };
    let mut late = backfill("email", 100, 1);
    (late.topic, late.processed, late.left_out) = (name.clone(), 40, 9);
    let of_group = |metric: &str| exporter.value(&format!("headwater_{metric}{{topic=topic-1,group=email}}"));
    let of_topic = |metric: &str| exporter.value(&format!("headwater_topic_{metric}{{topic=topic-1}}"));
    let state = |state: &str| {
        exporter.value(&format!("headwater_group_state{{topic=topic-1,group=email,state={state}}}"))
    };
    with_local_recorder(&exporter, || {
        let metrics = SurveyMetrics::default();
        metrics.show(std::slice::from_ref(&topic), survey(vec![dead]), vec![late]);
        assert_eq!((state("dead"), state("active"), state("paused")), (1.0, 0.0, 0.0));
        assert_eq!((of_group("group_lag"), of_group("group_stuck")), (7.0, 5.0));
        assert_eq!((of_group("group_heartbeat_age_seconds"), of_group("group_dead_letters")), (400.0, 2.0));
        assert_eq!(of_group("group_oldest_pending_seconds"), 7_200.0);
        assert_eq!(of_group("group_unserved"), 0.0, "it is dead: that says more");
        assert_eq!((of_group("backfill_processed"), of_group("backfill_total")), (40.0, 100.0));
        assert_eq!((of_group("backfill_failed"), of_group("backfill_left_out")), (0.0, 9.0));
        assert_eq!((of_topic("cleanable"), of_topic("inconsistent_records")), (11.0, 1.0));
        assert_eq!((of_topic("counting_groups"), of_topic("completion_lag_seconds")), (1.0, 7_200.0));
        assert_eq!(exporter.value("headwater_survey_groups_left_out{}"), 3.0);

        metrics.show(std::slice::from_ref(&topic), survey(vec![]), vec![]);
        assert!(of_group("group_lag").is_nan() && state("dead").is_nan(), "the group was removed");
        assert_eq!(of_topic("completion_lag_seconds"), 0.0);
        metrics.clear();
        assert!(of_topic("cleanable").is_nan(), "another process is elected");
        metrics.released(&name, 4);
        assert_eq!(exporter.value("headwater_records_released_total{topic=topic-1}"), 4.0);
    });
}
