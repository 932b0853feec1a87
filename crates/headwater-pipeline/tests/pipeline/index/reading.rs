//! Reading, and a handle's life.

use std::time::{Duration, Instant};

use headwater_pipeline::cells::Cell;
use headwater_pipeline::contracts::{OrganismState, SimulationMetadata, TickData};
use headwater_pipeline::index::database::{PoolFigures, Query};
use headwater_pipeline::index::select::Selection;
use headwater_pipeline::index::{IndexOptions, Organism};
use headwater_pipeline::resource::{
    EnvironmentWrite, IdempotencyTracker, MetadataRead, MetadataWrite, OrganismWrite,
};

use super::{Place, cell, create_all, plane, with_strategy};

on_both! {
    an_index_that_does_not_exist_has_no_rows
    single_cell_query
    tick_diff
    pool_figures
    metadata_is_stored_once
    batches_are_known_to_be_done
    organisms_have_a_history_and_ancestors
    a_removed_index_is_gone
    a_closed_handle_refuses
}

async fn an_index_that_does_not_exist_has_no_rows(place: Place) {
    let index = place.index(&IndexOptions::default());
    assert_eq!(index.tick_range().await.unwrap(), None);
    assert_eq!(index.ticks(0..=9, 10).await.unwrap(), [0_i64; 0]);
    assert_eq!(index.metadata(place.run()).await.unwrap(), None);
    assert_eq!(index.organism(1).await.unwrap(), None);
    assert_eq!(index.bytes_stored().await.unwrap(), 0);
    assert!(!index.is_done("group", "batch").await.unwrap());
    place.leave().await;
}

async fn single_cell_query(place: Place) {
    for (strategy, first) in [("single_blob", 0), ("regions", 100)] {
        let index = place.prepared(&with_strategy(strategy)).await;
        // More than a page of ticks.
        let ticks: Vec<TickData> = (first..first + 80)
            .map(|n| {
                place.tick(
                    n,
                    if n % 2 == 0 {
                        &[]
                    } else {
                        &[Cell {
                            flat_index: 607,
                            owner_id: 1,
                            marker: 2,
                            molecule_type: 3,
                            molecule_value: -4,
                        }]
                    },
                )
            })
            .collect();
        index.write_ticks(&ticks).await.unwrap();
        let there = Cell { flat_index: 607, owner_id: 1, marker: 2, molecule_type: 3, molecule_value: -4 };
        assert_eq!(index.cell(first + 1, 607).await.unwrap(), Some(Some(there)));
        assert_eq!(index.cell(first + 2, 607).await.unwrap(), Some(None));
        assert_eq!(index.cell(first + 1, 608).await.unwrap(), Some(None));
        assert_eq!(index.cell(first + 90, 607).await.unwrap(), None);
        assert!(index.cell(first + 1, 10_000).await.is_err(), "outside the world");
        let history = index.cell_history(607, first..=first + 99, 1_000).await.unwrap();
        assert_eq!(history.len(), 80, "{strategy}");
        assert!(history.iter().all(|(tick, cell)| (*cell == Some(there)) == (tick % 2 == 1)));
        let limited = index.cell_history(607, first + 3..=first + 99, 50).await.unwrap();
        assert_eq!((limited.len(), limited[0].0, limited[49].0), (50, first + 3, first + 52));
    }
    place.leave().await;
}

async fn tick_diff(place: Place) {
    let index = place.prepared(&IndexOptions::default()).await;
    let before = [cell(1, 1), cell(2, 2), cell(4, 4)];
    let after = [cell(2, 2), cell(3, 3), cell(4, 5)];
    index.write_ticks(&[place.tick(1, &before), place.tick(2, &after)]).await.unwrap();
    let changes = index.difference(1, 2, &Selection::default()).await.unwrap().unwrap();
    let said: Vec<_> = changes
        .iter()
        .map(|change| {
            let value = |cell: Option<Cell>| cell.map(|cell| cell.molecule_value);
            (change.flat_index, value(change.before), value(change.after))
        })
        .collect();
    assert_eq!(said, [(1, Some(1), None), (3, None, Some(3)), (4, Some(4), Some(5))]);
    assert_eq!(index.difference(1, 9, &Selection::default()).await.unwrap(), None);
    place.leave().await;
}

async fn pool_figures(place: Place) {
    let index = place.index(&IndexOptions { connections_max: 1, ..IndexOptions::default() });
    assert_eq!(index.pool(), PoolFigures::default());
    assert_eq!(index.tick_range().await.unwrap(), None);
    create_all(&index, &plane()).await.unwrap();
    index.tick_range().await.unwrap();
    let settled = index.pool();
    assert_eq!((settled.active, settled.waiting), (0, 0));
    assert_eq!((settled.idle, settled.total), (place.connections_when_idle(), place.connections_when_idle()));
    let slow = || {
        let index = index.clone();
        let sql = "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 300000)
                   SELECT CAST(max(n) AS bigint) FROM c";
        tokio::spawn(async move { index.database().query(Query::new(sql)).await.unwrap() })
    };
    let queries = [slow(), slow()];
    let begun = Instant::now();
    while index.pool().active < 1 || index.pool().waiting < 1 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", index.pool());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for query in queries {
        assert_eq!(query.await.unwrap()[0].integer(0).unwrap(), 300_000);
    }
    assert_eq!((index.pool().active, index.pool().waiting), (0, 0));
    place.leave().await;
}

