//! Lists a subscription's outstanding ranges, for operators.

use tokio_postgres::Row;

use super::PostgresStore;
use super::time::stored;
use crate::error::Result;
use crate::lease::{LeaseToken, OffsetRange};
use crate::message::Offset;
use crate::name::Owner;
use crate::subscription::{Outstanding, OutstandingState, SubscriptionId};

pub(super) async fn list(
    store: &PostgresStore,
    subscription: SubscriptionId,
    limit: u32,
) -> Result<Vec<Outstanding>> {
    let rows = store
        .connections
        .query(
            "listing outstanding ranges",
            &store.statements.outstanding,
            &[&subscription.0, &i64::from(limit), &store.clock.injected()],
        )
        .await?;
    rows.iter().map(outstanding_of).collect()
}

pub(super) fn outstanding_of(row: &Row) -> Result<Outstanding> {
    let owner: Option<String> = stored(row, "owner")?;
    let attempts = u32::try_from(stored::<_, i32>(row, "attempts")?).expect("attempts count up from 0");
    let lane: Option<i32> = stored(row, "lane")?;
    let state = OutstandingState::of(owner.is_some(), stored(row, "is_over")?, stored(row, "parked")?);
    Ok(Outstanding {
        range: OffsetRange::new(Offset(stored(row, "first_offset")?), Offset(stored(row, "last_offset")?)),
        lane: lane.map(|lane| u16::try_from(lane).expect("lanes fit 16 bits")),
        state,
        token: (state == OutstandingState::Leased)
            .then(|| stored(row, "token").map(LeaseToken))
            .transpose()?,
        attempts: attempts + u32::from(owner.is_some()),
        due_at: stored(row, "due_at")?,
        last_error: stored(row, "last_error")?,
        key: stored(row, "key")?,
        suspect: stored(row, "suspect")?,
        owner: owner.map(Owner::new).transpose()?,
    })
}
