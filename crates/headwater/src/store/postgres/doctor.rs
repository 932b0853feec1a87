//! Checking the invariants of a namespace.

use super::PostgresStore;
use crate::error::Result;
use crate::store::Finding;

/// Every check of `sql/doctor.sql` with what would mend it.
const REMEDIES: &[(&str, &str)] = &[
    ("outstanding_overlap", "stop the group's consumers, delete one of the two rows in outstanding"),
    ("outstanding_beyond_cursor", "stop the group's consumers, set the cursor's next_offset above the range"),
    ("outstanding_orphan", "delete the rows of that subscription in outstanding"),
    ("lease_too_long", "set due_at of that token to now; the clock may have been wrong when it was leased"),
    ("cursor_missing", "insert the missing cursor rows at the lowest next_offset of the subscription"),
    ("cursor_beyond_head", "run `headwater maintain`; if it stays, set next_offset to head + 1"),
    ("head_missing", "drop the topic and create it again: its creation was cut short"),
    ("head_beyond_offsets", "set the topic's sequence above the head; it was restored from an older state"),
    (
        "offsets_behind_log",
        "set the topic's sequence above the highest offset in the log before anybody publishes",
    ),
    ("gap_beyond_head", "delete that row in gap; it will be noted again if need be"),
    (
        "gaps_many",
        "end the transaction that stays open after publishing: see pg_stat_activity, pg_prepared_xacts",
    ),
];

pub(super) async fn doctor(store: &PostgresStore) -> Result<Vec<Finding>> {
    let now = store.clock.injected();
    let rows = store.connections.query("examining the store", &store.statements.doctor, &[&now]).await?;
    let finding = |row: &tokio_postgres::Row| {
        let found: &str = row.get("finding");
        let (check, remedy) = REMEDIES
            .iter()
            .find(|(check, _)| *check == found)
            .expect("every check of doctor.sql has a remedy");
        Finding { check, problem: row.get("problem"), remedy: (*remedy).to_owned() }
    };
    Ok(rows.iter().map(finding).collect())
}
