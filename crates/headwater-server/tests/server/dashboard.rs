//! The pages of the dashboard: each renders with real data, is complete without scripts, and asks for nothing from elsewhere.

use std::time::Duration;

use headwater::outbox::NewEntry;
use headwater::process::{ProcessEvent, ProcessInstance, ProcessStatus};
use headwater::settle::Verdict;
use headwater::store::ParkedCommand;
use headwater::tokens::Scope;
use headwater::{NewMessage, Start};
use reqwest::StatusCode;

use crate::place::Place;
use crate::visitor::Visitor;

crate::on_both_stores!(
    every_page_renders_with_real_data,
    every_page_renders_in_an_empty_store,
    pages_run_nothing_inline_and_ask_for_nothing_from_elsewhere,
    hostile_names_and_payloads_stay_text,
    what_does_not_exist_is_a_page_that_says_so,
    messages_are_found_by_offset_time_key_and_id,
    lists_are_searched_sorted_and_paged_on_the_server,
    payloads_and_keys_are_hidden_without_the_scope_read,
    a_token_for_some_topics_sees_no_others,
    visitors_log_in_with_a_token_and_out_again,
    assets_are_kept_by_their_hash,
    a_store_marked_production_is_named_and_coloured,
    live_updates_bring_only_what_changed,
    live_updates_end_with_the_session,
);

/// What is in a store, for pages that need an id.
pub(crate) struct Filled {
    pub(crate) dead_letter: String,
    pub(crate) process: String,
    pub(crate) entry: i64,
}

