//! Streaming by server-sent events and by WebSocket.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message as Frame;

use crate::place::{DEADLINE, Place, Running, kind, serve};

crate::on_both_stores!(
    a_stream_sends_as_many_as_its_credit,
    a_stream_sends_what_comes_later,
    credit_returns_when_a_lease_ends,
    credit_returns_when_another_server_settles,
    a_stream_ends_with_the_server,
    a_stream_ends_with_its_group,
    many_streams_share_a_group,
    a_socket_sends_and_settles,
    a_socket_goes_on_after_a_bad_request,
    a_tail_follows_without_consuming,
);

const STREAM: &str = "/v1/topics/orders/groups/email/stream";

/// Events of a stream as they come.
struct Events {
    response: reqwest::Response,
    text: String,
}

impl Events {
    async fn open(server: &Running, path: &str) -> Self {
        let response = server.request(Method::GET, path).send().await.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events { response, text: String::new() }
    }

    /// The next event, its name and its data; `None` at the end.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    event
                        .lines()
                        .find_map(|line| line.strip_prefix(name))
                        .map(|value| value.trim().to_owned())
                };
                let found = field("event:").zip(field("data:"));
                self.text = rest.to_owned();
                match found {
                    Some((name, data)) => return Some((name, serde_json::from_str(&data).expect("JSON"))),
                    None => continue,
                }
            }
            let chunk = tokio::time::timeout(DEADLINE, self.response.chunk()).await.expect("in time");
            self.text.push_str(std::str::from_utf8(&chunk.ok()??).expect("text"));
        }
    }

    async fn messages(&mut self, count: usize) -> Vec<Value> {
        let mut messages = Vec::new();
        while messages.len() < count {
            let (name, data) = self.next().await.expect("the stream continues");
            assert_eq!(name, "message", "{data}");
            messages.push(data);
        }
        messages
    }

    /// Whether nothing comes for a while.
    async fn is_quiet(&mut self) -> bool {
        tokio::time::timeout(Duration::from_millis(300), self.next()).await.is_err()
    }
}

async fn a_stream_sends_as_many_as_its_credit(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    server.publish((0..10).map(|payload| json!(payload))).await;
    let mut events = Events::open(&server, &format!("{STREAM}?credit=4")).await;
    let first = events.messages(4).await;
    assert_eq!(first[0]["payload"], 0);
    assert!(events.is_quiet().await, "no credit is left");
    assert_eq!(server.settle(&first[..3], "ack").await, ["settled"; 3]);
    let second = events.messages(3).await;
    assert!(events.is_quiet().await, "no credit is left");
    server.settle(&first[3..], "ack").await;
    server.settle(&second, "ack").await;
    let third = events.messages(3).await;
    server.settle(&third, "ack").await;
    let (status, problem) = server.try_get(&format!("{STREAM}?credit=0")).await;
    assert_eq!((status, problem["field"].as_str()), (StatusCode::BAD_REQUEST, Some("credit")));
    let (status, problem) = server.try_get(&format!("{STREAM}?speed=9")).await;
    assert_eq!((status, problem["field"].as_str()), (StatusCode::BAD_REQUEST, Some("speed")), "{problem}");
    server.end().await;
}

async fn a_stream_sends_what_comes_later(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let mut events = Events::open(&server, STREAM).await;
    for payload in 0..5 {
        server.publish([json!(payload)]).await;
        let came = events.messages(1).await;
        assert_eq!((&came[0]["payload"], &came[0]["attempt"]), (&json!(payload), &json!(1)));
        server.settle(&came, "ack").await;
    }
    server.end().await;
}

async fn credit_returns_when_a_lease_ends(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    server.publish([json!(1)]).await;
    let mut events = Events::open(&server, &format!("{STREAM}?credit=1&lease_ms=300")).await;
    let first = events.messages(1).await;
    let again = events.messages(1).await;
    assert_eq!((&again[0]["offset"], &again[0]["attempt"]), (&first[0]["offset"], &json!(2)));
    server.end().await;
}

async fn credit_returns_when_another_server_settles(place: &Place) {
    place.group("orders", "email").await;
    let (server, other) =
        (place.serve().await, serve(place.another_handle().await, |_| {}).await.expect("another"));
    server.publish((0..3).map(|payload| json!(payload))).await;
    let mut events = Events::open(&server, &format!("{STREAM}?credit=1")).await;
    for payload in 0..3 {
        let came = events.messages(1).await;
        assert_eq!(came[0]["payload"], payload);
        assert_eq!(other.settle(&came, "ack").await, ["settled"]);
    }
    other.end().await;
    server.end().await;
}

async fn a_stream_ends_with_the_server(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let mut events = Events::open(&server, STREAM).await;
    let mut tail = Events::open(&server, "/v1/topics/orders/tail").await;
    server.end().await;
    assert_eq!(events.next().await, None);
    assert_eq!(tail.next().await, None);
}

async fn a_stream_ends_with_its_group(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let mut events = Events::open(&server, STREAM).await;
    place.headwater.groups("orders").cancel("email").await.expect("cancelled");
    let (name, problem) = events.next().await.expect("an event");
    assert_eq!(name, "error");
    assert!(matches!(kind(&problem), "invalid-transition" | "no-such-group"), "{problem}");
    assert_eq!(events.next().await, None);
    server.end().await;
}

