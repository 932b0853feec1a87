//! Files in a local directory, as services and operators use them.

use headwater_pipeline::ErrorCode;
use headwater_pipeline::contracts::{BatchInfo, SimulationMetadata, TickData};
use headwater_pipeline::resource::{BatchStorageRead, BatchStorageWrite};
use headwater_pipeline::storage::{FileStorage, Finding, Problem, Size, StorageSettings};

const RUN: &str = "run_20251014_143025_550e8400e29b";

fn tick(tick_number: i64) -> TickData {
    TickData { run_id: RUN.into(), tick_number, cells: vec![7; 100].into(), ..TickData::default() }
}

fn ticks(numbers: impl IntoIterator<Item = i64>) -> Vec<TickData> {
    numbers.into_iter().map(tick).collect()
}

async fn open(directory: &tempfile::TempDir) -> FileStorage {
    let location = directory.path().join("files");
    FileStorage::open(location.to_str().expect("text"), StorageSettings::default()).await.expect("opened")
}

fn finding(key: &str, problem: Problem) -> Finding {
    Finding { key: key.to_owned(), problem }
}

#[tokio::test]
async fn a_batch_survives_reopening_and_leaves_no_temporary_file() {
    let directory = tempfile::tempdir().unwrap();
    let storage = open(&directory).await;
    let info = storage.write_batch(ticks(0..1_000)).await.unwrap();
    let metadata = SimulationMetadata { run_id: RUN.into(), ..SimulationMetadata::default() };
    storage.write_metadata(&metadata).await.unwrap();
    drop(storage);

    let storage = open(&directory).await;
    assert_eq!(storage.read_batch(&info).await.unwrap().ticks, ticks(0..1_000));
    let raw = directory.path().join("files").join(RUN).join("raw");
    let names: Vec<_> = std::fs::read_dir(&raw).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["batch_0000000000000000000_0000000000000000999.pb"]);
    assert_eq!(std::fs::metadata(raw.join(&names[0])).unwrap().len(), info.stored_bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_that_write_the_same_range_at_once_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let storage = open(&directory).await;
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let storage = storage.clone();
            // Pairs of writers have the same ticks.
            let numbers = [0, 1 + writer / 2, 9];
            tokio::spawn(async move { (numbers, storage.write_batch(ticks(numbers)).await.unwrap()) })
        })
        .collect();
    let mut keys = std::collections::BTreeSet::new();
    for writer in writers {
        let (numbers, info) = writer.await.unwrap();
        assert_eq!(storage.read_batch(&info).await.unwrap().ticks, ticks(numbers));
        keys.insert(info.storage_key);
    }
    assert_eq!(keys.len(), 4, "one file per content");
}

#[tokio::test]
async fn a_file_that_was_changed_on_disk_is_refused_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let storage = open(&directory).await;
    let info = storage.write_batch(ticks(0..10)).await.unwrap();
    let path = directory.path().join("files").join(&info.storage_key);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = storage.read_batch(&info).await.unwrap_err();
    assert_eq!((error.code(), error.is_transient()), (ErrorCode::DamagedFile, false));
    assert!(
        error.to_string().contains(&info.storage_key) && error.to_string().contains("checksum"),
        "{error}"
    );
    std::fs::write(&path, &bytes[..20]).unwrap();
    let error = storage.read_batch(&info).await.unwrap_err().to_string();
    assert!(error.contains("length 20"), "{error}");
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_is_waited_out() {
    let directory = tempfile::tempdir().unwrap();
    let storage = open(&directory).await;
    // A file where the folder of the run belongs: no directory can be made there, even by root.
    let place = directory.path().join("files").join(RUN);
    std::fs::write(&place, "in the way").unwrap();
    let error = storage.write_batch(ticks(0..3)).await.unwrap_err();
    assert_eq!((error.code(), error.is_transient()), (ErrorCode::WriteFailed, true));
    std::fs::remove_file(&place).unwrap();
    storage.write_batch(ticks(0..3)).await.unwrap();
}

