//! Dead letters of every source: the scenarios of the repository, each by its name, and what a redrive does with each.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::case::{Case, Scene, bury, failed, payloads_of};
use super::outbox::{insert as insert_entries, show};
use crate::dead_letter::{
    AnyDeadLetter, AnyDeadLetterSelection, DeadLetterSource, DeadLetters, ParkedCommand, Redriven,
};
use crate::error::ErrorKind;
use crate::limits::{ERROR_TEXT_BYTES_MAX, PAYLOAD_BYTES_MAX, STEP_BYTES_MAX};
use crate::outbox::{Outbox, OutboxStatus};
use crate::topic::TopicSettings;
use crate::transaction::Transaction;
use crate::transaction::run::in_store;

async fn only(dead_letters: &DeadLetters) -> AnyDeadLetter {
    let mut all = dead_letters.list(10, |all| all).await.unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// All fields are stored; the id is made and the time set by the database; the payload is kept byte for byte.
pub async fn insert(case: &Case) {
    let dead_letters = DeadLetters::new(&case.open().await);
    let command = ParkedCommand::new("c-7", "ChargeCard", vec![0_u8, 255, 7], "payment-worker")
        .business_key("customer-3")
        .failed_status("TIMED_OUT")
        .error("java.net.SocketTimeoutException", "no answer in 30 s")
        .attempts(4)
        .topic("payments")
        .header("trace", "größe");
    let id = dead_letters.park(&command).await.unwrap();
    assert_eq!(id.get_version_num(), 4, "{id}");
    let expected = AnyDeadLetter {
        number: only(&dead_letters).await.number,
        payload_bytes: 3,
        dead_letter_id: id,
        source: DeadLetterSource::Command { topic: Some("payments".into()) },
        command_id: "c-7".into(),
        name: Some("ChargeCard".into()),
        business_key: Some("customer-3".into()),
        payload: vec![0, 255, 7].into(),
        content_type: None,
        headers: [("trace".to_owned(), "größe".to_owned())].into(),
        failed_status: Some("TIMED_OUT".into()),
        error_class: Some("java.net.SocketTimeoutException".into()),
        error_message: Some("no answer in 30 s".into()),
        attempts: 4,
        parked_by: Some("payment-worker".into()),
        parked_at: case.now(),
    };
    assert_eq!(dead_letters.show(id).await.unwrap(), Some(expected.clone()));
    assert_eq!(only(&dead_letters).await, expected);
    assert_ne!(dead_letters.park(&command).await.unwrap(), id, "each has an id of its own");
    assert_eq!(dead_letters.show(Uuid::nil()).await.unwrap(), None);
}

/// A long error is kept, to its limit; a large payload is kept whole.
pub async fn long_values(case: &Case) {
    let dead_letters = DeadLetters::new(&case.open().await);
    let payload: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let error = "e".repeat(1_500);
    let command = ParkedCommand::new(Uuid::nil(), "Pay", payload.clone(), "worker").error_message(&*error);
    dead_letters.park(&command).await.unwrap();
    let found = only(&dead_letters).await;
    assert_eq!((found.payload.as_ref(), found.error_message), (payload.as_slice(), Some(error)));
    dead_letters.delete(&[found.dead_letter_id]).await.unwrap();
    let endless = "ü".repeat(ERROR_TEXT_BYTES_MAX);
    dead_letters.park(&ParkedCommand::new("c", "Pay", "", "worker").error_message(&*endless)).await.unwrap();
    let error = only(&dead_letters).await.error_message.unwrap();
    assert!(error.len() <= ERROR_TEXT_BYTES_MAX && error.ends_with("… (cut)"), "{} bytes", error.len());
}

/// No error message and no business key are allowed, and everything else that may be missing.
pub async fn nulls(case: &Case) {
    let dead_letters = DeadLetters::new(&case.open().await);
    dead_letters.park(&ParkedCommand::new("c", "Pay", "", "worker")).await.unwrap();
    let found = only(&dead_letters).await;
    assert_eq!((found.error_message, found.error_class, found.business_key), (None, None, None));
    assert_eq!((found.failed_status, found.attempts, found.payload.len()), (None, 0, 0));
    assert_eq!(found.source, DeadLetterSource::Command { topic: None });
}

/// Each rule by its field; nothing is written. The same in plain SQL.
pub async fn values_outside_their_limits_are_refused(case: &Case) {
    let dead_letters = DeadLetters::new(&case.open().await);
    let good = || ParkedCommand::new("c", "Pay", "", "worker");
    let (long, longer) = ("x".repeat(101), "x".repeat(256));
    for (bad, says) in [
        (ParkedCommand::new("", "Pay", "", "worker"), "invalid command_id: "),
        (ParkedCommand::new(&longer, "Pay", "", "worker"), "invalid command_id: 256 bytes"),
        (ParkedCommand::new("c", "", "", "worker"), "invalid command_name: "),
        (ParkedCommand::new("c", &*longer, "", "worker"), "invalid command_name: "),
        (ParkedCommand::new("c", "Pay", "", ""), "invalid parked_by: "),
        (ParkedCommand::new("c", "Pay", "", &*long), "invalid parked_by: 101 bytes, at most 100"),
        (good().business_key(&*longer), "invalid business_key: "),
        (good().failed_status("x".repeat(51)), "invalid failed_status: 51 bytes, at most 50"),
        (good().error(&*longer, "e"), "invalid error_class: "),
        (good().topic(""), "invalid topic: "),
        (good().attempts(u32::MAX), "invalid attempts: "),
        (good().header("", "x"), "invalid header name: "),
    ] {
        let error = failed(dead_letters.park(&bad).await, ErrorKind::InvalidInput).to_string();
        assert!(error.starts_with(says), "{error}");
    }
    let large = ParkedCommand::new("c", "Pay", vec![7_u8; PAYLOAD_BYTES_MAX + 1], "worker");
    failed(dead_letters.park(&large).await, ErrorKind::PayloadTooLarge);
    assert_eq!(dead_letters.list(10, |all| all).await.unwrap(), []);
    let many = vec![Uuid::nil(); 10_001];
    failed(dead_letters.delete(&many).await, ErrorKind::InvalidInput);
    failed(dead_letters.redrive(&many).await, ErrorKind::InvalidInput);
    dead_letters.park(&good().failed_status("x".repeat(50)).error("x".repeat(255), "e")).await.unwrap();
}

/// A message that a group gave up on is among them: its source is topic/group, its name the type, its key the business key.
pub async fn those_of_a_group_are_among_all(case: &Case) {
    let scene = case.queue().await;
    let dead_letters = DeadLetters::new(&scene.store);
    let message = crate::NewMessage::new("1").key("customer-3").message_type("OrderCreated").header("a", "b");
    scene.publish_all(&[message]).await;
    let lease = scene.claim_one("owner-1", 1).await;
    let published = scene.fetch(&lease).await.remove(0);
    scene.settle_each(&lease, vec![((1, 1), bury("hopeless"))]).await.unwrap();
    let found = only(&dead_letters).await;
    assert_eq!(found.source.to_string(), "orders/workers");
    assert_eq!(
        (found.command_id, found.name.as_deref()),
        (published.message_id.to_string(), Some("OrderCreated"))
    );
    assert_eq!((found.business_key.as_deref(), found.headers["a"].as_str()), (Some("customer-3"), "b"));
    assert_eq!((found.failed_status.as_deref(), found.attempts), (Some("FAILED"), 1));
    assert_eq!(
        (found.error_message.as_deref(), found.parked_by.as_deref()),
        (Some("hopeless"), Some("owner-1"))
    );
    dead_letters.park(&ParkedCommand::new("c", "Pay", "", "worker")).await.unwrap();
    let count =
        async |choose: fn(AnyDeadLetterSelection) -> _| dead_letters.list(10, choose).await.unwrap().len();
    assert_eq!(count(|all| all).await, 2);
    assert_eq!(count(AnyDeadLetterSelection::of_subscriptions).await, 1);
    assert_eq!(count(|all| all.of_commands().name("Pay")).await, 1);
    assert_eq!(count(AnyDeadLetterSelection::of_outbox).await, 0);
    assert_eq!(count(|all| all.business_key("customer-3").error_contains("hope")).await, 1);
    assert_eq!(scene.dead_letters().await.len(), 1, "the group has no other");
}

/// By its source: to its group again; NEW with no attempts; published to its topic. Each once.
pub async fn a_redrive_goes_by_the_source(case: &Case) {
    let scene = case.queue().await;
    let payments = Scene::new(Arc::clone(&scene.store), "payments", TopicSettings::default()).await;
    let (dead_letters, outbox) = (DeadLetters::new(&scene.store), Outbox::new(&scene.store).max_attempts(1));
    scene.publish(1).await;
    let lease = scene.claim_one("a", 1).await;
    scene.settle_each(&lease, vec![((1, 1), bury("hopeless"))]).await.unwrap();
    let entry = insert_entries(case, &outbox, 1).await[0];
    outbox.sweep_batch(1, "relay").await.unwrap();
    outbox.mark_failed(entry, "relay", "no", Duration::ZERO).await.unwrap();
    let command_id = Uuid::now_v7();
    let command = ParkedCommand::new(command_id, "Pay", "{}", "worker").business_key("k").topic("payments");
    dead_letters.park(&command.header("a", "b")).await.unwrap();
    let ids: Vec<Uuid> =
        dead_letters.list(10, |all| all).await.unwrap().iter().map(|one| one.dead_letter_id).collect();
    assert_eq!(ids.len(), 3);
    let done = dead_letters.redrive(&[&ids[..], &[Uuid::nil()]].concat()).await.unwrap();
    assert_eq!(done, Redriven { redriven: 3, gone: 0 });
    assert_eq!(dead_letters.redrive(&ids).await.unwrap(), Redriven::default(), "each once");
    assert_eq!(dead_letters.list(10, |all| all).await.unwrap(), []);
    assert_eq!(payloads_of(&scene.drain("b").await), ["1"]);
    let again = show(&outbox, entry).await;
    assert_eq!((again.status, again.attempts), (OutboxStatus::New, 0));
    let published = payments.drain_until("b", 1).await.remove(0);
    assert_eq!((published.message_id, published.payload.as_ref()), (command_id, &b"{}"[..]));
    assert_eq!((published.key.as_deref(), published.message_type.as_deref()), (Some("k"), Some("Pay")));
    assert_eq!(published.headers["a"], "b");
    assert!(scene.store.audit(10).await.unwrap().iter().any(|entry| entry.act == "redrive"));
}

/// A command that has no topic is refused with what to do, and nothing of the call is changed.
pub async fn a_command_without_a_topic_is_not_redriven(case: &Case) {
    let scene = case.queue().await;
    let dead_letters = DeadLetters::new(&scene.store);
    let with =
        dead_letters.park(&ParkedCommand::new("c-1", "Pay", "1", "worker").topic("orders")).await.unwrap();
    let without = dead_letters.park(&ParkedCommand::new("c-2", "Pay", "2", "worker")).await.unwrap();
    let error = failed(dead_letters.redrive(&[with, without]).await, ErrorKind::InvalidInput).to_string();
    assert!(error.contains(&without.to_string()) && error.contains("delete the dead letter"), "{error}");
    assert_eq!(dead_letters.list(10, |all| all).await.unwrap().len(), 2);
    // The offset of the first one, which was rolled back, may be handed out, without a message.
    assert!(scene.drain("a").await.is_empty(), "neither was published");
    let nowhere =
        dead_letters.park(&ParkedCommand::new("c-3", "Pay", "3", "worker").topic("nowhere")).await.unwrap();
    failed(dead_letters.redrive(&[nowhere]).await, ErrorKind::NoSuchTopic);
    assert!(dead_letters.show(nowhere).await.unwrap().is_some());
}

/// Deleted for good, the dead letter of a parked entry takes the entry with it; others are not touched.
pub async fn a_deleted_dead_letter_takes_its_entry_with_it(case: &Case) {
    let store = case.open().await;
    let (dead_letters, outbox) = (DeadLetters::new(&store), Outbox::new(&store).max_attempts(1));
    let ids = insert_entries(case, &outbox, 2).await;
    outbox.sweep_batch(2, "relay").await.unwrap();
    outbox.mark_failed(&ids, "relay", "no", Duration::ZERO).await.unwrap();
    let parked = dead_letters.list(10, AnyDeadLetterSelection::of_outbox).await.unwrap();
    let first = parked.iter().find(|one| one.command_id == ids[0].to_string()).unwrap().dead_letter_id;
    assert_eq!(dead_letters.delete(&[first, Uuid::nil()]).await.unwrap(), 1);
    assert_eq!(dead_letters.delete(&[first]).await.unwrap(), 0);
    assert_eq!(outbox.show(ids[0]).await.unwrap(), None);
    assert_eq!(show(&outbox, ids[1]).await.status, OutboxStatus::Parked);
    assert_eq!(only(&dead_letters).await.command_id, ids[1].to_string());
}

/// Payloads may be large: a transaction redrives or deletes so many bytes, and has an audit entry of its own. What cannot be redriven
/// is refused before the first one.
pub async fn dead_letters_are_redriven_and_deleted_by_bytes(case: &Case) {
    let settings = TopicSettings { payload_bytes_max: PAYLOAD_BYTES_MAX, ..TopicSettings::default() };
    let scene = case.scene(settings).await;
    let dead_letters = DeadLetters::new(&scene.store);
    let payload = vec![7_u8; usize::try_from(STEP_BYTES_MAX / 2).unwrap()];
    let command = ParkedCommand::new(1, "Pay", payload, "worker").topic("orders");
    let transactions = async |act: &str| {
        let audit = scene.store.audit(20).await.unwrap();
        audit.iter().filter(|entry| entry.act == act).count()
    };
    let mut ids = Vec::new();
    for act in ["redrive", "delete_dead_letters"] {
        for _ in 0..5 {
            ids.push(dead_letters.park(&command).await.unwrap());
        }
        if act == "redrive" {
            ids.push(dead_letters.park(&ParkedCommand::new(2, "Pay", "{}", "worker")).await.unwrap());
            failed(dead_letters.redrive(&ids).await, ErrorKind::InvalidInput);
            assert_eq!(transactions(act).await, 0);
            assert_eq!(dead_letters.redrive(&ids[..5]).await.unwrap(), Redriven { redriven: 5, gone: 0 });
        } else {
            assert_eq!(dead_letters.delete(&ids).await.unwrap(), 6, "the others were redriven");
        }
        assert_eq!(transactions(act).await, 3, "{act}: of two, two and one, or three with a small one");
    }
    assert_eq!(dead_letters.list(10, |all| all).await.unwrap(), []);
}

/// What is parked or redriven in a transaction exists with it or never.
pub async fn parking_happens_with_its_transaction_or_never(case: &Case) {
    let scene = case.queue().await;
    for commits in [false, true] {
        let dead_letters = DeadLetters::new(&scene.store);
        let done: crate::Result<()> = in_store(&*scene.store, move |tx: Transaction| async move {
            let dead_letters = dead_letters.within(&tx);
            let command = ParkedCommand::new("c", "Pay", "1", "worker").topic("orders");
            let [kept, redriven] = [dead_letters.park(&command).await?, dead_letters.park(&command).await?];
            assert!(dead_letters.show(kept).await?.is_some(), "seen inside");
            assert_eq!(dead_letters.redrive(&[redriven]).await?.redriven, 1);
            if commits { Ok(()) } else { Err(crate::Error::invalid("test", "rolled back")) }
        })
        .await;
        assert_eq!(done.is_ok(), commits, "{done:?}");
        let left = DeadLetters::new(&scene.store).list(10, |all| all).await.unwrap();
        assert_eq!(left.len(), usize::from(commits));
    }
    assert_eq!(scene.drain_until("a", 1).await.len(), 1, "redriven once");
}
