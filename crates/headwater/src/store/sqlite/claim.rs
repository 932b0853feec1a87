//! Claim: hands out ranges that are due again, else the next offsets.
//!
//! Two claims never share an offset: both run in write transactions, and SQLite admits one at a time. Every query
//! reads the first entry of an index, so a claim costs the same whatever the backlog.

use rusqlite::{OptionalExtension, params};

use self::limits::Allowance;
use super::epoch::{History, Seen};
use super::fault::Attempt;
use super::log::{self, Burial};
use super::promote::promote;
use super::range::{DUE_NEVER, DUE_NOW, Part, next_token};
use super::rivals::Rivals;
use super::work::{BoxCommand, Job, Kind, Work};
use super::{decode, millis, settle};
use crate::error::{Error, ErrorKind};
use crate::lease::{
    ClaimRequest, Claimed, HandOut, Lease, LeaseToken, OffsetRange, UsedUp, Want, attempts_after_expiry,
    hand_out_again,
};
use crate::message::Offset;
use crate::name::Owner;
use crate::settle::{Outcome, Settlement};
use crate::subscription::{SubscriptionId, SubscriptionState};
use crate::topic::TopicId;

mod limits;
mod ordered;
mod unordered;

/// Single messages buried by one claim at most, before it returns and requests another call.
const BURIED_PER_CLAIM_MAX: u32 = 100;
/// When an owner that must first release what it holds claims again.
const DRAIN_RECHECK_MS: i64 = 50;

/// Claims for every want, in the order of subscriptions.
pub(super) fn claim(
    work: &mut Work<'_>,
    request: &ClaimRequest,
    history: &History,
    rivals: &Rivals,
) -> Attempt<(Claimed, Seen)> {
    let now_ms = work.now_ms();
    let mut seen = Seen::default();
    let mut wants: Vec<&Want> = request.wants.iter().collect();
    wants.sort_by_key(|want| want.subscription_id);
    let mut claimed = Claimed::default();
    let mut recheck_at_ms: Option<i64> = None;
    for want in wants {
        let state = State::load(work, &request.owner, want, now_ms)?;
        seen.check(work, history, state.topic_id, state.head)?;
        if state.status != SubscriptionState::Active {
            claimed.inactive.push((want.subscription_id, state.status));
            continue;
        }
        let found = state.next;
        let mut claim = Claim::begin(work, &request.owner, want, now_ms, state)?;
        seen.take(claim.work, claim.state.topic_id, claim.state.head)?;
        if claim.budget() == 0 {
            // A limit of the group is reached.
            claim.recheck_at_next_due()?;
        } else if claim.state.lanes > 0 {
            ordered::claim(&mut claim)?;
        } else {
            unordered::claim(&mut claim)?;
        }
        if !want.limits.is_none() {
            limits::spend(&mut claim)?;
        }
        let Claim { mut leases, mut used_up, recheck_at_ms: at, state, .. } = claim;
        // New offsets were handed out from `found` on.
        let next = leases.iter().map(|lease| lease.range.last.0 + 1).fold(found, i64::max);
        rivals.note(want.subscription_id, state.topic_id, found, next, !leases.is_empty());
        leases.sort_by_key(|lease| lease.range.first);
        claimed.leases.append(&mut leases);
        claimed.used_up.append(&mut used_up);
        recheck_at_ms = [recheck_at_ms, at].into_iter().flatten().min();
    }
    claimed.recheck_after = recheck_at_ms.map(|at_ms| super::until(at_ms, now_ms));
    Ok((claimed, seen))
}

/// One want being served.
struct Claim<'w, 'c> {
    work: &'w mut Work<'c>,
    owner: &'w Owner,
    want: &'w Want,
    now_ms: i64,
    state: State,
    leases: Vec<Lease>,
    used_up: Vec<UsedUp>,
    recheck_at_ms: Option<i64>,
    allowance: Allowance,
}

/// The state of the subscription when its claim begins.
struct State {
    topic_id: TopicId,
    lanes: u16,
    lease_ms: i64,
    max_attempts: u32,
    head: i64,
    next: i64,
    /// The earliest deadline of a lease, and the earliest due time of a waiting range.
    leased_due_ms: Option<i64>,
    waiting_due_ms: Option<i64>,
    /// The due time of the earliest scheduled message.
    deliver_at_ms: Option<i64>,
    /// The deadline of a suspect range that this owner holds.
    suspect_until_ms: Option<i64>,
    /// Only an active subscription gets messages.
    status: SubscriptionState,
}

