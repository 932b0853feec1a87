//! What cannot be published, and what cannot be reached.

use std::collections::BTreeSet;

use headwater::ErrorKind;
use headwater::store::AnyDeadLetterSelection;
use headwater_relay::SinkError;
use headwater_relay::bridge::{Bridge, BridgeError, BridgeState};

use crate::brokers::{From, Value, from};
use crate::on_each;
use crate::place::{Place, broker, eventually, payloads, unique};

on_each!(
    a_message_that_cannot_be_published_is_parked_and_redriven,
    keys_that_are_no_text_are_parked_or_read_as_hex,
    what_is_missing_is_named,
);

/// Beside a payload over the limit and a header that is no text, the others of the batch are published.
async fn a_message_that_cannot_be_published_is_parked_and_redriven(place: Place) {
    for kind in ["kafka", "rabbitmq", "nats"] {
        let Some(from) = from(kind).await else { return };
        let headwater = place.open().await;
        headwater.topic(kind).payload_bytes_max(1_000).create().await.unwrap();
        let (text, many) = ("y".repeat(20_000), "x".repeat(1_500));
        let poison =
            if matches!(from, From::Nats { .. }) { Value::Text(&text) } else { Value::Bytes(b"\xff\xfe") };
        from.publish(Some("1"), "k", &[], b"one").await;
        from.publish(Some("2"), "k", &[("ok", Value::Text("v"))], many.as_bytes()).await;
        from.publish(Some("3"), "k", &[("bad", poison), ("ok", Value::Text("v"))], b"three").await;
        from.publish(Some("4"), "k", &[], b"four").await;
        let running = Bridge::from_url(&headwater, from.url(), kind).unwrap().name(kind).start().unwrap();
        eventually("all", async || running.health().published == 2 && running.health().parked == 2).await;
        assert_eq!(payloads(&headwater, kind).await, ["one", "four"], "{kind}");
        let parked = headwater.dead_letters().list(10, AnyDeadLetterSelection::of_commands).await.unwrap();
        let parked: Vec<_> =
            parked.iter().filter(|one| one.parked_by.as_deref() == Some(&format!("bridge {kind}"))).collect();
        assert_eq!(parked.len(), 2);
        for (one, says) in parked.iter().zip(["payload too large: 1500 bytes", "bad"]) {
            let error = one.error_message.clone().unwrap();
            assert!(error.contains(says), "{kind}: {error}");
            assert_eq!(
                (one.business_key.as_deref(), one.failed_status.as_deref()),
                (Some("k"), Some("REJECTED"))
            );
        }
        // Once the topic has room, a redrive publishes both; the header that was no text is gone.
        let mut settings = headwater.topics().get(kind).await.unwrap().settings;
        settings.payload_bytes_max = 10_000;
        headwater.topics().alter(kind, &settings).await.unwrap();
        let ids: Vec<_> = parked.iter().map(|one| one.dead_letter_id).collect();
        assert_eq!(headwater.dead_letters().redrive(&ids).await.unwrap().redriven, 2);
        let mut messages = headwater.published(kind).await.unwrap();
        messages[2..].sort_by_key(|message| message.payload.len() < 1_500);
        assert_eq!(
            (messages.len(), messages[2].payload.len(), &*messages[3].payload),
            (4, 1_500, b"three".as_slice())
        );
        assert_eq!(
            (messages[3].headers["ok"].as_str(), messages[3].headers.contains_key("bad")),
            ("v", false)
        );
        running.stop().await;
        // Answered for: a bridge that starts again reads nothing.
        let again = Bridge::from_url(&headwater, from.url(), kind).unwrap().name(kind).start().unwrap();
        from.publish(Some("5"), "k", &[], b"five").await;
        eventually("the next", async || again.health().published == 1).await;
        assert_eq!((again.health().parked, payloads(&headwater, kind).await.len()), (0, 5));
        again.stop().await;
    }
    let headwater = place.open().await;
    place.leave(&headwater).await;
}