async fn metadata_is_stored_once(place: Place) {
    let (first, second) = (place.index(&IndexOptions::default()), place.index(&IndexOptions::default()));
    let metadata = place.metadata(&plane());
    MetadataWrite::create_schema(&first).await.unwrap();
    first.insert_metadata(&metadata).await.unwrap();
    second.insert_metadata(&metadata).await.unwrap();
    assert_eq!(second.metadata(place.run()).await.unwrap(), Some(metadata.clone()));
    assert_eq!(second.world().await.unwrap(), Some(plane()));
    let other = SimulationMetadata { seed: 8, ..metadata.clone() };
    let error = second.insert_metadata(&other).await.unwrap_err();
    assert!(error.to_string().contains("the index has other metadata of this run"), "{error}");
    assert!(!error.is_transient());
    assert_eq!(place.index(&IndexOptions::default()).metadata(place.run()).await.unwrap(), Some(metadata));
    place.leave().await;
}

async fn batches_are_known_to_be_done(place: Place) {
    let index = place.index(&IndexOptions::default());
    IdempotencyTracker::create_schema(&index).await.unwrap();
    assert!(!index.is_done("environment", "a.pb").await.unwrap());
    for _ in 0..2 {
        index.mark_done("environment", "a.pb").await.unwrap();
    }
    assert!(index.is_done("environment", "a.pb").await.unwrap());
    assert!(!index.is_done("organisms", "a.pb").await.unwrap(), "each group has its own");
    assert!(!index.is_done("environment", "b.pb").await.unwrap());
    place.leave().await;
}

async fn organisms_have_a_history_and_ancestors(place: Place) {
    let index = place.index(&IndexOptions::default());
    OrganismWrite::create_schema(&index).await.unwrap();
    let at = |id: u64, parent_id, energy| OrganismState {
        id,
        parent_id,
        birth_tick: id as i64,
        energy,
        position: vec![1, id],
        direction: vec![0, -1],
        registers: vec![5, -6],
        alive: energy > 0,
    };
    let tick = |n, organisms| TickData { organisms, ..place.tick(n, &[]) };
    let ticks = [
        tick(1, vec![at(1, 0, 10)]),
        tick(2, vec![at(1, 0, 9), at(2, 1, 5)]),
        tick(3, vec![at(1, 0, 0), at(2, 1, 4), at(3, 2, 2)]),
        tick(4, vec![]),
    ];
    index.write_organisms(&ticks[..2]).await.unwrap();
    index.write_organisms(&ticks).await.unwrap();
    assert_eq!(index.organisms(3, None, 10).await.unwrap().unwrap(), ticks[2].organisms);
    assert_eq!(index.organisms(3, Some(1), 1).await.unwrap().unwrap(), [at(2, 1, 4)]);
    assert_eq!(index.organisms(4, None, 10).await.unwrap(), Some(vec![]));
    assert_eq!(index.organisms(5, None, 10).await.unwrap(), None);
    let first = index.organism(1).await.unwrap().unwrap();
    assert_eq!(first, Organism { id: 1, parent_id: 0, birth_tick: 1 });
    let energies = |history: Vec<(i64, OrganismState)>| -> Vec<(i64, i64, u64)> {
        history.into_iter().map(|(tick, state)| (tick, state.energy, state.id)).collect()
    };
    let history = index.organism_history(&first, 0..=9, 10).await.unwrap();
    assert_eq!(energies(history), [(1, 10, 1), (2, 9, 1), (3, 0, 1)]);
    let history = index.organism_history(&first, 2..=9, 1).await.unwrap();
    assert_eq!(energies(history), [(2, 9, 1)]);
    let ids = |line: Vec<Organism>| line.iter().map(|one| one.id).collect::<Vec<_>>();
    assert_eq!(ids(index.ancestors(3).await.unwrap()), [3, 2, 1]);
    assert_eq!(ids(index.ancestors(9).await.unwrap()), [0_u64; 0]);
    assert_eq!(ids(index.children(1, 10).await.unwrap()), [2]);
    let error = index.write_organisms(&[tick(-1, vec![at(7, 0, 1)])]).await.unwrap_err();
    assert!(!error.is_transient());
    assert_eq!(index.organism(7).await.unwrap(), None, "rolled back with its state");
    place.leave().await;
}

async fn a_removed_index_is_gone(place: Place) {
    let index = place.prepared(&IndexOptions::default()).await;
    index.write_ticks(&[place.tick(1, &[cell(1, 1)])]).await.unwrap();
    assert!(index.bytes_stored().await.unwrap() > 0);
    index.remove().await.unwrap();
    let again = place.index(&IndexOptions::default());
    assert_eq!(again.tick_range().await.unwrap(), None);
    assert_eq!(again.bytes_stored().await.unwrap(), 0);
    again.remove().await.unwrap();
    place.leave().await;
}

async fn a_closed_handle_refuses(place: Place) {
    let (closed, open) =
        (place.prepared(&IndexOptions::default()).await, place.prepared(&IndexOptions::default()).await);
    closed.close().await;
    assert!(closed.tick_range().await.is_err());
    assert!(closed.write_ticks(&[place.tick(1, &[])]).await.is_err());
    open.write_ticks(&[place.tick(1, &[])]).await.unwrap();
    assert_eq!(open.tick_range().await.unwrap(), Some((1, 1)));
    place.leave().await;
}
