//! The invariants of retention, completion records and backfills.

use rusqlite::Row;

use super::Check;
use crate::store::sqlite::decode;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "cancelled_range",
        sql: crate::store::sqlite::sql!(doctor.cancelled_range),
        describe: |row| {
            let [subscription, token, first, last] = super::four(row)?;
            Ok(format!(
                "subscription {subscription} is cancelled but has outstanding {first}..={last}, token {token}"
            ))
        },
        remedy: "no process will ever settle it; delete the row from headwater_outstanding",
    },
    Check {
        name: "kept_waiting",
        sql: crate::store::sqlite::sql!(doctor.kept_waiting),
        describe: |row| {
            let (subscription, kept, found): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(format!(
                "subscription {subscription}: {kept} waiting ranges are counted, {found} exist, or their offsets differ"
            ))
        },
        remedy: "the triggers of headwater_outstanding were removed; only displayed numbers are wrong: set waiting, \
                 waiting_offsets and retrying_offsets in headwater_subscription",
    },
    Check {
        name: "kept_scheduled",
        sql: crate::store::sqlite::sql!(doctor.kept_scheduled),
        describe: |row| {
            let (topic, kept, found): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(format!("topic {topic}: {kept} scheduled messages are counted, {found} exist"))
        },
        remedy: "the triggers of headwater_schedule were removed; only the displayed number is wrong: set scheduled \
                 in headwater_topic",
    },
    Check {
        name: "zero_until",
        sql: crate::store::sqlite::sql!(doctor.zero_until),
        describe: |row| {
            let (topic, zero_until): (i64, Option<i64>) = (row.get(0)?, row.get(1)?);
            let (last, counting): (i64, bool) = (row.get(2)?, row.get(3)?);
            let counts = if counting { "some subscription counts" } else { "no subscription counts" };
            Ok(format!(
                "topic {topic}: {counts}, its last offset is {last}, but its zero_until is {zero_until:?}"
            ))
        },
        remedy: "retention is calculated wrongly; set zero_until in headwater_topic to NULL where no subscription is active \
                 or paused, to 0 elsewhere",
    },
    Check {
        name: "first_offset",
        sql: crate::store::sqlite::sql!(doctor.first_offset),
        describe: |row| {
            let (topic, first, lowest): (i64, i64, Option<i64>) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let last: i64 = row.get(3)?;
            Ok(format!(
                "topic {topic}: first offset {first}, lowest stored message {lowest:?}, last offset {last}"
            ))
        },
        remedy: "messages below it are never removed; set first_offset in headwater_topic to the lowest stored offset",
    },
    Check {
        name: "tracked_until",
        sql: crate::store::sqlite::sql!(doctor.tracked_until),
        describe: |row| {
            let (topic, tracked, last): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let marked: Option<i64> = row.get(3)?;
            Ok(format!(
                "topic {topic}: last offset {last}, but records up to {tracked} and watermarks up to {marked:?}"
            ))
        },
        remedy: "new messages would have no record or be removed too early; set tracked_until in headwater_topic to \
                 last_offset and delete the rows beyond it from headwater_watermark_history",
    },
    Check {
        name: "shared_bit",
        sql: crate::store::sqlite::sql!(doctor.shared_bit),
        describe: |row| {
            let [topic, bit, one, other] = super::four(row)?;
            Ok(format!("topic {topic}: bit {bit} belongs to subscriptions {one} and {other}"))
        },
        remedy: "records cannot distinguish them; change the topic's tracking to offset_watermark and back",
    },
    Check {
        name: "missing_bit",
        sql: crate::store::sqlite::sql!(doctor.missing_bit),
        describe: |row| Ok(format!("{}: it has no bit though messages have records", subscription(row)?)),
        remedy: "no record waits for it; change the topic's tracking to offset_watermark and back",
    },
    Check {
        name: "idle_bit",
        sql: crate::store::sqlite::sql!(doctor.idle_bit),
        describe: |row| Ok(format!("{}: it has a bit though messages have no records", subscription(row)?)),
        remedy: "set bit and released_until in headwater_subscription to NULL",
    },
    Check {
        name: "unreleased",
        sql: crate::store::sqlite::sql!(doctor.unreleased),
        describe: |row| Ok(format!("{}: it counts, but is to be removed from records", subscription(row)?)),
        remedy: "set released_until in headwater_subscription to NULL and start a backfill of the group",
    },
    Check {
        name: "stray_bit",
        sql: crate::store::sqlite::sql!(doctor.stray_bit),
        describe: |row| {
            Ok(format!("{}: it waits for a group that does not count or does not exist", record(row)?))
        },
        remedy: "it is never completed; change the topic's tracking to offset_watermark and back to rebuild its records",
    },
    Check {
        name: "malformed_record",
        sql: crate::store::sqlite::sql!(doctor.malformed_record),
        describe: |row| Ok(format!("{}: that contradicts itself or its state", record(row)?)),
        remedy: "change the topic's tracking to offset_watermark and back to rebuild its records",
    },
    Check {
        name: "orphan_record",
        sql: crate::store::sqlite::sql!(doctor.orphan_record),
        describe: |row| {
            let (topic, offset): (i64, i64) = (row.get(0)?, row.get(1)?);
            Ok(format!("topic {topic}: offset {offset} has a record but is not stored or not recorded yet"))
        },
        remedy: "delete the row from headwater_completion_record",
    },
    Check {
        name: "missing_record",
        sql: crate::store::sqlite::sql!(doctor.missing_record),
        describe: |row| {
            let (topic, offset): (i64, i64) = (row.get(0)?, row.get(1)?);
            Ok(format!("topic {topic}: offset {offset} has no record"))
        },
        remedy: "it is kept until max_retention; change the topic's tracking to offset_watermark and back",
    },
    Check {
        name: "applied_differs",
        sql: crate::store::sqlite::sql!(doctor.applied_differs),
        describe: |row| {
            let (subscription, offset, set): (i64, i64, bool) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let shows = if set { "done" } else { "not done" };
            Ok(format!("subscription {subscription}: the record of offset {offset} shows {shows}, wrongly"))
        },
        remedy: "change the topic's tracking to offset_watermark and back to rebuild its records",
    },
    Check {
        name: "malformed_applied",
        sql: crate::store::sqlite::sql!(doctor.malformed_applied),
        describe: |row| {
            let (subscription, first, last): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(format!(
                "subscription {subscription}: malformed or orphaned range {first}..={last} of applied offsets"
            ))
        },
        remedy: "delete the row from headwater_applied; if the subscription exists, change the topic's tracking to \
                 offset_watermark and back",
    },
    Check {
        name: "backfill",
        sql: crate::store::sqlite::sql!(doctor.backfill),
        describe: |row| {
            let (subscription, state): (i64, String) = (row.get(0)?, row.get(1)?);
            let (first, last, checkpoint): (i64, i64, i64) = (row.get(2)?, row.get(3)?, row.get(4)?);
            let error = decode::text(row, 5)?.map(|error| format!(": {error}")).unwrap_or_default();
            Ok(format!(
                "subscription {subscription}: backfill of {first}..={last} is {state} at {checkpoint}{error}"
            ))
        },
        remedy: "if its group is gone or does not count, delete the row from headwater_backfill; else start it again",
    },
];

fn subscription(row: &Row<'_>) -> rusqlite::Result<String> {
    Ok(format!("subscription {} of topic {}", row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
}

fn record(row: &Row<'_>) -> rusqlite::Result<String> {
    let [topic, offset, required, completed] = super::four(row)?;
    Ok(format!(
        "topic {topic}: the record of offset {offset} has required {required:#x}, completed {completed:#x}"
    ))
}
