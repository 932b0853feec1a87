//! One round of upkeep.

use tokio_postgres::Row;

use super::PostgresStore;
use super::clock::{self, On};
use super::freshen::freshen;
use super::time::millis;
use crate::error::Result;
use crate::limits::{ADVANCE_ROWS_MAX, GAPS_NOTED_MAX, INBOX_FORGET_MAX, INBOX_RETENTION};
use crate::store::Maintained;

pub(super) async fn maintain(store: &PostgresStore) -> Result<Maintained> {
    // Before dedup keys are forgotten by it.
    clock::look(store, On::Work).await?;
    // Two transactions: what the second may wait for must not keep the heads of the first locked.
    let heads = store
        .connections
        .query("advancing heads", &store.statements.advance_all, &[&ADVANCE_ROWS_MAX, &GAPS_NOTED_MAX])
        .await?;
    let rest = store
        .connections
        .query(
            "maintaining",
            &store.statements.maintain,
            &[&store.promotion.messages_max(), &store.clock.injected()],
        )
        .await;
    store.promotion.note(&rest);
    let rest = rest?;
    let inbox = store
        .connections
        .query(
            "maintaining the inbox",
            &store.statements.forget_inbox,
            &[&millis(INBOX_RETENTION), &INBOX_FORGET_MAX, &store.clock.injected()],
        )
        .await?;
    let count =
        |row: &Row, column: &str| u64::try_from(row.get::<_, i64>(column)).expect("a count is not negative");
    let done = Maintained {
        promoted: count(&rest[0], "promoted"),
        late: count(&heads[0], "late"),
        gaps_closed: count(&heads[0], "closed"),
        dedup_forgotten: count(&rest[0], "dedup_forgotten"),
        inbox_forgotten: count(&inbox[0], "forgotten"),
    };
    // Small tables of which every batch replaces rows: claims are quick as long as they stay small.
    freshen(store, &["outstanding", "cursor", "head", "gap"], 20_000).await;
    if done.promoted + done.late > 0 {
        store.hub.wake_all();
    }
    Ok(done)
}
