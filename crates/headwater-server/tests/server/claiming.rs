//! Claiming, settling and extending over HTTP.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use headwater::limits::SAFETY_POLL;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::place::{DEADLINE, Place, Running, kind, results};

crate::on_both_stores!(
    claimed_messages_are_leased_until_they_are_settled,
    a_long_poll_returns_at_once_when_a_message_comes,
    a_long_poll_returns_empty_after_its_time,
    waiting_claims_share_what_comes,
    a_lease_ends_at_its_deadline,
    an_extended_lease_lasts_longer,
    outcomes_are_what_they_say,
    a_receipt_of_another_group_is_lost,
    a_made_up_receipt_is_refused_or_lost,
    forged_receipts_are_answered_at_once,
    a_repeated_settlement_is_lost_and_harms_no_other,
    an_ordered_group_keeps_the_order_of_a_key,
    a_paused_group_hands_out_nothing,
    a_cancelled_group_is_refused_and_a_new_one_works,
    an_abandoned_claim_gives_back_what_it_got,
    large_messages_come_in_several_claims,
    the_end_of_the_server_ends_long_polls,
);

const CLAIM: &str = "/v1/topics/orders/groups/email/claim";
const SETTLE: &str = "/v1/topics/orders/groups/email/settle";
const EXTEND: &str = "/v1/topics/orders/groups/email/extend";

/// Claims until something comes.
async fn claim_soon(server: &Running, body: Value) -> Vec<Value> {
    let begun = Instant::now();
    loop {
        let claimed = server.claim(body.clone()).await;
        if !claimed.is_empty() {
            return claimed;
        }
        assert!(begun.elapsed() < DEADLINE, "nothing came");
    }
}

fn offsets(messages: &[Value]) -> Vec<i64> {
    messages.iter().map(|message| message["offset"].as_i64().expect("an offset")).collect()
}

async fn claimed_messages_are_leased_until_they_are_settled(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    server.publish([json!(1), json!("two"), json!({ "three": 3 })]).await;
    let answer = server.post(CLAIM, json!({ "max": 2 })).await;
    let first = answer["messages"].as_array().expect("messages").clone();
    assert_eq!(offsets(&first), [1, 2]);
    assert_eq!(
        (&first[1]["payload"], &first[0]["attempt"], &first[0]["key"]),
        (&json!("two"), &json!(1), &Value::Null)
    );
    assert!(first[0]["published_at"].as_str().is_some_and(|at| at.ends_with('Z')), "{}", first[0]);
    assert_eq!(answer["lease_until"], first[0]["lease_until"]);
    let second = server.claim(json!({ "max": 10 })).await;
    assert_eq!(offsets(&second), [3]);
    assert_eq!(server.claim(json!({})).await, [] as [Value; 0]);
    assert_eq!(server.settle(&first, "ack").await, ["settled", "settled"]);
    assert_eq!(server.settle(&second, "ack").await, ["settled"]);
    assert_eq!(server.claim(json!({})).await, [] as [Value; 0]);
    let status = place.headwater.groups("orders").get("email").await.expect("a group").status;
    assert_eq!(status.lag, 0);
    server.end().await;
}

async fn a_long_poll_returns_at_once_when_a_message_comes(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let mut times = Vec::new();
    for payload in 0..20 {
        let polling = server.claim(json!({ "wait_ms": 30_000 }));
        let publishing = async {
            // Long enough for the poll to wait; however long it is, the claim finds the message.
            tokio::time::sleep(Duration::from_millis(30)).await;
            server.publish([json!(payload)]).await;
            Instant::now()
        };
        let (claimed, published_at) = tokio::join!(async { (polling.await, Instant::now()) }, publishing);
        let (claimed, claimed_at) = claimed;
        times.push(claimed_at.saturating_duration_since(published_at));
        assert_eq!(claimed[0]["payload"], payload);
        server.settle(&claimed, "ack").await;
    }
    // Woken in every round, not found by polling; and at once in the best, because the machine may be busy with others.
    times.sort_unstable();
    let (shortest, median, longest) = (times[0], times[times.len() / 2], times[times.len() - 1]);
    assert!(longest < SAFETY_POLL / 2, "{times:?}");
    assert!(median < Duration::from_secs(1), "{times:?}");
    assert!(shortest < Duration::from_millis(200), "{times:?}");
    server.end().await;
}

