//! What a flush promises: one durable transaction or nothing, whatever is repeated and however many write at once.

use futures_util::future::join_all;
use headwater_pipeline::ErrorCode;
use headwater_pipeline::cells::Cell;
use headwater_pipeline::contracts::{OrganismState, TickData};
use headwater_pipeline::index::database::Query;
use headwater_pipeline::index::select::Selection;
use headwater_pipeline::index::{Index, IndexOptions};
use headwater_pipeline::resource::{EnvironmentWrite, MetadataRead, MetadataWrite, OrganismWrite};
use headwater_pipeline::world::{Topology, World};

use super::{Place, cell, create_all, plane, with_strategy};

on_both! {
    prepare_schema_3d_twice
    flush_single_tick_one_write
    flush_three_ticks_one_write
    flush_empty_tick
    flush_mixed_four_ticks
    flush_nothing
    a_repeated_tick_changes_nothing
    write_error_rolls_back_and_connection_is_clean
    constraint_violation
    ticks_of_another_run_are_refused
    two_instances_create_schema
    schema_created_by_many_at_once
    two_instances_write_the_same_ticks
}

async fn prepare_schema_3d_twice(place: Place) {
    let world = World::new(&[10, 20, 30], Topology::Bounded).unwrap();
    let index = place.index(&IndexOptions::default());
    for _ in 0..2 {
        create_all(&index, &world).await.unwrap();
    }
    index.write_ticks(&[place.tick(4, &[cell(5999, 1)])]).await.unwrap();
    create_all(&index, &world).await.unwrap();
    assert_eq!(index.tick_range().await.unwrap(), Some((4, 4)));
    assert_eq!(index.cell(4, 5999).await.unwrap(), Some(Some(cell(5999, 1))));
    let other = World::new(&[10, 20], Topology::Bounded).unwrap();
    let error = EnvironmentWrite::create_schema(&index, &other).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::SchemaSetupFailed);
    place.leave().await;
}

async fn flush_single_tick_one_write(place: Place) {
    let index = place.prepared(&IndexOptions::default()).await;
    let tick = place.tick(7, &[cell(3, 1), cell(9, -2)]);
    index.write_ticks(std::slice::from_ref(&tick)).await.unwrap();
    let stored = index.stored(7, None).await.unwrap().unwrap();
    // Spliced, not decoded.
    assert_eq!(stored.blobs, [tick.cells]);
    place.leave().await;
}

async fn flush_three_ticks_one_write(place: Place) {
    let index = place.prepared(&IndexOptions::default()).await;
    let ticks: Vec<TickData> = (0..3).map(|n| place.tick(n, &[cell(n as u64, n + 1)])).collect();
    index.write_ticks(&ticks).await.unwrap();
    assert_eq!(index.ticks(0..=9, 10).await.unwrap(), [0, 1, 2]);
    assert_eq!(index.tick_range().await.unwrap(), Some((0, 2)));
    assert_eq!(index.ticks(1..=9, 1).await.unwrap(), [1]);
    place.leave().await;
}

async fn flush_empty_tick(place: Place) {
    for strategy in ["single_blob", "regions"] {
        let index = place.prepared(&with_strategy(strategy)).await;
        index.write_ticks(&[place.tick(5, &[])]).await.unwrap();
        assert_eq!(index.cells(5, &Selection::default()).await.unwrap(), Some(vec![]), "{strategy}");
        let stored = index.stored(5, None).await.unwrap().unwrap();
        assert!(stored.blobs.iter().all(bytes::Bytes::is_empty), "{strategy}: {stored:?}");
        assert_eq!(index.cells(6, &Selection::default()).await.unwrap(), None, "{strategy}");
    }
    place.leave().await;
}

async fn flush_mixed_four_ticks(place: Place) {
    let index = place.prepared(&IndexOptions::default()).await;
    let contents: [&[Cell]; 4] = [&[cell(1, 1)], &[], &[cell(2, 2), cell(3, 3)], &[]];
    let ticks: Vec<TickData> = contents.iter().zip(10..).map(|(cells, n)| place.tick(n, cells)).collect();
    index.write_ticks(&ticks).await.unwrap();
    for (cells, n) in contents.iter().zip(10..) {
        assert_eq!(index.cells(n, &Selection::default()).await.unwrap().unwrap(), *cells);
    }
    place.leave().await;
}

