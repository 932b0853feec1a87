//! A process whose threads are all blocked still sends heartbeats.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::consumer::runtime::Runtime;
use crate::lease_thread::LeaseThread;
use crate::message::{Message, NewMessage};
use crate::{Handling, Headwater, OpenOptions};

const SILENT_FOR: Duration = Duration::from_millis(1_000);
const BLOCKED: Duration = Duration::from_millis(3_000);

/// A process of its own, from the store's point of view: owners that are silent for a second are dead.
async fn process(url: &str) -> Headwater {
    let options = OpenOptions::default().auto_create(true).maintenance(false);
    let headwater = Headwater::open_with(url, options).await.unwrap();
    let (store, owner) = (Arc::clone(headwater.store()), Runtime::new_owner().unwrap());
    let thread = LeaseThread::shared().unwrap();
    headwater.set_runtime(Runtime::start(thread, store, owner, Some(SILENT_FOR), None));
    headwater
}

/// A member that counts messages, and blocks its thread.
fn counting(begun: &Arc<AtomicUsize>, blocks: Duration) -> Handling {
    let begun = Arc::clone(begun);
    Handling::one(move |_: Message, _| {
        let begun = Arc::clone(&begun);
        async move {
            begun.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(blocks);
            Ok(())
        }
    })
}

async fn blocked_threads_stop_no_heartbeat(url: String) {
    let headwater = process(&url).await;
    headwater.producer("orders").send_batch(&[NewMessage::new("a"), NewMessage::new("b")]).await.unwrap();
    let (here, there) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (begun, got) = (Arc::clone(&here), Arc::clone(&there));
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let headwater = process(&url).await;
            let consumer = headwater.consumer("orders", "email");
            while begun.load(Ordering::SeqCst) < 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let running = consumer.handling("other", counting(&got, Duration::ZERO)).run().await.unwrap();
            // It judges others once it was in contact for as long as they may be silent.
            tokio::time::sleep(BLOCKED - Duration::from_millis(200)).await;
            running.shutdown(Duration::from_secs(5)).await.unwrap();
            headwater.close().await.unwrap();
        });
    });
    let consumer = headwater.consumer("orders", "email").concurrency(2);
    let running = consumer.handling("one", counting(&here, BLOCKED)).run().await.unwrap();
    tokio::task::spawn_blocking(|| other.join().unwrap()).await.unwrap();
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