#[tokio::test]
async fn unannounced_missing_damaged_overlapping_and_temporary_files_are_listed() {
    let directory = tempfile::tempdir().unwrap();
    let storage = open(&directory).await;
    let sound = storage.write_batch(ticks((0..10).step_by(2))).await.unwrap();
    // Interleaved without a common tick: normal.
    let beside = storage.write_batch(ticks((1..10).step_by(2))).await.unwrap();
    assert_eq!(storage.check(RUN, &[sound.clone(), beside.clone()]).await.unwrap(), []);

    let unannounced = storage.write_batch(ticks(8..12)).await.unwrap();
    let missing = BatchInfo { storage_key: sound.storage_key.replace("000_", "900_"), ..sound.clone() };
    let damaged = storage.write_batch(ticks(20..30)).await.unwrap();
    let files = directory.path().join("files");
    std::fs::write(files.join(&damaged.storage_key), "short").unwrap();
    let temporary = format!("{}#1", damaged.storage_key);
    std::fs::write(files.join(&temporary), "half a fi").unwrap();

    let announced = [sound.clone(), beside.clone(), missing.clone(), damaged.clone()];
    let findings = storage.check(RUN, &announced).await.unwrap();
    let length = damaged.stored_bytes;
    let how = format!("damaged file {}: length 5, {length} bytes were announced", damaged.storage_key);
    let key = &unannounced.storage_key;
    assert_eq!(
        findings,
        [
            finding(&missing.storage_key, Problem::Missing),
            finding(key, Problem::Unannounced),
            finding(key, Problem::Overlapping { with: sound.storage_key, ticks: 1 }),
            finding(key, Problem::Overlapping { with: beside.storage_key, ticks: 1 }),
            finding(&damaged.storage_key, Problem::Damaged(how)),
            finding(&temporary, Problem::Temporary),
        ]
    );
    let harmful = findings.iter().filter(|finding| finding.problem.is_harmful()).count();
    assert_eq!(harmful, 2);
    assert_eq!(findings[2].to_string(), format!("{key}: shares 1 ticks with {}", announced[0].storage_key));
}

#[tokio::test]
async fn two_runs_apart() {
    let directory = tempfile::tempdir().unwrap();
    let storage = open(&directory).await;
    storage.write_batch(ticks(0..10)).await.unwrap();
    let other = TickData { run_id: "run_2".into(), ..tick(0) };
    let kept = storage.write_batch(vec![other]).await.unwrap();
    assert_eq!(storage.list_batches(RUN).await.unwrap().len(), 1);
    assert_eq!(storage.list_batches("run_2").await.unwrap().len(), 1);
    storage.delete_run(RUN).await.unwrap();
    assert_eq!(storage.read_batch(&kept).await.unwrap().ticks.len(), 1);
}

#[tokio::test]
async fn dropping_a_run_removes_all_of_it_and_says_how_much() {
    let directory = tempfile::tempdir().unwrap();
    let storage = open(&directory).await;
    let metadata = SimulationMetadata { run_id: RUN.into(), ..SimulationMetadata::default() };
    let described = storage.write_metadata(&metadata).await.unwrap();
    let first = storage.write_batch(ticks(0..10)).await.unwrap();
    let second = storage.write_batch(ticks(10..20)).await.unwrap();
    let folder = directory.path().join("files").join(RUN);
    std::fs::write(folder.join("notes.txt"), "12345").unwrap();
    std::fs::write(folder.join("raw/batch.pb#1"), "left by a crash").unwrap();

    let sizes = storage.sizes(RUN).await.unwrap();
    assert_eq!(sizes.metadata, Size { files: 1, bytes: described.stored_bytes });
    assert_eq!(sizes.batches, Size { files: 2, bytes: first.stored_bytes + second.stored_bytes });
    assert_eq!((sizes.claims, sizes.others), (Size::default(), Size { files: 1, bytes: 5 }));
    assert_eq!(sizes.total().files, 4);
    assert!(folder.exists(), "a dry run removes nothing");

    assert_eq!(storage.delete_run(RUN).await.unwrap(), sizes);
    assert!(!folder.exists());
    assert_eq!(storage.delete_run(RUN).await.unwrap().total(), Size::default(), "a repeat is harmless");
    for bad in ["", "..", "a/b"] {
        assert!(storage.delete_run(bad).await.is_err(), "{bad:?}");
    }
    // The name can be used again.
    storage.write_batch(ticks(0..3)).await.unwrap();
}
