//! One round of upkeep.

use super::PostgresStore;
use crate::error::Result;
use crate::limits::{ADVANCE_ROWS_MAX, GAPS_NOTED_MAX, PROMOTE_MESSAGES_MAX};
use crate::store::Maintained;

pub(super) async fn maintain(store: &PostgresStore) -> Result<Maintained> {
    let rows = store
        .connections
        .query(
            "maintaining",
            &store.statements.maintain,
            &[&PROMOTE_MESSAGES_MAX, &ADVANCE_ROWS_MAX, &GAPS_NOTED_MAX, &store.clock.injected()],
        )
        .await?;
    let count = |column: &str| u64::try_from(rows[0].get::<_, i64>(column)).expect("a count is not negative");
    let done = Maintained {
        promoted: count("promoted"),
        late: count("late"),
        gaps_closed: count("closed"),
        dedup_forgotten: count("dedup_forgotten"),
    };
    if done.promoted + done.late > 0 {
        store.hub.wake_all();
    }
    Ok(done)
}
