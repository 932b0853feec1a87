//! Bad input is refused by name with nothing written; strange but legal input is harmless.

use std::collections::BTreeMap;

use super::case::{Case, Scene, bury, failed, group, offsets_of, owner, payloads_of, retry, topic};
use crate::backfill::BackfillLimits;
use crate::error::{Error, ErrorKind};
use crate::limits::{HEADER_VALUE_BYTES_MAX, HEADERS_MAX, PAYLOAD_BYTES_MAX};
use crate::message::NewMessage;
use crate::name::{GroupName, Owner, TopicName};
use crate::subscription::Start;
use crate::topic::{Ordering, TopicSettings};

/// Names that are not allowed, and a word of the rule that each breaks.
fn bad_names() -> Vec<(String, &'static str)> {
    vec![
        (String::new(), "empty"),
        ("x".repeat(256), "256 bytes"),
        ("ü".repeat(128), "256 bytes"),
        ("nul\0inside".into(), "U+0000"),
        ("line\nbreak".into(), "U+000A"),
        ("tab\t".into(), "U+0009"),
        ("\u{7f}".into(), "U+007F"),
        ("c1 \u{9b} control".into(), "U+009B"),
    ]
}

/// Names that try to inject, or are merely strange.
fn strange_names() -> Vec<String> {
    [
        "Robert'); DROP TABLE message;--",
        "\"; DROP SCHEMA headwater CASCADE; --",
        "' OR '1'='1",
        "$1 $$ :name @p ?1 %s {} ${jndi:ldap://x}",
        "back\\slash \\' \\\" \\0 \\x00",
        "größe 日本語 العربية",
        "🌊🔥👩‍👩‍👧‍👦",
        "a\u{200d}\u{feff}\u{202e}b",
        "e\u{301} is not é",
        " leading and trailing ",
        "null",
        "NULL",
        "%_*?[a-z]",
        "/../../etc/passwd",
        "<script>alert(1)</script>",
    ]
    .map(str::to_owned)
    .into_iter()
    .chain(["x".repeat(255)])
    .collect()
}

/// Topic, group and owner names never reach a store unchecked: their types refuse them.
pub async fn bad_names_are_refused_by_name(case: &Case) {
    for (name, rule) in bad_names() {
        let refusals = [
            ("topic", failed(TopicName::new(name.clone()), ErrorKind::InvalidInput)),
            ("group", failed(GroupName::new(name.clone()), ErrorKind::InvalidInput)),
            ("owner", failed(Owner::new(name.clone()), ErrorKind::InvalidInput)),
        ];
        for (field, error) in refusals {
            let text = error.to_string();
            assert!(text.contains(field) && text.contains(rule), "{field}, {rule}: {text}");
            assert!(!error.is_retryable());
        }
    }
    assert_eq!(case.open().await.topics().await.unwrap(), []);
}

/// Every text of a message is checked; nothing of the batch is written.
pub async fn bad_fields_of_a_message_are_refused_by_name(case: &Case) {
    let scene = case.queue().await;
    let good = || NewMessage::new("good");
    for (name, rule) in bad_names() {
        for (field, bad) in [
            ("key", good().key(name.clone())),
            ("header name", good().header(name.clone(), "value")),
            ("type", good().message_type(name.clone())),
            ("content_type", good().content_type(name.clone())),
            ("correlation_id", good().correlation_id(name.clone())),
            ("dedup_key", good().dedup_key(name.clone())),
        ] {
            let error =
                failed(scene.store.publish(&scene.topic, &[good(), bad]).await, ErrorKind::InvalidInput);
            let text = error.to_string();
            assert!(text.contains(field) && text.contains(rule), "{field}, {rule}: {text}");
        }
    }
    let too_many: BTreeMap<_, _> = (0..=HEADERS_MAX).map(|n| (n.to_string(), String::new())).collect();
    for (text, bad) in [
        ("129 headers", NewMessage { headers: too_many, ..good() }),
        ("header h", good().header("h", "x".repeat(HEADER_VALUE_BYTES_MAX + 1))),
        ("header h", good().header("h", "nul \0")),
    ] {
        let error = failed(scene.store.publish(&scene.topic, &[bad]).await, ErrorKind::InvalidInput);
        assert!(error.to_string().contains(text), "{error}");
    }
    assert_eq!(scene.fetch_range(1, 1_000).await, []);
    assert_eq!(scene.publish(1).await.len(), 1);
    assert_eq!(payloads_of(&scene.drain("a").await), ["1"]);
}

