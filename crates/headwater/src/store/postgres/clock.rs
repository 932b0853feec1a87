//! The clock guard of a process: it reads the server's clock now and then, and says which time it expects whenever the
//! server judges deadlines. One that stepped is refused, looked into, and asked again.
//!
//! So no claim hands out, and no settlement or extension finds lost, what looks expired by a step alone. Two things are
//! left to chance: a process that starts between a step forward and the next heartbeat of the others has no memory of the time
//! before, and a statement whose transaction is open while deadlines are moved is passed over.

use std::sync::Mutex;

use bytes::BytesMut;
use deadpool_postgres::Object;
use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::time::stored;
use super::{PostgresStore, fault};
use crate::clock::guard::{Memory, READ_EVERY, Reading, Stored, step_ms};
use crate::error::{Error, ErrorKind, Result};

/// How often a look is repeated because another process was quicker.
const LOOKS_MAX: u32 = 8;
/// How often a statement is repeated that was refused for a step.
const REFUSED_MAX: u32 = 3;

/// The last reading of this process.
#[derive(Default)]
pub(super) struct Guard(Mutex<Option<Memory>>);

impl Guard {
    fn memory(&self) -> Option<Memory> {
        *self.0.lock().expect("no panic while held")
    }

    /// By how much deadlines have been moved, as far as this process knows.
    pub(super) fn moved_ms(&self) -> i64 {
        self.memory().map_or(0, |memory| memory.moved_ms())
    }
}

/// Whose connections are used: a heartbeat or an extension has its own, because those of a program that blocks its runtime
/// answer nothing.
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

/// The time the server shows unless its clock stepped. It is taken when the statement is sent, and not before: the statement
/// may have to wait for a connection first.
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

/// What the server is to expect, from a reading that is recent enough.
pub(super) async fn expected(store: &PostgresStore, on: On) -> Result<Expected<'_>> {
    if store.guard.memory().is_none_or(|memory| memory.is_old(store.clock.monotonic())) {
        look(store, on).await?;
    }
    Ok(Expected(store))
}

/// Reads the clock, and moves deadlines if it stepped.
pub(super) async fn look(store: &PostgresStore, on: On) -> Result<()> {
    for _ in 0..LOOKS_MAX {
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
        let mut step_ms = step_ms(memory.as_ref(), &reading, &kept);
        let steady = memory.is_some_and(|memory| memory.is_steady());
        if step_ms != 0 || is_due(&kept, reading.now_ms, steady) {
            let injected = store.clock.injected();
            let params: [&(dyn ToSql + Sync); 5] = [&kept.moved_ms, &step_ms, &now, &steady, &injected];
            let moved = &store.statements.clock_move;
            let client = on.get(store).await?;
            match on.query(store, client, "noting the time", moved, &params).await {
                Ok(rows) if !stored::<_, bool>(&rows[0], "moved")? => continue,
                // A producer only reads: those that hold leases deal with steps.
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
    Err(Error::new(ErrorKind::Busy, "the clock keeps stepping; try again"))
}

/// Whether the time is to be stored: once for all processes while they look at about the same moment.
fn is_due(stored: &Stored, now_ms: i64, steady: bool) -> bool {
    let half_ms = i64::try_from(READ_EVERY.as_millis() / 2).expect("a few seconds");
    let is_old = |at_ms: Option<i64>| at_ms.is_none_or(|at_ms| now_ms.saturating_sub(at_ms) >= half_ms);
    is_old(stored.latest_ms) || steady && is_old(stored.steady_ms)
}

/// Whether to repeat a statement that failed: it was refused for a step, which is dealt with now.
pub(super) async fn repeats(store: &PostgresStore, on: On, refused: &mut u32, error: &Error) -> Result<bool> {
    *refused += 1;
    if !fault::is_step(error) || *refused > REFUSED_MAX {
        return Ok(false);
    }
    look(store, on).await?;
    Ok(true)
}

/// Whether deadlines have been moved since: what looked lost before may be held.
pub(super) async fn moved_since(store: &PostgresStore, on: On, moved_ms: i64) -> bool {
    look(store, on).await.is_ok() && store.guard.moved_ms() != moved_ms
}
