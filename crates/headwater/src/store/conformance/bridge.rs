//! Positions of bridges: moved with what was read, or not at all, and by one process at a time.

use super::case::{Case, DEADLINE, failed};
use super::effects::Effects;
use crate::bridge::BridgePositions;
use crate::error::ErrorKind;
use crate::limits::BRIDGE_SOURCE_BYTES_MAX;
use crate::transaction::Transaction;
use crate::transaction::run::in_store;

async fn open(case: &Case) -> BridgePositions {
    BridgePositions::new(&case.open().await)
}

/// A position moves only from where it is, and each bridge and source has its own.
pub async fn a_position_moves_only_from_where_it_is(case: &Case) {
    let positions = open(case).await;
    assert!(positions.of("in").await.unwrap().is_empty());
    assert!(!positions.advance("in", "t/0", Some(0), 5).await.unwrap(), "it has none");
    assert!(positions.advance("in", "t/0", None, 5).await.unwrap());
    assert!(!positions.advance("in", "t/0", None, 9).await.unwrap(), "it has one");
    assert!(!positions.advance("in", "t/0", Some(4), 9).await.unwrap(), "it is elsewhere");
    assert!(positions.advance("in", "t/0", Some(5), 9).await.unwrap());
    assert!(positions.advance("in", "t/1", None, 0).await.unwrap());
    assert!(positions.advance("other", "t/0", None, i64::MAX).await.unwrap());
    let stored = open(case).await.of("in").await.unwrap();
    assert_eq!(stored.into_iter().collect::<Vec<_>>(), [("t/0".to_owned(), 9), ("t/1".to_owned(), 0)]);
    let all = positions.list().await.unwrap();
    let names: Vec<_> = all.iter().map(|p| (p.bridge.as_str(), p.source.as_str(), p.position)).collect();
    assert_eq!(names, [("in", "t/0", 9), ("in", "t/1", 0), ("other", "t/0", i64::MAX)]);
    assert!(all.iter().all(|position| position.updated_at == case.now()));

    let long = "x".repeat(BRIDGE_SOURCE_BYTES_MAX + 1);
    for (bridge, source, from, to) in [
        ("", "s", None, 1),
        ("b\0", "s", None, 1),
        (&long[..256], "s", None, 1),
        ("b", "", None, 1),
        ("b", &*long, None, 1),
        ("b", "s", None, -1),
        ("b", "s", Some(7), 6),
    ] {
        failed(positions.advance(bridge, source, from, to).await, ErrorKind::InvalidInput);
    }
    assert_eq!(positions.list().await.unwrap().len(), 3, "nothing was written");
}

/// A position is committed with the effects of the same transaction, or neither is.
pub async fn a_position_moves_with_its_effects_or_never(case: &Case) {
    let store = case.open().await;
    let effects = Effects::new(case, &store).await;
    let positions = BridgePositions::new(&store);
    for (commits, from, to) in [(false, None, 3), (true, None, 3), (false, Some(3), 8)] {
        let (positions, effect) = (positions.clone(), effects.insert_sql());
        let done: crate::Result<()> = in_store(&*store, move |tx: Transaction| async move {
            let positions = positions.within(&tx);
            assert!(positions.advance("in", "t/0", from, to).await?);
            assert_eq!(positions.of("in").await?["t/0"], to, "seen inside");
            tx.execute(&effect, (format!("{to}"),)).await?;
            if commits { Ok(()) } else { Err(crate::Error::invalid("test", "rolled back")) }
        })
        .await;
        assert_eq!(done.is_ok(), commits);
    }
    assert_eq!((effects.seen().await, positions.of("in").await.unwrap()["t/0"]), (vec!["3".to_owned()], 3));
}

/// Of processes that move a position from the same place at the same time, one does.
pub async fn one_process_moves_a_position(case: &Case) {
    let (one, other) = (open(case).await, open(case).await);
    for from in 0..10 {
        let known = (from > 0).then_some(from);
        let moves = (0..10).map(|n| {
            let positions = if n % 2 == 0 { &one } else { &other };
            async move { positions.advance("in", "t/0", known, from + 1).await.expect("answered") }
        });
        let all = tokio::time::timeout(DEADLINE, futures_util::future::join_all(moves)).await;
        assert_eq!(all.expect("answered in time").into_iter().filter(|moved| *moved).count(), 1);
    }
    assert_eq!(one.of("in").await.unwrap()["t/0"], 10);
}
