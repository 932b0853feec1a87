//! Power cuts after a failed sync, on a disk that loses what Linux loses then (`power/disk.c`).

#![cfg(all(target_os = "linux", feature = "sqlite"))]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use headwater::store::{ClaimRequest, OffsetRange, Owner, Store, Want};
use headwater::{ErrorKind, GroupName, NewMessage, OpenOptions, Start, TopicName, TopicSettings};

async fn open(path: &Path) -> Arc<dyn Store> {
    headwater::store::open(&format!("sqlite:{}", path.display()), OpenOptions::default()).await.unwrap()
}

fn topic() -> TopicName {
    TopicName::new("orders").unwrap()
}

/// What was acknowledged before, between and after failed syncs is stored after a power cut, and the rest was
/// refused.
#[test]
fn what_was_acknowledged_after_a_failed_sync_survives_a_power_cut() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, shim) = (directory.path().join("disk"), directory.path().join("disk.so"));
    fs::create_dir(&disk).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/power/disk.c");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&shim, &source])
        .arg("-ldl")
        .status()
        .expect("the compiler that built SQLite exists");
    assert!(compiled.success());
    let live = directory.path().join("live");
    fs::create_dir(&live).unwrap();
    let worker = Command::new(std::env::current_exe().unwrap())
        .args(["worker", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env("LD_PRELOAD", &shim)
        .env("DISK_FOLDER", &disk)
        .env("DISK_FAILS", directory.path().join("fails"))
        .env("POWER_STORE", live.join("store.db"))
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&worker.stdout).into_owned();
    let acked: Vec<&str> = printed.lines().filter_map(|line| Some(line.split_once("acked ")?.1)).collect();
    let errors = String::from_utf8_lossy(&worker.stderr).into_owned();
    assert_eq!(acked, ["before", "after", "last"], "{printed}{errors}");

    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = open(&disk.join("store.db")).await;
        let topic = store.topic(&topic()).await.unwrap();
        let range = OffsetRange::new(headwater::Offset(1), headwater::Offset(100));
        let found: Vec<String> = store
            .fetch(topic.topic_id, range)
            .await
            .unwrap()
            .iter()
            .map(|message| String::from_utf8_lossy(&message.payload).into_owned())
            .collect();
        for payload in acked {
            assert!(
                found.iter().any(|found| found == payload),
                "{payload} was acknowledged, found {found:?}"
            );
        }
        assert!(!found.iter().any(|found| found == "refused"), "{found:?}");
        assert_eq!(store.doctor().await.unwrap(), []);
    });
}

/// Publishes and claims on the failing disk until the power is cut.
#[test]
#[ignore = "the test above starts it in a separate process"]
fn worker() {
    let path: PathBuf = std::env::var_os("POWER_STORE").unwrap().into();
    let fails: PathBuf = std::env::var_os("DISK_FAILS").unwrap().into();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = open(&path).await;
        store.create_topic(&topic(), &TopicSettings::default()).await.unwrap();
        let group = GroupName::new("workers").unwrap();
        let subscription = store.subscribe(&topic(), &group, Start::Beginning).await.unwrap();
        let publish = async |payload: &'static str| {
            let published = store.publish(&topic(), &[NewMessage::new(payload)]).await;
            if published.is_ok() {
                println!("acked {payload}");
            }
            published.map(drop).map_err(|error| error.kind())
        };
        let claim = async || {
            let want = Want::new(subscription.subscription_id, 1);
            store.claim(&ClaimRequest { owner: Owner::new("me").unwrap(), wants: vec![want] }).await.unwrap()
        };
        publish("before").await.unwrap();
        // Not synced: its frames are among the pages that the failed sync loses.
        assert_eq!(claim().await.leases.len(), 1);
        fs::write(&fails, "").unwrap();
        assert_eq!(publish("unknown").await, Err(ErrorKind::CommitUnknown));
        // As long as the write-ahead log cannot be repaired nothing is written, let alone acknowledged.
        assert_eq!(publish("refused").await, Err(ErrorKind::Unavailable));
        assert_eq!(publish("refused").await, Err(ErrorKind::Unavailable));
        fs::remove_file(&fails).unwrap();
        publish("after").await.unwrap();
        claim().await;
        publish("last").await.unwrap();
        std::process::exit(0);
    });
}