/// Something of everything.
pub(crate) async fn fill(place: &Place) -> Filled {
    let headwater = &place.headwater;
    place.group("orders", "email").await;
    headwater.topic("news").pub_sub().create_if_missing().await.expect("a topic");
    headwater.groups("news").subscribe("feed", Start::Beginning).await.expect("a group");
    headwater.groups("news").pause_because("feed", "moving house").await.expect("paused");
    for n in 1..=3 {
        let message = NewMessage::new(format!(r#"{{"order":{n}}}"#))
            .key(format!("customer-{n}"))
            .message_type("OrderPlaced");
        headwater.producer("orders").send(message).await.expect("published");
    }
    headwater
        .producer("orders")
        .send("later")
        .key("customer-9")
        .delay(Duration::from_secs(3_600))
        .await
        .expect("scheduled");
    headwater.topics().advance_heads().await.expect("advanced");
    bury_one(place, "orders", "email", "recipient unknown").await;
    let dead_letter =
        headwater.dead_letters().list(1, |all| all).await.expect("listed")[0].dead_letter_id.to_string();
    headwater
        .dead_letters()
        .park(
            &ParkedCommand::new("7f3c", "ChargeCard", "{}", "worker")
                .error("CardDeclined", "insufficient funds"),
        )
        .await
        .expect("parked");
    let started = ProcessInstance::create("order", Some("o-17"), None);
    let started = headwater.processes().insert(&started, &started.started()).await.expect("started");
    let event = ProcessEvent::StepStarted { step: "reserve stock".into(), command_id: "c-1".into() };
    let running = started.with_status(ProcessStatus::Running).with_current_step("reserve stock");
    headwater.processes().update(&running, &event).await.expect("running");
    let entry = NewEntry::kafka_event("orders", "customer-1", "OrderCreated", r#"{"id":1}"#);
    let entry = headwater.outbox().insert_returning_id(&entry).await.expect("inserted");
    headwater
        .relays()
        .add("orders-kafka", "orders", "kafka://broker:9092/orders", "{}")
        .await
        .expect("a relay");
    headwater.bridge_positions().advance("legacy", "orders/0", None, 42).await.expect("a position");
    headwater.maintenance().run_once(&headwater::maintenance::Job::ALL).await.expect("maintained");
    Filled { dead_letter, process: started.id().to_string(), entry }
}

/// Claims the next message of a group and buries it.
pub(crate) async fn bury_one(place: &Place, topic: &str, group: &str, why: &str) {
    let mut consumer = place.headwater.consumer(topic, group).batch(1).open().await.expect("a consumer");
    let batch = consumer.next(crate::place::DEADLINE).await.expect("claimed").expect("one waits");
    batch.handle(|_, _| async { Verdict::Bury(why.to_owned()) }).await.expect("buried");
}

/// Every page, and a word that it must have.
fn pages(filled: &Filled) -> Vec<(String, &'static str)> {
    let Filled { dead_letter, process, entry } = filled;
    let fixed = [
        ("/", "Busiest topics"),
        ("/topics", "news"),
        ("/new-topic", "Create topic"),
        ("/topics/orders", "customer-3"),
        ("/topics/orders/groups", "email"),
        ("/topics/orders/subscribe", "Name of the group"),
        ("/topics/orders/publish", "Payload"),
        ("/topics/orders/settings", "Save settings"),
        ("/topics/orders/purge", "Remove all messages"),
        ("/topics/orders/delete", "Delete topic"),
        ("/topics/orders/messages/2", "State in each group"),
        ("/topics/orders/groups/email", "Position in the log"),
        ("/topics/orders/groups/email/seek?to=beginning", "handed out again"),
        ("/topics/news/groups/feed", "moving house"),
        ("/topics/news/groups/feed/resume", "Delivery starts again"),
        ("/groups", "feed"),
        ("/dead-letters", "recipient unknown"),
        ("/scheduled", "customer-9"),
        ("/processes", "o-17"),
        ("/outbox", "OrderCreated"),
        ("/pipeline", "No pipeline is connected"),
        ("/maintenance", "message cleanup"),
        ("/maintenance/doctor", "The store is sound"),
        ("/audit", "moving house"),
        ("/settings", "This store has no tokens"),
        ("/settings/new-token", "Create token"),
        ("/login", "API token"),
    ];
    let mut pages: Vec<_> = fixed.into_iter().map(|(path, word)| (path.to_owned(), word)).collect();
    pages.push((format!("/dead-letters/{dead_letter}"), "Edit and redrive"));
    pages.push((format!("/dead-letters/{dead_letter}/redrive"), "attempts reset"));
    pages.push((format!("/processes/{process}"), "Step reserve stock started"));
    pages.push((format!("/processes/{process}/pause"), "No further command is sent"));
    pages.push((format!("/outbox/{entry}"), "OrderCreated"));
    pages
}

async fn every_page_renders_with_real_data(place: &Place) {
    let filled = fill(place).await;
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    for (path, word) in pages(&filled) {
        let page = visitor.page(&path).await;
        assert!(page.contains(word), "{path} has no {word:?}:\n{page}");
        assert!(page.contains("<h1>") && page.contains("<title>"), "{path} has no heading");
    }
    server.end().await;
}

async fn every_page_renders_in_an_empty_store(place: &Place) {
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    for (path, word) in [
        ("/", "No topics yet"),
        ("/topics", "headwater publish"),
        ("/groups", "headwater consume"),
        ("/dead-letters", "No dead letters"),
        ("/scheduled", "Nothing is scheduled"),
        ("/processes", "No processes yet"),
        ("/outbox", "Nothing waits in the outbox"),
        ("/maintenance", "never ran"),
        ("/audit", "Nothing was changed yet"),
    ] {
        let page = visitor.page(path).await;
        assert!(page.contains(word), "{path} has no {word:?}:\n{page}");
    }
    server.end().await;
}

async fn pages_run_nothing_inline_and_ask_for_nothing_from_elsewhere(place: &Place) {
    let filled = fill(place).await;
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    for (path, _) in pages(&filled) {
        let response = visitor.get(&path).await;
        let policy = response.headers()["content-security-policy"].to_str().expect("text").to_owned();
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "frame-ancestors 'none'",
            "form-action 'self'",
        ] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(response.headers()["cache-control"], "no-store", "{path}");
        assert_eq!(response.headers()["x-content-type-options"], "nosniff", "{path}");
        let page = response.text().await.expect("a page");
        for attribute in ["src=\"", "href=\"", "action=\"", "formaction=\""] {
            for address in
                page.split(attribute).skip(1).map(|rest| rest.split('"').next().unwrap_or_default())
            {
                assert!(
                    address.starts_with('/') && !address.starts_with("//") || address.starts_with('#'),
                    "{path}: {address}"
                );
            }
        }
        for inline in [" style=\"", "<style", "<script>", " onclick=", " onload=", "javascript:"] {
            assert!(!page.contains(inline), "{path} has {inline}");
        }
    }
    server.end().await;
}

const HOSTILE: [&str; 5] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "..",
    "a/b?c#d%2F",
    "{{7*7}} ' \u{202e}",
];

async fn hostile_names_and_payloads_stay_text(place: &Place) {
    for name in HOSTILE {
        place.group(name, name).await;
        let message =
            NewMessage::new(HOSTILE[0]).key(HOSTILE[1]).message_type(HOSTILE[0]).header("x", HOSTILE[1]);
        place.headwater.producer(name).send(message.clone()).await.expect("published");
        place.headwater.producer(name).send(message.delay(Duration::from_secs(60))).await.expect("scheduled");
        bury_one(place, name, name, HOSTILE[1]).await;
        place.headwater.groups(name).pause_because(name, HOSTILE[0]).await.expect("paused");
    }
    let server = place.serve_with(|options| options.label.name = HOSTILE[0].into()).await;
    let visitor = Visitor::new(&server);
    let mut paths: Vec<String> =
        ["/", "/topics", "/groups", "/dead-letters", "/scheduled", "/audit", "/maintenance", "/settings"]
            .map(String::from)
            .into();
    for name in HOSTILE {
        let topic = visitor.link("/topics", name).await;
        let group = visitor.link("/groups", name).await;
        paths.extend([
            format!("{topic}/settings"),
            format!("{topic}/messages/1"),
            format!("{topic}/publish"),
            format!("{group}/seek?to=now"),
        ]);
        paths.extend([topic, group]);
    }
    for dead_letter in place.headwater.dead_letters().list(10, |all| all).await.expect("listed") {
        paths.push(format!("/dead-letters/{}", dead_letter.dead_letter_id));
    }
    for path in paths {
        let page = visitor.page(&path).await;
        for element in ["<script>alert", "<img"] {
            assert!(!page.contains(element), "{path} has {element}:\n{page}");
        }
    }
    server.end().await;
}

async fn what_does_not_exist_is_a_page_that_says_so(place: &Place) {
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    place.group("orders", "email").await;
    for path in [
        "/topics/missing",
        "/topics/missing/settings",
        "/topics/orders/groups/missing",
        "/topics/orders/groups/email/explode",
        "/dead-letters/00000000-0000-7000-8000-000000000000",
        "/processes/00000000-0000-7000-8000-000000000000",
        "/outbox/99",
        "/no-such-page",
    ] {
        let response = visitor.get(path).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
        assert!(
            response.headers()["content-type"].to_str().expect("text").starts_with("text/html"),
            "{path}"
        );
        assert!(response.text().await.expect("a page").contains("Go to the overview"), "{path}");
    }
    server.end().await;
}

async fn messages_are_found_by_offset_time_key_and_id(place: &Place) {
    place.group("orders", "email").await;
    let mut last = None;
    for n in 1..=120 {
        let message = NewMessage::new(format!("payload {n}.")).key(format!("key-{}", n % 40));
        last = Some(place.headwater.producer("orders").send(message).await.expect("published"));
    }
    place.headwater.topics().advance_heads().await.expect("advanced");
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    let found = async |query: &str| {
        let page = visitor.page(&format!("/topics/orders{query}")).await;
        let offsets = page.split("<span class=\"offset\">").skip(1);
        offsets.map(|rest| rest.split('<').next().expect("a number").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(found("").await[..2], ["120", "119"]);
    assert_eq!(found("").await.len(), 50);
    assert_eq!(found("?by=newest&before=71").await[..2], ["70", "69"]);
    assert_eq!(found("?by=offset&value=100").await[0], "100");
    assert_eq!(found("?by=key&value=key-7").await, ["87", "47", "7"]);
    let id = last.expect("published").message_id;
    assert_eq!(found(&format!("?by=id&value={id}")).await, ["120"]);
    assert_eq!(found("?by=time&value=2020-01-01T00:00:00Z").await[0], "1");
    assert!(found("?by=key&value=none").await.is_empty());
    for wrong in ["?by=offset&value=x", "?by=id&value=x", "?by=time&value=x", "?by=nothing&value=1"] {
        assert!(visitor.page(&format!("/topics/orders{wrong}")).await.contains("role=\"alert\""), "{wrong}");
    }
    assert_eq!(
        place.headwater.groups("orders").get("email").await.expect("there").status.lag,
        120,
        "nothing is consumed"
    );
    server.end().await;
}

async fn lists_are_searched_sorted_and_paged_on_the_server(place: &Place) {
    for n in 0..120 {
        place.group(&format!("topic-{n:03}"), &format!("group-{n:03}")).await;
    }
    place.headwater.producer("topic-077").send(&1).await.expect("published");
    place.headwater.topics().advance_heads().await.expect("advanced");
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    let rows = async |path: &str| visitor.page(path).await.matches("<tr data-key=").count();
    assert_eq!(
        (rows("/topics").await, rows("/topics?page=3").await, rows("/topics?page=99").await),
        (50, 20, 20)
    );
    assert_eq!((rows("/topics?q=TOPIC-07").await, rows("/topics?q=nothing").await), (10, 0));
    assert_eq!((rows("/groups?q=group-00").await, rows("/groups?state=paused").await), (10, 0));
    let page = visitor.page("/groups?sort=lag").await;
    assert!(
        page.split("<tr data-key=").nth(1).expect("a row").contains("group-077"),
        "the one with lag is first"
    );
    server.end().await;
}

async fn payloads_and_keys_are_hidden_without_the_scope_read(place: &Place) {
    fill(place).await;
    let publisher = place.token("publisher", &[Scope::Publish], &[]).await;
    let reader = place.token("reader", &[Scope::Read], &[]).await;
    let server = place.serve().await;
    let (mut blind, mut seeing) = (Visitor::new(&server), Visitor::new(&server));
    blind.log_in(&publisher).await;
    seeing.log_in(&reader).await;
    for path in ["/topics/orders", "/dead-letters", "/scheduled"] {
        assert!(seeing.page(path).await.contains("customer-"), "{path}");
        let page = blind.page(path).await;
        assert!(!page.contains("customer-") && !page.contains("order&quot;"), "{path}:\n{page}");
    }
    assert_eq!(blind.get("/topics/orders/messages/1").await.status(), StatusCode::FORBIDDEN);
    assert_eq!(seeing.get("/audit").await.status(), StatusCode::FORBIDDEN);
    assert!(
        !seeing.page("/topics/orders/groups/email").await.contains("email/pause"),
        "no action that it may not do"
    );
    server.end().await;
}

async fn a_token_for_some_topics_sees_no_others(place: &Place) {
    for topic in ["shop.orders", "bank.accounts"] {
        place.group(topic, "reader").await;
        place.headwater.producer(topic).send(&1).await.expect("published");
        bury_one(place, topic, "reader", &format!("{topic} failed")).await;
    }
    let token = place.token("shop", &[Scope::Read], &["shop.*"]).await;
    let server = place.serve().await;
    let mut visitor = Visitor::new(&server);
    visitor.log_in(&token).await;
    for path in ["/", "/topics", "/groups", "/dead-letters"] {
        let page = visitor.page(path).await;
        assert!(page.contains("shop.orders") && !page.contains("bank"), "{path}:\n{page}");
    }
    for path in ["/topics/bank.accounts", "/topics/bank.accounts/groups/reader", "/processes", "/outbox"] {
        assert_eq!(visitor.get(path).await.status(), StatusCode::FORBIDDEN, "{path}");
    }
    server.end().await;
}

async fn visitors_log_in_with_a_token_and_out_again(place: &Place) {
    let token = place.token("ann", &[Scope::Read, Scope::Admin], &[]).await;
    let server = place.serve().await;
    let mut visitor = Visitor::new(&server);
    let response = visitor.get("/topics?q=x").await;
    assert_eq!(response.status(), StatusCode::SEE_OTHER);
    assert_eq!(response.headers()["location"], "/login?next=%2Ftopics%3Fq%3Dx");
    let refused = visitor.post_plain("/login", &[("token", &format!("{token}0")), ("next", "/topics")]).await;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    let page = refused.text().await.expect("a page");
    assert!(page.contains("not valid") && !page.contains(&token), "{page}");
    for (next, leads_to) in [("/topics", "/topics"), ("https://evil.example/", "/"), ("//evil.example", "/")]
    {
        let response = visitor.post_plain("/login", &[("token", &token), ("next", next)]).await;
        assert_eq!(response.status(), StatusCode::SEE_OTHER);
        assert_eq!(response.headers()["location"], leads_to);
    }
    visitor.log_in(&token).await;
    let page = visitor.page("/topics").await;
    assert!(page.contains("token ann") && page.contains("Log out") && !page.contains(&token), "{page}");
    assert_eq!(visitor.post("/logout", "/topics", &[]).await.status(), StatusCode::SEE_OTHER);
    assert_eq!(visitor.get("/topics").await.status(), StatusCode::SEE_OTHER, "the session has ended");
    server.end().await;
}

async fn assets_are_kept_by_their_hash(place: &Place) {
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    let page = visitor.page("/").await;
    let assets: Vec<&str> = page.split('"').filter(|text| text.starts_with("/assets/")).collect();
    assert!(assets.len() >= 7, "{assets:?}");
    for asset in assets {
        let response = visitor.get(asset).await;
        assert_eq!(response.status(), StatusCode::OK, "{asset}");
        assert!(response.headers()["cache-control"].to_str().expect("text").contains("immutable"), "{asset}");
    }
    let old = visitor.get("/assets/0123/app.js").await;
    assert_eq!(old.status(), StatusCode::OK);
    assert_eq!(old.headers()["cache-control"], "no-store");
    for missing in ["/assets/0123/none.js", "/assets/0123/..%2f..%2fCargo.toml"] {
        assert_eq!(visitor.get(missing).await.status(), StatusCode::NOT_FOUND, "{missing}");
    }
    server.end().await;
}

async fn a_store_marked_production_is_named_and_coloured(place: &Place) {
    for production in [false, true] {
        let server = place
            .serve_with(|options| {
                options.label.name = "orders on db1".into();
                options.label.production = production;
            })
            .await;
        let page = Visitor::new(&server).page("/topics").await;
        assert!(
            page.contains("orders on db1") && page.contains("<title>Topics · orders on db1</title>"),
            "{page}"
        );
        assert_eq!(page.contains("is-production"), production);
        server.end().await;
    }
}

async fn live_updates_bring_only_what_changed(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    let mut live = visitor.live("/topics/orders").await;
    let first = live.event().await;
    assert!(
        first.contains("event: fragments") && first.contains("\"tiles\"") && first.contains("\"messages\""),
        "{first}"
    );
    place.headwater.producer("orders").send(NewMessage::new("<b>fresh</b>")).await.expect("published");
    place.headwater.topics().advance_heads().await.expect("advanced");
    let mut changed = live.event().await;
    while !changed.contains("fresh") {
        changed = live.event().await;
    }
    assert!(changed.contains("&lt;b&gt;fresh"), "{changed}");
    assert!(!changed.contains("<html") && !changed.contains("\"issues\""), "only what changed: {changed}");
    for wrong in ["/live", "/live?page=https://evil.example/", "/live?page=topics"] {
        assert_eq!(visitor.get(wrong).await.status(), StatusCode::BAD_REQUEST, "{wrong}");
    }
    let mut gone = visitor.live("/topics/missing").await;
    assert!(gone.event().await.contains("event: end"));
    server.end().await;
}

async fn live_updates_end_with_the_session(place: &Place) {
    let token = place.token("ann", &[Scope::Read, Scope::Admin], &[]).await;
    let server = place.serve().await;
    let mut visitor = Visitor::new(&server);
    visitor.log_in(&token).await;
    let mut live = visitor.live("/topics").await;
    assert!(live.event().await.contains("event: fragments"));
    visitor.post("/logout", "/topics", &[]).await;
    let mut event = live.event().await;
    while event.contains("event: fragments") {
        event = live.event().await;
    }
    assert!(event.contains("event: end"), "{event}");
    server.end().await;
}