impl<'w, 'c> Claim<'w, 'c> {
    fn begin(
        work: &'w mut Work<'c>,
        owner: &'w Owner,
        want: &'w Want,
        now_ms: i64,
        mut state: State,
    ) -> Attempt<Self> {
        if state.deliver_at_ms.is_some_and(|at_ms| at_ms <= now_ms) {
            promote(work, state.topic_id, state.head, now_ms)?;
            state = State::load(work, owner, want, now_ms)?;
        }
        if let Some(lease) = want.lease {
            state.lease_ms = millis(lease);
        }
        let (leases, used_up, allowance) = (Vec::new(), Vec::new(), Allowance::default());
        let mut claim =
            Claim { work, owner, want, now_ms, state, leases, used_up, recheck_at_ms: None, allowance };
        if !want.limits.is_none() {
            claim.allowance = Allowance::measure(&claim)?;
        }
        claim.recheck_at(claim.state.deliver_at_ms);
        Ok(claim)
    }

    /// Records a time at which another claim may find something.
    fn recheck_at(&mut self, at_ms: Option<i64>) {
        let at_ms = at_ms.filter(|at_ms| *at_ms != DUE_NEVER);
        self.recheck_at_ms = [self.recheck_at_ms, at_ms].into_iter().flatten().min();
    }

    /// Records when the next of the subscription's ranges becomes due.
    fn recheck_at_next_due(&mut self) -> Attempt<()> {
        let parameters = params![self.want.subscription_id.0, self.now_ms];
        let (leased, waiting) = self
            .work
            .connection
            .prepare_cached(super::sql!(claim.next_due))?
            .query_row(parameters, |row| Ok((row.get(0)?, row.get(1)?)))?;
        self.recheck_at(leased);
        self.recheck_at(waiting);
        Ok(())
    }

    /// The deadline of a lease handed out now.
    fn deadline_ms(&self) -> i64 {
        if self.state.lease_ms == 0 { DUE_NEVER } else { self.now_ms.saturating_add(self.state.lease_ms) }
    }

    /// Hands out offsets never handed out before, and moves the cursor past them.
    fn hand_out_new(&mut self, lane: Option<u16>, first: i64, last: i64) -> Attempt<()> {
        let connection = self.work.connection;
        let token = next_token(connection)?;
        connection.prepare_cached(super::sql!(claim.advance))?.execute(params![
            self.want.subscription_id.0,
            lane.unwrap_or(0),
            last + 1
        ])?;
        let part = Part {
            token,
            first,
            last,
            subscription_id: self.want.subscription_id.0,
            lane,
            owner: Some(self.owner.as_str().to_owned()),
            due_at_ms: self.deadline_ms(),
            attempts: 0,
            suspect: false,
            parked: false,
            key: None,
            last_error: None,
        };
        part.insert(connection)?;
        self.leases.push(self.lease_of(&part));
        Ok(())
    }

    /// Hands out the first offsets of an outstanding range under a new token. The rest stays, due at once, also under
    /// a new token: no old token may ever match it.
    fn hand_out_part(&mut self, mut part: Part, count: u64) -> Attempt<()> {
        let connection = self.work.connection;
        part.delete(connection)?;
        if count < part.span() {
            let cut = part.first + i64::try_from(count).expect("less than a span of offsets");
            let rest = Part {
                token: next_token(connection)?,
                first: cut,
                owner: None,
                due_at_ms: DUE_NOW,
                ..part.clone()
            };
            rest.insert(connection)?;
            part.last = cut - 1;
        }
        part.token = next_token(connection)?;
        part.owner = Some(self.owner.as_str().to_owned());
        part.due_at_ms = self.deadline_ms();
        part.parked = false;
        part.insert(connection)?;
        self.leases.push(self.lease_of(&part));
        Ok(())
    }

    fn lease_of(&self, part: &Part) -> Lease {
        Lease {
            subscription_id: SubscriptionId(part.subscription_id),
            owner: self.owner.clone(),
            topic_id: self.state.topic_id,
            token: LeaseToken(part.token),
            range: OffsetRange::new(Offset(part.first), Offset(part.last)),
            attempt: part.attempts + 1,
            deadline: super::deadline(part.due_at_ms),
            suspect: part.suspect,
            lane: part.lane,
            blocked_keys: Vec::new(),
        }
    }

    /// Whether the owner holds a lease of the subscription that has not expired.
    fn owner_holds_any(&self) -> Attempt<bool> {
        let parameters = params![self.want.subscription_id.0, self.owner.as_str(), self.now_ms];
        let mut statement = self.work.connection.prepare_cached(super::sql!(claim.holds))?;
        Ok(statement.query_row(parameters, |row| row.get(0))?)
    }

    /// Handles a range whose owner let the lease expire.
    ///
    /// It is handed out alone, in ever smaller ranges, to an owner that holds nothing else: so a message that crashes
    /// its worker affects no other message, is isolated, and only then buried.
    fn deal_with_suspect(&mut self, part: Part) -> Attempt<Suspect> {
        let fresh = part.has_expired(self.now_ms);
        let part = if fresh { self.expired(part) } else { part };
        match hand_out_again(part.span(), part.attempts, self.state.max_attempts) {
            HandOut::Bury => {
                if fresh {
                    self.count_expiry(&part)?;
                }
                self.bury(&part)?;
                Ok(Suspect::Buried)
            }
            HandOut::First(_) if self.owner_holds_any()? => Ok(Suspect::MustDrain),
            HandOut::First(count) => {
                if fresh {
                    self.count_expiry(&part)?;
                }
                let count = count.min(self.budget());
                self.hand_out_part(part, count)?;
                Ok(Suspect::HandedOut)
            }
        }
    }