async fn a_long_poll_returns_empty_after_its_time(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let begun = Instant::now();
    assert_eq!(server.claim(json!({ "wait_ms": 300 })).await, [] as [Value; 0]);
    assert!(begun.elapsed() >= Duration::from_millis(300) && begun.elapsed() < Duration::from_secs(20));
    let (status, problem) = server.try_post(CLAIM, &json!({ "wait_ms": 60_001 })).await;
    assert_eq!((status, problem["field"].as_str()), (StatusCode::BAD_REQUEST, Some("wait_ms")));
    for bad in [json!({ "max": 0 }), json!({ "max": 1_001 })] {
        assert_eq!(server.try_post(CLAIM, &bad).await.1["field"], "max");
    }
    assert_eq!(server.try_post(CLAIM, &json!({ "lease_ms": 0 })).await.1["field"], "lease_ms");
    server.end().await;
}

async fn waiting_claims_share_what_comes(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let polls = futures_util::future::join_all((0..50).map(|_| server.claim(json!({ "wait_ms": 30_000 }))));
    let publishing = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.publish((0..50).map(|payload| json!(payload))).await;
    };
    let (claimed, ()) = tokio::join!(polls, publishing);
    let mut all: Vec<i64> = claimed.iter().flat_map(|claimed| offsets(claimed)).collect();
    all.sort_unstable();
    assert_eq!(all, (1..=50).collect::<Vec<_>>(), "each message once, and one for each");
    server.end().await;
}

async fn a_lease_ends_at_its_deadline(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    server.publish([json!(1)]).await;
    let first = server.claim(json!({ "lease_ms": 200 })).await;
    let again = claim_soon(&server, json!({ "wait_ms": 5_000 })).await;
    assert_eq!((offsets(&again), &again[0]["attempt"]), (vec![1], &json!(2)));
    assert_eq!(server.settle(&first, "ack").await, ["lost"]);
    let extended = server.post(EXTEND, json!({ "receipts": [first[0]["receipt"]] })).await;
    assert_eq!(results(&extended), ["lost"]);
    assert_eq!(server.settle(&again, "ack").await, ["settled"]);
    server.end().await;
}

async fn an_extended_lease_lasts_longer(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    server.publish([json!(1), json!(2)]).await;
    // On a machine that stalls, the lease may end before it is extended.
    let mut tries = 0;
    let (claimed, extended) = loop {
        tries += 1;
        let claimed = claim_soon(&server, json!({ "max": 2, "lease_ms": 4_000, "wait_ms": 5_000 })).await;
        let receipt = &claimed[0]["receipt"];
        let extended = server.post(EXTEND, json!({ "receipts": [receipt], "lease_ms": 60_000 })).await;
        if results(&extended) == ["extended"] || tries == 5 {
            break (claimed, extended);
        }
    };
    assert_eq!(results(&extended), ["extended"]);
    assert!(
        extended["results"][0]["lease_until"].as_str() > claimed[0]["lease_until"].as_str(),
        "{extended}"
    );
    assert_eq!(server.claim(json!({ "wait_ms": 4_500 })).await, [] as [Value; 0], "past the first deadline");
    assert_eq!(server.settle(&claimed, "ack").await, ["settled", "settled"], "both share the lease");
    server.end().await;
}

