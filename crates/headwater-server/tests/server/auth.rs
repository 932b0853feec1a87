//! Who may do what: tokens, scopes, topics, sessions, pages elsewhere; and that nothing secret shows.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use headwater::tokens::{NewToken, Scope};
use headwater_server::ServeError;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::place::{DEADLINE, Place, Running, kind, serve};

crate::on_both_stores!(
    without_any_token_a_loopback_server_is_open,
    it_refuses_to_listen_publicly_without_a_token,
    a_request_without_a_token_is_refused,
    a_token_that_is_not_valid_is_refused,
    a_scope_that_is_missing_is_refused,
    a_topic_outside_the_patterns_is_refused,
    an_expired_token_is_refused,
    a_rotated_token_has_its_grace_without_a_restart,
    a_revoked_token_is_refused_within_seconds,
    the_first_token_closes_an_open_server,
    denials_are_in_the_audit_once_and_counted,
    changes_are_audited_with_their_caller,
    a_page_elsewhere_is_refused,
    a_name_that_resolves_here_is_refused,
    a_session_needs_the_csrf_token_to_change_anything,
    nothing_secret_is_in_answers,
);

const MESSAGES: &str = "/v1/topics/orders/messages";
const CLAIM: &str = "/v1/topics/orders/groups/email/claim";

async fn publish(server: &Running, topic: &str) -> (StatusCode, Value) {
    server.try_post(&format!("/v1/topics/{topic}/messages"), &json!({ "payload": 1 })).await
}

async fn without_any_token_a_loopback_server_is_open(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    assert_eq!(publish(&server, "orders").await.0, StatusCode::CREATED);
    assert_eq!(server.claim(json!({})).await.len(), 1);
    server.end().await;
}

async fn it_refuses_to_listen_publicly_without_a_token(place: &Place) {
    let public = SocketAddr::from(([0, 0, 0, 0], 0));
    let refused =
        serve(place.headwater.clone(), |options| options.address = public).await.err().expect("refused");
    assert!(matches!(refused, ServeError::NoTokens(_)), "{refused}");
    assert!(refused.to_string().contains("headwater token create"), "{refused}");
    // Bound to every address, but asked over the loopback one: nothing leaves this machine.
    let insecure =
        |options: &mut headwater_server::ServeOptions| (options.address, options.insecure) = (public, true);
    let mut server = serve(place.headwater.clone(), insecure).await.expect("it may be insecure");
    server.base = format!("http://127.0.0.1:{}", server.address.port());
    assert_eq!(server.get("/healthz").await["status"], "ok");
    server.end().await;
    place.token("a", &[Scope::Read], &[]).await;
    let mut server =
        serve(place.headwater.clone(), |options| options.address = public).await.expect("there is a token");
    server.base = format!("http://127.0.0.1:{}", server.address.port());
    assert_eq!(publish(&server, "orders").await.0, StatusCode::UNAUTHORIZED);
    server.end().await;
    place
        .headwater
        .tokens()
        .revoke(&place.headwater.tokens().list().await.expect("tokens")[0].id)
        .await
        .expect("revoked");
    let refused = serve(place.headwater.clone(), |options| options.address = public).await;
    assert!(refused.is_err(), "a public server is never open by itself");
}

async fn a_request_without_a_token_is_refused(place: &Place) {
    place.group("orders", "email").await;
    place.token("a", &Scope::ALL, &[]).await;
    let server = place.serve().await;
    for (method, path) in [
        (Method::POST, MESSAGES),
        (Method::POST, "/v1/topics/orders/batches"),
        (Method::GET, MESSAGES),
        (Method::GET, "/v1/topics/orders/messages/1"),
        (Method::GET, "/v1/topics/orders/tail"),
        (Method::POST, CLAIM),
        (Method::POST, "/v1/topics/orders/groups/email/settle"),
        (Method::POST, "/v1/topics/orders/groups/email/extend"),
        (Method::GET, "/v1/topics/orders/groups/email/stream"),
        (Method::GET, "/v1/topics/orders/groups/email/socket"),
    ] {
        let response = server.request(method.clone(), path).json(&json!({})).send().await.expect("an answer");
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{method} {path}");
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
        let problem: Value = response.json().await.expect("a problem");
        assert_eq!(kind(&problem), "unauthorized");
    }
    assert_eq!(server.get("/healthz").await["status"], "ok", "for probes, without a token");
    assert_eq!(server.get("/readyz").await["status"], "ready");
    server.end().await;
}

