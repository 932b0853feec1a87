//! Actions of the dashboard, by forms: each does what it says, in the name of the caller.

use std::time::Duration;

use headwater::process::ProcessStatus;
use headwater::settle::Verdict;
use headwater::tokens::Scope;
use headwater::topic::Removal;
use headwater::{NewMessage, Start, SubscriptionState};
use reqwest::StatusCode;

use crate::dashboard::{bury_one, fill};
use crate::place::Place;
use crate::visitor::Visitor;

crate::on_both_stores!(
    topics_are_created_changed_emptied_and_deleted,
    messages_are_published_as_they_were_written,
    groups_are_subscribed_paused_resumed_cancelled_and_removed,
    a_seek_shows_its_effect_before_it_has_one,
    a_delivery_policy_is_changed_and_taken_back,
    single_messages_are_skipped_buried_retried_and_leases_released,
    dead_letters_are_redriven_edited_and_purged,
    scheduled_messages_are_moved_and_cancelled,
    processes_are_paused_resumed_and_ended,
    parked_entries_of_the_outbox_are_sent_again,
    maintenance_jobs_run_on_demand,
    tokens_are_created_rotated_and_revoked,
    the_audit_names_the_token_that_acted,
);

const ORDERS: &str = "/topics/orders";
const EMAIL: &str = "/topics/orders/groups/email";

async fn topics_are_created_changed_emptied_and_deleted(place: &Place) {
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    let form = [("name", " orders "), ("preset", "standard"), ("ordered", "yes")];
    visitor.does("/new-topic", "/topics", &form, "orders created").await;
    let topics = place.headwater.topics();
    let created = topics.get("orders").await.expect("created").settings;
    assert_eq!((created.semantics.as_str(), created.ordering.as_str()), ("pub_sub", "key"));
    visitor.is_refused("/new-topic", "/topics", &[("name", ""), ("preset", "queue")], "topic").await;

    let settings = format!("{ORDERS}/settings");
    let dry_run = visitor.page(&format!("{settings}?max_attempts=3&lease_ms=30s")).await;
    assert!(dry_run.contains("This would change") && dry_run.contains("5m → <b>30s</b>"), "{dry_run}");
    assert_eq!(topics.get("orders").await.expect("there").settings, created, "a dry run changes nothing");
    let form = [("max_attempts", "3"), ("lease_ms", "30s"), ("message_retention_ms", "forever")];
    visitor.does(&settings, &settings, &form, "Lease: 5m → 30s").await;
    let changed = topics.get("orders").await.expect("there").settings;
    assert_eq!(
        (changed.max_attempts, changed.lease, changed.message_retention),
        (3, Duration::from_secs(30), None)
    );
    visitor.is_refused(&settings, &settings, &[("lease_ms", "soon")], "lease").await;

    place.headwater.groups("orders").subscribe("email", Start::Beginning).await.expect("subscribed");
    place.headwater.producer("orders").send(&1).await.expect("published");
    let purge = format!("{ORDERS}/purge");
    visitor.is_refused(&purge, &purge, &[("typed", "order")], "not typed").await;
    assert_eq!(topics.purge("orders", Removal::DryRun).await.expect("counted").messages, 1);
    visitor.does(&purge, &purge, &[("typed", "orders")], "1 message removed").await;
    let delete = format!("{ORDERS}/delete");
    visitor.does(&delete, &delete, &[("typed", "orders")], "orders deleted").await;
    assert!(topics.list().await.expect("listed").is_empty());
    server.end().await;
}

