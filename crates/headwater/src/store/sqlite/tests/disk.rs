//! The files of a store: two names, deleted, replaced, damaged, and a failed sync.

use std::process::Command;

use rusqlite::ffi;

use super::*;

/// Removes the three files of a store.
fn remove(path: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        std::fs::remove_file(trust::beside(path, suffix)).unwrap();
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_with_two_names_is_refused_under_both() {
    let place = Place::new();
    place.open().await.close().await.unwrap();
    let other = place.directory.path().join("other.db");
    std::fs::hard_link(place.path(), &other).unwrap();
    for path in [place.path(), other.clone()] {
        let error = open_at(&path, OpenOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAStore, "{error:?}");
        let text = error.to_string();
        assert!(text.contains(path.to_str().unwrap()) && text.contains("2 names"), "{text}");
    }
    std::fs::remove_file(&other).unwrap();
    std::os::unix::fs::symlink(place.path(), &other).unwrap();
    let by_link = open_at(&other, OpenOptions::default()).await.unwrap();
    let store = place.open().await;
    by_link.publish(&topic("orders"), &messages(1)).await.unwrap();
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    assert_eq!(by_link.topics().await.unwrap()[0].head.0, 2, "a symbolic link is not a second name");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_single_file_that_is_mounted_is_refused() {
    let place = Place::new();
    place.open().await.close().await.unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let mounted = elsewhere.path().join("store.db");
    std::fs::write(&mounted, "").unwrap();
    let bind = Command::new("mount").arg("--bind").arg(place.path()).arg(&mounted).output();
    if !bind.is_ok_and(|output| output.status.success()) {
        println!("skipped: mounting is not allowed here");
        return;
    }
    let refused = open_at(&mounted, OpenOptions::default()).await;
    // Lazily: a store that was not refused has the file open.
    assert!(Command::new("umount").arg("-l").arg(&mounted).status().unwrap().success());
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAStore, "{error:?}");
    assert!(error.to_string().contains("mount its directory"), "{error}");
}

#[cfg(unix)]
#[tokio::test]
async fn nothing_is_acknowledged_into_a_file_that_was_deleted() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    remove(&place.path());
    // The first publish commits before the deletion is detected; the others are refused before they write.
    let error = store.publish(&topic("orders"), &messages(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CommitUnknown, "{error:?}");
    let error = store.publish(&topic("orders"), &messages(1)).await.unwrap_err();
    assert!(error.kind() == ErrorKind::NotAStore && !error.is_retryable(), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("deleted") && text.contains("open the store again"), "{text}");
    assert_eq!(store.claim(&request(&subscription, 1)).await.unwrap_err().kind(), ErrorKind::NotAStore);
    assert_eq!(store.topics().await.unwrap_err().kind(), ErrorKind::NotAStore);
    assert_eq!(
        store.arm(&[subscription.topic.topic_id]).await.unwrap_err().kind(),
        ErrorKind::NotAStore,
        "no wait for a wake-up that never comes"
    );
}

#[cfg(unix)]
#[tokio::test]
async fn a_handle_whose_file_was_replaced_fails_and_leaves_the_new_files_alone() {
    let place = Place::new();
    let old = place.open().await;
    old.publish(&topic("orders"), &messages(3)).await.unwrap();
    remove(&place.path());
    let new = place.open().await;
    new.publish(&topic("orders"), &messages(1)).await.unwrap();
    let error = old.publish(&topic("orders"), &messages(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CommitUnknown, "{error:?}");
    // SQLite would remove the log by its name here: the log of the new file, with acknowledged messages in it.
    old.close().await.unwrap();
    assert!(trust::beside(&place.path(), "-wal").exists());
    new.publish(&topic("orders"), &messages(1)).await.unwrap();
    assert_eq!(place.open().await.topics().await.unwrap()[0].head.0, 2);
}

#[cfg(unix)]
#[tokio::test]
async fn a_log_that_was_deleted_is_noticed_too() {
    let place = Place::new();
    let store = place.open().await;
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    std::fs::remove_file(trust::beside(&place.path(), "-wal")).unwrap();
    let error = store.publish(&topic("orders"), &messages(1)).await.unwrap_err();
    assert!(error.to_string().contains("-wal"), "{error}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_waiter_learns_that_the_file_is_gone() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    let failure = async {
        // The first wake may have other reasons.
        loop {
            let wake = match store.arm(&[subscription.topic.topic_id]).await {
                Ok(wake) => wake,
                Err(error) => return error,
            };
            if let Err(error) = store.claim(&request(&subscription, 1)).await {
                return error;
            }
            wake.wait(Duration::from_secs(600)).await;
        }
    };
    remove(&place.path());
    let error = tokio::time::timeout(Duration::from_secs(60), failure).await.expect("woken to get the error");
    assert_eq!(error.kind(), ErrorKind::NotAStore, "{error:?}");
}

fn sqlite_failure(code: i32) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_acknowledged_once_damage_was_met() {
    for code in [ffi::SQLITE_CORRUPT, ffi::SQLITE_NOTADB, ffi::SQLITE_CORRUPT_INDEX] {
        let place = Place::new();
        let store = place.open().await;
        let subscription = subscribed(&store, "orders").await;
        store.publish(&topic("orders"), &messages(1)).await.unwrap();
        let lease = store.claim(&request(&subscription, 1)).await.unwrap().leases.remove(0);
        let met = store.write::<()>(Kind::Define, move |_| Err(sqlite_failure(code).into())).await;
        assert_eq!(met.unwrap_err().kind(), ErrorKind::NotAStore);
        let refused = [
            store.publish(&topic("orders"), &messages(1)).await.map(drop),
            store.claim(&request(&subscription, 1)).await.map(drop),
            store.settle(&[Settlement::ack_all(&lease)]).await.map(drop),
        ];
        for answer in refused {
            let error = answer.unwrap_err();
            assert!(
                error.kind() == ErrorKind::NotAStore && error.to_string().contains("doctor"),
                "{error:?}"
            );
        }
        assert_eq!(store.doctor().await.unwrap(), [], "it can still be read");
        assert_eq!(store.topics().await.unwrap()[0].head.0, 1);
        store.close().await.unwrap();
        place.open().await.publish(&topic("orders"), &messages(1)).await.unwrap();
    }
}

#[tokio::test]
async fn damage_that_a_reader_meets_ends_writing_too() {
    let place = Place::new();
    let store = place.open().await;
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    let met = store.read::<()>(|_| Err(sqlite_failure(ffi::SQLITE_CORRUPT).into())).await;
    assert_eq!(met.unwrap_err().kind(), ErrorKind::NotAStore);
    let refused = store.publish(&topic("orders"), &messages(1)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotAStore, "{refused:?}");
    assert_eq!(store.topics().await.unwrap()[0].head.0, 1, "it can still be read");
}

/// The damage is found in one transaction with another command, in a savepoint of its own: what other commands wrote
/// is rolled back too.
#[tokio::test]
async fn damage_fails_every_command_of_the_same_transaction() {
    let place = Place::new();
    let store = place.open().await;
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    let (entered, mut runs) = tokio::sync::mpsc::channel(1);
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let (job, _first) = Job::new(Kind::Read, move |_| {
        let _ = entered.blocking_send(());
        let _ = gate.recv();
        Ok(())
    });
    assert!(store.commands.push(Box::new(job)).await.is_ok());
    runs.recv().await.unwrap();
    // Both queue behind the first command, and so share a transaction.
    let (orders, batch) = (topic("orders"), messages(1));
    let publish = store.publish(&orders, &batch);
    let meet = store.write::<()>(Kind::Define, |_| Err(sqlite_failure(ffi::SQLITE_CORRUPT).into()));
    let release = async { go.send(()).unwrap() };
    let (published, met, ()) = tokio::join!(publish, meet, release);
    assert_eq!(met.unwrap_err().kind(), ErrorKind::NotAStore);
    assert_eq!(published.unwrap_err().kind(), ErrorKind::NotAStore);
    assert_eq!(store.topics().await.unwrap()[0].head.0, 1);
}

#[tokio::test]
async fn a_process_that_finds_a_failed_sync_begins_with_a_whole_log() {
    let place = Place::new();
    let first = place.open().await;
    first.publish(&topic("orders"), &messages(3)).await.unwrap();
    let marker = trust::beside(&place.path(), trust::MARKER);
    std::fs::write(&marker, "").unwrap();
    let second = place.open().await;
    assert!(second.trust.is_unsynced());
    second.publish(&topic("orders"), &messages(1)).await.unwrap();
    assert!(!second.trust.is_unsynced() && !marker.exists());
    assert_eq!(first.topics().await.unwrap()[0].head.0, 4);
}

/// SQLite counts the pages of an earlier checkpoint as copied and never copies them again, and the failed sync may
/// have lost them.
#[tokio::test]
async fn after_a_failed_checkpoint_nothing_is_written_until_the_log_is_copied_anew() {
    let place = Place::new();
    let first = place.open().await;
    first.publish(&topic("orders"), &messages(3)).await.unwrap();
    place.connect().query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
    first.trust.checkpoint_failed(&sqlite_failure(ffi::SQLITE_IOERR_FSYNC));
    let marker = trust::beside(&place.path(), trust::MARKER);
    let second = place.open().await;
    for store in [&first, &second] {
        // A failure of the log does not overwrite it.
        store.trust.sync_failed(&sqlite_failure(ffi::SQLITE_IOERR_FSYNC));
        let error = store.publish(&topic("orders"), &messages(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(error.to_string().contains("stop all processes"), "{error}");
        assert_eq!(std::fs::read_to_string(&marker).unwrap(), "file");
    }
    first.close().await.unwrap();
    second.close().await.unwrap();
    assert!(trust::beside(&place.path(), "-wal").exists(), "close copies nothing");
    let store = place.open().await;
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    assert!(!store.trust.is_unsynced() && !marker.exists());
    assert_eq!(store.topics().await.unwrap()[0].head.0, 4);
    store.close().await.unwrap();
    assert!(!trust::beside(&place.path(), "-wal").exists(), "all of it is in the file");
}

#[tokio::test]
async fn a_failed_checkpoint_that_copied_nothing_is_repaired_in_place() {
    let place = Place::new();
    let store = place.open().await;
    store.publish(&topic("orders"), &messages(3)).await.unwrap();
    store.trust.checkpoint_failed(&sqlite_failure(ffi::SQLITE_IOERR_FSYNC));
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    assert!(!store.trust.is_unsynced() && !store.trust.is_file_unsynced());
}

#[tokio::test]
async fn the_log_is_made_whole_beside_a_busy_neighbour() {
    let place = Place::new();
    let store = place.open().await;
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    let neighbour = place.connect();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let busy = std::thread::spawn(move || {
        neighbour.execute_batch("PRAGMA synchronous = OFF; PRAGMA wal_autocheckpoint = 0").unwrap();
        while ended
            .recv_timeout(Duration::from_micros(200))
            .is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            neighbour.execute("UPDATE headwater_meta SET value = value", []).unwrap();
        }
    });
    for _ in 0..50 {
        store.trust.sync_failed(&sqlite_failure(ffi::SQLITE_IOERR_FSYNC));
        store.publish(&topic("orders"), &messages(1)).await.unwrap();
    }
    drop(end);
    busy.join().unwrap();
}

#[tokio::test]
async fn the_marker_comes_back_while_the_log_is_not_whole() {
    let place = Place::new();
    let store = place.open().await;
    let marker = trust::beside(&place.path(), trust::MARKER);
    for _ in 0..2 {
        store.trust.sync_failed(&sqlite_failure(ffi::SQLITE_IOERR_FSYNC));
        assert_eq!(std::fs::read_to_string(&marker).unwrap(), "log");
        std::fs::remove_file(&marker).unwrap();
    }
}

#[test]
fn an_opening_that_fails_leaves_a_doubtful_log_alone() {
    let place = Place::new();
    let location = Location::new(&SqlitePath::File(place.path())).unwrap();
    let first = connection::open(&location, Role::Writer).unwrap();
    first.execute_batch("CREATE TABLE t (n)").unwrap();
    std::fs::write(trust::beside(&place.path(), trust::MARKER), "log").unwrap();
    let second = connection::open(&location, Role::Writer).unwrap();
    drop(first);
    drop(second);
    assert!(trust::beside(&place.path(), "-wal").exists());
}

/// The state after a page was evicted from memory before it could be written again.
#[cfg(unix)]
#[tokio::test]
async fn a_log_that_cannot_be_made_whole_fails_the_store() {
    use std::os::unix::fs::FileExt;
    for at_end in [false, true] {
        let place = Place::new();
        let store = place.open().await;
        let subscription = subscribed(&store, "orders").await;
        store.publish(&topic("orders"), &messages(3)).await.unwrap();
        store.claim(&request(&subscription, 1)).await.unwrap();
        let path = trust::beside(&place.path(), "-wal");
        let log = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        let frames = (log.metadata().unwrap().len() - 32) / (24 + 4096);
        let before = if at_end { frames - 1 } else { 0 };
        log.write_all_at(&[0xAA; 2048], 32 + before * (24 + 4096) + 24 + 100).unwrap();
        store.trust.sync_failed(&sqlite_failure(ffi::SQLITE_IOERR_FSYNC));
        let error = store.publish(&topic("orders"), &messages(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAStore, "{error:?}");
        let text = error.to_string();
        assert!(text.contains("log is damaged"), "{text}");
        assert!(!at_end || text.contains(&format!("frame {frames} of {frames}")), "{text}");
    }
}

/// Every group that passes a hole misses it once, also a group with lanes and one that released its lease first.
#[tokio::test]
async fn messages_missing_from_the_log_are_counted_by_each_group_that_passes_them() {
    let place = Place::new();
    let store = place.open().await;
    let settings =
        TopicSettings { lanes: 4, ordering: crate::topic::Ordering::Key, ..TopicSettings::pub_sub() };
    store.create_topic(&topic("orders"), &settings).await.unwrap();
    let group = |name: &str| GroupName::new(name).unwrap();
    let a = store.subscribe(&topic("orders"), &group("a"), Start::Beginning).await.unwrap();
    let plain = TopicSettings::pub_sub();
    store.alter_topic(&topic("orders"), &plain).await.unwrap();
    let b = store.subscribe(&topic("orders"), &group("b"), Start::Beginning).await.unwrap();
    assert!(a.lanes > 0 && b.lanes == 0, "{} {}", a.lanes, b.lanes);
    store.publish(&topic("orders"), &messages(10)).await.unwrap();
    place
        .connect()
        .execute("DELETE FROM headwater_message WHERE row_key & 8796093022207 IN (4, 5, 9)", [])
        .unwrap();
    let given_back = store.claim(&request(&b, 100)).await.unwrap().leases.remove(0);
    store.fetch(given_back.topic_id, given_back.range).await.unwrap();
    let release = vec![(given_back.range, Outcome::Release)];
    store.settle(&[Settlement::each(&given_back, release)]).await.unwrap().remove(0).unwrap();
    for subscription in [&a, &b] {
        drain(&store, subscription).await;
    }
    for status in store.subscriptions(&topic("orders")).await.unwrap() {
        let range = status.missed.range.map(|(first, last)| (first.0, last.0));
        assert_eq!((status.missed.count, range), (3, Some((4, 9))), "{}", status.group);
    }
    assert_eq!(store.doctor().await.unwrap()[0].check, "missing_message");
}

/// Messages that retention removed out of order are not damage, and neither are offsets that were never published.
#[tokio::test]
async fn what_retention_took_is_not_missing() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    store.publish(&topic("orders"), &messages(10)).await.unwrap();
    place
        .connect()
        .execute_batch(
            "DELETE FROM headwater_message WHERE row_key & 8796093022207 IN (1, 2, 5);
             UPDATE headwater_topic SET removed = 3, first_offset = 3",
        )
        .unwrap();
    let beyond = OffsetRange::new(crate::Offset(1), crate::Offset(50));
    assert_eq!(store.fetch(subscription.topic.topic_id, beyond).await.unwrap().len(), 7);
    assert_eq!(drain(&store, &subscription).await.len(), 7);
    let missed = store.subscriptions(&topic("orders")).await.unwrap()[0].missed;
    assert_eq!(missed.count, 0, "{missed:?}");
    assert_eq!(store.doctor().await.unwrap(), []);
}