async fn a_token_that_is_not_valid_is_refused(place: &Place) {
    place.group("orders", "email").await;
    let token = place.token("a", &[Scope::Publish], &[]).await;
    let mut server = place.serve().await;
    let (start, secret) = token.rsplit_once('_').expect("a token");
    let zeros = "0".repeat(secret.len());
    for bad in [
        format!("{start}_{zeros}"),
        format!("hw_0000000000000000_{secret}"),
        token[1..].to_owned(),
        "x".repeat(5_000),
        String::new(),
    ] {
        server.with(&bad);
        let (status, problem) = publish(&server, "orders").await;
        assert_eq!((status, kind(&problem)), (StatusCode::UNAUTHORIZED, "unauthorized"), "{bad}");
        assert!(bad.is_empty() || !problem.to_string().contains(&bad), "the answer does not repeat it");
    }
    let basic =
        server.client.post(format!("{}{MESSAGES}", server.base)).header("authorization", "Basic aGk6aGk=");
    assert_eq!(server.answer(basic.json(&json!({ "payload": 1 }))).await.0, StatusCode::UNAUTHORIZED);
    server.with(&token);
    assert_eq!(publish(&server, "orders").await.0, StatusCode::CREATED);
    server.end().await;
}

async fn a_scope_that_is_missing_is_refused(place: &Place) {
    place.group("orders", "email").await;
    place.headwater.producer("orders").send(&1).await.expect("sent");
    let mut server = place.serve().await;
    for scope in Scope::ALL {
        let token = place.token(scope.as_str(), &[scope], &[]).await;
        server.with(&token);
        for (needed, request) in [
            (Scope::Publish, server.request(Method::POST, MESSAGES).json(&json!({ "payload": 1 }))),
            (Scope::Consume, server.request(Method::POST, CLAIM).json(&json!({}))),
            (Scope::Read, server.request(Method::GET, MESSAGES)),
        ] {
            let (status, problem) = server.answer(request).await;
            if scope == needed {
                assert!(status.is_success(), "{scope}: {problem}");
            } else {
                assert_eq!(
                    (status, kind(&problem)),
                    (StatusCode::FORBIDDEN, "missing-scope"),
                    "{scope}: {problem}"
                );
                assert!(
                    problem["detail"].as_str().is_some_and(|detail| detail.contains(needed.as_str())),
                    "{problem}"
                );
            }
        }
    }
    server.end().await;
}

async fn a_topic_outside_the_patterns_is_refused(place: &Place) {
    for topic in ["orders", "orders.eu", "bills"] {
        place.group(topic, "email").await;
    }
    let token = place.token("a", &[Scope::Publish, Scope::Consume], &["orders*"]).await;
    let mut server = place.serve().await;
    server.with(&token);
    for (topic, expected) in
        [("orders", 201), ("orders.eu", 201), ("bills", 403), ("bills%2Forders", 403), ("nothing", 403)]
    {
        let (status, problem) = publish(&server, topic).await;
        assert_eq!(status.as_u16(), expected, "{topic}: {problem}");
        assert!(expected != 403 || kind(&problem) == "wrong-topic", "{problem}");
    }
    let (status, problem) = server.try_post("/v1/topics/bills/groups/email/claim", &json!({})).await;
    assert_eq!((status, kind(&problem)), (StatusCode::FORBIDDEN, "wrong-topic"));
    server.end().await;
}

async fn an_expired_token_is_refused(place: &Place) {
    place.group("orders", "email").await;
    let lasts = Duration::from_secs(2);
    let new = NewToken::new("short").scope(Scope::Publish).expires_in(lasts);
    let begun = Instant::now();
    let issued = place.headwater.tokens().create(&new).await.expect("a token");
    let mut server = place.serve().await;
    server.with(issued.secret());
    let (status, _) = publish(&server, "orders").await;
    assert!(status == StatusCode::CREATED || begun.elapsed() >= lasts, "{status}");
    until(|| async { publish(&server, "orders").await.0 == StatusCode::UNAUTHORIZED }).await;
    server.end().await;
}

