//! Requests that are too large, too slow or too many, and paths that try to get elsewhere.

use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::place::{DEADLINE, Place, Running, kind};

crate::on_both_stores!(
    bodies_and_headers_have_a_limit,
    a_client_that_sends_too_slowly_is_dropped,
    a_client_that_does_not_read_is_dropped,
    connections_beyond_the_limit_wait,
    paths_lead_nowhere_else,
    garbage_is_answered_or_dropped,
    it_says_whether_it_is_ready,
);

/// Sends bytes and returns what comes back until the server closes.
async fn raw(server: &Running, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.address).await.expect("connected");
    stream.write_all(bytes).await.expect("sent");
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer)).await.expect("in time");
    String::from_utf8_lossy(&answer).into_owned()
}

async fn bodies_and_headers_have_a_limit(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve_with(|options| options.limits.body_bytes_max = 10_000).await;
    let (status, problem) =
        server.try_post("/v1/topics/orders/messages", &json!({ "payload": "x".repeat(10_000) })).await;
    assert_eq!((status, kind(&problem)), (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large"));
    let request = server.request(Method::GET, "/healthz").header("x-long", "x".repeat(100_000));
    // The answer, or a connection that is closed before all of it was sent.
    if let Ok(response) = request.send().await {
        assert_eq!(response.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    assert_eq!(server.get("/healthz").await["status"], "ok");
    server.end().await;
    let server = place.serve().await;
    let (status, problem) =
        server.try_post("/v1/topics/orders/messages", &json!({ "payload": "x".repeat(2_000_000) })).await;
    assert_eq!(
        (status, kind(&problem)),
        (StatusCode::PAYLOAD_TOO_LARGE, "payload-too-large"),
        "the topic's own limit"
    );
    server.end().await;
}

async fn a_client_that_sends_too_slowly_is_dropped(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve_with(|options| options.limits.read_timeout = Duration::from_secs(2)).await;
    let begun = Instant::now();
    raw(&server, b"POST /v1/topics/orders/messages HTTP/1.1\r\nhost: loc").await;
    assert!(begun.elapsed() < Duration::from_secs(20), "headers never end");
    let head = "POST /v1/topics/orders/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    let answer = raw(&server, head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(begun.elapsed() < Duration::from_secs(40), "a body never ends");
    server.end().await;
}

async fn a_client_that_does_not_read_is_dropped(place: &Place) {
    place.group("orders", "email").await;
    let large = "x".repeat(900_000);
    let producer = place.headwater.producer("orders");
    for _ in 0..30 {
        producer.send(&large).await.expect("sent");
    }
    let server = place
        .serve_with(|options| {
            options.limits.write_timeout = Duration::from_millis(300);
            options.limits.connections_max = 1;
        })
        .await;
    let mut stream = TcpStream::connect(server.address).await.expect("connected");
    stream
        .write_all(b"GET /v1/topics/orders/tail?from=start HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .expect("sent");
    // It holds the only connection there is, and does not read: it is dropped, and another client is served.
    assert_eq!(server.get("/healthz").await["status"], "ok");
    let mut read = Vec::new();
    let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut read)).await.expect("closed");
    assert!(read.len() < 30 * 900_000, "it was closed in the middle");
    server.kill().await;
}

async fn connections_beyond_the_limit_wait(place: &Place) {
    let server = place
        .serve_with(|options| {
            options.limits.connections_max = 2;
            options.limits.read_timeout = Duration::from_millis(500);
        })
        .await;
    let idle = [TcpStream::connect(server.address).await, TcpStream::connect(server.address).await];
    // Both idle connections end after the read timeout, and the third is served.
    assert_eq!(server.get("/healthz").await["status"], "ok");
    drop(idle);
    server.end().await;
}

async fn paths_lead_nowhere_else(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    for path in [
        "/../../etc/passwd",
        "/v1/../../etc/passwd",
        "/v1/topics/..%2f..%2fetc%2fpasswd",
        "/assets/../Cargo.toml",
        "/assets/%2e%2e/%2e%2e/Cargo.toml",
        "/assets/..%2fCargo.toml",
        "//v1/topics",
        "/v1/topics/orders/messages/..%2f..",
        "/v1/topics/%00",
        "/v1/topics/%ff/messages",
        "/v1/topics/%zz/messages",
        "/%",
        "http://evil.example/v1/topics",
    ] {
        let answer = raw(
            &server,
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").as_bytes(),
        )
        .await;
        let status = answer.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok()).unwrap_or(0);
        assert!((400..500).contains(&status) || status == 303, "{path}: {answer}");
        assert!(!answer.contains("root:") && !answer.contains("[package]"), "{path}: {answer}");
    }
    server.end().await;
}

async fn garbage_is_answered_or_dropped(place: &Place) {
    let server = place.serve_with(|options| options.limits.read_timeout = Duration::from_millis(300)).await;
    for bytes in [
        &b"\0\xff\0\xff\r\n\r\n"[..],
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\r\n\r\n\r\n",
    ] {
        let answer = raw(&server, bytes).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    let both = "POST /v1/topics/orders/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let answer = raw(&server, both.as_bytes()).await;
    assert!(!answer.contains("\"ok\""), "no second request is smuggled in: {answer}");
    assert_eq!(server.get("/healthz").await["status"], "ok");
    server.end().await;
}

async fn it_says_whether_it_is_ready(place: &Place) {
    let headwater = place.another_handle().await;
    let server = crate::place::serve(headwater.clone(), |_| {}).await.expect("a server");
    assert_eq!(server.get("/readyz").await["status"], "ready");
    headwater.close().await.expect("closed");
    let (status, problem) = server.try_get("/readyz").await;
    assert_eq!((status, kind(&problem)), (StatusCode::SERVICE_UNAVAILABLE, "not-ready"));
    assert_eq!(server.get("/healthz").await["status"], "ok", "the process lives");
    server.end().await;
}
