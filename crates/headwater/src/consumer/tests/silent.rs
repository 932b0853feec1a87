//! A process whose threads are all blocked still sends heartbeats.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::consumer::runtime::Runtime;
use crate::lease::{ClaimRequest, Want};
use crate::lease_thread::LeaseThread;
use crate::message::{Message, NewMessage};
use crate::name::{GroupName, Owner, TopicName};
use crate::subscription::{Start, SubscriptionId};
use crate::{Handling, Headwater, OpenOptions};

/// Heartbeats follow each other four times faster, so a stall has to last for most of it to end a lease.
const SILENT_FOR: Duration = Duration::from_secs(5);
/// The end of each wait here that has failed.
const DEADLINE: Duration = Duration::from_secs(60);

/// A process of its own, from the store's point of view: owners that are silent for five seconds are dead.
async fn process(url: &str) -> Headwater {
    let options = OpenOptions::default().auto_create(true).maintenance(false);
    let headwater = Headwater::open_with(url, options).await.unwrap();
    let (store, owner) = (Arc::clone(headwater.store()), Runtime::new_owner().unwrap());
    let thread = LeaseThread::shared().unwrap();
    headwater.set_runtime(Runtime::start(thread, store, owner, Some(SILENT_FOR), None));
    headwater
}

/// A member that counts messages, and blocks its thread until it may end.
fn counting(begun: &Arc<AtomicUsize>, may_end: &Arc<AtomicBool>) -> Handling {
    let (begun, may_end) = (Arc::clone(begun), Arc::clone(may_end));
    Handling::one(move |_: Message, _| {
        let (begun, may_end) = (Arc::clone(&begun), Arc::clone(&may_end));
        async move {
            begun.fetch_add(1, Ordering::SeqCst);
            let since = Instant::now();
            while !may_end.load(Ordering::SeqCst) && since.elapsed() < DEADLINE {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        }
    })
}

/// Whether an owner gets a lease of a subscription now.
async fn claims(headwater: &Headwater, owner: &str, subscription: SubscriptionId) -> bool {
    let wants = vec![Want::new(subscription, 1)];
    let request = ClaimRequest { owner: Owner::new(owner).unwrap(), wants };
    !headwater.store().claim(&request).await.unwrap().leases.is_empty()
}

/// An owner that sends one heartbeat, and has a lease of this subscription.
async fn gone(headwater: &Headwater) -> SubscriptionId {
    headwater.producer("lost").send(NewMessage::new("x")).await.unwrap();
    let (topic, group) = (TopicName::new("lost").unwrap(), GroupName::new("lost").unwrap());
    let subscription = headwater.store().subscribe(&topic, &group, Start::Beginning).await.unwrap();
    headwater.store().heartbeat(&Owner::new("gone").unwrap(), Some(SILENT_FOR), &[]).await.unwrap();
    assert!(claims(headwater, "gone", subscription.subscription_id).await);
    subscription.subscription_id
}

async fn blocked_threads_stop_no_heartbeat(url: String) {
    let headwater = process(&url).await;
    headwater.producer("orders").send_batch(&[NewMessage::new("a"), NewMessage::new("b")]).await.unwrap();
    let (here, there) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let may_end = Arc::new(AtomicBool::new(false));
    let (begun, got) = (Arc::clone(&here), Arc::clone(&there));
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let headwater = process(&url).await;
            let until = Instant::now() + DEADLINE;
            while begun.load(Ordering::SeqCst) < 2 {
                assert!(Instant::now() < until, "the handlers do not begin");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // Its last heartbeat is later than any that a blocked thread could have sent.
            let gone = gone(&headwater).await;
            let consumer = headwater.consumer("orders", "email");
            let handling = counting(&got, &Arc::new(AtomicBool::new(true)));
            let running = consumer.handling("other", handling).run().await.unwrap();
            let until = Instant::now() + DEADLINE;
            while !claims(&headwater, "next", gone).await {
                assert!(Instant::now() < until, "no owner is found silent");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            // So each owner that was silent for as long has lost its leases by now.
            let status = headwater.groups("orders").get("email").await.unwrap().status;
            assert!(!claims(&headwater, "next", status.subscription_id).await);
            assert_eq!(status.reassigned, 0);
            running.shutdown(Duration::from_secs(5)).await.unwrap();
            headwater.close().await.unwrap();
        });
    });
    let consumer = headwater.consumer("orders", "email").concurrency(2);
    let running = consumer.handling("one", counting(&here, &may_end)).run().await.unwrap();
    let ended = tokio::task::spawn_blocking(|| other.join()).await.unwrap();
    may_end.store(true, Ordering::SeqCst);
    ended.unwrap();
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    assert_eq!((here.load(Ordering::SeqCst), there.load(Ordering::SeqCst)), (2, 0), "leases of 300 s last");
    headwater.store().drop_namespace().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_threads_stop_no_heartbeat_on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    blocked_threads_stop_no_heartbeat(format!("sqlite:{}", directory.path().join("silent.db").display()))
        .await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_threads_stop_no_heartbeat_on_postgres() {
    let Ok(server) = std::env::var("HEADWATER_TEST_POSTGRES") else {
        assert!(
            std::env::var_os("HEADWATER_TEST_REQUIRE_ALL").is_none(),
            "HEADWATER_TEST_POSTGRES is not set"
        );
        println!("skipped: HEADWATER_TEST_POSTGRES is not set");
        return;
    };
    let separator = if server.contains('?') { '&' } else { '?' };
    let name = format!("silent_{}", uuid::Uuid::now_v7().simple());
    blocked_threads_stop_no_heartbeat(format!("{server}{separator}namespace={name}")).await;
}
