//! Proofs that a process is alive, as this engine makes them: files beside the store's file.

use std::fs::TryLockError;

use super::*;

const SILENT_FOR: Duration = Duration::from_secs(15);

fn owner(name: &str) -> Owner {
    Owner::new(name).unwrap()
}

/// The files that prove that an owner is alive.
fn proofs(place: &Place) -> Vec<PathBuf> {
    let files = std::fs::read_dir(place.directory.path()).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.to_string_lossy().contains("-owner-")).collect()
}

/// The file that the row of an owner names.
fn proof_of(place: &Place, name: &str) -> PathBuf {
    let sql = "SELECT proof FROM headwater_owner WHERE owner = ?1";
    let proof: String = place.connect().query_row(sql, [name], |row| row.get(0)).unwrap();
    place.directory.path().join(format!("store.db-owner-{proof}"))
}

async fn alive(place: &Place, name: &str) -> SqliteStore {
    alive_at(&place.path(), name).await
}

async fn alive_at(path: &Path, name: &str) -> SqliteStore {
    let store = open_at(path, OpenOptions::default()).await.unwrap();
    store.heartbeat(&owner(name), Some(SILENT_FOR), &[]).await.unwrap();
    assert_eq!(store.take_over(&owner(name)).await.unwrap(), 0);
    store
}

/// A store whose owner `name` has a lease, and a proof.
async fn holder(place: &Place, name: &str) -> SqliteStore {
    let store = alive(place, name).await;
    let subscription = subscribed(&store, "orders").await;
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    let request = ClaimRequest { owner: owner(name), ..request(&subscription, 1) };
    assert_eq!(store.claim(&request).await.unwrap().leases.len(), 1);
    store
}

#[tokio::test]
async fn a_proof_is_removed_by_its_owner_or_by_the_one_that_takes_over() {
    let place = Place::new();
    let (lives, ends) = (alive(&place, "lives").await, holder(&place, "ends").await);
    assert_eq!(proofs(&place).len(), 2);
    ends.close().await.unwrap();
    assert_eq!(proofs(&place).len(), 2, "it shows other processes that the process ended");
    assert_eq!(lives.take_over(&owner("lives")).await.unwrap(), 1);
    assert_eq!(proofs(&place).len(), 1);
    lives.depart(&owner("lives")).await.unwrap();
    assert!(proofs(&place).is_empty());
}

/// By a link to the file from another directory, and by a link to its directory.
#[cfg(unix)]
#[tokio::test]
async fn a_store_that_is_opened_by_a_symbolic_link_has_its_proofs_beside_the_file() {
    let (place, elsewhere) = (Place::new(), tempfile::tempdir().unwrap());
    let ends = holder(&place, "ends").await;
    let (file, directory) = (elsewhere.path().join("link.db"), elsewhere.path().join("link"));
    std::os::unix::fs::symlink(place.path(), &file).unwrap();
    std::os::unix::fs::symlink(place.directory.path(), &directory).unwrap();
    let by_file = alive_at(&file, "file").await;
    let by_directory = alive_at(&directory.join("store.db"), "directory").await;
    assert_eq!(proofs(&place).len(), 3);
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 2, "nothing is created beside a link");
    ends.close().await.unwrap();
    assert_eq!(by_file.take_over(&owner("file")).await.unwrap(), 1);
    by_directory.close().await.unwrap();
    assert_eq!(by_file.take_over(&owner("file")).await.unwrap(), 0, "it had no lease");
    assert_eq!(proofs(&place).len(), 1);
    by_file.drop_namespace().await.unwrap();
    assert!(std::fs::symlink_metadata(&file).is_ok(), "the link does not belong to the store");
    assert_eq!(
        std::fs::read_dir(place.directory.path()).unwrap().count(),
        0,
        "the target of the link is dropped"
    );
}