async fn keys_that_are_no_text_are_parked_or_read_as_hex(place: Place) {
    let Some(from) = from("kafka").await else { return };
    let From::Kafka { producer, topic, .. } = &from else { unreachable!() };
    let headwater = place.open().await;
    headwater.topic("t").create().await.unwrap();
    let key = [0xff_u8, 0x01];
    let tombstone: rdkafka::producer::FutureRecord<'_, [u8], [u8]> =
        rdkafka::producer::FutureRecord::to(topic).key(&key);
    producer.send(tombstone, std::time::Duration::from_secs(30)).await.unwrap();
    let text = Bridge::from_url(&headwater, from.url(), "t").unwrap().name("text").start().unwrap();
    let hex = Bridge::from_url(&headwater, &format!("{}?key=hex", from.url()), "t")
        .unwrap()
        .name("hex")
        .start()
        .unwrap();
    eventually("both", async || text.health().parked == 1 && hex.health().published == 1).await;
    let message = headwater.published("t").await.unwrap().remove(0);
    assert_eq!((message.key.as_deref(), message.payload.len()), (Some("ff01"), 0));
    assert_eq!(message.headers["headwater-tombstone"], "true");
    let parked = headwater.dead_letters().list(10, AnyDeadLetterSelection::of_commands).await.unwrap();
    assert!(parked[0].error_message.as_deref().unwrap().contains("key=hex"), "{parked:?}");
    text.stop().await;
    hex.stop().await;
    place.leave(&headwater).await;
}

async fn what_is_missing_is_named(place: Place) {
    let (Some(kafka), Some(rabbitmq), Some(nats)) =
        (broker("HEADWATER_TEST_KAFKA"), broker("HEADWATER_TEST_RABBITMQ"), broker("HEADWATER_TEST_NATS"))
    else {
        return;
    };
    let headwater = place.open().await;
    headwater.topic("t").create().await.unwrap();
    let name = unique("missing");
    let host = rabbitmq.rsplit_once('@').unwrap().1.split('/').next().unwrap();
    for (url, says) in [
        (format!("kafka://{kafka}/{name}"), name.as_str()),
        (format!("{rabbitmq}?queue={name}"), name.as_str()),
        (format!("amqp://guest:hunter2@{host}?queue={name}"), "user and password"),
        (format!("{nats}/{name}"), name.as_str()),
        (format!("{nats}/{name}?stream={name}"), name.as_str()),
    ] {
        let bridge = Bridge::from_url(&headwater, &url, "t").unwrap().name("in");
        let refused = bridge.check().await.unwrap_err();
        assert!(matches!(refused, BridgeError::Broker(SinkError::Misconfigured(_))), "{refused:?}");
        let text = refused.to_string();
        assert!(
            text.contains(says) && !text.contains("hunter2") && !format!("{bridge:?}").contains("hunter2"),
            "{text}"
        );
        // A running one waits for an operator.
        let running = bridge.start().unwrap();
        eventually("the report", async || running.health().state == BridgeState::Waiting).await;
        assert_eq!(running.health().last_error.as_deref(), Some(text.as_str()));
        running.stop().await;
    }
    let unreachable = Bridge::from_url(&headwater, "amqp://127.0.0.1:1?queue=q", "t").unwrap().name("in");
    assert!(matches!(unreachable.check().await, Err(BridgeError::Broker(SinkError::Unavailable(_)))));
    // The topic must exist.
    let no_topic = Bridge::from_url(&headwater, &format!("{rabbitmq}?queue={name}"), "no-topic").unwrap();
    let refused = no_topic.check().await.unwrap_err();
    assert!(
        matches!(&refused, BridgeError::Store(error) if error.kind() == ErrorKind::NoSuchTopic),
        "{refused:?}"
    );
    let names: BTreeSet<_> = ["", &"n".repeat(91), "a\nb"].into_iter().map(str::to_owned).collect();
    for name in names {
        let bridge = Bridge::from_url(&headwater, &format!("{nats}/a"), "t").unwrap().name(name);
        assert_eq!(bridge.start().unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    for url in ["http://h/a", "kafka://h", "amqp://h", "nats://h"] {
        assert_eq!(Bridge::from_url(&headwater, url, "t").unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    place.leave(&headwater).await;
}
