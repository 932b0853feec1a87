//! Places moved against the log: by operators, by cleanup, by the detector, beside claims and settlements.

use super::*;

fn group() -> GroupName {
    GroupName::new("a").unwrap()
}

/// A rewind gives nothing up: what was open below the offset it goes back to comes when it commits, once.
#[tokio::test]
async fn a_rewind_keeps_what_commits_late_below_it() {
    let Some(stage) = Stage::set("message_retention_ms = NULL").await else { return };
    for (round, to) in [(0, Start::Offset(Offset(15))), (1, Start::BeginningBounded(7))] {
        let base = round * 21;
        let a = stage.subscribe("a").await;
        let open = stage.scene.client().await;
        open.batch_execute(&stage.scene.sql("BEGIN; SELECT {schema}.publish('orders', '1')")).await.unwrap();
        stage.publish(20).await;
        let mut offsets = Vec::new();
        until_true("the others come", async || {
            offsets.extend(stage.handle(&a, 100).await);
            offsets.last() == Some(&(base + 21))
        })
        .await;
        let to = if let Start::Offset(offset) = to { Start::Offset(Offset(base + offset.0)) } else { to };
        let moved = stage.store.seek(&orders(), &group(), to, false).await.unwrap();
        assert_eq!(moved.to, Offset(base + 15));
        open.batch_execute("COMMIT").await.unwrap();
        let mut offsets = Vec::new();
        until_true("all come again, and the late one", async || {
            offsets.extend(stage.handle(&a, 100).await);
            offsets.len() >= 8
        })
        .await;
        offsets.sort_unstable();
        assert_eq!(offsets, [vec![base + 1], (base + 15..=base + 21).collect()].concat());
        assert_eq!(stage.handle(&a, 100).await, [] as [i64; 0]);
    }
    stage.strike().await;
}