#[tokio::test]
async fn a_file_that_is_missing_proves_nothing() {
    let place = Place::new();
    let (lives, holder) = (alive(&place, "lives").await, holder(&place, "holder").await);
    proofs(&place).iter().for_each(|proof| std::fs::remove_file(proof).unwrap());
    assert_eq!(lives.take_over(&owner("lives")).await.unwrap(), 0);
    holder.close().await.unwrap();
    assert_eq!(lives.take_over(&owner("lives")).await.unwrap(), 0, "it is judged by its heartbeats");
}

#[tokio::test]
async fn what_killed_processes_left_is_removed_and_what_proves_something_stays() {
    let place = Place::new();
    let left = place.directory.path().join("store.db-owner-left");
    std::fs::write(&left, "").unwrap();
    let beside = place.directory.path().join("other.db-owner-left");
    std::fs::write(&beside, "").unwrap();
    let ends = holder(&place, "ends").await;
    assert!(!left.exists() && beside.exists());
    ends.close().await.unwrap();
    let lives = place.open().await;
    lives.heartbeat(&owner("lives"), Some(SILENT_FOR), &[]).await.unwrap();
    assert_eq!(lives.take_over(&owner("lives")).await.unwrap(), 1, "it was not taken for a leftover file");
    lives.drop_namespace().await.unwrap();
    assert_eq!(proofs(&place), [beside], "nothing is left of a store that is dropped");
}

#[tokio::test]
async fn without_a_lock_file_an_owner_is_judged_by_silence() {
    let store = SqliteStore::open(SqlitePath::Memory, OpenOptions::default()).await.unwrap();
    store.heartbeat(&owner("alone"), Some(SILENT_FOR), &[]).await.unwrap();
    assert_eq!(store.take_over(&owner("alone")).await.unwrap(), 0);
    // A name that is longer than file systems allow.
    let place = Place::new();
    let path = place.directory.path().join(format!("{}.db", "x".repeat(230)));
    let store = open_at(&path, OpenOptions::default()).await.unwrap();
    store.heartbeat(&owner("long"), Some(SILENT_FOR), &[]).await.unwrap();
    assert_eq!(store.take_over(&owner("long")).await.unwrap(), 0);
    assert!(proofs(&place).is_empty());
}

/// Until the queued commands are committed the process counts as alive: otherwise others would end leases whose
/// settlements are queued. With a store that is closed, or only dropped.
#[tokio::test]
async fn a_proof_is_kept_until_what_is_queued_is_committed() {
    for closes in [true, false] {
        let place = Place::new();
        let (lives, ends) = (alive(&place, "lives").await, holder(&place, "ends").await);
        let proof = proof_of(&place, "ends");
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let (entered, mut runs) = tokio::sync::mpsc::channel(1);
        let (job, _answer) = Job::new(Kind::Consume, move |work| {
            let _ = entered.blocking_send(());
            let _ = gate.recv();
            // Like the settlement of its lease.
            work.connection.execute("DELETE FROM headwater_outstanding", [])?;
            Ok(())
        });
        assert!(ends.commands.push(Box::new(job)).await.is_ok());
        runs.recv().await.unwrap();
        let is_held =
            || matches!(std::fs::File::open(&proof).unwrap().try_lock(), Err(TryLockError::WouldBlock));
        if closes {
            let mut closing = std::pin::pin!(ends.close());
            assert!(futures_util::poll!(closing.as_mut()).is_pending());
            assert!(is_held(), "closing, with a settlement queued");
            go.send(()).unwrap();
            closing.await.unwrap();
            assert!(!is_held());
        } else {
            drop(ends);
            assert!(is_held(), "dropped, with a settlement queued");
            go.send(()).unwrap();
            // Waits until the thread has ended.
            let released = std::fs::File::open(&proof).unwrap();
            let ended = tokio::task::spawn_blocking(move || released.lock());
            tokio::time::timeout(Duration::from_secs(20), ended).await.unwrap().unwrap().unwrap();
        }
        assert_eq!(lives.take_over(&owner("lives")).await.unwrap(), 0, "nothing is left to end");
    }
}