async fn outcomes_are_what_they_say(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    server.publish((0..5).map(|payload| json!(payload))).await;
    let claimed = server.claim(json!({ "max": 5 })).await;
    let receipt = |at: usize| claimed[at]["receipt"].clone();
    let answer = server
        .post(
            SETTLE,
            json!({ "settlements": [
                { "receipt": receipt(0), "outcome": "ack" },
                { "receipt": receipt(1), "outcome": "retry", "delay_ms": 0, "reason": "no stock" },
                { "receipt": receipt(2), "outcome": "bury", "reason": "broken" },
                { "receipt": receipt(3), "outcome": "release" },
                { "receipt": receipt(4), "outcome": "retry", "delay_ms": 3_600_000 },
            ] }),
        )
        .await;
    assert_eq!(results(&answer), ["settled"; 5]);
    let mut again = claim_soon(&server, json!({ "max": 5, "wait_ms": 1_000 })).await;
    while again.len() < 2 {
        again.extend(claim_soon(&server, json!({ "max": 5, "wait_ms": 1_000 })).await);
    }
    again.sort_by_key(|message| message["offset"].as_i64());
    assert_eq!(offsets(&again), [2, 4], "retried and released");
    assert_eq!(
        (&again[0]["attempt"], &again[1]["attempt"]),
        (&json!(2), &json!(1)),
        "a release counts no attempt"
    );
    let dead = place.headwater.dead_letters().of("orders", "email").list(10).await.expect("dead letters");
    assert_eq!((dead.len(), dead[0].error.as_str()), (1, "broken"));
    for (bad, field) in [
        (json!({ "receipt": receipt(0), "outcome": "ack", "delay_ms": 1 }), "settlements[0].delay_ms"),
        (json!({ "receipt": receipt(0), "outcome": "release", "reason": "x" }), "settlements[0].reason"),
        (json!({ "receipt": receipt(0), "outcome": "explode" }), "settlements[0].outcome"),
        (json!({ "receipt": "x", "outcome": "ack" }), "settlements[0].receipt"),
    ] {
        let (status, problem) = server.try_post(SETTLE, &json!({ "settlements": [bad] })).await;
        assert_eq!((status, problem["field"].as_str()), (StatusCode::BAD_REQUEST, Some(field)), "{problem}");
    }
    server.end().await;
}

async fn a_receipt_of_another_group_is_lost(place: &Place) {
    place.headwater.topic("orders").pub_sub().create().await.expect("a topic");
    for group in ["email", "billing"] {
        place.group("orders", group).await;
    }
    let server = place.serve().await;
    server.publish([json!(1)]).await;
    let claimed = server.claim(json!({})).await;
    let settlements = json!({ "settlements": [{ "receipt": claimed[0]["receipt"], "outcome": "ack" }] });
    let other = server.post("/v1/topics/orders/groups/billing/settle", settlements).await;
    assert_eq!(results(&other), ["lost"]);
    let other = server
        .post("/v1/topics/orders/groups/billing/extend", json!({ "receipts": [claimed[0]["receipt"]] }))
        .await;
    assert_eq!(results(&other), ["lost"]);
    assert_eq!(server.settle(&claimed, "ack").await, ["settled"]);
    server.end().await;
}

async fn a_made_up_receipt_is_refused_or_lost(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    server.publish([json!(1), json!(2)]).await;
    let claimed = server.claim(json!({ "max": 2 })).await;
    let receipt = claimed[0]["receipt"].as_str().expect("a receipt");
    // One character after the other changed: never does it settle what it was not made for.
    for at in 0..receipt.len() {
        let mut changed = receipt.to_owned();
        let other = if &changed[at..=at] == "A" { "B" } else { "A" };
        changed.replace_range(at..=at, other);
        let body = json!({ "settlements": [{ "receipt": changed, "outcome": "release" }] });
        let (status, answer) = server.try_post(SETTLE, &body).await;
        let harmless = status == StatusCode::BAD_REQUEST || results(&answer) == ["lost"];
        // What follows the token is the client's own: offsets it holds, and its attempt.
        assert!(harmless || at >= 33, "character {at}: {status} {answer}");
        if !harmless {
            break;
        }
    }
    server.end().await;
}

/// A receipt with the number of the lease changed, for an offset and with a lane up to another.
fn forged(receipt: &str, lease: u32, offset: u64, lane_last: u64) -> String {
    let mut bytes = URL_SAFE_NO_PAD.decode(receipt).expect("base64");
    // The version, the holder, the number of the lease and the subscription, which is small.
    bytes.truncate(26);
    bytes[21..25].copy_from_slice(&lease.to_be_bytes());
    for mut number in [offset, 0, 0, 1, lane_last - offset + 1] {
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
    }
    URL_SAFE_NO_PAD.encode(bytes)
}

