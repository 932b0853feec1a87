//! Heartbeat: owners say that they are alive; the leases of those that fell silent end.

use std::collections::BTreeSet;
use std::time::Duration;

use rusqlite::params;

use super::fault::Attempt;
use super::work::{Kind, Work};
use super::{SqliteStore, decode, millis, settle};
use crate::error::Result;
use crate::name::Owner;
use crate::topic::TopicId;

/// Notes the owner, and ends the leases of the dead. They are then leases past their deadline, and the claim that finds
/// them does the rest.
pub(super) fn heartbeat(work: &mut Work<'_>, owner: &Owner, silent_for: Duration) -> Attempt<u64> {
    let now_ms = work.now_ms();
    let connection = work.connection;
    connection.prepare_cached(super::sql!(heartbeat.beat))?.execute(params![owner.as_str(), now_ms])?;
    connection.prepare_cached(super::sql!(heartbeat.ahead))?.execute([now_ms])?;
    let dead: Vec<String> = {
        let mut statement = connection.prepare_cached(super::sql!(heartbeat.silent))?;
        decode::all(&mut statement, [now_ms.saturating_sub(millis(silent_for))], |row| row.get(0))?
    };
    let mut ended = 0;
    for owner in dead {
        let leases = end_leases(work, &owner)?;
        if leases > 0 {
            tracing::warn!(owner, leases, "owner fell silent, its leases end");
        }
        ended += leases;
    }
    Ok(ended)
}

/// Ends the leases of a dead owner, and forgets it.
pub(super) fn end_leases(work: &mut Work<'_>, owner: &str) -> Attempt<u64> {
    let now_ms = work.now_ms();
    let ended: Vec<(i64, Option<i32>)> = {
        let mut statement = work.connection.prepare_cached(super::sql!(heartbeat.end_leases))?;
        decode::all(&mut statement, params![owner, now_ms], |row| Ok((row.get(0)?, row.get(1)?)))?
    };
    forget(work, owner)?;
    let tokens: BTreeSet<i64> = ended.iter().map(|(token, _)| *token).collect();
    let topics: BTreeSet<i32> = ended.iter().filter_map(|(_, topic)| *topic).collect();
    for topic in topics {
        settle::stir(work, TopicId(topic))?;
    }
    Ok(tokens.len() as u64)
}

/// Departs, and takes the proof along: nothing is left for others to find.
pub(super) async fn leave(store: &SqliteStore, owner: &Owner) -> Result<()> {
    let leaving = owner.clone();
    store.write(Kind::Consume, move |work| depart(work, &leaving)).await?;
    store.proofs.forget(owner);
    Ok(())
}

/// Forgets an owner that leaves on purpose. What it has done for its groups is kept, added to what others have that left.
fn depart(work: &mut Work<'_>, owner: &Owner) -> Attempt<()> {
    let connection = work.connection;
    for sql in [super::sql!(heartbeat.fold_activity), super::sql!(heartbeat.forget_activity)] {
        connection.prepare_cached(sql)?.execute([owner.as_str()])?;
    }
    forget(work, owner.as_str())
}

fn forget(work: &Work<'_>, owner: &str) -> Attempt<()> {
    work.connection.prepare_cached(super::sql!(depart))?.execute([owner])?;
    Ok(())
}