async fn messages_are_published_as_they_were_written(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    let publish = format!("{ORDERS}/publish");
    let form = [
        ("payload", "{\"a\":\r\n 1.50}"),
        ("key", "k-1"),
        ("type", "OrderPlaced"),
        ("headers", "region: eu\ntrace: a:b"),
        ("dedup_key", "d"),
    ];
    visitor.does(&publish, &publish, &form, "Published at offset 1").await;
    visitor.does(&publish, &publish, &form, "offset 1 has this dedup key").await;
    visitor.does(&publish, &publish, &[("payload", "x"), ("delay", "1h")], "Scheduled").await;
    visitor.is_refused(&publish, &publish, &[("payload", "x"), ("delay", "soon")], "delay").await;
    let stored = place.headwater.published("orders").await.expect("read");
    assert_eq!(stored.len(), 1);
    let message = &stored[0];
    assert_eq!((&message.payload[..], message.key.as_deref()), (&b"{\"a\":\n 1.50}"[..], Some("k-1")));
    assert_eq!(
        (message.message_type.as_deref(), message.headers["trace"].as_str()),
        (Some("OrderPlaced"), "a:b")
    );
    let missing = visitor.post("/topics/none/publish", &publish, &[("payload", "x")]).await;
    assert_eq!(missing.status(), StatusCode::SEE_OTHER);
    assert!(place.headwater.topics().get("none").await.is_err(), "a typing error creates no topic");
    server.end().await;
}

async fn groups_are_subscribed_paused_resumed_cancelled_and_removed(place: &Place) {
    place.headwater.topic("orders").create().await.expect("a topic");
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    let groups = place.headwater.groups("orders");
    let state = async || groups.get("email").await.expect("there").status;
    let form = [("group", "email"), ("to", "beginning")];
    visitor.does("/topics/orders/subscribe", "/topics/orders/groups", &form, "email is subscribed").await;
    let act = |act: &str| format!("{EMAIL}/{act}");
    visitor.does(&act("pause"), &act("pause"), &[("reason", "the <bank> is down")], "is paused").await;
    let paused = state().await;
    assert_eq!(
        (paused.state, paused.state_reason.as_deref()),
        (SubscriptionState::Paused, Some("the <bank> is down"))
    );
    assert!(visitor.page(EMAIL).await.contains("the &lt;bank&gt; is down"));
    visitor.is_refused(&act("pause"), &act("pause"), &[], "invalid transition").await;
    visitor.does(&act("resume"), &act("resume"), &[], "active again").await;
    assert_eq!(state().await.state, SubscriptionState::Active);
    visitor.is_refused(&act("resurrect"), &act("remove"), &[], "only a cancelled group").await;
    visitor.does(&act("cancel"), &act("cancel"), &[], "cancelled").await;
    assert_eq!(state().await.state, SubscriptionState::Cancelled);
    visitor.does(&act("remove"), &act("remove"), &[], "removed").await;
    assert!(groups.list().await.expect("listed").is_empty());
    server.end().await;
}

async fn a_seek_shows_its_effect_before_it_has_one(place: &Place) {
    place.group("orders", "email").await;
    for n in 0..5 {
        place.headwater.producer("orders").send(&n).await.expect("published");
    }
    let mut consumer = place.headwater.consumer("orders", "email").open().await.expect("a consumer");
    let batch = consumer.next(crate::place::DEADLINE).await.expect("claimed").expect("five wait");
    batch.ack().await.expect("acked");
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    let seek = format!("{EMAIL}/seek");
    let dry_run = visitor.page(&format!("{seek}?to=offset&value=3")).await;
    assert!(dry_run.contains("3 messages are handed out again although done"), "{dry_run}");
    let lag = async || place.headwater.groups("orders").get("email").await.expect("there").status.lag;
    assert_eq!(lag().await, 0, "a dry run changes nothing");
    visitor.does(&seek, &seek, &[("to", "offset"), ("value", "3")], "3 messages are handed out again").await;
    assert_eq!(lag().await, 3);
    visitor.is_refused(&seek, &seek, &[("to", "offset"), ("value", "")], "value").await;
    visitor.is_refused(&seek, &seek, &[("to", "offset"), ("value", "999")], "offset").await;
    assert!(visitor.page(&format!("{seek}?to=offset&value=999")).await.contains("This would be refused"));
    server.end().await;
}