    /// How many offsets this want may still get.
    fn budget(&self) -> u64 {
        let lanes = u64::from(self.state.lanes.max(1));
        let all = u64::from(self.want.messages_max) * lanes;
        let wanted = all - self.leases.iter().map(|lease| lease.range.span()).sum::<u64>();
        let allowed = self.allowance.left_after(self.given());
        allowed.map_or(wanted, |messages| wanted.min(messages.saturating_mul(lanes)))
    }

    /// How many messages a span of offsets counts as: in an ordered subscription one in `lanes` belongs to the lease.
    fn messages_in(&self, span: u64) -> u64 {
        span.div_ceil(u64::from(self.state.lanes.max(1)))
    }

    /// How many messages this want has received so far.
    fn given(&self) -> u64 {
        self.leases.iter().map(|lease| self.messages_in(lease.range.span())).sum()
    }

    /// The range after its lease has expired.
    fn expired(&self, mut part: Part) -> Part {
        part.attempts = attempts_after_expiry(part.span(), part.attempts, self.state.max_attempts);
        part.suspect = true;
        let owner = part.owner.as_deref().unwrap_or("unknown");
        part.last_error = Some(format!("lease expired: held by {owner}"));
        part
    }

    fn count_expiry(&self, part: &Part) -> Attempt<()> {
        let (group, topic): (String, String) = self
            .work
            .connection
            .prepare_cached(super::sql!(claim.reassigned))?
            .query_row([part.subscription_id], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (offsets, token, attempt) = (part.range(), part.token, part.attempts);
        let owner = part.owner.as_deref().unwrap_or("unknown");
        tracing::warn!(topic, group, %offsets, token, owner, attempt, "lease expired, reassigning");
        Ok(())
    }

    fn bury(&mut self, part: &Part) -> Attempt<()> {
        let times = part.attempts;
        let held_by = |error: &'_ str| error.strip_prefix("lease expired: held by ").map(str::to_owned);
        let owner = part.last_error.as_deref().and_then(held_by);
        let error = match &owner {
            Some(owner) => format!("lease expired {times} times; last held by {owner}"),
            None => format!("lease expired {times} times"),
        };
        let burial = Burial {
            subscription_id: part.subscription_id,
            lane: part.lane.map(|lane| (lane, self.state.lanes)),
            error: &error,
            attempts: times,
            owner: owner.as_deref(),
            now_ms: self.now_ms,
        };
        let buried = log::bury(self.work.connection, self.state.topic_id, part.range(), &burial)?;
        self.used_up.extend(buried.into_iter().map(|offset| UsedUp {
            subscription_id: self.want.subscription_id,
            offset,
            attempts: times,
            error: error.clone(),
        }));
        part.delete(self.work.connection)
    }
}

/// What was done with a range whose lease expired.
enum Suspect {
    /// It is the only lease of this want.
    HandedOut,
    /// It was a single message out of attempts: the claim continues with the next range.
    Buried,
    /// The owner holds another lease and must settle it first; it gets nothing until then.
    MustDrain,
}

impl State {
    fn load(work: &Work<'_>, owner: &Owner, want: &Want, now_ms: i64) -> Attempt<State> {
        let parameters = params![want.subscription_id.0, owner.as_str(), now_ms];
        let state = work
            .connection
            .prepare_cached(super::sql!(claim.state))?
            .query_row(parameters, |row| {
                Ok(State {
                    topic_id: TopicId(row.get(0)?),
                    lanes: row.get(1)?,
                    lease_ms: row.get(2)?,
                    max_attempts: row.get(3)?,
                    head: row.get(4)?,
                    next: row.get(5)?,
                    leased_due_ms: row.get(6)?,
                    waiting_due_ms: row.get(7)?,
                    deliver_at_ms: row.get(8)?,
                    suspect_until_ms: row.get(9)?,
                    status: decode::parsed(row, 10, SubscriptionState::parse)?,
                })
            })
            .optional()?;
        state.ok_or_else(|| {
            let text = format!("no such subscription: {}; subscribe the group first", want.subscription_id);
            Error::new(ErrorKind::NoSuchSubscription, text).into()
        })
    }
}

/// Gives back leases whose caller stopped waiting before it received them: no process would ever settle them.
pub(super) fn give_back((claimed, _): &(Claimed, Seen)) -> Option<BoxCommand> {
    let settlements: Vec<Settlement> = claimed
        .leases
        .iter()
        .map(|lease| Settlement::each(lease, vec![(lease.range, Outcome::Release)]))
        .collect();
    if settlements.is_empty() {
        return None;
    }
    let (job, _) = Job::new(Kind::Consume, move |work| settle::settle(work, &settlements));
    Some(Box::new(job.unattended()))
}
