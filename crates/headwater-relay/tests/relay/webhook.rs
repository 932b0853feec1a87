//! Webhooks, against a server on loopback.

use std::collections::HashMap;
use std::sync::Mutex;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use headwater_relay::testing::record;
use headwater_relay::webhook::{WebhookSink, signature};
use headwater_relay::{Delivery, Record, RelayState, SinkError};

use super::*;

on_both!(a_relay_retries_what_may_pass_and_gives_up_what_is_refused);

#[derive(Clone, Default)]
struct Received(Arc<Mutex<State_>>);

#[derive(Default)]
struct State_ {
    requests: Vec<(HeaderMap, Bytes)>,
    /// How often each body was posted.
    seen: HashMap<Bytes, usize>,
}

/// A body says how it is answered; from its second time on with 200.
async fn answer(State(received): State<Received>, headers: HeaderMap, body: Bytes) -> Response {
    let seen = {
        let mut state = received.0.lock().unwrap();
        state.requests.push((headers, body.clone()));
        let seen = state.seen.entry(body.clone()).or_default();
        *seen += 1;
        *seen
    };
    let text = String::from_utf8_lossy(&body).into_owned();
    let (word, _) = text.split_once(' ').unwrap_or((&text, ""));
    match (word, seen) {
        ("400", _) => (StatusCode::BAD_REQUEST, "no such product").into_response(),
        ("moved", _) => (StatusCode::FOUND, [("location", "/elsewhere")]).into_response(),
        ("429", 1) => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")]).into_response(),
        ("date", 1) => (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT")])
            .into_response(),
        ("500", 1) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        ("slow", 1) => std::future::pending().await,
        _ => StatusCode::NO_CONTENT.into_response(),
    }
}

/// The address of a running endpoint, and what it receives.
async fn serve() -> (String, Received) {
    let received = Received::default();
    let app = Router::new().route("/hook", post(answer)).with_state(received.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (format!("http://{address}/hook"), received)
}

fn said(text: &str) -> Record {
    Record { payload: text.to_owned().into(), ..record(0, Some("a")) }
}

#[tokio::test]
async fn a_request_is_signed_and_has_all_of_its_message() {
    let (url, received) = serve().await;
    let sink = WebhookSink::from_url(&format!("{url}?page=1#secret=s%C3%A4cret")).unwrap();
    sink.check().await.unwrap();
    let mut record = said("hello");
    record.headers.insert("Trace Parent".into(), "50% größer".into());
    record.content_type = Some("text/plain".into());
    record.message_type = Some("Greeting".into());
    record.correlation_id = Some("c-1".into());
    assert_eq!(sink.deliver(&[record]).await.unwrap(), [Delivery::Delivered]);
    let (headers, body) = received.0.lock().unwrap().requests.remove(0);
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    let timestamp: i64 = header("headwater-timestamp").parse().unwrap();
    assert!((jiff::Timestamp::now().as_second() - timestamp).abs() < 60);
    assert_eq!(header("headwater-signature"), signature("säcret", timestamp, &body));
    assert_ne!(header("headwater-signature"), signature("other", timestamp, &body));
    assert_eq!((header("headwater-id"), header("headwater-key")), ("id-0".into(), "a".into()));
    assert_eq!((header("headwater-topic"), header("headwater-type")), ("orders".into(), "Greeting".into()));
    assert_eq!(
        (header("content-type"), header("headwater-correlation-id")),
        ("text/plain".into(), "c-1".into())
    );
    assert_eq!(header("headwater-header-trace-parent"), "50%25 gr%C3%B6%C3%9Fer");
}

#[tokio::test]
async fn answers_decide_what_becomes_of_a_record() {
    let (url, _received) = serve().await;
    let sink = WebhookSink::from_url(&format!("{url}#unsigned=true&concurrency=3")).unwrap();
    let texts = ["ok", "400", "429", "500", "date", "moved"];
    let records: Vec<Record> = texts.iter().map(|text| said(text)).collect();
    let deliveries = sink.deliver(&records).await.unwrap();
    let failed = |at: usize| match &deliveries[at] {
        Delivery::Failed { reason, retry_after } => (reason.clone(), *retry_after),
        other => panic!("{}: {other:?}", texts[at]),
    };
    assert_eq!(deliveries[0], Delivery::Delivered);
    let refused = "HTTP 400 Bad Request: no such product".to_owned();
    assert_eq!(deliveries[1], Delivery::Refused { reason: refused });
    assert_eq!(failed(2), ("HTTP 429 Too Many Requests".into(), Some(Duration::from_secs(1))));
    assert_eq!(failed(3), ("HTTP 500 Internal Server Error".into(), None));
    assert_eq!(failed(4), ("HTTP 503 Service Unavailable".into(), Some(Duration::ZERO)));
    assert!(
        matches!(&deliveries[5], Delivery::Refused { reason } if reason.contains("redirects are not followed"))
    );
    let impatient = WebhookSink::from_url(&format!("{url}#unsigned=true&timeout=300ms")).unwrap();
    let slow = Delivery::Failed { reason: "no answer within 300ms".into(), retry_after: None };
    assert_eq!(impatient.deliver(&[said("slow")]).await.unwrap(), [slow]);
}

#[tokio::test]
async fn an_endpoint_without_a_connection_is_unavailable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let sink =
        WebhookSink::from_url(&format!("http://ann:hunter2@{address}/hook?token=hunter2#unsigned=true"))
            .unwrap();
    for error in [sink.deliver(&[said("ok")]).await.unwrap_err(), sink.check().await.unwrap_err()] {
        assert!(matches!(&error, SinkError::Unavailable(why) if !why.contains("hunter2")), "{error:?}");
    }
}

async fn a_relay_retries_what_may_pass_and_gives_up_what_is_refused(place: Place) {
    let (url, received) = serve().await;
    let sink = WebhookSink::from_url(&format!("{url}#secret=x&timeout=2s")).unwrap();
    let started = Instant::now();
    let running = place.relay(Source::Topic("orders".into()), Arc::new(sink), quick()).await;
    let texts = ["ok 1", "500 2", "ok 3", "400 4", "429 5", "slow 6", "ok 7"];
    let messages: Vec<NewMessage> =
        texts.iter().map(|text| NewMessage::new(text.to_string()).key("a")).collect();
    place.headwater.producer("orders").send_batch(&messages).await.unwrap();
    until("all is done", async || place.lag("orders", "relay-webhook").await == 0).await;
    assert!(started.elapsed() >= Duration::from_secs(1), "it waited as the endpoint asked");
    let mut posted: Vec<String> = {
        let state = received.0.lock().unwrap();
        state.requests.iter().map(|(_, body)| String::from_utf8_lossy(body).into_owned()).collect()
    };
    for again in ["500 2", "429 5", "slow 6"] {
        assert!(posted.iter().filter(|text| *text == again).count() >= 2, "{again}: {posted:?}");
    }
    // On a machine that stalls, others exceed the time-out too.
    posted.dedup();
    assert_eq!(posted, texts, "in the order of the key, each until it is answered");
    let dead = place.headwater.dead_letters().of("orders", "relay-webhook").list(10).await.unwrap();
    assert_eq!(
        dead.iter().map(|dead| dead.error.as_str()).collect::<Vec<_>>(),
        ["HTTP 400 Bad Request: no such product"]
    );
    assert_eq!(running.health().state, RelayState::Running);
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
}
