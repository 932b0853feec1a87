//! Checking the invariants of a namespace.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::PostgresStore;
use super::time::{millis, stored};
use crate::error::Result;
use crate::store::Finding;

/// Every check of `doctor.sql` with its remedy.
const REMEDIES: &[(&str, &str)] = &[
    ("outstanding_overlap", "stop the group's consumers, delete one of the two rows in outstanding"),
    ("outstanding_beyond_cursor", "stop the group's consumers, set the cursor's next_offset above the range"),
    ("outstanding_orphan", "delete the rows of that subscription in outstanding"),
    (
        "parked_entry",
        "requeue the entry with `headwater outbox requeue`, or delete the dead letter with `headwater parked delete`",
    ),
    ("lease_too_long", "set due_at of that token to now; the clock may have been wrong when it was leased"),
    (
        "epoch_changed",
        "publish again what was acknowledged and is not in the log; this finding ends by itself after a day",
    ),
    ("cursor_missing", "insert the missing cursor rows at the lowest next_offset of the subscription"),
    ("cursor_beyond_head", "run `headwater maintain`; if it stays, set next_offset to head + 1"),
    ("head_missing", "drop the topic and create it again: its creation was cut short"),
    ("head_beyond_offsets", "set the topic's sequence above the head; it was restored from an older state"),
    (
        "offsets_behind_log",
        "set the topic's sequence above the highest offset in the log before the next publish",
    ),
    ("gap_beyond_head", "delete that row in gap; it will be recorded again if necessary"),
    (
        "gaps_many",
        "end the transaction that stays open after publishing: see pg_stat_activity, pg_prepared_xacts",
    ),
    (
        "topic_range_missing",
        "insert a row of the topic into topic_range, with first_offset at its lowest message",
    ),
    (
        "message_below_first",
        "set the topic's first_offset in topic_range to that offset; cleanup then covers it",
    ),
    (
        "first_beyond_head",
        "run `headwater maintain`; if it stays, set first_offset in topic_range to head + 1",
    ),
    ("gap_below_first", "set the topic's first_offset in topic_range to the gap's first offset"),
    (
        "cursor_below_first",
        "set next_offset of its cursors to the topic's first_offset: there are no messages below",
    ),
    ("outstanding_cancelled", "delete the rows of that subscription in outstanding"),
    (
        "zero_until_wrong",
        "set zero_until in topic_range to the last offset taken, or to null if no group counts",
    ),
    (
        "tracked_beyond_head",
        "run `headwater maintain`; if it stays, set tracked_until in topic_range to the head",
    ),
    ("bit_missing", "change the topic's tracking to offset_watermark and, once that is done, back"),
    ("bit_twice", "change the topic's tracking to offset_watermark and, once that is done, back"),
    ("record_stuck", "set completed_at of that record to now"),
    ("record_uncovered", "set completed to required in that record: a completed one is never changed"),
    ("record_bit_unknown", "clear those bits in required and completed of that record"),
    (
        "record_not_applied",
        "set applied of that group in subscription to '{}'; tracking then applies all anew",
    ),
    ("record_orphan", "delete that row in record"),
    ("record_missing", "change the topic's tracking to offset_watermark and, once that is done, back"),
    ("pending_below", "set the topic's pending_from in topic_range to its first_offset"),
    (
        "storage_missing",
        "restore the table from a backup, or make the topic shared in table topic if it was empty",
    ),
    ("partition_missing", "delete that row in partition, and restore the table from a backup if it was lost"),
    ("partitions_behind", "run `headwater maintain`: it creates partitions; run it continuously from now on"),
    (
        "rows_past_partitions",
        "nothing if it was one burst: retention removes them row by row; else run maintenance, or larger partitions",
    ),
    ("process_log", "restore the rows of that process in process and process_event from a backup"),
    ("public_rights", "run `headwater migrate` as the owner of the schema: it revokes them"),
    (
        "foreign_rights",
        "as the owner of the schema revoke CREATE on it, and drop what others created or give it to the owner",
    ),
    ("fsync_off", "set fsync = on; restore a backup if the machine crashed meanwhile"),
    ("full_page_writes_off", "set full_page_writes = on, unless the file system writes pages whole"),
    (
        "synchronous_commit_weak",
        "ALTER ROLE … RESET synchronous_commit (or ALTER DATABASE, or the server's), or accept it",
    ),
    (
        "prepared_transaction",
        "end it: COMMIT PREPARED or ROLLBACK PREPARED with its name, as the transaction manager decided",
    ),
];

/// After how long a prepared transaction counts as left behind.
const PREPARED_MAX: Duration = Duration::from_secs(300);

pub(super) async fn doctor(store: &PostgresStore) -> Result<Vec<Finding>> {
    let now = store.clock.injected();
    let mut findings = Vec::new();
    for statement in [&store.statements.doctor_delivery, &store.statements.doctor_maintenance] {
        let rows = store.connections.query("examining the store", statement, &[&now]).await?;
        for row in &rows {
            findings.push(finding(row)?);
        }
    }
    for row in store.connections.query("examining rights", &store.statements.doctor_rights, &[]).await? {
        findings.push(finding(&row)?);
    }
    Ok(findings)
}

impl PostgresStore {
    /// What an operator should act on that only this engine has: transactions left open. See
    /// [`Headwater::attention`](crate::Headwater::attention).
    pub(crate) async fn attention(&self) -> Result<Vec<Finding>> {
        let parameters: [&(dyn ToSql + Sync); 2] = [&self.clock.injected(), &millis(PREPARED_MAX)];
        let sql = &self.statements.doctor_attention;
        let rows = self.connections.query("examining transactions", sql, &parameters).await?;
        rows.iter().map(finding).collect()
    }

    /// Settings of the server under which less survives a crash than is promised. They are not defects of the store, and so not
    /// findings of [`Admin::doctor`](crate::store::Admin::doctor).
    pub async fn durability(&self) -> Result<Vec<Finding>> {
        let sql = &self.statements.doctor_durability;
        let rows = self.connections.query("examining the server's settings", sql, &[]).await?;
        rows.iter().map(finding).collect()
    }
}

fn finding(row: &Row) -> Result<Finding> {
    let found: &str = stored(row, "finding")?;
    let (check, remedy) =
        REMEDIES.iter().find(|(check, _)| *check == found).expect("every check of sql/doctor has a remedy");
    Ok(Finding { check, problem: stored(row, "problem")?, remedy: (*remedy).to_owned() })
}

#[cfg(test)]
pub(super) fn has_remedy(check: &str) -> bool {
    REMEDIES.iter().any(|(known, _)| *known == check)
}
