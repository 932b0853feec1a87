//! Which member gets a message.

use std::collections::HashMap;
use std::time::Duration;

use headwater::{Handling, Message, Messages, NewMessage};

use crate::each::{Place, Seen, eventually, on_each, settled};

on_each!(
    the_same_key_goes_to_the_same_member,
    filters_choose_and_unwanted_messages_are_done,
    members_join_and_leave_while_it_runs,
    batch_and_single_members_share_a_group,
);

fn note(seen: &Seen<(&'static str, String)>, member: &'static str) -> Handling {
    let add = seen.clone();
    Handling::one(move |message: Message, _| {
        add.add((member, message.key.clone().unwrap_or_default()));
        async { Ok(()) }
    })
}

async fn publish_keys(headwater: &headwater::Headwater, keys: u32, each: u32) {
    let mut messages = Vec::new();
    for n in 0..keys * each {
        messages.push(
            NewMessage::new("x").key(format!("key-{}", n % keys)).header("even", format!("{}", n % 2 == 0)),
        );
    }
    headwater.producer("orders").send_batch(&messages).await.unwrap();
}

async fn the_same_key_goes_to_the_same_member(place: Place) {
    let headwater = place.open().await;
    publish_keys(&headwater, 50, 4).await;
    let seen = Seen::default();
    let running = headwater
        .consumer("orders", "email")
        .handling("a", note(&seen, "a"))
        .handling("b", note(&seen, "b"))
        .handling("c", note(&seen, "c"))
        .run()
        .await
        .unwrap();
    let mut by_key: HashMap<String, Vec<&str>> = HashMap::new();
    for (member, key) in seen.reach(200).await {
        by_key.entry(key).or_default().push(member);
    }
    assert_eq!(by_key.len(), 50);
    assert!(by_key.values().all(|members| members.len() == 4 && members.iter().all(|m| *m == members[0])));
    let used: std::collections::HashSet<_> = by_key.values().map(|members| members[0]).collect();
    assert_eq!(used.len(), 3, "fifty keys are spread over all three members");
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}

async fn filters_choose_and_unwanted_messages_are_done(place: Place) {
    let headwater = place.open().await;
    publish_keys(&headwater, 10, 10).await;
    let seen = Seen::default();
    let running = headwater
        .consumer("orders", "email")
        .filter(|message| message.key.as_deref() != Some("key-0"))
        .handling("even", note(&seen, "even").when(|message| message.headers["even"] == "true"))
        .handling("three", note(&seen, "three").when(|message| message.key.as_deref() == Some("key-3")))
        .run()
        .await
        .unwrap();
    settled(&headwater, "orders", "email").await;
    let got = seen.all();
    assert_eq!(got.len(), 50, "40 even messages without key-0, and 10 of key-3");
    assert!(got.iter().all(|(member, key)| (*member == "three") == (key == "key-3") && key != "key-0"));
    let totals = running.health().totals;
    assert_eq!((totals.delivered, totals.filtered, totals.acked), (100, 50, 50));
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}

async fn members_join_and_leave_while_it_runs(place: Place) {
    let headwater = place.open().await;
    let seen = Seen::default();
    headwater.topic("orders").create().await.unwrap();
    let running = headwater.consumer("orders", "email").handling("a", note(&seen, "a")).run().await.unwrap();
    publish_keys(&headwater, 20, 1).await;
    assert!(seen.reach(20).await.iter().all(|(member, _)| *member == "a"));
    running.join("b", note(&seen, "b")).unwrap();
    let error = running.join("b", note(&seen, "b")).unwrap_err();
    assert!(error.to_string().contains("b exists already"), "{error}");
    publish_keys(&headwater, 20, 1).await;
    let both: Vec<_> = seen.reach(40).await.split_off(20);
    assert!(both.iter().any(|(member, _)| *member == "b") && both.iter().any(|(member, _)| *member == "a"));
    running.leave("a").unwrap();
    assert!(running.leave("a").is_err());
    publish_keys(&headwater, 20, 1).await;
    let last: Vec<_> = seen.reach(60).await.split_off(40);
    assert!(last.iter().all(|(member, _)| *member == "b"));
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}

async fn batch_and_single_members_share_a_group(place: Place) {
    let headwater = place.open().await;
    publish_keys(&headwater, 40, 5).await;
    let seen = Seen::default();
    let add = seen.clone();
    let batches = Handling::batch(move |messages: Messages, _| {
        messages.iter().for_each(|message| add.add(("batch", message.key.clone().unwrap())));
        async { Ok(()) }
    });
    let running = headwater
        .consumer("orders", "email")
        .handling("batch", batches)
        .handling("one", note(&seen, "one"))
        .run()
        .await
        .unwrap();
    let got = seen.reach(200).await;
    let batched = got.iter().filter(|(member, _)| *member == "batch").count();
    assert!(batched > 0 && batched < 200);
    eventually("all are acked", async || running.health().totals.acked == 200).await;
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}