async fn a_rotated_token_has_its_grace_without_a_restart(place: &Place) {
    place.group("orders", "email").await;
    let tokens = place.headwater.tokens();
    let first = tokens.create(&NewToken::new("a").scope(Scope::Publish)).await.expect("a token");
    let mut server = place.serve().await;
    server.with(first.secret());
    assert_eq!(publish(&server, "orders").await.0, StatusCode::CREATED);
    let (begun, grace) = (Instant::now(), Duration::from_secs(6));
    let second = tokens.rotate(first.id(), grace).await.expect("rotated");
    let (status, _) = publish(&server, "orders").await;
    // On a machine that stalls, it may be over.
    assert!(status == StatusCode::CREATED || begun.elapsed() >= grace, "within the grace: {status}");
    until(|| async {
        let request = server.client.post(format!("{}{MESSAGES}", server.base)).bearer_auth(second.secret());
        server.answer(request.json(&json!({ "payload": 1 }))).await.0 == StatusCode::CREATED
    })
    .await;
    until(|| async { publish(&server, "orders").await.0 == StatusCode::UNAUTHORIZED }).await;
    server.with(second.secret());
    assert_eq!(publish(&server, "orders").await.0, StatusCode::CREATED);
    server.end().await;
}

async fn a_revoked_token_is_refused_within_seconds(place: &Place) {
    place.group("orders", "email").await;
    place.token("other", &[Scope::Read], &[]).await;
    let tokens = place.headwater.tokens();
    let token = tokens.create(&NewToken::new("a").scope(Scope::Publish)).await.expect("a token");
    let mut server = place.serve().await;
    server.with(token.secret());
    assert_eq!(publish(&server, "orders").await.0, StatusCode::CREATED);
    tokens.revoke(token.id()).await.expect("revoked");
    let begun = Instant::now();
    until(|| async { publish(&server, "orders").await.0 == StatusCode::UNAUTHORIZED }).await;
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    server.end().await;
}

async fn the_first_token_closes_an_open_server(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    assert_eq!(publish(&server, "orders").await.0, StatusCode::CREATED);
    place.token("a", &[Scope::Publish], &[]).await;
    until(|| async { publish(&server, "orders").await.0 == StatusCode::UNAUTHORIZED }).await;
    server.end().await;
}

async fn denials_are_in_the_audit_once_and_counted(place: &Place) {
    place.group("orders", "email").await;
    let token = place.token("shop", &[Scope::Publish], &["orders"]).await;
    let mut server = place.serve().await;
    assert_eq!(publish(&server, "orders").await.0, StatusCode::UNAUTHORIZED);
    server.with(&token);
    for _ in 0..30 {
        assert_eq!(server.try_post(CLAIM, &json!({})).await.0, StatusCode::FORBIDDEN);
    }
    server.end().await;
    let denials: Vec<_> = place.audit().await.into_iter().filter(|entry| entry.act == "deny").collect();
    let detail = |at: usize| serde_json::from_str::<Value>(&denials[at].detail).expect("JSON");
    assert_eq!(
        denials.len(),
        3,
        "the first without a token, the first claim, the repeated claims: {denials:?}"
    );
    let of_claims: Vec<usize> = (0..3).filter(|at| denials[*at].actor == "token shop").collect();
    let counted: u64 = of_claims.iter().map(|at| detail(*at)["count"].as_u64().expect("a number")).sum();
    assert_eq!((of_claims.len(), counted), (2, 30));
    let of_claim = detail(of_claims[0]);
    assert_eq!(
        (&of_claim["kind"], &of_claim["scope"], &of_claim["path"]),
        (&json!("missing-scope"), &json!("consume"), &json!(CLAIM))
    );
    assert_eq!(denials[of_claims[0]].topic.as_deref(), Some("orders"));
    assert!(denials.iter().any(|entry| entry.actor == "unknown caller"));
    let secret = token.rsplit('_').next().expect("a secret");
    assert!(!format!("{denials:?}").contains(secret));
}

async fn changes_are_audited_with_their_caller(place: &Place) {
    place.group("orders", "email").await;
    let token = place.token("ops", &[Scope::Admin], &[]).await;
    let mut server = place.serve().await;
    server.with(&token);
    server.post("/v1/topics/orders/groups/email/pause", json!({ "reason": "deploy" })).await;
    let entry = &place.audit().await[0];
    assert_eq!((entry.actor.as_str(), entry.act.as_str()), ("token ops", "pause"), "{entry:?}");
    server.end().await;
}

/// A request as a browser sends it for a page.
async fn from_page(
    server: &Running,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
) -> (StatusCode, Value) {
    let mut request = server.client.request(method, format!("{}{path}", server.base));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    server.answer(request.json(&json!({ "payload": 1 }))).await
}

