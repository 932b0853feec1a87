//! Lists for operators: found by parts of names, page by page, and who changed something.

use std::time::Duration;

use super::case::{Case, Scene, bury, group, topic};
use crate::dead_letter::{AnyDeadLetterSelection, DeadLetters, ParkedCommand};
use crate::error::ErrorKind;
use crate::groups::AllGroups;
use crate::message::NewMessage;
use crate::outbox::{Category, NewEntry, Outbox, OutboxSelection};
use crate::store::actor::acting;
use crate::subscription::{Start, SubscriptionState};
use crate::topic::TopicSettings;
use crate::topics::Topics;

/// Topics are found by a part of their name in any case, and pages follow each other without a gap.
pub async fn topics_are_found_page_by_page(case: &Case) {
    let store = case.open().await;
    for name in ["Orders.eu", "orders.us", "payments", "reorder", "Ördner"] {
        Scene::new(store.clone(), name, TopicSettings::default()).await.publish(2).await;
    }
    let topics = Topics::new(store);
    topics.advance_heads().await.expect("advanced");
    let mut names = Vec::new();
    loop {
        let after = names.last().cloned();
        let page = topics.find(2, |all| {
            let all = all.contains("ORDER");
            after.map_or(all.clone(), |after: String| all.after(after))
        });
        let page = page.await.expect("found");
        assert!(page.len() <= 2 && page.iter().all(|status| status.head.0 == 2));
        if page.is_empty() {
            break;
        }
        names.extend(page.into_iter().map(|status| status.topic.name.as_str().to_owned()));
    }
    assert_eq!(names, ["Orders.eu", "orders.us", "reorder"]);
    assert_eq!(topics.find(10, |all| all).await.unwrap(), topics.list().await.unwrap());
    assert_eq!(topics.status("payments").await.unwrap().topic.name, topic("payments"));
    let unknown = topics.status("Payments").await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NoSuchTopic, "a name is exact");
    let refused = topics.find(1, |all| all.contains("")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
}

/// Groups of all topics are found by state and by a part of a name, in the order of topics and groups; a name that was cancelled and taken
/// again is listed twice, the living one first. The figures are those of the topic's own list.
pub async fn groups_of_all_topics_are_found_page_by_page(case: &Case) {
    let store = case.open().await;
    for (name, groups) in [("b", ["email", "audit"]), ("a", ["Mailer", "audit"])] {
        let scene = Scene::new(store.clone(), name, TopicSettings::pub_sub()).await;
        scene.publish(3).await;
        for group in groups {
            scene.subscribe(group, Start::Beginning).await;
        }
    }
    let (b, email) = (topic("b"), group("email"));
    store.cancel(&b, &email).await.unwrap();
    store.subscribe(&b, &email, Start::Beginning).await.unwrap();
    store.pause(&topic("a"), &group("audit"), None).await.unwrap();

    let groups = AllGroups::new(store.clone());
    let mut found: Vec<crate::groups::FoundGroup> = Vec::new();
    loop {
        let after = found.last().map(crate::groups::FoundGroup::place);
        let page =
            groups.list(2, |all| after.map_or(all.clone(), |place| all.after(place))).await.expect("found");
        if page.is_empty() {
            break;
        }
        found.extend(page);
    }
    let shown = |found: &[crate::groups::FoundGroup]| {
        let names = found.iter().map(|one| {
            let status = &one.health.status;
            format!("{}/{} {}", one.topic, status.group, status.state.as_str())
        });
        names.collect::<Vec<_>>()
    };
    assert_eq!(
        shown(&found),
        [
            "a/Mailer active",
            "a/audit paused",
            "a/workers active",
            "b/audit active",
            "b/email active",
            "b/email cancelled",
            "b/workers active"
        ]
    );
    let of_b: Vec<_> =
        found.iter().filter(|one| one.topic == b).map(|one| one.health.status.clone()).collect();
    assert_eq!(of_b, store.subscriptions(&b).await.unwrap());
    let paused = groups.list(10, |all| all.state(SubscriptionState::Paused)).await.unwrap();
    assert_eq!(shown(&paused), ["a/audit paused"]);
    let mail = groups.list(10, |all| all.contains("MAIL").state(SubscriptionState::Active)).await.unwrap();
    assert_eq!(shown(&mail), ["a/Mailer active", "b/email active"]);
    let one = groups.list(1, |all| all.topic("b").group("email")).await.unwrap();
    assert_eq!(shown(&one), ["b/email active"]);
    assert_eq!(groups.list(10, |all| all.topic("unknown")).await.unwrap(), []);
}

