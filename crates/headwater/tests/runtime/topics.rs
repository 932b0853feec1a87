//! How a program starts with a topic that exists already: as it left it, tuned by an operator, or of another version.

use std::time::Duration;

use headwater::topic::Topic;
use headwater::{ErrorKind, Headwater, TopicSettings};

use crate::each::{Place, on_each};
use crate::logs::{capture, lines_of};

on_each!(
    a_program_starts_although_an_operator_tuned_its_topic,
    ensure_alters_the_topic_to_the_program_and_audits_it,
    many_processes_ensure_at_once_and_one_alters,
    two_versions_of_a_program_both_start,
    settings_that_contradict_each_other_fail_although_the_topic_exists,
);

fn settings() -> TopicSettings {
    TopicSettings { max_attempts: 10, lease: Duration::from_secs(300), ..TopicSettings::default() }
}

/// As `headwater topic alter TOPIC --lease 2m --max-attempts 5`.
async fn tune(headwater: &Headwater, topic: &str) -> TopicSettings {
    let tuned = TopicSettings { lease: Duration::from_secs(120), max_attempts: 5, ..settings() };
    headwater.topics().alter(topic, &tuned).await.unwrap().settings
}

async fn alterations(headwater: &Headwater) -> usize {
    let entries = headwater.audit(100).await.unwrap();
    entries.iter().filter(|entry| entry.act == "alter_topic").count()
}

async fn a_program_starts_although_an_operator_tuned_its_topic(place: Place) {
    capture();
    let headwater = place.open().await;
    let name = format!("tuned-{}", headwater.store().engine());
    let start = async || headwater.topic(&name).settings(settings()).create_if_missing().await;
    assert_eq!(start().await.unwrap().settings, settings());
    assert_eq!(start().await.unwrap().settings, settings());
    assert_eq!(lines_of(&name), Vec::<String>::new(), "the same settings are not logged");

    let tuned = tune(&headwater, &name).await;
    assert_eq!(start().await.unwrap().settings, tuned, "the operator's settings stay");
    let lines = lines_of(&name);
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(
        lines[0].contains("WARN") && lines[0].contains("lease 2m, not 5m; max_attempts 5, not 10"),
        "{lines:?}"
    );

    let strict = headwater.topic(&name).settings(settings()).create().await.unwrap_err();
    assert_eq!(strict.kind(), ErrorKind::Conflict);
    assert_eq!(headwater.topics().get(&name).await.unwrap().settings, tuned);
    place.leave(&headwater).await;
}

async fn ensure_alters_the_topic_to_the_program_and_audits_it(place: Place) {
    let headwater = place.open().await;
    let start = async || headwater.topic("orders").settings(settings()).ensure().await;
    assert_eq!(start().await.unwrap().settings, settings());
    tune(&headwater, "orders").await;
    assert_eq!(start().await.unwrap().settings, settings());
    let entry = headwater.audit(1).await.unwrap().remove(0);
    assert_eq!((entry.act.as_str(), entry.topic.as_deref()), ("alter_topic", Some("orders")));
    let detail: serde_json::Value = serde_json::from_str(&entry.detail).unwrap();
    assert_eq!(detail["max_attempts"], serde_json::json!({ "from": 5, "to": 10 }), "{detail}");
    start().await.unwrap();
    assert_eq!(alterations(&headwater).await, 2, "nothing to alter, nothing to audit");
    place.leave(&headwater).await;
}

async fn many_processes_ensure_at_once_and_one_alters(place: Place) {
    let handles = [place.open().await, place.open().await, place.open().await];
    for existing in [false, true] {
        if existing {
            tune(&handles[0], "orders").await;
        }
        let before = alterations(&handles[0]).await;
        let starts = (0..12).map(|n| handles[n % 3].topic("orders").settings(settings()).ensure());
        let topics: Vec<Topic> =
            futures_util::future::join_all(starts).await.into_iter().map(Result::unwrap).collect();
        assert!(topics.iter().all(|topic| *topic == topics[0] && topic.settings == settings()));
        assert_eq!(alterations(&handles[0]).await - before, usize::from(existing), "altered once, if at all");
    }
    place.leave(&handles[0]).await;
}

async fn two_versions_of_a_program_both_start(place: Place) {
    let (old, new) = (place.open().await, place.open().await);
    let later = TopicSettings { max_attempts: 20, ..settings() };
    for _ in 0..5 {
        let starts = tokio::join!(
            old.topic("orders").settings(settings()).ensure(),
            new.topic("orders").settings(later.clone()).ensure(),
        );
        for started in [starts.0, starts.1] {
            assert!([&settings(), &later].contains(&&started.unwrap().settings));
        }
    }
    let topic = new.topic("orders").settings(later.clone()).ensure().await.unwrap();
    assert_eq!(topic.settings, later, "the last one decides");
    place.leave(&new).await;
}

async fn settings_that_contradict_each_other_fail_although_the_topic_exists(place: Place) {
    let headwater = place.open().await;
    headwater.topic("orders").create_if_missing().await.unwrap();
    let refused = headwater.topic("orders").max_attempts(0).create_if_missing().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    place.leave(&headwater).await;
}