async fn a_delivery_policy_is_changed_and_taken_back(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    let policy = format!("{EMAIL}/policy");
    let groups = place.headwater.groups("orders");
    visitor.does(&policy, &policy, &[("lease", "90s"), ("max_attempts", "2")], "is changed").await;
    let changed = groups.policy("email").await.expect("a policy");
    assert_eq!(
        (changed.lease, changed.max_attempts, changed.backoff_max),
        (Some(Duration::from_secs(90)), Some(2), None)
    );
    visitor.is_refused(&policy, &policy, &[("max_attempts", "0")], "max_attempts").await;
    visitor.does(&policy, &policy, &[], "is changed").await;
    assert_eq!(groups.policy("email").await.expect("a policy"), headwater::DeliveryPolicy::default());
    server.end().await;
}

async fn single_messages_are_skipped_buried_retried_and_leases_released(place: &Place) {
    place.group("orders", "email").await;
    for n in 1..=4 {
        place.headwater.producer("orders").send(NewMessage::new(format!("{n}"))).await.expect("published");
    }
    let mut consumer = place.headwater.consumer("orders", "email").batch(1).open().await.expect("a consumer");
    let batch = consumer.next(crate::place::DEADLINE).await.expect("claimed").expect("one waits");
    let later = Duration::from_secs(3_600);
    batch.handle(|_, _| async move { Verdict::RetryAfter(later, "closed".into()) }).await.expect("retried");
    let held = consumer.next(crate::place::DEADLINE).await.expect("claimed").expect("another waits");
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    let groups = place.headwater.groups("orders");
    let state = async |offset: i64| {
        groups.message(headwater::Offset(offset)).await.expect("stored").groups[0].1.as_str().to_owned()
    };
    assert_eq!((state(1).await, state(2).await), ("waiting".into(), "leased".into()));
    assert!(visitor.page(EMAIL).await.contains("closed"));
    let of = |offset: i64, act: &str| format!("{ORDERS}/messages/{offset}/{act}");
    let form = [("group", "email"), ("from", EMAIL)];
    visitor.does(EMAIL, &of(1, "retry"), &form, "Retrying offset 1").await;
    visitor.does(EMAIL, &of(3, "skip"), &form, "Skipped offset 3").await;
    visitor.does(EMAIL, &of(4, "bury"), &form, "Buried offset 4").await;
    assert_eq!((state(3).await, state(4).await), ("done".into(), "buried".into()));
    visitor.is_refused(EMAIL, &of(2, "skip"), &form, "is leased").await;
    let token = groups
        .outstanding("email", 10)
        .await
        .expect("listed")
        .iter()
        .find_map(|range| range.token)
        .expect("a lease")
        .0
        .to_string();
    visitor.does(EMAIL, &format!("{EMAIL}/release"), &[("token", &token)], "lease is ended").await;
    assert_eq!(state(2).await, "waiting");
    drop(held);
    server.end().await;
}

async fn dead_letters_are_redriven_edited_and_purged(place: &Place) {
    place.group("orders", "email").await;
    for n in 1..=4 {
        place
            .headwater
            .producer("orders")
            .send(NewMessage::new(format!("{n}")).key("k"))
            .await
            .expect("published");
        bury_one(place, "orders", "email", &format!("error {n}")).await;
    }
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    let dead_letters = place.headwater.dead_letters();
    let ids: Vec<String> = dead_letters
        .list(10, |all| all)
        .await
        .expect("listed")
        .iter()
        .map(|one| one.dead_letter_id.to_string())
        .collect();
    let page = |at: usize| format!("/dead-letters/{}", ids[at]);
    visitor.does(&page(0), &format!("{}/redrive", page(0)), &[], "1 dead letter redriven").await;
    visitor.does(&page(1), &format!("{}/purge", page(1)), &[], "1 dead letter purged").await;
    visitor
        .does(
            &page(2),
            &format!("{}/edit", page(2)),
            &[("payload", "{\"n\": 30}"), ("key", "k2")],
            "Edited copy published to orders",
        )
        .await;
    assert_eq!(visitor.get(&page(0)).await.status(), StatusCode::NOT_FOUND);
    let left = dead_letters.list(10, |all| all).await.expect("listed");
    assert_eq!((left.len(), left[0].dead_letter_id.to_string()), (1, ids[3].clone()));
    let edited = place.headwater.published("orders").await.expect("read").pop().expect("a copy");
    assert_eq!((&edited.payload[..], edited.key.as_deref()), (&b"{\"n\": 30}"[..], Some("k2")));

    let question =
        visitor.page(&format!("/dead-letters/act?act=purge&from=%2Fdead-letters&id={}", ids[3])).await;
    assert!(question.contains("Purge 1 dead letter") && question.contains(&ids[3]), "{question}");
    assert_eq!(
        dead_letters.list(10, |all| all).await.expect("listed").len(),
        1,
        "a question changes nothing"
    );
    let form = [("id", ids[3].as_str()), ("act", "purge"), ("from", "/dead-letters")];
    visitor.does("/new-topic", "/dead-letters/act", &form, "1 dead letter purged").await;
    visitor.is_refused("/new-topic", "/dead-letters/act", &[("id", "x"), ("act", "purge")], "id").await;
    assert!(dead_letters.list(10, |all| all).await.expect("listed").is_empty());
    server.end().await;
}

