//! Files as they are written, damaged and refused.

use prost::Message;

use super::*;
use crate::contracts::{Environment, FORMAT_VERSION, OrganismState};

const RUN: &str = "run_20251014_143025_550e8400e29b";

fn tick(tick_number: i64) -> TickData {
    let organism = OrganismState { id: 7, position: vec![1, 2], alive: true, ..OrganismState::default() };
    TickData {
        run_id: RUN.into(),
        tick_number,
        cell_count: 3,
        cells: Bytes::from(vec![u8::try_from(tick_number.rem_euclid(251)).expect("small"); 1_000]),
        organisms: vec![organism],
        ..TickData::default()
    }
}

fn ticks(numbers: impl IntoIterator<Item = i64>) -> Vec<TickData> {
    numbers.into_iter().map(tick).collect()
}

fn metadata(seed: u64) -> SimulationMetadata {
    SimulationMetadata {
        run_id: RUN.into(),
        seed,
        environment: Some(Environment { dimensions: vec![], topology: "TORUS".into() }),
        ..SimulationMetadata::default()
    }
}

/// Puts other bytes in the place of a file.
async fn damage(storage: &FileStorage, key: &str, change: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut bytes = storage.objects.get(key).await.unwrap().unwrap().bytes().await.unwrap().to_vec();
    change(&mut bytes);
    let bytes = Bytes::from(bytes);
    storage.objects.replace(key, bytes.clone()).await.unwrap();
    bytes
}

/// Announces whatever a file has now.
fn announcing(info: &BatchInfo, bytes: &Bytes) -> BatchInfo {
    BatchInfo { stored_bytes: bytes.len() as u64, xxh3_64: xxh3_64(bytes), ..info.clone() }
}

async fn damaged(storage: &FileStorage, info: &BatchInfo) -> String {
    let error = storage.read_batch(info).await.expect_err("refused");
    assert_eq!((error.code(), error.is_transient()), (ErrorCode::DamagedFile, false));
    let text = error.to_string();
    let prefix = format!("damaged file {}: ", info.storage_key);
    text.strip_prefix(&prefix).unwrap_or_else(|| panic!("{text} does not name the file")).to_owned()
}

#[tokio::test]
async fn a_batch_is_sorted_unique_and_described() {
    let storage = FileStorage::in_memory();
    let mut unsorted = ticks([12, 5, 9, 5]);
    unsorted[3].cell_count = 99;
    let info = storage.write_batch(unsorted).await.unwrap();
    assert_eq!(info.storage_key, format!("{RUN}/raw/batch_0000000000000000005_0000000000000000012.pb"));
    assert_eq!((info.first_tick, info.last_tick, info.tick_count), (5, 12, 3));
    assert_eq!(info.run_id, RUN);
    assert!(info.written_at_ms > 1_700_000_000_000 && info.stored_bytes > 3_000);
    let batch = storage.read_batch(&info).await.unwrap();
    assert_eq!(batch.format_version, FORMAT_VERSION);
    assert_eq!(batch.ticks, ticks([5, 9, 12]), "of equal ones the first");
}

#[tokio::test]
async fn cells_of_a_batch_are_slices_of_the_file() {
    let storage = FileStorage::in_memory();
    let info = storage.write_batch(ticks(0..10)).await.unwrap();
    let bytes = storage.read(Announced::batch(&info)).await.unwrap();
    let file = bytes.as_ptr_range();
    let batch = file::unpack_batch(bytes, &info, FILE_BYTES_MAX).unwrap();
    for tick in &batch.ticks {
        let cells = tick.cells.as_ptr_range();
        assert!(file.start < cells.start && cells.end <= file.end, "tick {}: copied", tick.tick_number);
    }
}

#[tokio::test]
async fn mixed_runs_empty_batches_and_negative_ticks_are_refused() {
    let storage = FileStorage::in_memory();
    let refused = async |ticks| {
        let error = storage.write_batch(ticks).await.expect_err("refused");
        assert!(!error.is_transient());
        error.to_string()
    };
    let mut mixed = ticks([3, 4]);
    mixed[1].run_id = "run_2".into();
    assert_eq!(
        refused(mixed).await,
        format!("a batch of two runs is not written: tick 3 is of {RUN}, tick 4 of run_2")
    );
    assert_eq!(refused(vec![]).await, "a batch without ticks is not written");
    assert!(refused(ticks([4, -1])).await.starts_with("tick -1 of run"));
    for bad in ["", "../etc", "a/b"] {
        let text = refused(vec![TickData { run_id: bad.into(), ..tick(1) }]).await;
        assert!(text.starts_with(&format!("run id {bad:?}")), "{text}");
    }
    assert_eq!(storage.list_batches(RUN).await.unwrap(), [], "nothing was written");
}