async fn forged_receipts_are_answered_at_once(place: &Place) {
    place.headwater.topic("orders").ordered_by_key().create().await.expect("a topic");
    place.group("orders", "email").await;
    let server = place.serve().await;
    let message = json!({ "payload": "x".repeat(900_000), "key": "a" });
    for _ in 0..8 {
        server.post("/v1/topics/orders/batches", json!({ "messages": [message] })).await;
    }
    let claimed = claim_soon(&server, json!({ "wait_ms": 1_000 })).await;
    let receipt = claimed[0]["receipt"].as_str().expect("a receipt");
    let end = i64::MAX as u64 - 1;
    for offset in [1, end - 1, end] {
        let one = |lease| json!({ "receipt": forged(receipt, lease, offset, end), "outcome": "retry" });
        let settlements: Vec<Value> = (0..1_000).map(one).collect();
        let settling = server.post(SETTLE, json!({ "settlements": settlements }));
        // Far longer than a thousand lookups take, and far shorter than to read the messages a thousand times.
        let answer = tokio::time::timeout(DEADLINE, settling).await.expect("answered");
        assert_eq!(results(&answer), vec!["lost"; 1_000], "offset {offset}");
    }
    let impossible = json!({ "receipt": forged(receipt, 1, end + 1, end + 1), "outcome": "retry" });
    let (status, problem) = server.try_post(SETTLE, &json!({ "settlements": [impossible] })).await;
    assert_eq!(
        (status, problem["field"].as_str()),
        (StatusCode::BAD_REQUEST, Some("settlements[0].receipt"))
    );
    assert_eq!(server.settle(&claimed, "ack").await, vec!["settled"; claimed.len()], "nothing was changed");
    server.end().await;
}

async fn a_repeated_settlement_is_lost_and_harms_no_other(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    server.publish((0..10).map(|payload| json!(payload))).await;
    let claimed = server.claim(json!({ "max": 10 })).await;
    assert_eq!(server.settle(&claimed[..5], "ack").await, ["settled"; 5]);
    let repeated = server.settle(&claimed[3..7], "ack").await;
    assert_eq!(repeated, ["lost", "lost", "settled", "settled"]);
    let twice = [claimed[7].clone(), claimed[7].clone()];
    assert_eq!(server.settle(&twice, "ack").await, ["settled", "lost"]);
    assert_eq!(server.settle(&claimed[8..], "ack").await, ["settled"; 2]);
    assert_eq!(place.headwater.groups("orders").outstanding("email", 10).await.expect("ranges").len(), 0);
    server.end().await;
}

async fn an_ordered_group_keeps_the_order_of_a_key(place: &Place) {
    place.headwater.topic("orders").ordered_by_key().create().await.expect("a topic");
    place.group("orders", "email").await;
    let server = place.serve().await;
    let messages: Vec<Value> =
        (0..12).map(|n| json!({ "payload": n, "key": if n % 2 == 0 { "a" } else { "b" } })).collect();
    server.post("/v1/topics/orders/batches", json!({ "messages": messages })).await;
    let mut claimed = Vec::new();
    while claimed.len() < 12 {
        claimed.extend(claim_soon(&server, json!({ "max": 12, "wait_ms": 1_000 })).await);
    }
    let of_key =
        |key: &str| -> Vec<Value> { claimed.iter().filter(|one| one["key"] == key).cloned().collect() };
    let (a, b) = (of_key("a"), of_key("b"));
    // The second of a fails; the others of a wait behind it, also those named as done.
    let answer = server
        .post(
            SETTLE,
            json!({ "settlements": [
                { "receipt": a[0]["receipt"], "outcome": "ack" },
                { "receipt": a[1]["receipt"], "outcome": "retry", "delay_ms": 50 },
                { "receipt": a[2]["receipt"], "outcome": "ack" },
            ] }),
        )
        .await;
    assert_eq!(results(&answer), ["settled", "settled", "lost"]);
    assert_eq!(server.settle(&a[3..], "ack").await, ["lost"; 3], "held back");
    assert_eq!(server.settle(&b, "ack").await, ["settled"; 6]);
    let mut order = Vec::new();
    while order.len() < 5 {
        let again = claim_soon(&server, json!({ "max": 12, "wait_ms": 5_000 })).await;
        order.extend(again.iter().map(|one| one["payload"].as_i64().expect("a number")));
        assert!(server.settle(&again, "ack").await.iter().all(|result| result == "settled"));
    }
    assert_eq!(order, [2, 4, 6, 8, 10]);
    assert_eq!(place.headwater.groups("orders").outstanding("email", 10).await.expect("ranges").len(), 0);
    server.end().await;
}