async fn flush_nothing(place: Place) {
    let index = place.prepared(&IndexOptions::default()).await;
    index.write_ticks(&[]).await.unwrap();
    index.write_organisms(&[]).await.unwrap();
    assert_eq!(index.tick_range().await.unwrap(), None);
    place.leave().await;
}

async fn a_repeated_tick_changes_nothing(place: Place) {
    for strategy in ["single_blob", "regions"] {
        let index = place.prepared(&with_strategy(strategy)).await;
        let ticks = [place.tick(1, &[cell(1, 1)]), place.tick(2, &[cell(2, 2)])];
        index.write_ticks(&ticks).await.unwrap();
        // Within one flush, out of order, and beside a new one: files overlap after a crash.
        let third = place.tick(3, &[cell(3, 3)]);
        let again = [third.clone(), ticks[1].clone(), ticks[1].clone(), ticks[0].clone(), third];
        index.write_ticks(&again).await.unwrap();
        assert_eq!(index.ticks(0..=9, 10).await.unwrap(), [1, 2, 3], "{strategy}");
        assert_eq!(index.cells(2, &Selection::default()).await.unwrap().unwrap(), [cell(2, 2)]);
    }
    place.leave().await;
}

async fn write_error_rolls_back_and_connection_is_clean(place: Place) {
    // One connection: the next call uses the one that failed.
    let index = place.prepared(&IndexOptions { connections_max: 1, ..IndexOptions::default() }).await;
    index.write_ticks(&[place.tick(1, &[cell(1, 1)])]).await.unwrap();
    let ticks = [place.tick(2, &[cell(2, 2)]), place.tick(-5, &[cell(3, 3)]), place.tick(4, &[])];
    let error = index.write_ticks(&ticks).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::WriteFailed);
    assert_eq!(index.ticks(0..=9, 10).await.unwrap(), [1], "nothing is left of it");
    assert_eq!(index.pool().active, 0);
    index.write_ticks(&[place.tick(4, &[])]).await.unwrap();
    assert_eq!(index.ticks(0..=9, 10).await.unwrap(), [1, 4]);
    // What another connection reads is committed.
    let other = place.index(&IndexOptions::default());
    assert_eq!(other.ticks(0..=9, 10).await.unwrap(), [1, 4]);
    place.leave().await;
}

async fn constraint_violation(place: Place) {
    for strategy in ["single_blob", "regions"] {
        let index = place.prepared(&with_strategy(strategy)).await;
        let error = index.write_ticks(&[place.tick(-1, &[cell(1, 1)])]).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::WriteFailed, "{strategy}");
        assert!(!error.is_transient(), "{strategy}: {error}");
    }
    place.leave().await;
}

async fn ticks_of_another_run_are_refused(place: Place) {
    let index = place.prepared(&IndexOptions::default()).await;
    let other = TickData { run_id: "run_other".into(), ..place.tick(1, &[]) };
    for error in [
        index.write_ticks(std::slice::from_ref(&other)).await.unwrap_err(),
        index.write_organisms(std::slice::from_ref(&other)).await.unwrap_err(),
    ] {
        assert!(
            error.to_string().starts_with("tick 1 of run \"run_other\": this index is of run"),
            "{error}"
        );
        assert!(!error.is_transient());
    }
    assert!(index.metadata("run_other").await.is_err());
    place.leave().await;
}

async fn two_instances_create_schema(place: Place) {
    created_at_once(place, 2).await;
}

async fn schema_created_by_many_at_once(place: Place) {
    created_at_once(place, 12).await;
}

/// Each instance has connections of its own, as processes have.
async fn created_at_once(place: Place, instances: usize) {
    let world = plane();
    let options = IndexOptions { connections_max: 2, ..with_strategy("regions") };
    let indexes: Vec<Index> = (0..instances).map(|n| place.other_process(n, &options)).collect();
    for created in join_all(indexes.iter().map(|index| create_all(index, &world))).await {
        created.unwrap();
    }
    let ticks: Vec<TickData> = (0..).take(instances).map(|n| place.tick(n, &[cell(1, n + 1)])).collect();
    let writes =
        indexes.iter().zip(&ticks).map(|(index, tick)| index.write_ticks(std::slice::from_ref(tick)));
    for written in join_all(writes).await {
        written.unwrap();
    }
    assert_eq!(indexes[0].ticks(0..=99, 99).await.unwrap().len(), instances);
    join_all(indexes.iter().map(Index::close)).await;
    place.leave().await;
}

