//! Publishing over HTTP.

use std::time::Duration;

use headwater::{Message, Start};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::place::{Place, kind};

crate::on_both_stores!(
    a_message_is_stored_as_it_was_sent,
    a_batch_is_published_as_a_whole_or_not_at_all,
    an_idempotency_key_makes_a_repeat_safe,
    a_scheduled_message_has_no_offset,
    a_trace_is_carried,
    concurrent_publishes_are_all_stored,
    bad_requests_name_their_field,
    an_unknown_topic_is_not_found,
);

const MESSAGES: &str = "/v1/topics/orders/messages";
const BATCHES: &str = "/v1/topics/orders/batches";

async fn stored(place: &Place) -> Vec<Message> {
    let mut tail = place.headwater.tail("orders", Start::Beginning).await.expect("a tail");
    tail.next(Duration::ZERO).await.expect("messages")
}

async fn a_message_is_stored_as_it_was_sent(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let id = uuid::Uuid::now_v7();
    let body = json!({
        "payload": { "id": 7, "text": "größe" }, "id": id, "key": "customer-1", "type": "order", "headers": { "source": "web" },
        "correlation_id": "c-1",
    });
    let published = server.post(MESSAGES, body).await;
    assert_eq!(published, json!({ "offset": 1, "id": id, "duplicate": false }));
    let bytes =
        server.post(MESSAGES, json!({ "payload_base64": "AP8=", "content_type": "application/x-raw" })).await;
    assert_eq!(bytes["offset"], 2);
    let messages = stored(place).await;
    assert_eq!(messages[0].payload, r#"{"id":7,"text":"größe"}"#);
    assert_eq!((messages[0].message_id, messages[0].key.as_deref()), (id, Some("customer-1")));
    assert_eq!(messages[0].message_type.as_deref(), Some("order"));
    assert_eq!(messages[0].content_type.as_deref(), Some("application/json"));
    assert_eq!(messages[0].headers["source"], "web");
    assert_eq!(messages[0].correlation_id.as_deref(), Some("c-1"));
    assert_eq!(messages[1].payload, [0u8, 255][..]);
    assert_eq!(messages[1].content_type.as_deref(), Some("application/x-raw"));
    server.end().await;
}

async fn a_batch_is_published_as_a_whole_or_not_at_all(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let (status, problem) = server
        .try_post(BATCHES, &json!({ "messages": [{ "payload": 1 }, { "payload": 2, "key": "" }] }))
        .await;
    assert_eq!(
        (status, problem["field"].as_str()),
        (StatusCode::BAD_REQUEST, Some("messages[1].key")),
        "{problem}"
    );
    assert_eq!(stored(place).await.len(), 0);
    let answer = server.post(BATCHES, json!({ "messages": [{ "payload": 1 }, { "payload": 2 }] })).await;
    let offsets: Vec<_> =
        answer["published"].as_array().expect("a list").iter().map(|one| &one["offset"]).collect();
    assert_eq!(offsets, [1, 2]);
    for bad in [json!({ "messages": [] }), json!({ "messages": vec![json!({ "payload": 1 }); 1_001] })] {
        let (status, problem) = server.try_post(BATCHES, &bad).await;
        assert_eq!(
            (status, problem["field"].as_str()),
            (StatusCode::BAD_REQUEST, Some("messages")),
            "{problem}"
        );
    }
    server.end().await;
}

async fn an_idempotency_key_makes_a_repeat_safe(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    for duplicate in [false, true] {
        let request = server.request(Method::POST, MESSAGES).header("Idempotency-Key", "pay-9");
        let (_, one) = server.answer(request.json(&json!({ "payload": 1 }))).await;
        assert_eq!((one["offset"].as_i64(), one["duplicate"].as_bool()), (Some(1), Some(duplicate)), "{one}");
        let request = server.request(Method::POST, BATCHES).header("Idempotency-Key", "pay-10");
        let messages = json!({ "messages": [{ "payload": 1 }, { "payload": 2, "dedup_key": "own" }] });
        let (_, many) = server.answer(request.json(&messages)).await;
        let is_duplicate = |one: &Value| one["duplicate"] == duplicate;
        assert!(many["published"].as_array().expect("a list").iter().all(is_duplicate), "{many}");
    }
    assert_eq!(stored(place).await.len(), 3);
    server.end().await;
}

async fn a_scheduled_message_has_no_offset(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let delayed = server.post(MESSAGES, json!({ "payload": 1, "delay_ms": 3_600_000 })).await;
    let tomorrow = place.headwater.tokens().now() + Duration::from_secs(86_400);
    let at = server.post(MESSAGES, json!({ "payload": 2, "deliver_at": tomorrow })).await;
    assert_eq!((&delayed["offset"], &at["offset"]), (&Value::Null, &Value::Null));
    assert_eq!(place.headwater.scheduled("orders").list(10).await.expect("scheduled").len(), 2);
    server.end().await;
}

async fn a_trace_is_carried(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let request = server.request(Method::POST, MESSAGES).header("traceparent", trace);
    server.answer(request.json(&json!({ "payload": 1 }))).await;
    let request = server.request(Method::POST, MESSAGES).header("traceparent", "garbage");
    let (status, _) = server.answer(request.json(&json!({ "payload": 2 }))).await;
    assert_eq!(status, StatusCode::CREATED);
    let claimed = server.claim(json!({ "max": 2 })).await;
    assert_eq!(claimed[0]["headers"]["traceparent"], trace);
    assert!(claimed[1]["headers"].get("traceparent").is_none(), "{}", claimed[1]);
    server.end().await;
}

async fn concurrent_publishes_are_all_stored(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let one = async |payload: usize| server.post(MESSAGES, json!({ "payload": payload })).await;
    futures_util::future::join_all((0..200).map(one)).await;
    let mut payloads: Vec<usize> = stored(place)
        .await
        .iter()
        .map(|message| serde_json::from_slice(&message.payload).expect("a number"))
        .collect();
    payloads.sort_unstable();
    assert_eq!(payloads, (0..200).collect::<Vec<_>>());
    server.end().await;
}

async fn bad_requests_name_their_field(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    for (body, field) in [
        (json!({ "payload": 1, "colour": "red" }), "colour"),
        (json!({ "payload": 1, "headers": { "a": 1 } }), "headers.a"),
        (json!({ "payload": 1, "deliver_at": "tomorrow" }), "deliver_at"),
        (json!({}), "payload"),
    ] {
        let (status, problem) = server.try_post(MESSAGES, &body).await;
        assert_eq!(
            (status, problem["field"].as_str()),
            (StatusCode::BAD_REQUEST, Some(field)),
            "{body}: {problem}"
        );
        assert_eq!((kind(&problem), problem["status"].as_u64()), ("invalid-input", Some(400)));
    }
    let plain = server.request(Method::POST, MESSAGES).body("{\"payload\":1}");
    let (status, problem) = server.answer(plain).await;
    assert_eq!((status, kind(&problem)), (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type"));
    let broken = server.request(Method::POST, MESSAGES).header("content-type", "application/json").body("{");
    let (status, problem) = server.answer(broken).await;
    assert_eq!((status, kind(&problem)), (StatusCode::BAD_REQUEST, "invalid-json"));
    let response = server.request(Method::GET, "/v1/nothing").send().await.expect("an answer");
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    server.end().await;
}

async fn an_unknown_topic_is_not_found(place: &Place) {
    let server = place.serve().await;
    let (status, problem) = server.try_post("/v1/topics/nothing/messages", &json!({ "payload": 1 })).await;
    assert_eq!((status, kind(&problem)), (StatusCode::NOT_FOUND, "no-such-topic"), "{problem}");
    let (status, problem) = server.try_post("/v1/topics/nothing/groups/g/claim", &json!({})).await;
    assert_eq!((status, kind(&problem)), (StatusCode::NOT_FOUND, "no-such-topic"), "{problem}");
    place.headwater.topic("orders").create().await.expect("a topic");
    let (status, problem) = server.try_post("/v1/topics/orders/groups/g/claim", &json!({})).await;
    assert_eq!((status, kind(&problem)), (StatusCode::NOT_FOUND, "no-such-group"), "{problem}");
    server.end().await;
}