async fn a_paused_group_hands_out_nothing(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    server.publish([json!(1)]).await;
    place.headwater.groups("orders").pause("email").await.expect("paused");
    assert_eq!(server.claim(json!({ "wait_ms": 100 })).await, [] as [Value; 0]);
    let polling = server.claim(json!({ "wait_ms": 30_000 }));
    let resuming = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        place.headwater.groups("orders").resume("email").await.expect("resumed");
    };
    let (claimed, ()) = tokio::join!(polling, resuming);
    assert_eq!(offsets(&claimed), [1]);
    server.end().await;
}

async fn a_cancelled_group_is_refused_and_a_new_one_works(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    server.publish([json!(1)]).await;
    let claimed = server.claim(json!({})).await;
    place.headwater.groups("orders").cancel("email").await.expect("cancelled");
    let (status, problem) = server.try_post(CLAIM, &json!({})).await;
    assert!(matches!(kind(&problem), "invalid-transition" | "no-such-group"), "{status} {problem}");
    place.group("orders", "email").await;
    let begun = Instant::now();
    let again = loop {
        let (status, answer) = server.try_post(CLAIM, &json!({})).await;
        if status == StatusCode::OK {
            break answer["messages"].as_array().expect("messages").clone();
        }
        assert!(begun.elapsed() < DEADLINE, "{answer}");
    };
    assert_eq!(offsets(&again), [1], "the new group begins at the beginning");
    assert_eq!(server.settle(&claimed, "ack").await, ["lost"]);
    assert_eq!(server.settle(&again, "ack").await, ["settled"]);
    server.end().await;
}

async fn an_abandoned_claim_gives_back_what_it_got(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    // Clients that leave while they wait take nothing with them.
    for _ in 0..20 {
        let polling = server.claim(json!({ "wait_ms": 30_000 }));
        assert!(tokio::time::timeout(Duration::from_millis(5), polling).await.is_err());
    }
    server.publish((0..20).map(|payload| json!(payload))).await;
    let mut all = Vec::new();
    while all.len() < 20 {
        all.extend(offsets(&claim_soon(&server, json!({ "max": 20, "wait_ms": 1_000 })).await));
    }
    all.sort_unstable();
    assert_eq!(all, (1..=20).collect::<Vec<_>>());
    server.end().await;
}

async fn large_messages_come_in_several_claims(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let large = "x".repeat(900_000);
    for _ in 0..12 {
        server.publish([json!(large)]).await;
    }
    let mut all = Vec::new();
    while all.len() < 12 {
        let claimed = claim_soon(&server, json!({ "max": 100, "wait_ms": 1_000 })).await;
        assert!(claimed.len() < 12, "bounded by bytes");
        all.extend(offsets(&claimed));
        server.settle(&claimed, "ack").await;
    }
    all.sort_unstable();
    assert_eq!(all, (1..=12).collect::<Vec<_>>());
    server.end().await;
}

async fn the_end_of_the_server_ends_long_polls(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let (client, base) = (server.client.clone(), server.base.clone());
    let polling = tokio::spawn(async move {
        let request = client.post(format!("{base}{CLAIM}")).json(&json!({ "wait_ms": 60_000 }));
        request.send().await.expect("an answer").json::<Value>().await.expect("JSON")
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let begun = Instant::now();
    server.end().await;
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert_eq!(polling.await.expect("ended")["messages"], json!([]));
}
