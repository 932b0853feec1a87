//! Another store as the sink, and registered relays.

use headwater::{ErrorKind, TopicSettings};
use headwater_relay::registered::{self, NewRelay};
use headwater_relay::testing::record;
use headwater_relay::topic_sink::HeadwaterSink;
use headwater_relay::{Delivery, SinkError};

use super::*;

on_both!(
    a_repeat_is_not_stored_twice,
    messages_arrive_in_order_with_their_ids,
    a_message_that_the_topic_does_not_accept_is_refused_alone,
    entries_of_two_outboxes_with_the_same_number_are_different_messages,
    relays_are_registered_once_and_run,
    a_target_that_is_missing_is_reported,
);

async fn a_repeat_is_not_stored_twice(place: Place) {
    let target = format!("headwater+{}", place.url);
    let separator = if target.contains('?') { '&' } else { '?' };
    place.headwater.topic("archive").create_if_missing().await.unwrap();
    let sink = HeadwaterSink::from_url(&format!("{target}{separator}topic=archive")).unwrap();
    sink.check().await.unwrap();
    let records: Vec<_> = (0..50).map(|n| record(n, Some("a"))).collect();
    for _ in 0..3 {
        assert_eq!(sink.deliver(&records).await.unwrap(), vec![Delivery::Delivered; 50]);
    }
    let stored = place.headwater.published("archive").await.unwrap();
    let payloads: Vec<_> =
        stored.iter().map(|message| String::from_utf8_lossy(&message.payload).into_owned()).collect();
    assert_eq!(payloads, (0..50).map(|n| n.to_string()).collect::<Vec<_>>());
    sink.close().await;
    assert_eq!(sink.deliver(&records[..1]).await.unwrap(), [Delivery::Delivered], "opened again");
    sink.close().await;
    place.end().await;
}

async fn messages_arrive_in_order_with_their_ids(place: Place) {
    let other = Place::sqlite().await.unwrap();
    let sink = HeadwaterSink::new(&other.headwater, None).unwrap();
    let running = place.relay(Source::Topic("orders".into()), Arc::new(sink), quick()).await;
    let keyed: Vec<(usize, &str)> = (0..200).map(|n| (n, ["a", "b", "c"][n % 3])).collect();
    for part in keyed.chunks(50) {
        place.publish("orders", part).await;
    }
    let stored = async || other.headwater.published("orders").await.unwrap_or_default();
    until("all arrived", async || stored().await.len() == 200).await;
    let sent = place.headwater.published("orders").await.unwrap();
    for key in ["a", "b", "c"] {
        let ids = |messages: &[headwater::Message]| -> Vec<uuid::Uuid> {
            messages.iter().filter(|one| one.key.as_deref() == Some(key)).map(|one| one.message_id).collect()
        };
        assert_eq!(ids(&stored().await), ids(&sent));
    }
    running.shutdown(GRACE).await.unwrap();
    other.end().await;
    place.end().await;
}

async fn a_message_that_the_topic_does_not_accept_is_refused_alone(place: Place) {
    let settings = TopicSettings { payload_bytes_max: 10, ..TopicSettings::default() };
    place.headwater.topic("small").settings(settings).create().await.unwrap();
    let sink = HeadwaterSink::new(&place.headwater, Some("small")).unwrap();
    let mut records: Vec<_> = (0..3).map(|n| record(n, None)).collect();
    records[1].payload = "longer than ten bytes".into();
    let deliveries = sink.deliver(&records).await.unwrap();
    assert!(
        matches!(&deliveries[1], Delivery::Refused { reason } if reason.contains("too large")),
        "{deliveries:?}"
    );
    assert_eq!((&deliveries[0], &deliveries[2]), (&Delivery::Delivered, &Delivery::Delivered));
    assert_eq!(place.headwater.published("small").await.unwrap().len(), 2);
    place.end().await;
}

async fn entries_of_two_outboxes_with_the_same_number_are_different_messages(place: Place) {
    let sink = HeadwaterSink::new(&place.headwater, None).unwrap();
    let one = headwater_relay::Record { message_id: "outbox-1".into(), ..record(1, Some("a")) };
    let two = headwater_relay::Record { created_at: "2026-01-01T00:00:00Z".parse().unwrap(), ..one.clone() };
    for record in [&one, &two, &one] {
        sink.deliver(std::slice::from_ref(record)).await.unwrap();
    }
    assert_eq!(place.headwater.published("orders").await.unwrap().len(), 2);
    place.end().await;
}

async fn relays_are_registered_once_and_run(place: Place) {
    let other = Place::sqlite().await.unwrap();
    let new = |source: &str| NewRelay {
        name: None,
        source: Source::parse(source).unwrap(),
        target: format!("headwater+{}?topic=archive", other.url),
        settings: quick(),
    };
    assert_eq!(registered::add(&place.headwater, new("orders")).await.unwrap(), "orders-headwater");
    assert_eq!(registered::add(&place.headwater, new("outbox")).await.unwrap(), "outbox-headwater");
    let again = registered::add(&place.headwater, new("orders")).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Conflict);
    let named = |name: &str, source: &str| NewRelay { name: Some(name.into()), ..new(source) };
    for source in ["orders", "outbox"] {
        let shared = registered::add(&place.headwater, named("second", source)).await.unwrap_err();
        assert!(shared.to_string().contains("would share its records"), "{shared}");
    }
    let mut apart = named("second", "orders");
    apart.settings.group = Some("second".into());
    place.headwater.topic("other").pub_sub().create().await.unwrap();
    apart.source = Source::Topic("other".into());
    registered::add(&place.headwater, apart).await.unwrap();
    let secret =
        NewRelay { target: "https://ann:hunter2@h/#unsigned=true".into(), ..named("third", "other") };
    let refused = registered::add(&place.headwater, secret).await.unwrap_err().to_string();
    assert!(refused.contains("${NAME}") && !refused.contains("hunter2"), "{refused}");
    assert_eq!(place.headwater.audit(1).await.unwrap()[0].act, "add_relay");

    place.publish("orders", &[(1, "a")]).await;
    let relays = registered::load(&place.headwater).await.unwrap();
    assert_eq!(
        relays.iter().map(|relay| relay.name.as_str()).collect::<Vec<_>>(),
        ["orders-headwater", "outbox-headwater", "second"]
    );
    let running = relays[0].relay(&place.headwater).unwrap().run().await.unwrap();
    assert_eq!(running.name(), "orders-headwater");
    until("it arrived", async || other.headwater.published("archive").await.unwrap_or_default().len() == 1)
        .await;
    running.shutdown(GRACE).await.unwrap();
    assert!(place.headwater.relays().remove("second").await.unwrap());
    assert!(!place.headwater.relays().remove("second").await.unwrap());
    assert_eq!(place.headwater.audit(1).await.unwrap()[0].act, "remove_relay");
    other.end().await;
    place.end().await;
}

async fn a_target_that_is_missing_is_reported(place: Place) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.db");
    let sink = HeadwaterSink::from_url(&format!("headwater+sqlite:{}", path.display())).unwrap();
    let error = sink.check().await.unwrap_err();
    assert!(matches!(&error, SinkError::Misconfigured(_)), "{error:?}");
    assert!(!path.exists(), "it is not created");
    place.end().await;
}