async fn scheduled_messages_are_moved_and_cancelled(place: &Place) {
    place.group("orders", "email").await;
    let hour = Duration::from_secs(3_600);
    let mut ids = Vec::new();
    for key in ["moved", "cancelled"] {
        ids.push(
            place
                .headwater
                .producer("orders")
                .send(&1)
                .key(key)
                .delay(hour)
                .await
                .expect("scheduled")
                .message_id,
        );
    }
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    let act = |at: usize, act: &str| format!("{ORDERS}/scheduled/{}/{act}", ids[at]);
    let scheduled = place.headwater.scheduled("orders");
    visitor.does(&act(1, "cancel"), &act(1, "cancel"), &[], "is cancelled").await;
    visitor.is_refused(&act(1, "cancel"), &act(1, "cancel"), &[], "delivered meanwhile").await;
    visitor.does(&act(0, "move"), &act(0, "move"), &[("delay", "2d")], "is moved").await;
    visitor
        .is_refused(
            &act(0, "move"),
            &act(0, "move"),
            &[("delay", "2d"), ("at", "2030-01-01T00:00:00Z")],
            "either",
        )
        .await;
    let at = headwater::jiff::Timestamp::now() + Duration::from_secs(100 * 86_400);
    let at = at.strftime("%FT%H:%M").to_string();
    visitor.does(&act(0, "move"), &act(0, "move"), &[("at", &at)], "is moved").await;
    let left = scheduled.list(10).await.expect("listed");
    assert_eq!((left.len(), left[0].deliver_at.strftime("%FT%H:%M").to_string()), (1, at));
    server.end().await;
}

async fn processes_are_paused_resumed_and_ended(place: &Place) {
    let filled = fill(place).await;
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    let page = format!("/processes/{}", filled.process);
    let act = |act: &str| format!("{page}/{act}");
    let status = async || {
        place
            .headwater
            .processes()
            .find_by_id(filled.process.parse().expect("an id"))
            .await
            .expect("read")
            .expect("there")
            .status()
    };
    place.headwater.topic("process.order").create_if_missing().await.expect("a topic");
    visitor.does(&act("pause"), &act("pause"), &[("reason", "stock is counted")], "is paused").await;
    assert_eq!(status().await, ProcessStatus::Paused);
    let shown = visitor.page(&page).await;
    assert!(shown.contains("Paused by anonymous") && shown.contains("stock is counted"), "{shown}");
    visitor.does(&act("resume"), &act("resume"), &[], "is resumed").await;
    assert_eq!(status().await, ProcessStatus::Running);
    visitor.is_refused(&act("retry"), &act("retry"), &[], "nothing of it waits").await;
    visitor.does(&act("fail"), &act("fail"), &[("reason", "not wanted")], "ended as failed").await;
    assert_eq!(status().await, ProcessStatus::Failed);
    visitor.is_refused(&act("pause"), &act("pause"), &[], "").await;
    server.end().await;
}