/// A payload over the topic's limit is refused with both sizes, and nothing is written. A payload at the limit is
/// fine.
pub async fn a_payload_over_the_topics_limit_is_refused(case: &Case) {
    let scene = case.scene(TopicSettings { payload_bytes_max: 1_000, ..TopicSettings::default() }).await;
    let over = NewMessage::new(vec![b'x'; 1_001]);
    let error = failed(
        scene.store.publish(&scene.topic, std::slice::from_ref(&over)).await,
        ErrorKind::PayloadTooLarge,
    );
    let text = error.to_string();
    for part in ["1001", "1000", "orders"] {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
    let in_transaction = case.harness().publish_in_transaction(&scene.topic, &[over], true).await;
    failed(in_transaction, ErrorKind::PayloadTooLarge);
    let json = format!("\"{}\"", "x".repeat(1_000));
    assert!(
        case.harness().publish_by_sql(&scene.topic, &json, None, true).await.is_err(),
        "plain SQL keeps the limit too"
    );
    assert_eq!(scene.fetch_range(1, 1_000).await, []);
    scene.publish_all(&[NewMessage::new(vec![b'x'; 1_000])]).await;
    assert_eq!(scene.drain("a").await[0].payload.len(), 1_000);
}

/// A payload over the hard limit is refused, even where the topic allows the maximum.
pub async fn a_payload_over_the_hard_limit_is_refused(case: &Case) {
    let settings = TopicSettings { payload_bytes_max: PAYLOAD_BYTES_MAX, ..TopicSettings::default() };
    let scene = case.scene(settings).await;
    let over = NewMessage::new(vec![0; PAYLOAD_BYTES_MAX + 1]);
    let error = failed(scene.store.publish(&scene.topic, &[over]).await, ErrorKind::PayloadTooLarge);
    assert!(error.to_string().contains("67108865") && error.to_string().contains("67108864"), "{error}");
    assert_eq!(scene.fetch_range(1, 1_000).await, []);
}

/// Plain SQL follows the rules for keys and headers, and nothing refused is stored.
pub async fn plain_sql_keeps_the_rules(case: &Case) {
    let scene = case.queue().await;
    for (bad, rule) in bad_names() {
        // PostgreSQL's own protocol refuses NUL; SQLite's does not.
        let answer = case.harness().publish_by_sql(&scene.topic, "1", Some(&bad), true).await;
        assert!(answer.is_err(), "a key that breaks the rule ({rule}) was taken: {bad:?}");
    }
    let text = |headers: BTreeMap<String, String>| serde_json::to_string(&headers).unwrap();
    let many = |count: usize| text((0..count).map(|n| (n.to_string(), String::new())).collect());
    let one = |name: &str, value: &str| text(BTreeMap::from([(name.to_owned(), value.to_owned())]));
    let long = "x".repeat(HEADER_VALUE_BYTES_MAX + 1);
    for headers in [many(HEADERS_MAX + 1), one("h", &long), one("", "x"), one(&"n".repeat(256), "x")] {
        let answer = publish_headers_by_sql(case, &headers).await;
        assert!(answer.is_err(), "headers that break a rule were taken: {headers:.60}");
    }
    for headers in [r#"{"h":1}"#, "[]", "1"] {
        assert!(publish_headers_by_sql(case, headers).await.is_err(), "{headers}");
    }
    assert_eq!(scene.fetch_range(1, 1_000).await, []);
    case.harness().publish_by_sql(&scene.topic, "1", Some("good"), true).await.unwrap();
    for headers in [many(HEADERS_MAX), one("h", &long[1..])] {
        publish_headers_by_sql(case, &headers).await.unwrap();
    }
    let taken = scene.drain_until("a", 3).await;
    assert_eq!(taken[0].key.as_deref(), Some("good"));
    assert_eq!((taken[1].headers.len(), taken[2].headers["h"].len()), (HEADERS_MAX, HEADER_VALUE_BYTES_MAX));
}

/// Publishes to `orders` with plain SQL; the headers have no quote in them.
async fn publish_headers_by_sql(case: &Case, headers: &str) -> Result<u64, String> {
    let sqlite = format!(
        "INSERT INTO headwater_publish (topic, payload, headers) VALUES ('orders', '1', '{headers}')"
    );
    let postgres = format!("SELECT {{schema}}.publish('orders', '1', headers => '{headers}')");
    case.harness().sql(&sqlite, &postgres).await
}

/// Delays and leases have a limit; nothing overflows, and a refused call changes nothing.
pub async fn times_beyond_the_limit_are_refused(case: &Case) {
    let scene = case.queue().await;
    for far in [case.now() + std::time::Duration::from_secs(367 * 24 * 3600), jiff::Timestamp::MAX] {
        let far = NewMessage::new("far").deliver_at(far);
        let error = failed(scene.store.publish(&scene.topic, &[far]).await, ErrorKind::InvalidInput);
        assert!(error.to_string().contains("deliver_at"), "{error}");
    }
    assert_eq!(scene.topic_status().await.scheduled, 0);
    let long_ago = NewMessage::new("long ago").deliver_at(jiff::Timestamp::MIN);
    scene.publish_all(&[long_ago]).await;
    let lease = scene.claim_one("a", 1).await;
    for long in [std::time::Duration::from_secs(367 * 24 * 3600), std::time::Duration::MAX] {
        let error = failed(scene.store.extend(&[lease.id()], long).await, ErrorKind::InvalidInput);
        assert!(error.to_string().contains("lease"), "{error}");
    }
    case.advance_ms(300_000);
    assert_eq!(scene.claim_one("b", 1).await.attempt, 2);
}

/// A value outside its bounds is refused with the same text on both engines, and a step with too large a limit is
/// capped to one transaction's.
pub async fn bounds_hold_on_every_engine(case: &Case) {
    let scene = case.queue().await;
    let (store, topic_id, name) = (&scene.store, scene.subscription.topic.topic_id, group("workers"));
    let (nothing, for_ever) = (std::time::Duration::ZERO, std::time::Duration::MAX);
    let no_backfill = BackfillLimits { messages_max: 0, ..BackfillLimits::default() };
    let no_rate = BackfillLimits { rate_max: 0, ..BackfillLimits::default() };
    let refused = |answer: Result<(), Error>| failed(answer, ErrorKind::InvalidInput).to_string();
    for (text, answer) in [
        ("invalid messages_max: must be above zero", store.track(topic_id, 0).await.map(drop)),
        ("invalid messages_max: must be above zero", store.clean(topic_id, 0).await.map(drop)),
        ("invalid messages_max: must be above zero", store.step_backfill(&owner("a"), 0).await.map(drop)),
        (
            "invalid backfill messages_max: must be above zero",
            store.backfill(&scene.topic, &name, &no_backfill).await.map(drop),
        ),
        (
            "invalid backfill rate_max: must be above zero",
            store.backfill(&scene.topic, &name, &no_rate).await.map(drop),
        ),
        ("invalid topics: a waiter waits for at least one", store.arm(&[]).await.map(drop)),
        ("invalid term: must be above zero", store.elect(&owner("a"), nothing).await.map(drop)),
        ("invalid term: longer than 366 days", store.elect(&owner("a"), for_ever).await.map(drop)),
        ("invalid older_than: longer than 100 years", store.clean_subscriptions(for_ever).await.map(drop)),
        ("invalid older_than: longer than 100 years", store.clean_processes(for_ever).await.map(drop)),
        ("invalid older_than: longer than 100 years", store.stuck(&scene.topic, for_ever).await.map(drop)),
        (
            "invalid older_than: longer than 100 years",
            store.force_complete(&scene.topic, for_ever, true).await.map(drop),
        ),
        ("invalid job: must not be empty", store.cron_last("", case.now()).await.map(drop)),
    ] {
        assert_eq!(refused(answer), text);
    }
    store.track(topic_id, u32::MAX).await.unwrap();
    store.clean(topic_id, u32::MAX).await.unwrap();
    assert_eq!(store.step_backfill(&owner("a"), u32::MAX).await.unwrap(), None);
    assert!(store.elect(&owner("a"), std::time::Duration::from_secs(1)).await.unwrap());
}

/// An unknown topic is created as a queue if the store was opened with `auto_create`.
pub async fn an_unknown_topic_is_created_by_publishing(case: &Case) {
    let store = case.open_with(case.options().auto_create(true)).await.unwrap();
    let name = topic("made on the fly");
    let published = store.publish(&name, &[NewMessage::new("first")]).await.unwrap();
    assert_eq!(published[0].offset.unwrap().0, 1);
    assert_eq!(store.topic(&name).await.unwrap().settings, TopicSettings::default());
    let subscription = store.subscribe(&name, &group("g"), Start::Beginning).await.unwrap();
    let scene = Scene { store, topic: name, subscription };
    assert_eq!(payloads_of(&scene.drain("a").await), ["first"]);
}

/// A consumer may start before the first publisher: subscribing creates the topic as publishing does.
pub async fn subscribing_creates_an_unknown_topic_with_auto_create(case: &Case) {
    let store = case.open_with(case.options().auto_create(true)).await.unwrap();
    let (name, group) = (topic("early"), crate::GroupName::new("a").unwrap());
    let subscription = store.subscribe(&name, &group, crate::Start::Now).await.unwrap();
    assert_eq!(subscription.topic.settings, TopicSettings::default());
    store.publish(&name, &[NewMessage::new("x")]).await.unwrap();
    assert_eq!(store.subscriptions(&name).await.unwrap().len(), 1);
}

/// Without `auto_create` an unknown topic is refused, and nothing is created.
pub async fn an_unknown_topic_is_refused_without_auto_create(case: &Case) {
    let store = case.open_with(case.options().auto_create(false)).await.unwrap();
    let name = topic("nowhere");
    let error = failed(store.publish(&name, &[NewMessage::new("x")]).await, ErrorKind::NoSuchTopic);
    assert!(error.to_string().contains("nowhere"), "{error}");
    assert!(!error.is_retryable());
    assert_eq!(store.topics().await.unwrap(), []);
}

/// Quotes, SQL and emoji in topics and groups are data like any other name.
pub async fn names_that_try_to_inject_are_harmless(case: &Case) {
    let store = case.open().await;
    let names = strange_names();
    let mut scenes = Vec::new();
    for name in &names {
        let scene = Scene::new(store.clone(), name, TopicSettings::pub_sub()).await;
        let reader = scene.subscribe(name, Start::Beginning).await;
        reader.publish_all(&[NewMessage::new(name.clone())]).await;
        scenes.push(reader);
    }
    let mut listed: Vec<_> =
        store.topics().await.unwrap().iter().map(|one| one.topic.name.as_str().to_owned()).collect();
    listed.sort_unstable();
    let mut expected = names.clone();
    expected.sort_unstable();
    assert_eq!(listed, expected);
    for (name, scene) in names.iter().zip(&scenes) {
        assert_eq!(scene.status().await.group.as_str(), name);
        let lease = scene.claim_one(name, 10).await;
        assert_eq!(payloads_of(&scene.fetch(&lease).await), [name.as_str()]);
        scene.settle_each(&lease, vec![((1, 1), bury(name))]).await.unwrap();
        assert_eq!(scene.dead_letters().await[0].error, *name);
        case.harness().publish_by_sql(&scene.topic, "1", Some(name), true).await.unwrap();
        assert_eq!(scene.drain(name).await[0].key.as_deref(), Some(name.as_str()));
    }
}

/// The same holds for keys, headers, types and dedup keys; none is ever folded or trimmed into another.
pub async fn fields_that_try_to_inject_are_harmless(case: &Case) {
    let scene = case.queue().await;
    let names = strange_names();
    let messages: Vec<_> = names
        .iter()
        .map(|name| {
            let message = NewMessage::new(name.clone()).key(name.clone()).message_type(name.clone());
            let message = message.content_type(name.clone()).correlation_id(name.clone());
            message.header(name.clone(), name.clone()).dedup_key(name.clone())
        })
        .collect();
    scene.publish_all(&messages).await;
    let again = scene.store.publish(&scene.topic, &messages).await.unwrap();
    assert!(again.iter().all(|one| one.duplicate), "every dedup key is remembered as it is");
    let got = scene.drain_until("a", names.len()).await;
    assert_eq!(payloads_of(&got), names);
    for (message, name) in got.iter().zip(&names) {
        let name = Some(name.clone());
        assert_eq!((&message.key, &message.message_type), (&name, &name));
        assert_eq!((&message.content_type, &message.correlation_id), (&name, &name));
        let header = message.headers.first_key_value().map(|(key, value)| (key.clone(), value.clone()));
        assert_eq!(header, name.clone().zip(name));
    }
}

/// A blocked key is compared exactly, whatever it contains.
pub async fn strange_keys_are_blocked_exactly(case: &Case) {
    let settings = TopicSettings { ordering: Ordering::Key, lanes: 1, ..TopicSettings::default() };
    let scene = case.scene(settings).await;
    let names = strange_names();
    let messages: Vec<_> = names.iter().map(|name| NewMessage::new("x").key(name.clone())).collect();
    scene.publish_all(&messages).await;
    let lease = scene.claim_one("a", 100).await;
    let parts = names.iter().zip(1..).map(|(name, offset)| {
        let outcome = match retry(60_000, name) {
            crate::store::Outcome::Retry { after, error, .. } => {
                crate::store::Outcome::Retry { after, error, key: Some(name.clone()) }
            }
            other => other,
        };
        ((offset, offset), outcome)
    });
    scene.settle_each(&lease, parts.collect()).await.unwrap();
    scene.publish_all(&messages).await;
    let next = scene.claim_one("a", 100).await;
    let (mut blocked, mut expected) = (next.blocked_keys.clone(), names);
    blocked.sort_unstable();
    expected.sort_unstable();
    assert_eq!(blocked, expected);
}

/// Owner names are compared exactly: the same text in another case is another owner, which does not hold the suspect.
pub async fn owner_names_are_compared_exactly(case: &Case) {
    let scene = case.queue().await;
    scene.publish(2).await;
    let one = scene.claim_one("Owner", 1).await;
    case.advance_ms(300_000);
    let suspect = scene.claim_one("owner", 2).await;
    assert!(suspect.suspect);
    assert_eq!(suspect.range, one.range);
    // "owner" holds a suspect and gets nothing more; "OWNER" is another owner and does.
    scene.claim_nothing("owner", 2).await;
    assert_eq!(offsets_of(&scene.fetch(&scene.claim_one("OWNER", 2).await).await), [2]);
    assert_eq!(owner("Owner").as_str(), "Owner");
}