#[tokio::test]
async fn other_length_and_checksum_are_damage_that_names_the_file() {
    let storage = FileStorage::in_memory();
    let info = storage.write_batch(ticks(0..5)).await.unwrap();
    let length = info.stored_bytes;
    damage(&storage, &info.storage_key, |bytes| bytes.truncate(100)).await;
    assert_eq!(damaged(&storage, &info).await, format!("length 100, {length} bytes were announced"));

    let info = storage.write_batch(ticks(10..15)).await.unwrap();
    damage(&storage, &info.storage_key, |bytes| bytes[700] ^= 1).await;
    let text = damaged(&storage, &info).await;
    assert!(
        text.starts_with("checksum ") && text.ends_with(&format!("{:016x} was announced", info.xxh3_64)),
        "{text}"
    );
}

#[tokio::test]
async fn unknown_formats_are_refused_by_name_and_number() {
    let storage = FileStorage::in_memory();
    for version in [0, 2, 99] {
        let batch = TickDataBatch { format_version: version, run_id: RUN.into(), ticks: ticks([1]) };
        let info = storage.write_batch(ticks([1])).await.unwrap();
        let bytes = damage(&storage, &info.storage_key, |bytes| *bytes = batch.encode_to_vec()).await;
        assert_eq!(
            damaged(&storage, &announcing(&info, &bytes)).await,
            format!("format TickDataBatch version {version}, this program reads versions 1 to 1")
        );
        storage.delete_run(RUN).await.unwrap();
    }
    let info = storage.write_metadata(&metadata(1)).await.unwrap();
    let newer = SimulationMetadata { format_version: 2, ..metadata(1) };
    let bytes = damage(&storage, &info.storage_key, |bytes| *bytes = newer.encode_to_vec()).await;
    let info = MetadataInfo { stored_bytes: bytes.len() as u64, xxh3_64: xxh3_64(&bytes), ..info };
    let error = storage.read_metadata(&info).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::DamagedFile);
    assert!(error.to_string().contains("format SimulationMetadata version 2"), "{error}");
}

#[tokio::test]
async fn a_file_of_another_run_or_with_other_ticks_is_damage() {
    let storage = FileStorage::in_memory();
    let written = |run: &str, numbers: &[i64]| TickDataBatch {
        format_version: FORMAT_VERSION,
        run_id: run.into(),
        ticks: ticks(numbers.iter().copied()),
    };
    let mut strange = written(RUN, &[1, 2, 3]);
    strange.ticks[1].run_id = "run_2".into();
    for (batch, expected) in [
        (written("run_2", &[1, 2, 3]), format!("run \"run_2\", {RUN:?} was announced")),
        (strange, "tick 2 is of run \"run_2\"".into()),
        (written(RUN, &[1, 3]), "2 ticks, 3 were announced".into()),
        (written(RUN, &[1, 3, 2]), "tick numbers do not rise".into()),
        (written(RUN, &[1, 2, 2]), "tick numbers do not rise".into()),
        (written(RUN, &[1, 2, 4]), "ticks 1 to 4, 1 to 3 were announced".into()),
    ] {
        let info = storage.write_batch(ticks([1, 2, 3])).await.unwrap();
        let bytes = damage(&storage, &info.storage_key, |bytes| *bytes = batch.encode_to_vec()).await;
        assert_eq!(damaged(&storage, &announcing(&info, &bytes)).await, expected);
        storage.delete_run(RUN).await.unwrap();
    }
    let info = storage.write_batch(ticks([1])).await.unwrap();
    let bytes = damage(&storage, &info.storage_key, |bytes| *bytes = vec![0xff; 40]).await;
    let text = damaged(&storage, &announcing(&info, &bytes)).await;
    assert!(text.contains("failed to decode"), "{text}");
    let elsewhere = BatchInfo { storage_key: "run_2/raw/x.pb".into(), ..info };
    assert_eq!(damaged(&storage, &elsewhere).await, format!("it is not in the folder of run {RUN}"));
}