async fn a_page_elsewhere_is_refused(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let own = server.base.clone();
    assert_eq!(from_page(&server, Method::POST, MESSAGES, &[("origin", &own)]).await.0, StatusCode::CREATED);
    for headers in [
        &[("origin", "https://evil.example")][..],
        &[("origin", "null")],
        &[("origin", "http://127.0.0.1:1")],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "navigate")],
    ] {
        for (method, path) in [
            (Method::POST, MESSAGES),
            (Method::POST, CLAIM),
            (Method::GET, "/v1/topics/orders/groups/email/stream"),
        ] {
            let (status, problem) = from_page(&server, method, path, headers).await;
            assert_eq!(
                (status, kind(&problem)),
                (StatusCode::FORBIDDEN, "wrong-origin"),
                "{path} {headers:?}"
            );
        }
    }
    // A form elsewhere can send plain text without asking.
    let plain = server
        .client
        .post(format!("{own}{MESSAGES}"))
        .header("content-type", "text/plain")
        .body("{\"payload\":1}");
    assert_eq!(server.answer(plain).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let read = server.client.get(format!("{own}{MESSAGES}")).send().await.expect("an answer");
    assert!(
        !read.headers().contains_key("access-control-allow-origin"),
        "no page elsewhere may read answers"
    );
    server.end().await;
}

async fn a_name_that_resolves_here_is_refused(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve_with(|options| options.host_names.push("queue.internal".into())).await;
    for (host, expected) in [
        ("evil.example", 403),
        ("localhost.evil.example:7070", 403),
        ("queue.internal", 201),
        ("QUEUE.internal:80", 201),
        ("localhost:9", 201),
        ("[::1]:9", 201),
    ] {
        let (status, problem) = from_page(&server, Method::POST, MESSAGES, &[("host", host)]).await;
        assert_eq!(status.as_u16(), expected, "{host}: {problem}");
        assert!(expected != 403 || kind(&problem) == "wrong-host", "{problem}");
    }
    server.end().await;
}

async fn a_session_needs_the_csrf_token_to_change_anything(place: &Place) {
    place.group("orders", "email").await;
    let token = place.token("ann", &[Scope::Publish, Scope::Read], &[]).await;
    let server = place.serve().await;
    let presented: headwater::tokens::PresentedToken = token.parse().expect("a token");
    let session = place
        .headwater
        .tokens()
        .start_session(presented.id(), Duration::from_secs(60))
        .await
        .expect("a session");
    let cookie = format!("a=b; headwater_session={}; c=d", session.secret());
    let ask = async |method: Method, csrf: &str| {
        from_page(&server, method, MESSAGES, &[("cookie", &cookie), ("x-csrf-token", csrf)]).await
    };
    assert_eq!(ask(Method::GET, "").await.0, StatusCode::OK, "reading needs none");
    for wrong in ["", "x", &"0".repeat(64)] {
        let (status, problem) = ask(Method::POST, wrong).await;
        assert_eq!((status, kind(&problem)), (StatusCode::FORBIDDEN, "csrf"));
    }
    let csrf = <sha2::Sha256 as sha2::Digest>::digest(format!("headwater csrf\0{}", session.secret()));
    let csrf: String = csrf.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(ask(Method::POST, &csrf).await.0, StatusCode::CREATED);
    place.headwater.tokens().end_session(session.id()).await.expect("ended");
    until(|| async { ask(Method::GET, "").await.0 == StatusCode::UNAUTHORIZED }).await;
    server.end().await;
}

async fn nothing_secret_is_in_answers(place: &Place) {
    place.group("orders", "email").await;
    let token = place.token("a", &Scope::ALL, &[]).await;
    let secret = token.rsplit('_').next().expect("a secret");
    let mut server = place.serve().await;
    server.with(&token);
    for path in [
        "/v1/tokens",
        "/v1/audit",
        "/v1/stats",
        "/v1/openapi.json",
        "/v1/nothing",
        "/v1/topics/nothing/messages",
        "/metrics",
    ] {
        let response = server.request(Method::GET, path).send().await.expect("an answer");
        let text = format!("{:?} {}", response.headers().clone(), response.text().await.expect("a body"));
        assert!(!text.contains(secret), "{path}");
        let password = place
            .url()
            .split_once("://")
            .and_then(|(_, rest)| rest.split_once('@'))
            .and_then(|(user, _)| user.split_once(':'));
        assert!(password.is_none_or(|(_, password)| !text.contains(&format!(":{password}@"))), "{path}");
    }
    server.end().await;
}

/// Repeats a check until it holds.
async fn until<F: Future<Output = bool>>(check: impl Fn() -> F) {
    let begun = Instant::now();
    while !check().await {
        assert!(begun.elapsed() < DEADLINE, "it never holds");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
