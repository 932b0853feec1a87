//! The log of a server, at its finest level, has no secret: neither a token, nor the cookie of a session, nor a hash of either.

use std::fs::File;
use std::time::Duration;

use headwater::tokens::{PresentedToken, Scope};
use serde_json::json;

use crate::child::ChildServer;
use crate::place::Place;

crate::on_both_stores!(the_log_has_no_secret);

async fn the_log_has_no_secret(place: &Place) {
    place.group("orders", "email").await;
    let token = place.token("shop", &Scope::ALL, &[]).await;
    let presented: PresentedToken = token.parse().expect("a token");
    let tokens = place.headwater.tokens();
    let session = tokens.start_session(presented.id(), Duration::from_secs(60)).await.expect("a session");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log");
    let server = ChildServer::start_logged(place.url(), File::create(&path).expect("a file")).await;
    let client = crate::place::client().build().expect("a client");
    let messages = format!("{}/v1/topics/orders/messages", server.base);
    let wrong = format!("hw_{}_{}", presented.id(), "5ec2e7".repeat(11).split_off(2));
    for bearer in [&token, &wrong] {
        let request = client.post(&messages).bearer_auth(bearer).json(&json!({ "payload": 1 }));
        request.send().await.expect("an answer");
    }
    let cookie = format!("headwater_session={}", session.secret());
    client.get(&messages).header("cookie", cookie).send().await.expect("an answer");
    // A person who types a token into the wrong place.
    let misplaced = format!("{}/v1/topics/{token}/messages", server.base);
    client.get(misplaced).send().await.expect("an answer");
    server.kill().await;
    let log = std::fs::read_to_string(&path).expect("the log");
    assert!(log.contains("server started") && log.contains("request denied"), "it was logged: {log}");
    let secret_of = |text: &str| text.rsplit('_').next().expect("a secret").to_owned();
    for secret in [secret_of(&token), secret_of(&wrong), secret_of(session.secret())] {
        let line = log.lines().find(|line| line.contains(&secret));
        assert!(line.is_none(), "{line:?}");
    }
}