#[tokio::test]
async fn a_missing_file_is_lost_unless_nothing_of_its_run_is_there() {
    let storage = FileStorage::in_memory();
    let info = storage.write_batch(ticks([1])).await.unwrap();
    storage.objects.delete(vec![info.storage_key.clone()]).await.unwrap();
    let error = storage.read_batch(&info).await.unwrap_err();
    assert_eq!((error.code(), error.is_transient()), (ErrorCode::ReadFailed, true), "not mounted, perhaps");
    storage.write_batch(ticks([2])).await.unwrap();
    let error = storage.read_batch(&info).await.unwrap_err();
    assert_eq!((error.code(), error.is_transient()), (ErrorCode::ReadFailed, false));
    assert_eq!(error.to_string(), format!("file {} was announced and is not in memory:", info.storage_key));
}

#[tokio::test]
async fn writing_again_is_harmless_and_another_batch_of_the_range_has_its_own_file() {
    let storage = FileStorage::in_memory();
    let first = storage.write_batch(ticks([1, 5, 9])).await.unwrap();
    let again = storage.write_batch(ticks([1, 5, 9])).await.unwrap();
    assert_eq!(BatchInfo { written_at_ms: first.written_at_ms, ..again }, first);

    // What a crash may bring together: the same ends, other ticks in between.
    let other = storage.write_batch(ticks([1, 4, 5, 9])).await.unwrap();
    assert_ne!(other.storage_key, first.storage_key);
    let repeated = storage.write_batch(ticks([1, 4, 5, 9])).await.unwrap();
    assert_eq!(repeated.storage_key, other.storage_key);
    assert_eq!(storage.read_batch(&first).await.unwrap().ticks, ticks([1, 5, 9]));
    assert_eq!(storage.read_batch(&other).await.unwrap().ticks, ticks([1, 4, 5, 9]));
    let listed = storage.list_batches(RUN).await.unwrap();
    let ranges: Vec<_> = listed.iter().map(|batch| (batch.first_tick, batch.last_tick)).collect();
    assert_eq!(ranges, [(1, 9), (1, 9)]);
}

#[tokio::test]
async fn metadata_are_written_once_and_repaired_if_damaged() {
    let storage = FileStorage::in_memory();
    let info = storage.write_metadata(&metadata(7)).await.unwrap();
    assert_eq!(info.storage_key, format!("{RUN}/metadata.pb"));
    let read = storage.read_metadata(&info).await.unwrap();
    assert_eq!(read, SimulationMetadata { format_version: FORMAT_VERSION, ..metadata(7) });
    let again = storage.write_metadata(&metadata(7)).await.unwrap();
    assert_eq!(again.xxh3_64, info.xxh3_64);

    let error = storage.write_metadata(&metadata(8)).await.unwrap_err();
    assert_eq!((error.code(), error.is_transient()), (ErrorCode::WriteFailed, false));
    assert!(error.to_string().contains(&info.storage_key), "{error}");

    damage(&storage, &info.storage_key, |bytes| bytes.truncate(3)).await;
    let error = storage.read_metadata(&info).await.unwrap_err();
    assert!(error.to_string().contains("length 3"), "{error}");
    storage.write_metadata(&metadata(7)).await.unwrap();
    assert_eq!(storage.read_metadata(&info).await.unwrap(), read);
}

#[tokio::test]
async fn a_whole_file_may_be_compressed_and_reading_it_is_bounded() {
    let plain = FileStorage::in_memory();
    let settings = StorageSettings { compression: Compression::default(), ..StorageSettings::default() };
    let storage = FileStorage { settings, ..plain.clone() };
    let info = storage.write_batch(ticks(0..50)).await.unwrap();
    assert!(info.storage_key.ends_with("_0000000000000000049.pb.zst"), "{}", info.storage_key);
    assert!(info.stored_bytes < 10_000, "{} bytes", info.stored_bytes);
    // The name decides, not the setting of the reader.
    assert_eq!(plain.read_batch(&info).await.unwrap().ticks, ticks(0..50));
    let settings = StorageSettings { file_bytes_max: 20_000, ..StorageSettings::default() };
    let bounded = FileStorage { settings, ..plain.clone() };
    let text = damaged(&bounded, &info).await;
    assert!(text.ends_with("bytes, at most 20000 are read"), "{text}");
    let bytes = damage(&storage, &info.storage_key, |bytes| bytes[50] ^= 0xff).await;
    let text = damaged(&storage, &announcing(&info, &bytes)).await;
    assert!(text.starts_with("zstd: ") || text.contains("decode"), "{text}");
}

#[test]
fn secrets_among_options_are_not_shown() {
    let options = [("secret_access_key".to_owned(), "hush".to_owned())].into();
    let settings = StorageSettings { options, ..StorageSettings::default() };
    let shown = format!("{settings:?}");
    assert!(shown.contains("secret_access_key") && !shown.contains("hush"), "{shown}");
}