async fn many_streams_share_a_group(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let mut streams = Vec::new();
    for _ in 0..10 {
        streams.push(Events::open(&server, &format!("{STREAM}?credit=5")).await);
    }
    server.publish((0..100).map(|payload| json!(payload))).await;
    let (server, all) = (&server, tokio::sync::Mutex::new(BTreeSet::new()));
    let read = async |mut events: Events| {
        loop {
            let message = tokio::select! {
                next = events.next() => next.expect("the stream continues").1,
                () = until_all(&all) => return,
            };
            assert!(
                all.lock().await.insert(message["offset"].as_i64().expect("an offset")),
                "twice: {message}"
            );
            server.settle(&[message], "ack").await;
        }
    };
    futures_util::future::join_all(streams.into_iter().map(read)).await;
    assert_eq!(all.lock().await.len(), 100);
}

async fn until_all(all: &tokio::sync::Mutex<BTreeSet<i64>>) {
    while all.lock().await.len() < 100 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

type Socket = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>;

async fn connect(server: &Running) -> Socket {
    let url = format!("ws://{}/v1/topics/orders/groups/email/socket", server.address);
    tokio_tungstenite::connect_async(url).await.expect("a socket").0
}

async fn send(socket: &mut Socket, value: Value) {
    socket.send(Frame::text(value.to_string())).await.expect("sent");
}

/// The next frame with text, as JSON.
async fn receive(socket: &mut Socket) -> Value {
    loop {
        let frame = tokio::time::timeout(DEADLINE, socket.next())
            .await
            .expect("in time")
            .expect("open")
            .expect("a frame");
        if let Frame::Text(text) = frame {
            return serde_json::from_str(&text).expect("JSON");
        }
    }
}

async fn a_socket_sends_and_settles(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    server.publish((0..4).map(|payload| json!(payload))).await;
    let mut socket = connect(&server).await;
    send(&mut socket, json!({ "credit": 2 })).await;
    let (one, two) = (receive(&mut socket).await, receive(&mut socket).await);
    assert_eq!((&one["message"]["payload"], &two["message"]["payload"]), (&json!(0), &json!(1)));
    send(&mut socket, json!({ "extend": { "receipts": [one["message"]["receipt"]], "lease_ms": 60_000 } }))
        .await;
    assert_eq!(receive(&mut socket).await["extended"]["results"][0]["result"], "extended");
    let settle = |message: &Value| json!({ "receipt": message["message"]["receipt"], "outcome": "ack" });
    send(&mut socket, json!({ "settle": [settle(&one), settle(&two)] })).await;
    let mut came = Vec::new();
    for _ in 0..3 {
        let frame = receive(&mut socket).await;
        match frame.get("settled") {
            Some(settled) => assert_eq!(settled["results"][1]["result"], "settled"),
            None => came.push(frame["message"]["payload"].as_i64().expect("a number")),
        }
    }
    assert_eq!(came, [2, 3]);
    server.end().await;
    // The server says that it goes away.
    let close = tokio::time::timeout(DEADLINE, socket.next()).await.expect("in time");
    assert!(matches!(close, Some(Ok(Frame::Close(Some(frame)))) if u16::from(frame.code) == 1001));
}

async fn a_socket_goes_on_after_a_bad_request(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let mut socket = connect(&server).await;
    for bad in [
        json!({ "explode": 1 }),
        json!({ "credit": 1_000_000 }),
        json!({ "settle": [{ "receipt": "x", "outcome": "ack" }] }),
        json!(7),
    ] {
        send(&mut socket, bad.clone()).await;
        assert_eq!(receive(&mut socket).await["error"]["status"], 400, "{bad}");
    }
    server.publish([json!("still here")]).await;
    send(&mut socket, json!({ "credit": 1 })).await;
    assert_eq!(receive(&mut socket).await["message"]["payload"], "still here");
    let (status, problem) = server.try_get("/v1/topics/orders/groups/email/socket").await;
    assert_eq!((status, kind(&problem)), (StatusCode::BAD_REQUEST, "no-websocket"));
    server.kill().await;
}

async fn a_tail_follows_without_consuming(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    server.publish((0..3).map(|payload| json!(payload))).await;
    let mut tail = Events::open(&server, "/v1/topics/orders/tail?from=last:2").await;
    let before = tail.messages(2).await;
    assert_eq!((&before[0]["payload"], &before[1]["payload"]), (&json!(1), &json!(2)));
    let mut now = Events::open(&server, "/v1/topics/orders/tail").await;
    server.publish([json!("new")]).await;
    assert_eq!(tail.messages(1).await[0]["payload"], "new");
    assert_eq!(now.messages(1).await[0]["payload"], "new");
    assert_eq!(server.claim(json!({ "max": 10 })).await.len(), 4, "nothing was consumed");
    assert_eq!(server.try_get("/v1/topics/nothing/tail").await.0, StatusCode::NOT_FOUND);
    server.end().await;
}
