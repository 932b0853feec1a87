//! Two servers on one store: either may be killed, and clients continue through the other.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::child::ChildServer;
use crate::place::{DEADLINE, Place, Running, serve};

crate::on_both_stores!(
    a_lease_outlives_the_server_that_handed_it_out,
    a_message_published_at_one_wakes_a_claim_at_the_other,
    either_is_killed_and_nothing_is_lost,
);

async fn another(place: &Place) -> Running {
    serve(place.another_handle().await, |_| {}).await.expect("a server")
}

async fn a_lease_outlives_the_server_that_handed_it_out(place: &Place) {
    place.group("orders", "email").await;
    let (first, second) = (ChildServer::start(place.url()).await, another(place).await);
    second.publish([json!(1), json!(2)]).await;
    let client = crate::place::client().build().expect("a client");
    let path = format!("{}/v1/topics/orders/groups/email/claim", first.base);
    let request = client.post(path).json(&json!({ "max": 2, "lease_ms": 60_000 }));
    let answer: Value = request.send().await.expect("an answer").json().await.expect("JSON");
    let claimed = answer["messages"].as_array().expect("messages").clone();
    assert_eq!(claimed.len(), 2);
    first.kill().await;
    assert_eq!(
        second.claim(json!({ "max": 2, "wait_ms": 1_000 })).await,
        [] as [Value; 0],
        "the lease lasts"
    );
    let extend = json!({ "receipts": [claimed[0]["receipt"]], "lease_ms": 90_000 });
    let extended = second.post("/v1/topics/orders/groups/email/extend", extend).await;
    assert_eq!(crate::place::results(&extended), ["extended"]);
    assert_eq!(second.settle(&claimed, "ack").await, ["settled", "settled"]);
    second.end().await;
}

async fn a_message_published_at_one_wakes_a_claim_at_the_other(place: &Place) {
    place.group("orders", "email").await;
    let (first, second) = (another(place).await, another(place).await);
    let polling = second.claim(json!({ "wait_ms": 30_000 }));
    let publishing = async {
        // The claim waits by then; however long it takes, it finds the message.
        tokio::time::sleep(Duration::from_millis(300)).await;
        first.publish([json!("hello")]).await;
        Instant::now()
    };
    let (claimed, published_at) = tokio::join!(polling, publishing);
    assert_eq!(claimed[0]["payload"], "hello");
    assert!(published_at.elapsed() < Duration::from_secs(10), "woken, not found by polling");
    first.end().await;
    second.end().await;
}

/// The server that clients are sent to now.
type Balancer = Arc<Mutex<String>>;

/// A client that tries again, at whichever server is there.
async fn insist(client: &reqwest::Client, balancer: &Balancer, path: &str, body: &Value) -> Value {
    let begun = Instant::now();
    loop {
        let base = balancer.lock().expect("no panic").clone();
        if let Ok(response) = client.post(format!("{base}{path}")).json(body).send().await
            && response.status().is_success()
            && let Ok(answer) = response.json::<Value>().await
        {
            return answer;
        }
        assert!(begun.elapsed() < DEADLINE, "no server answers {path}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn either_is_killed_and_nothing_is_lost(place: &Place) {
    const MESSAGES: i64 = 400;
    place.group("orders", "email").await;
    let mut servers = [ChildServer::start(place.url()).await, ChildServer::start(place.url()).await];
    let balancer: Balancer = Arc::new(Mutex::new(servers[0].base.clone()));
    let client = crate::place::client()
        .timeout(Duration::from_secs(10))
        .pool_max_idle_per_host(0)
        .build()
        .expect("a client");
    let done = Arc::new(AtomicBool::new(false));

    let publishing = {
        let (client, balancer) = (client.clone(), Arc::clone(&balancer));
        tokio::spawn(async move {
            for n in 0..MESSAGES {
                // A repeat of what was stored before the server died is no second message.
                let body = json!({ "payload": n, "dedup_key": format!("m-{n}") });
                insist(&client, &balancer, "/v1/topics/orders/messages", &body).await;
            }
        })
    };
    let consuming = {
        let (client, balancer, done) = (client.clone(), Arc::clone(&balancer), Arc::clone(&done));
        tokio::spawn(async move {
            let mut seen = BTreeSet::new();
            while seen.len() < usize::try_from(MESSAGES).expect("small") {
                let body = json!({ "max": 20, "wait_ms": 500, "lease_ms": 3_000 });
                let answer = insist(&client, &balancer, "/v1/topics/orders/groups/email/claim", &body).await;
                let messages = answer["messages"].as_array().expect("messages").clone();
                if messages.is_empty() {
                    continue;
                }
                let settlement = |one: &Value| json!({ "receipt": one["receipt"], "outcome": "ack" });
                let body = json!({ "settlements": messages.iter().map(settlement).collect::<Vec<_>>() });
                insist(&client, &balancer, "/v1/topics/orders/groups/email/settle", &body).await;
                seen.extend(messages.iter().map(|one| one["payload"].as_i64().expect("a number")));
            }
            done.store(true, Ordering::SeqCst);
            seen
        })
    };
    let mut kills = 0;
    while !done.load(Ordering::SeqCst) && kills < 6 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        let at = kills % 2;
        *balancer.lock().expect("no panic") = servers[1 - at].base.clone();
        let fresh = ChildServer::start(place.url()).await;
        std::mem::replace(&mut servers[at], fresh).kill().await;
        kills += 1;
    }
    tokio::time::timeout(DEADLINE, publishing).await.expect("in time").expect("published");
    let seen = tokio::time::timeout(DEADLINE * 2, consuming).await.expect("in time").expect("consumed");
    assert_eq!(seen, (0..MESSAGES).collect::<BTreeSet<_>>());
    let (begun, last) = (Instant::now(), another(place).await);
    while place.headwater.groups("orders").get("email").await.expect("a group").status.lag > 0 {
        // What was acked into a server that died at that moment is handed out once more.
        let left = last.claim(json!({ "max": 100, "wait_ms": 500 })).await;
        if !left.is_empty() {
            last.settle(&left, "ack").await;
        }
        assert!(begun.elapsed() < DEADLINE, "everything is settled in the end");
    }
    last.end().await;
    for server in servers {
        server.kill().await;
    }
}
