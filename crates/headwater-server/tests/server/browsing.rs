//! Reading messages without consuming them.

use headwater::NewMessage;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::place::{Place, kind};

crate::on_both_stores!(
    pages_follow_each_other,
    messages_are_found_by_key_id_time_and_offset,
    payloads_come_back_as_json_or_base64,
    names_with_any_characters_are_paths,
);

async fn pages_follow_each_other(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    server.publish((0..25).map(|payload| json!(payload))).await;
    let (mut seen, mut path) = (Vec::new(), "/v1/topics/orders/messages?limit=10".to_owned());
    let mut pages = 0;
    loop {
        let page = server.get(&path).await;
        seen.extend(
            page["items"]
                .as_array()
                .expect("items")
                .iter()
                .map(|one| one["payload"].as_i64().expect("a number")),
        );
        pages += 1;
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/topics/orders/messages?limit=10&cursor={cursor}");
    }
    assert_eq!((seen, pages), ((0..25).collect(), 3));
    for bad in ["limit=0", "limit=1001", "cursor=x", "from=yesterday", "cursor=1&from=1", "colour=red"] {
        let (status, problem) = server.try_get(&format!("/v1/topics/orders/messages?{bad}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{bad}: {problem}");
        assert!(problem["field"].is_string(), "{bad}: {problem}");
    }
    assert_eq!(server.try_get("/v1/topics/nothing/messages").await.0, StatusCode::NOT_FOUND);
    server.end().await;
}

async fn messages_are_found_by_key_id_time_and_offset(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let mut ids = Vec::new();
    for n in 0..6 {
        let answer = server
            .post(
                "/v1/topics/orders/messages",
                json!({ "payload": n, "key": if n % 2 == 0 { "a" } else { "b" } }),
            )
            .await;
        ids.push(answer["id"].as_str().expect("an id").to_owned());
    }
    let payloads = async |query: &str| -> Vec<i64> {
        let page = server.get(&format!("/v1/topics/orders/messages?{query}")).await;
        page["items"]
            .as_array()
            .expect("items")
            .iter()
            .map(|one| one["payload"].as_i64().expect("a number"))
            .collect()
    };
    assert_eq!(payloads("key=b").await, [1, 3, 5]);
    assert_eq!(payloads(&format!("id={}", ids[4])).await, [4]);
    assert_eq!(payloads("from=5").await, [4, 5]);
    assert_eq!(payloads("from=last:2").await, [4, 5]);
    assert_eq!(payloads("from=start&limit=2").await, [0, 1]);
    assert_eq!(payloads("from=2000-01-01T00:00:00Z").await.len(), 6);
    assert_eq!(payloads("from=2200-01-01T00:00:00Z").await, [] as [i64; 0]);
    assert_eq!(server.get("/v1/topics/orders/messages/3").await["payload"], 2);
    for missing in ["99", "0", "-1"] {
        let (status, problem) = server.try_get(&format!("/v1/topics/orders/messages/{missing}")).await;
        assert_eq!((status, kind(&problem)), (StatusCode::NOT_FOUND, "not-found"), "{missing}");
    }
    assert_eq!(server.try_get("/v1/topics/orders/messages/first").await.0, StatusCode::BAD_REQUEST);
    server.end().await;
}

async fn payloads_come_back_as_json_or_base64(place: &Place) {
    place.group("orders", "email").await;
    let producer = place.headwater.producer("orders");
    for payload in [&b"{\"a\":\n1}"[..], b"plain text", &[0, 255], b"", b"null"] {
        producer.send(NewMessage::new(payload.to_vec())).await.expect("sent");
    }
    let server = place.serve().await;
    let page = server.get("/v1/topics/orders/messages").await;
    let items = page["items"].as_array().expect("items");
    assert_eq!(items[0]["payload"], json!({ "a": 1 }));
    assert_eq!(items[1]["payload_base64"], "cGxhaW4gdGV4dA==");
    assert_eq!(items[2]["payload_base64"], "AP8=");
    assert_eq!(items[3]["payload_base64"], "");
    assert_eq!(items[4].get("payload"), Some(&Value::Null));
    assert!(items[4].get("payload_base64").is_none() && items[1].get("payload").is_none());
    server.end().await;
}

async fn names_with_any_characters_are_paths(place: &Place) {
    for (name, path) in [
        ("a/b", "a%2Fb"),
        ("../etc", "..%2Fetc"),
        ("größe ?#", "gr%C3%B6%C3%9Fe%20%3F%23"),
        ("<b>", "%3Cb%3E"),
        ("%2F", "%252F"),
    ] {
        place.headwater.topic(name).create().await.expect("a topic");
        place.headwater.producer(name).send(name).await.expect("sent");
        let server = place.serve().await;
        let page = server.get(&format!("/v1/topics/{path}/messages")).await;
        assert_eq!(page["items"][0]["payload"], name);
        server.end().await;
    }
}