async fn two_instances_write_the_same_ticks(place: Place) {
    let indexes = [0, 1].map(|n| place.other_process(n, &IndexOptions::default()));
    for index in &indexes {
        create_all(index, &plane()).await.unwrap();
    }
    let organism = |id| OrganismState { id, birth_tick: 1, alive: true, ..OrganismState::default() };
    let tick =
        |n: i64| TickData { organisms: vec![organism(1), organism(2)], ..place.tick(n, &[cell(1, n + 1)]) };
    let ticks: Vec<TickData> = (0..200).map(tick).collect();
    let reversed: Vec<TickData> = ticks.iter().rev().cloned().collect();
    let (first, second) = (indexes[0].clone(), indexes[1].clone());
    // In opposite orders, which would deadlock if rows were locked in the order of the batch.
    let done = join_all((0..6).map(|n| {
        let (index, ticks) = if n % 2 == 0 { (&first, &ticks) } else { (&second, &reversed) };
        async move {
            index.write_ticks(ticks).await?;
            index.write_organisms(ticks).await
        }
    }));
    for written in done.await {
        written.unwrap();
    }
    assert_eq!(first.ticks(0..=999, 999).await.unwrap().len(), 200);
    assert_eq!(first.organisms(7, None, 9).await.unwrap().unwrap().len(), 2);
    join_all(indexes.iter().map(Index::close)).await;
    place.leave().await;
}

/// Only PostgreSQL has them.
#[tokio::test]
async fn ticks_are_partitioned_if_configured() {
    let Some(place) = Place::postgres() else { return };
    let options = |ticks| IndexOptions { partition_ticks: ticks, ..IndexOptions::default() };
    let first = place.prepared(&options(Some(100))).await;
    let ticks: Vec<TickData> = [0, 99, 100, 950].map(|n| place.tick(n, &[cell(1, n + 1)])).into();
    first.write_ticks(&ticks).await.unwrap();
    // The figure of the table counts: other ranges would overlap.
    let second = place.prepared(&options(Some(70))).await;
    let third = place.prepared(&options(None)).await;
    second.write_ticks(&[place.tick(951, &[]), place.tick(300, &[])]).await.unwrap();
    third.write_ticks(&[place.tick(800, &[])]).await.unwrap();
    assert_eq!(third.ticks(0..=9999, 99).await.unwrap(), [0, 99, 100, 300, 800, 950, 951]);
    let sql = "SELECT CAST(count(*) AS bigint) FROM pg_inherits
               WHERE inhparent = to_regclass($1) AND inhrelid IS NOT NULL";
    let table = format!("\"{}_index\".environment_ticks", place.run());
    let rows = first.database().query(Query::new(sql).bind(table.as_str())).await.unwrap();
    assert_eq!(rows[0].integer(0).unwrap(), 5, "0, 1, 3, 8 and 9");
    let error = first.write_ticks(&[place.tick(-1, &[])]).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::WriteFailed);
    place.leave().await;
}

/// A file that an operator deletes while it is written: what is committed there is found by no reader, so it must not be acked.
#[tokio::test]
async fn a_file_removed_under_a_writer_is_an_error() {
    let place = Place::sqlite();
    let index = place.prepared(&IndexOptions::default()).await;
    let path = place.file();
    index.write_ticks(&[place.tick(1, &[])]).await.unwrap();
    std::fs::remove_file(&path).unwrap();
    // The first write finds out after its commit; the next ones do not begin another file without tables.
    for says in ["the file was removed or replaced", "unable to open database file"] {
        let error = index.write_ticks(&[place.tick(2, &[])]).await.unwrap_err();
        assert!(error.is_transient() && error.to_string().contains(says), "{error}");
    }
    assert!(!path.exists());
    create_all(&index, &plane()).await.unwrap();
    index.write_ticks(&[place.tick(2, &[])]).await.unwrap();
    assert_eq!(place.index(&IndexOptions::default()).tick_range().await.unwrap(), Some((2, 2)));
    place.leave().await;
}

/// A server that is not there is waited for.
#[tokio::test]
async fn an_unreachable_server_is_transient() {
    let index = Index::open("postgres://tester@127.0.0.1:1/none", "run_x", &IndexOptions::default()).unwrap();
    let tick = TickData { run_id: "run_x".into(), ..TickData::default() };
    for error in [
        index.tick_range().await.unwrap_err(),
        MetadataWrite::create_schema(&index).await.unwrap_err(),
        index.write_organisms(&[tick]).await.unwrap_err(),
    ] {
        assert!(error.is_transient(), "{error}");
    }
}