/// Dead letters of every source are found by topic, group and text, page by page, also while those before are redriven; without payloads their size is
/// known.
pub async fn dead_letters_are_found_page_by_page(case: &Case) {
    let scene = case.queue().await;
    scene
        .publish_all(&[NewMessage::new("12345").key("k-1"), NewMessage::new("1").message_type("Paid")])
        .await;
    for offset in [1, 2] {
        let lease = scene.claim_one("p", 1).await;
        scene.settle_each(&lease, vec![((offset, offset), bury("No Luck"))]).await.unwrap();
        case.advance(Duration::from_secs(1));
    }
    let dead_letters = DeadLetters::new(&scene.store);
    case.advance(Duration::from_secs(1));
    for name in ["ChargeCard", "SendMail"] {
        let command = ParkedCommand::new(name, name, "{}", "worker").topic("payments");
        dead_letters.park(&command).await.unwrap();
        case.advance(Duration::from_secs(1));
    }
    let list = async |limit, choose: &dyn Fn(AnyDeadLetterSelection) -> AnyDeadLetterSelection| {
        dead_letters.list(limit, choose).await.expect("found")
    };
    let first = list(2, &|all| all.without_payloads()).await;
    let sizes: Vec<_> = first.iter().map(|one| (one.payload.len(), one.payload_bytes)).collect();
    assert_eq!(sizes, [(0, 5), (0, 1)]);
    let place = first[1].place();
    assert_eq!(dead_letters.delete(&[place.dead_letter_id]).await.unwrap(), 1);
    let next = list(10, &|all| all.after(place)).await;
    let names: Vec<_> = next.iter().map(|one| one.name.as_deref().unwrap_or_default()).collect();
    assert_eq!(names, ["ChargeCard", "SendMail"], "the place of one that is gone still counts");
    assert_eq!(next[0].payload, "{}");

    let name = scene.topic.as_str();
    assert_eq!(list(10, &|all| all.topic(name)).await.len(), 1);
    assert_eq!(list(10, &|all| all.topic("payments")).await.len(), 2);
    assert_eq!(list(10, &|all| all.group(scene.subscription.group.as_str())).await.len(), 1);
    assert_eq!(list(10, &|all| all.contains("no luck")).await[0].business_key.as_deref(), Some("k-1"));
    assert_eq!(list(10, &|all| all.contains("chargec")).await.len(), 1);
    assert_eq!(list(10, &|all| all.contains("%")).await.len(), 0, "a search is literal");
}

/// Scheduled messages of one time are listed in the order published, and pages follow each other without a gap.
pub async fn scheduled_messages_are_listed_page_by_page(case: &Case) {
    let scene = case.queue().await;
    for (key, seconds) in [("c", 20), ("a", 10), ("b", 10)] {
        let message = NewMessage::new("x").key(key).delay(Duration::from_secs(seconds));
        scene.store.publish(&scene.topic, &[message]).await.unwrap();
    }
    let first = scene.store.scheduled(&scene.topic, 1).await.unwrap();
    let next = scene.store.scheduled_after(&scene.topic, Some(first[0].place()), 1).await.unwrap();
    let last = scene.store.scheduled_after(&scene.topic, Some(next[0].place()), 10).await.unwrap();
    let keys: Vec<_> = [first, next, last.clone()].concat().into_iter().filter_map(|one| one.key).collect();
    assert_eq!(keys, ["a", "b", "c"]);
    assert_eq!(scene.store.scheduled_after(&scene.topic, Some(last[0].place()), 10).await.unwrap(), []);
}

/// Entries of the outbox are listed with their payloads, or without.
pub async fn outbox_lists_leave_out_payloads(case: &Case) {
    let outbox = Outbox::new(&case.open().await);
    let id = outbox.insert_returning_id(&NewEntry::new(Category::Event, "t", "Paid", "12")).await.unwrap();
    assert_eq!(outbox.list(10, |all| all).await.unwrap()[0].payload, "12");
    let without = outbox.list(10, OutboxSelection::without_payloads).await.unwrap();
    assert_eq!((without[0].id, without[0].payload.len()), (id, 0));
}

/// An act without an audit entry of its own is noted, a handle for another actor has that one in every entry, and older entries follow page by
/// page.
pub async fn acts_name_who_acts_for_whom(case: &Case) {
    let scene = case.queue().await;
    let ann = scene.store.acting_as("ann");
    let group = &scene.subscription.group;
    ann.pause(&scene.topic, group, Some("stock is counted")).await.unwrap();
    ann.note("create_topic", Some("orders"), None, &serde_json::json!({ "lanes": 4 })).await.unwrap();
    scene.store.resume(&scene.topic, group).await.unwrap();
    DeadLetters::new(&ann).redrive(&[]).await.unwrap();
    let relays = crate::relays::Relays::new(&ann);
    relays.add("r", "orders", "nats://h/s", "{}").await.unwrap();

    let newest = scene.store.audit(2).await.unwrap();
    let shown = |entries: &[crate::store::AuditEntry]| -> Vec<(String, bool)> {
        entries.iter().map(|entry| (entry.act.clone(), entry.actor == "ann")).collect()
    };
    assert_eq!(shown(&newest), [("add_relay".into(), true), ("resume".into(), false)]);
    let older = scene.store.audit_before(newest[1].audit_id, 10).await.unwrap();
    assert_eq!(shown(&older), [("create_topic".into(), true), ("pause".into(), true)]);
    assert_eq!(older[0].detail.replace(' ', ""), r#"{"lanes":4}"#);
    assert_eq!((older[0].topic.as_deref(), older[0].at), (Some("orders"), case.now()));

    let refused = ann.note("", None, None, &serde_json::json!({})).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    for detail in [serde_json::json!([]), serde_json::json!({ "a": "\0" })] {
        let refused = ann.note("act", None, None, &detail).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
    // Outside of the handle nothing stays of it.
    assert_eq!(acting(None, scene.store.audit(1)).await.unwrap()[0].act, "add_relay");
}
