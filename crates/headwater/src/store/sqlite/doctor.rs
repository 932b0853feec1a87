//! Doctor: the invariants of everything stored, checked on one snapshot.

use rusqlite::{Connection, Row};

use super::decode;
use super::fault::Attempt;
use super::{millis, reader};
use crate::limits::DELAY_MAX;
use crate::store::Finding;

mod files;
mod tracking;

/// Problems listed per check at most: a broken store may have millions.
const FINDINGS_PER_CHECK_MAX: usize = 100;

/// Turns a row of a check into the description of a problem.
type Describe = fn(&Row<'_>) -> rusqlite::Result<String>;

/// One check: its name, its statement, the description of its rows, and the remedy.
struct Check {
    name: &'static str,
    sql: &'static str,
    describe: Describe,
    remedy: &'static str,
}

const CHECKS: &[Check] = &[
    Check {
        name: "overlap",
        sql: super::sql!(doctor.overlap),
        describe: |row| {
            let (subscription, lane): (i64, Option<i64>) = (row.get(0)?, row.get(1)?);
            let lane = lane.map(|lane| format!(" lane {lane}")).unwrap_or_default();
            let (first, last, covered): (i64, i64, i64) = (row.get(2)?, row.get(3)?, row.get(4)?);
            Ok(format!(
                "subscription {subscription}{lane}: outstanding offsets {first}..={last} overlap a range up to {covered}"
            ))
        },
        remedy: "two owners may have the same messages; delete the younger of the ranges from headwater_outstanding",
    },
    Check {
        name: "parked_entry",
        sql: super::sql!(doctor.parked_entry),
        describe: |row| {
            let (id, what): (i64, String) = (row.get(0)?, row.get(1)?);
            Ok(format!("outbox entry {id} {what}"))
        },
        remedy: "requeue the entry with `headwater outbox requeue`, or delete the dead letter with `headwater parked delete`",
    },
    Check {
        name: "malformed",
        sql: super::sql!(doctor.malformed),
        describe: |row| {
            let [subscription, token, first, last] = four(row)?;
            Ok(format!("subscription {subscription}: malformed range {first}..={last} under token {token}"))
        },
        remedy: "delete the row from headwater_outstanding and replay its offsets",
    },
    Check {
        name: "outstanding_beyond_next",
        sql: super::sql!(doctor.beyond_next),
        describe: |row| {
            let (subscription, first, last, next): (i64, i64, i64, i64) =
                (row.get(0)?, row.get(2)?, row.get(3)?, row.get(4)?);
            Ok(format!(
                "subscription {subscription}: outstanding offsets {first}..={last} are not below its next {next}"
            ))
        },
        remedy: "the offsets will be handed out twice; set next_offset in headwater_cursor above the range",
    },
    Check {
        name: "next_beyond_head",
        sql: super::sql!(doctor.next_beyond_head),
        describe: |row| {
            let [subscription, lane, next, last] = four(row)?;
            Ok(format!(
                "subscription {subscription} lane {lane}: next {next} is beyond the topic's last offset {last}"
            ))
        },
        remedy: "messages up to next will be skipped; set next_offset in headwater_cursor to the last offset plus 1",
    },
    Check {
        name: "orphan_range",
        sql: super::sql!(doctor.orphan_range),
        describe: |row| {
            let [subscription, token, first, last] = four(row)?;
            Ok(format!(
                "subscription {subscription} does not exist but has outstanding {first}..={last}, token {token}"
            ))
        },
        remedy: "delete the row from headwater_outstanding",
    },
    Check {
        name: "orphan_cursor",
        sql: super::sql!(doctor.orphan_cursor),
        describe: |row| {
            let (subscription, lane): (i64, i64) = (row.get(0)?, row.get(1)?);
            Ok(format!("subscription {subscription} does not exist but has a cursor for lane {lane}"))
        },
        remedy: "delete the row from headwater_cursor",
    },
    Check {
        name: "missing_cursor",
        sql: super::sql!(doctor.missing_cursor),
        describe: |row| {
            let (subscription, lanes, cursors): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(format!("subscription {subscription}: {cursors} cursors for {lanes} lanes"))
        },
        remedy: "messages that it has not handed out are never delivered; insert the missing rows into headwater_cursor",
    },
    Check {
        name: "orphan_subscription",
        sql: super::sql!(doctor.orphan_subscription),
        describe: |row| {
            let (subscription, topic): (i64, i64) = (row.get(0)?, row.get(1)?);
            Ok(format!("subscription {subscription}: its topic {topic} does not exist"))
        },
        remedy: "delete the row from headwater_subscription",
    },
    Check {
        name: "head_behind",
        sql: super::sql!(doctor.head_behind),
        describe: |row| {
            let (topic, last, highest): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(format!("topic {topic}: last offset {last} is below the stored message {highest}"))
        },
        remedy: "publishing will collide with it; set last_offset in headwater_topic to the highest stored offset",
    },
    Check {
        name: "missing_message",
        sql: super::sql!(doctor.missing_message),
        describe: |row| {
            let (topic, expected, stored): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let missing = expected - stored;
            Ok(format!("topic {topic}: {missing} of {expected} messages are missing from the log"))
        },
        remedy: "something other than retention removed them, such as an older file under a newer log; restore a backup, \
                 or accept the loss: set removed in headwater_topic to last_offset minus the number of its messages",
    },
    Check {
        name: "process_log",
        sql: super::sql!(doctor.process_log),
        describe: |row| {
            let (process, version, newest): (String, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(format!(
                "process {process} has version {version}, and the newest entry of its log is {newest}"
            ))
        },
        remedy: "restore the rows of that process in headwater_process and headwater_process_event from a backup",
    },
];

fn four(row: &Row<'_>) -> rusqlite::Result<[i64; 4]> {
    Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?])
}

