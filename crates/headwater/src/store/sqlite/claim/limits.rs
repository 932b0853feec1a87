//! Limits of a whole group: how much a claim may hand out, and what it has used.
//!
//! One transaction writes at a time, so what is counted here stays valid until the claim is committed.

use rusqlite::{OptionalExtension, params};

use super::Claim;
use crate::lease::Bucket;
use crate::store::sqlite::decode;
use crate::store::sqlite::fault::Attempt;

/// When an owner that is limited by messages in flight claims again. A settlement does not wake it: the settling
/// process usually claims again at once, and a wake-up would make every settlement of every group check for limits.
const IN_FLIGHT_RECHECK_MS: i64 = 25;

/// What the limits of a want leave at the start of its claim.
#[derive(Debug, Default)]
pub(super) struct Allowance {
    /// Free slots in flight.
    free: Option<u64>,
    /// Tokens of the rate.
    bucket: Option<Bucket>,
    /// Whether the clock is before the time at which the bucket was last filled.
    turned_back: bool,
}

impl Allowance {
    pub(super) fn measure(claim: &Claim<'_, '_>) -> Attempt<Self> {
        let (connection, limits) = (claim.work.connection, claim.want.limits);
        let subscription_id = claim.want.subscription_id.0;
        let mut allowance = Allowance::default();
        if let Some(most) = limits.in_flight_max {
            let mut statement = connection.prepare_cached(super::super::sql!(claim.in_flight))?;
            let spans: Vec<i64> =
                decode::all(&mut statement, params![subscription_id, claim.now_ms], |row| row.get(0))?;
            let in_flight: u64 = spans.into_iter().map(|span| claim.messages_in(span.unsigned_abs())).sum();
            allowance.free = Some(u64::from(most).saturating_sub(in_flight));
        }
        if let Some(rate) = limits.rate {
            let stored = connection
                .prepare_cached(super::super::sql!(claim.bucket))?
                .query_row([subscription_id], |row| {
                    Ok(Bucket { tokens: row.get(0)?, filled_at_ms: row.get(1)? })
                })
                .optional()?;
            allowance.turned_back = stored.is_some_and(|bucket| bucket.filled_at_ms > claim.now_ms);
            allowance.bucket = Some(Bucket::refilled(stored, rate, claim.now_ms));
        }
        Ok(allowance)
    }

    /// How many messages are left after `given`; `None` without limits.
    pub(super) fn left_after(&self, given: u64) -> Option<u64> {
        let left = [self.free, self.bucket.map(Bucket::whole)].into_iter().flatten().min()?;
        Some(left.saturating_sub(given))
    }
}

/// Takes the tokens for what was handed out, and records when to claim again if a limit is reached and more is
/// available.
pub(super) fn spend(claim: &mut Claim<'_, '_>) -> Attempt<()> {
    let given = claim.given();
    let Allowance { free, bucket, turned_back } = claim.allowance;
    let bucket = bucket.map(|bucket| Bucket { tokens: bucket.tokens - given as f64, ..bucket });
    let subscription_id = claim.want.subscription_id.0;
    if let Some(bucket) = bucket.filter(|_| given > 0 || turned_back) {
        claim.work.connection.prepare_cached(super::super::sql!(claim.bucket_store))?.execute(params![
            subscription_id,
            bucket.tokens,
            bucket.filled_at_ms
        ])?;
    }
    let in_flight_ms = free.filter(|free| *free <= given).map(|_| IN_FLIGHT_RECHECK_MS);
    let rate_ms = bucket.zip(claim.want.limits.rate).map(|(bucket, rate)| bucket.next_after_ms(rate));
    let held_ms = in_flight_ms.into_iter().chain(rate_ms).max().filter(|ms| *ms > 0);
    if let Some(held_ms) = held_ms
        && is_more_there(claim)?
    {
        // Whatever else becomes due meanwhile is limited too.
        claim.recheck_at_ms = Some(claim.now_ms.saturating_add(held_ms));
    }
    Ok(())
}

fn is_more_there(claim: &Claim<'_, '_>) -> Attempt<bool> {
    let mut statement = claim.work.connection.prepare_cached(super::super::sql!(claim.more))?;
    let parameters = params![claim.want.subscription_id.0, claim.state.head, claim.now_ms];
    Ok(statement.query_row(parameters, |row| row.get(0))?)
}
