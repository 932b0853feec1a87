//! The clock guard of a process: it reads the server's clock regularly, and sends the expected time with every statement
//! that compares deadlines. The server refuses the statement if its clock stepped; the guard then reads the clock, moves
//! deadlines, and repeats the statement.
//!
//! So no claim hands out a range, and no settlement or extension reports a lease as lost, that seems expired only because of a
//! step. Three cases are not covered: a process that starts between a step forward and the next heartbeat of the others has no
//! earlier reading; a step forward in the first seconds of a namespace, before a process that has run for a while stored the
//! time, is not explained by a stored time; and deadlines in rows that a transaction has locked while deadlines are moved are
//! not moved.

use std::sync::Mutex;
use std::time::Duration;

use bytes::BytesMut;
use deadpool_postgres::Object;
use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::time::stored;
use super::{PostgresStore, fault};
use crate::clock::guard::{Memory, READ_EVERY, Reading, Stored, step_ms};
use crate::error::{Error, ErrorKind, Result};

/// How often the clock is read again because another process stored a reading first, or is storing one.
const READS_MAX: u32 = 8;
/// The pause before the clock is read again; it is doubled each time.
const READ_AGAIN_AFTER: Duration = Duration::from_millis(1);
/// For how long no process may have read the clock before a step back.
const UNREAD_MAX_MS: i64 = 3_600_000;
/// How often a statement is repeated that was refused because of a step.
const REFUSED_MAX: u32 = 3;

/// The last reading of this process.
#[derive(Default)]
pub(super) struct Guard(Mutex<Option<Memory>>);

impl Guard {
    fn memory(&self) -> Option<Memory> {
        *self.0.lock().expect("no panic while held")
    }

    /// By how much deadlines had been moved at the last reading.
    pub(super) fn moved_ms(&self) -> i64 {
        self.memory().map_or(0, |memory| memory.moved_ms())
    }
}

/// Which connections are used: heartbeats and extensions have their own, because the others do not progress while the program
/// blocks its runtime.
#[derive(Clone, Copy, Debug)]
pub(super) enum On {
    Leases,
    Work,
}

impl On {
    async fn get(self, store: &PostgresStore) -> Result<Object> {
        match self {
            On::Leases => store.connections.get_for_leases().await,
            On::Work => store.connections.get().await,
        }
    }

    async fn query(
        self,
        store: &PostgresStore,
        client: Object,
        doing: &str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        match self {
            On::Leases => store.connections.query_leases_on(client, doing, sql, params).await,
            On::Work => store.connections.query_on(client, doing, sql, params, false).await,
        }
    }
}

/// The time the server shows unless its clock stepped. Computed when the statement is sent, and not before: the statement may
/// have to wait for a connection first.
pub(super) struct Expected<'a>(&'a PostgresStore);

impl Expected<'_> {
    pub(super) fn now(&self) -> Option<Timestamp> {
        let expected = self.0.guard.memory()?.expected_ms(self.0.clock.monotonic());
        Timestamp::from_millisecond(expected).ok()
    }
}

impl std::fmt::Debug for Expected<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Expected").field(&self.now()).finish()
    }
}

impl ToSql for Expected<'_> {
    fn to_sql(
        &self,
        of: &Type,
        out: &mut BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        self.now().to_sql(of, out)
    }

    fn accepts(of: &Type) -> bool {
        <Timestamp as ToSql>::accepts(of)
    }

    to_sql_checked!();
}

/// The expected time, based on a recent reading.
pub(super) async fn expected(store: &PostgresStore, on: On) -> Result<Expected<'_>> {
    if store.guard.memory().is_none_or(|memory| memory.is_old(store.clock.monotonic())) {
        check(store, on).await?;
    }
    Ok(Expected(store))
}

/// The server's time by the last reading; by this machine's clock before the first.
pub(super) fn estimated(store: &PostgresStore) -> Timestamp {
    let read = || Expected(store).now();
    store.clock.injected().or_else(read).unwrap_or_else(Timestamp::now)
}