async fn parked_entries_of_the_outbox_are_sent_again(place: &Place) {
    let id = fill(place).await.entry;
    let outbox = place.headwater.outbox().max_attempts(1);
    outbox.sweep_batch(10, "relay").await.expect("swept");
    outbox.mark_failed(id, "relay", "broker away", Duration::ZERO).await.expect("parked");
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    let page = format!("/outbox/{id}");
    assert!(visitor.page(&page).await.contains("broker away"));
    let requeue = format!("{page}/requeue");
    visitor.does(&requeue, &requeue, &[], "new again").await;
    let entry = outbox.show(id).await.expect("read").expect("there");
    assert_eq!((entry.status.as_str(), entry.attempts), ("NEW", 0));
    visitor.is_refused(&requeue, &requeue, &[], "nothing was changed").await;
    server.end().await;
}

async fn maintenance_jobs_run_on_demand(place: &Place) {
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    visitor.does("/maintenance", "/maintenance/run", &[("job", "heads")], "Job heads ran").await;
    visitor.does("/maintenance", "/maintenance/run", &[("job", "all")], "9 jobs ran").await;
    visitor.is_refused("/maintenance", "/maintenance/run", &[("job", "x")], "no such job").await;
    assert_eq!(place.headwater.maintenance().status().await.expect("read").len(), 9);
    server.end().await;
}

async fn tokens_are_created_rotated_and_revoked(place: &Place) {
    let server = place.serve().await;
    let mut visitor = Visitor::new(&server);
    let form = [("name", "root"), ("scope", "admin"), ("scope", "read"), ("topics", ""), ("expires", "90d")];
    let response = visitor.post("/settings/tokens", "/settings/new-token", &form).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["cache-control"], "no-store");
    let secret = secret_of(&response.text().await.expect("a page"));
    assert_eq!(
        visitor.get("/settings").await.status(),
        StatusCode::SEE_OTHER,
        "with the first token a visitor needs one"
    );
    visitor.log_in(&secret).await;
    let page = visitor.page("/settings").await;
    assert!(page.contains("root") && !page.contains(&secret), "it is shown once");
    let token = place.headwater.tokens().list().await.expect("listed").remove(0);
    assert_eq!(
        (token.scopes.len(), token.topics, token.expires_at.is_some()),
        (2, vec!["*".to_owned()], true)
    );
    visitor.is_refused("/settings/new-token", "/settings/tokens", &[("name", "none")], "scope").await;

    let rotate = format!("/settings/tokens/{}/rotate", token.id);
    let response = visitor.post(&rotate, &rotate, &[("grace", "1h")]).await;
    let rotated = secret_of(&response.text().await.expect("a page"));
    assert_ne!(rotated, secret);
    visitor.log_in(&rotated).await;
    let revoke = format!("/settings/tokens/{}/revoke", token.id);
    let response = visitor.post(&revoke, &revoke, &[]).await;
    assert_eq!(response.status(), StatusCode::SEE_OTHER);
    assert!(place.headwater.tokens().list().await.expect("listed").is_empty());
    server.end().await;
}

fn secret_of(page: &str) -> String {
    let (_, rest) = page.split_once("id=\"secret\">").unwrap_or_else(|| panic!("no secret:\n{page}"));
    rest.split('<').next().expect("its end").to_owned()
}

async fn the_audit_names_the_token_that_acted(place: &Place) {
    place.group("orders", "email").await;
    let token = place.token("ann", &[Scope::Admin, Scope::Read], &[]).await;
    let server = place.serve().await;
    let mut visitor = Visitor::new(&server);
    visitor.log_in(&token).await;
    let pause = format!("{EMAIL}/pause");
    visitor.does(&pause, &pause, &[], "is paused").await;
    let audit = place.audit().await;
    assert_eq!((audit[0].actor.as_str(), audit[0].act.as_str()), ("token ann", "pause"));
    let page = visitor.page("/audit?q=pause").await;
    assert!(page.contains("token ann") && page.contains("from active"), "{page}");
    server.end().await;
}