/// How long a changed epoch is reported as a finding.
const EPOCH_SHOWN_FOR: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

/// Checks everything, in one read transaction, so that what is compared is consistent.
pub(super) fn doctor(connection: &Connection, now_ms: i64) -> Attempt<Vec<Finding>> {
    reader::at_once(connection, |connection| check_all(connection, now_ms))
}

fn check_all(connection: &Connection, now_ms: i64) -> Attempt<Vec<Finding>> {
    let mut findings = integrity(connection)?;
    for check in CHECKS.iter().chain(tracking::CHECKS) {
        let mut statement = connection.prepare(check.sql)?;
        let mut rows = statement.query([])?;
        let mut count = 0;
        while let Some(row) = rows.next()? {
            count += 1;
            if count > FINDINGS_PER_CHECK_MAX {
                break;
            }
            let problem = (check.describe)(row)?;
            findings.push(Finding { check: check.name, problem, remedy: check.remedy.into() });
        }
    }
    findings.append(&mut topic_names(connection)?);
    findings.append(&mut far_leases(connection, now_ms)?);
    findings.append(&mut changed_epoch(connection, now_ms)?);
    findings.append(&mut files::check(connection));
    Ok(findings)
}

fn integrity(connection: &Connection) -> Attempt<Vec<Finding>> {
    let mut statement = connection.prepare("PRAGMA quick_check(100)")?;
    let lines: Vec<String> = decode::all(&mut statement, [], |row| row.get(0))?;
    let problems = lines.into_iter().filter(|line| line != "ok");
    Ok(problems
        .map(|problem| Finding {
            check: "integrity",
            problem: format!("SQLite finds damage: {problem}"),
            remedy: "stop all writers, copy the file, and recover it with `sqlite3 file .recover`".into(),
        })
        .collect())
}

/// Names that are not UTF-8, from a plain SQL publish before the trigger refused them: no command can address such a
/// topic.
fn topic_names(connection: &Connection) -> Attempt<Vec<Finding>> {
    let mut statement = connection.prepare(super::sql!(doctor.topic_name))?;
    let names = decode::all(&mut statement, [], |row| {
        let stored = row.get_ref(1)?.as_bytes().unwrap_or_default().to_vec();
        Ok((row.get::<_, i64>(0)?, stored, decode::name(row, 1)?))
    })?;
    let wrong = names.into_iter().filter(|(_, stored, _)| std::str::from_utf8(stored).is_err());
    Ok(wrong
        .take(FINDINGS_PER_CHECK_MAX)
        .map(|(topic, _, read)| Finding {
            check: "topic_name",
            problem: format!("topic {topic}: its name is not UTF-8, read as {read}"),
            remedy: format!(
                "name it: sqlite3 FILE \"UPDATE headwater_topic SET name = 'NEW-NAME' WHERE topic_id = {topic}\""
            ),
        })
        .collect())
}

/// A restored copy is reported for a day: an operator has to know what it undid.
fn changed_epoch(connection: &Connection, now_ms: i64) -> Attempt<Vec<Finding>> {
    let since_ms = now_ms.saturating_sub(millis(EPOCH_SHOWN_FOR));
    let mut statement = connection.prepare(super::sql!(doctor.epoch_changed))?;
    let found = decode::all(&mut statement, [since_ms], |row| row.get::<_, i64>(0))?;
    Ok(found
        .into_iter()
        .map(|at_ms| Finding {
            check: "epoch_changed",
            problem: format!("an older copy was restored into the open file, detected at {at_ms} ms since 1970"),
            remedy: "publish again what was acknowledged after the copy was made; this finding ends by itself after a day"
                .into(),
        })
        .collect())
}

fn far_leases(connection: &Connection, now_ms: i64) -> Attempt<Vec<Finding>> {
    let latest_ms = now_ms.saturating_add(millis(DELAY_MAX));
    let mut statement = connection.prepare(super::sql!(doctor.far_lease))?;
    let found = decode::all(&mut statement, [latest_ms], |row| {
        let [subscription, token, first, last] = four(row)?;
        Ok(format!(
            "subscription {subscription}: offsets {first}..={last}, token {token}, are due later than any delay allows"
        ))
    })?;
    let found = found.into_iter().take(FINDINGS_PER_CHECK_MAX);
    Ok(found
        .map(|problem| Finding {
            check: "far_lease",
            problem,
            remedy:
                "a clock was wrong; set due_at_ms of the row in headwater_outstanding to 0 to hand it out now"
                    .into(),
        })
        .collect())
}