/// Reads the clock, and moves deadlines if it stepped.
///
/// If other processes hold the stored time for as long as this tries and this process found no step, the last reading stays: the
/// next call reads again.
pub(super) async fn check(store: &PostgresStore, on: On) -> Result<()> {
    let mut stepped = false;
    for tries in 0..READS_MAX {
        if tries > 0 {
            tokio::time::sleep(READ_AGAIN_AFTER * 2_u32.pow(tries - 1)).await;
        }
        let (doing, read) = ("reading the clock", &store.statements.clock_read);
        let client = on.get(store).await?;
        let (memory, asked) = (store.guard.memory(), store.clock.monotonic());
        let rows = on.query(store, client, doing, read, &[&store.clock.injected()]).await?;
        let now: Timestamp = stored(&rows[0], "now")?;
        let reading = Reading { now_ms: now.as_millisecond(), asked, answered: store.clock.monotonic() };
        let millis = |column: &str| {
            stored::<_, Option<Timestamp>>(&rows[0], column).map(|at| at.map(Timestamp::as_millisecond))
        };
        let kept = Stored {
            latest_ms: millis("latest_at")?,
            steady_ms: millis("steady_at")?,
            moved_ms: stored(&rows[0], "moved_ms")?,
        };
        let mut step_ms = accepted_ms(step_ms(memory.as_ref(), &reading, &kept), reading.now_ms, &kept);
        stepped = step_ms != 0;
        let steady = memory.is_some_and(|memory| memory.is_steady());
        if stepped || is_due(&kept, reading.now_ms, steady) {
            let injected = store.clock.injected();
            let params: [&(dyn ToSql + Sync); 5] = [&kept.moved_ms, &step_ms, &now, &steady, &injected];
            let moved = &store.statements.clock_move;
            let client = on.get(store).await?;
            match on.query(store, client, "storing the time", moved, &params).await {
                Ok(rows) if !stored::<_, bool>(&rows[0], "moved")? => continue,
                // A role for producers may only read: owners of leases move the deadlines.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => step_ms = 0,
                answer => drop(answer?),
            }
        }
        if step_ms != 0 {
            tracing::warn!(step_ms, "clock stepped, deadlines moved");
            store.hub.wake_all();
        }
        let memory = Memory::after(memory, reading, kept.moved_ms.saturating_add(step_ms));
        *store.guard.0.lock().expect("no panic while held") = Some(memory);
        return Ok(());
    }
    match stepped {
        true => Err(Error::new(ErrorKind::Busy, "the clock keeps stepping; try again")),
        false => Ok(()),
    }
}

/// The step as the server accepts it from any role: explained by the stored times, which "move_clock" checks
/// (`functions/clock.sql` has the argument). A step that is not would be refused at every attempt.
///
/// A step forward that is longer than the time since a steady process read the clock did not happen: this process was suspended.
/// A step back that was noticed after hours in which no process read the clock delays deadlines by the hours beyond the first.
fn accepted_ms(step_ms: i64, now_ms: i64, stored: &Stored) -> i64 {
    let since_ms = |at_ms: Option<i64>| at_ms.map_or(0, |at_ms| now_ms.saturating_sub(at_ms));
    if step_ms < 0 {
        return step_ms.max(since_ms(stored.latest_ms).min(0).saturating_sub(UNREAD_MAX_MS));
    }
    if step_ms > since_ms(stored.steady_ms.or(stored.latest_ms)) { 0 } else { step_ms }
}

/// Whether the time must be stored: once for all processes that read it at about the same moment.
fn is_due(stored: &Stored, now_ms: i64, steady: bool) -> bool {
    let half_ms = i64::try_from(READ_EVERY.as_millis() / 2).expect("a few seconds");
    let is_old = |at_ms: Option<i64>| at_ms.is_none_or(|at_ms| now_ms.saturating_sub(at_ms) >= half_ms);
    is_old(stored.latest_ms) || steady && is_old(stored.steady_ms)
}

/// Whether to repeat a statement that failed: it was refused because of a step, and deadlines have now been moved.
pub(super) async fn repeats(store: &PostgresStore, on: On, refused: &mut u32, error: &Error) -> Result<bool> {
    *refused += 1;
    if !fault::is_step(error) || *refused > REFUSED_MAX {
        return Ok(false);
    }
    check(store, on).await?;
    Ok(true)
}

/// Whether deadlines have been moved since: a lease that was reported as lost may still be held.
pub(super) async fn moved_since(store: &PostgresStore, on: On, moved_ms: i64) -> bool {
    check(store, on).await.is_ok() && store.guard.moved_ms() != moved_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: i64 = 3_600_000;

    #[test]
    fn a_step_is_sent_as_far_as_the_stored_times_explain_it() {
        let now_ms = 1_000 * HOUR_MS;
        let stored =
            |latest_ms: Option<i64>, steady_ms: Option<i64>| Stored { latest_ms, steady_ms, moved_ms: 0 };
        let accepted = |step_ms: i64, stored: Stored| accepted_ms(step_ms, now_ms, &stored);
        let before = Some(now_ms - HOUR_MS);
        assert_eq!(accepted(0, stored(None, None)), 0);
        // Forward: up to the time since a steady process read the clock, or any process if none is steady.
        assert_eq!(accepted(HOUR_MS, stored(before, None)), HOUR_MS);
        assert_eq!(
            accepted(HOUR_MS, stored(Some(now_ms), before)),
            HOUR_MS,
            "one that just started stored the time"
        );
        assert_eq!(accepted(HOUR_MS, stored(before, Some(now_ms - HOUR_MS + 1))), 0);
        assert_eq!(accepted(HOUR_MS, stored(None, None)), 0);
        // Back: as far as the stored time lies ahead, and an hour for which it was not read.
        assert_eq!(accepted(-HOUR_MS, stored(before, None)), -HOUR_MS);
        assert_eq!(accepted(-2 * HOUR_MS, stored(before, None)), -HOUR_MS);
        assert_eq!(accepted(-9 * HOUR_MS, stored(Some(now_ms + 8 * HOUR_MS), None)), -9 * HOUR_MS);
        assert_eq!(accepted(i64::MIN, stored(Some(i64::MAX), None)), now_ms - i64::MAX - HOUR_MS);
    }
}
