//! Leases: ranges handed out to an owner, and the rule for handing out a range again after its owner crashed.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use crate::error::{Error, Result};
use crate::limits::{CLAIM_MESSAGES_MAX, CLAIM_SUBSCRIPTIONS_MAX, DELAY_MAX};
use crate::message::Offset;
use crate::name::Owner;
use crate::subscription::{SubscriptionId, SubscriptionState};
use crate::topic::TopicId;

mod limits;

#[cfg(feature = "sqlite")]
pub(crate) use limits::Bucket;
pub use limits::{GroupLimits, RateLimit};

/// The fencing token of one lease. It is never issued twice: not after a crash that undid the claim, not after a
/// failover, not in a restored copy. The upper 32 bits count, and the lower 31 are random.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseToken(pub i64);

/// What a store compares before it settles or extends a lease: all three fields, in every statement.
///
/// The token alone would suffice if no history were ever lost. With owner and subscription, even a token from another
/// history cannot end a lease of another process or group.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LeaseId {
    /// The fencing token.
    pub token: LeaseToken,
    /// The subscription the lease belongs to.
    pub subscription_id: SubscriptionId,
    /// The owner it was handed to.
    pub owner: Owner,
}

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A closed range of offsets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OffsetRange {
    /// The first offset.
    pub first: Offset,
    /// The last offset, included.
    pub last: Offset,
}

impl OffsetRange {
    /// A range; `first` must not be above `last`.
    pub fn new(first: Offset, last: Offset) -> Self {
        assert!(first <= last, "first must not be above last: {first}..={last}");
        OffsetRange { first, last }
    }

    /// The range of one offset.
    pub fn one(offset: Offset) -> Self {
        OffsetRange { first: offset, last: offset }
    }

    /// How many offsets it spans.
    pub fn span(self) -> u64 {
        u64::try_from(self.last.0 - self.first.0 + 1).expect("first is not above last")
    }

    /// Whether the offset is inside.
    pub fn contains(self, offset: Offset) -> bool {
        self.first <= offset && offset <= self.last
    }
}

impl fmt::Display for OffsetRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..={}", self.first, self.last)
    }
}

impl fmt::Debug for OffsetRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One subscription's part of a claim request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Want {
    /// The subscription.
    pub subscription_id: SubscriptionId,
    /// How many messages at most.
    pub messages_max: u32,
    /// The lease time, if it differs from the topic's; zero means the lease never expires.
    pub lease: Option<Duration>,
    /// Limits for the whole group.
    pub limits: GroupLimits,
}

impl Want {
    /// At most this many messages, with the topic's lease time and without limits for the group.
    pub fn new(subscription_id: SubscriptionId, messages_max: u32) -> Self {
        Want { subscription_id, messages_max, lease: None, limits: GroupLimits::default() }
    }
}

/// A claim for one or many subscriptions of one owner.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimRequest {
    /// The owner of the leases.
    pub owner: Owner,
    /// The subscriptions to claim for.
    pub wants: Vec<Want>,
}

impl ClaimRequest {
    /// Checks every field against its rule.
    pub fn validate(&self) -> Result<()> {
        if self.wants.len() > CLAIM_SUBSCRIPTIONS_MAX {
            let count = self.wants.len();
            return Err(Error::invalid(
                "wants",
                format!("{count}, at most {CLAIM_SUBSCRIPTIONS_MAX} are allowed"),
            ));
        }
        for want in &self.wants {
            if want.messages_max == 0 || want.messages_max > CLAIM_MESSAGES_MAX {
                return Err(Error::invalid(
                    "messages_max",
                    format!("must be from 1 to {CLAIM_MESSAGES_MAX}"),
                ));
            }
            if want.lease.is_some_and(|lease| lease > DELAY_MAX) {
                return Err(Error::invalid("lease", "longer than 366 days"));
            }
            want.limits.validate()?;
        }
        Ok(())
    }
}

/// A range leased to one owner until a deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The subscription it belongs to.
    pub subscription_id: SubscriptionId,
    /// The owner it was handed to.
    pub owner: Owner,
    /// The topic whose offsets it spans.
    pub topic_id: TopicId,
    /// The fencing token.
    pub token: LeaseToken,
    /// The offsets. Some may never have existed; none is a message that another owner holds.
    pub range: OffsetRange,
    /// The attempt, from 1.
    pub attempt: u32,
    /// When it expires; `None` means never.
    pub deadline: Option<Timestamp>,
    /// Set when its last owner crashed: it is handed out alone and in ever smaller ranges.
    pub suspect: bool,
    /// The lane of an ordered subscription: only messages of this lane in the range belong to the lease.
    pub lane: Option<u16>,
    /// Keys of the lane that wait for a retry: their messages must be parked, not handled.
    pub blocked_keys: Vec<String>,
}

impl Lease {
    /// What the store compares when the lease is settled or extended.
    pub fn id(&self) -> LeaseId {
        LeaseId { token: self.token, subscription_id: self.subscription_id, owner: self.owner.clone() }
    }
}

impl From<&Lease> for LeaseId {
    fn from(lease: &Lease) -> Self {
        lease.id()
    }
}

impl From<&LeaseId> for LeaseId {
    fn from(id: &LeaseId) -> Self {
        id.clone()
    }
}

/// The history of the store that something was read in. Opaque: two values from one store handle can only be compared
/// for equality.
///
/// A history ends when something committed in it may be lost: a server crash undoes asynchronous commits, a failover
/// loses the tail that the standby never had, a restored copy is older, a replaced file is a different one. From then
/// on an offset may stand for a different message, so data that a client keeps by offset is invalid in another epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Epoch(pub i64);

/// The result of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claimed {
    /// The history the leases belong to. The caller must drop messages that it read under another epoch before it uses
    /// the leases. Undefined without leases.
    pub epoch: Epoch,
    /// The leases, by subscription, offsets rising.
    pub leases: Vec<Lease>,
    /// When claiming again may find something although nothing is published: a retry, an expired lease or a scheduled
    /// message comes due, a commit is under way, or a limit of the group held something back. `None` when only a
    /// publish can bring anything; PostgreSQL also leaves out retries and deadlines that are more than 30 seconds away.
    pub recheck_after: Option<Duration>,
    /// Requested subscriptions that are not active, and their states. They got nothing.
    pub inactive: Vec<(SubscriptionId, SubscriptionState)>,
    /// Messages that the claim buried, because their attempts were used up by leases that were lost.
    pub used_up: Vec<UsedUp>,
}

/// A message whose every attempt ended with a lost lease: a claim made it a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedUp {
    /// The subscription.
    pub subscription_id: SubscriptionId,
    /// The message.
    pub offset: Offset,
    /// How many attempts it had.
    pub attempts: u32,
    /// The reason, as in the dead letter.
    pub error: String,
}

/// How much of an outstanding range to hand out, or whether to bury it instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOut {
    /// The first offsets, this many; the rest stays outstanding.
    First(u64),
    /// The range is one message that has used up its attempts.
    Bury,
}

/// The rule for handing out a range again whose owner crashed.
///
/// `attempts` counts the leases that failed so far, including this expiry. A crashed range is halved each time, so that
/// a message that crashes its process is isolated. The last allowed attempt is always for a single message, so that no
/// other message is buried for it; and only a single message is ever buried.
pub fn hand_out_again(span: u64, attempts: u32, max_attempts: u32) -> HandOut {
    assert!(span > 0, "an outstanding range is never empty");
    if span == 1 && attempts >= max_attempts {
        return HandOut::Bury;
    }
    if attempts + 1 >= max_attempts {
        return HandOut::First(1);
    }
    HandOut::First(span.div_ceil(2))
}

/// The attempts after a lease over `span` offsets expired: only a single message can use up its last attempt.
pub fn attempts_after_expiry(span: u64, attempts: u32, max_attempts: u32) -> u32 {
    if span == 1 { attempts + 1 } else { (attempts + 1).min(max_attempts.saturating_sub(1)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Simulates a range with one poison message until it is buried; returns (leases of the poison message, others
    /// buried).
    fn play(span: u64, poison: u64, max_attempts: u32) -> (u32, u32) {
        let mut todo = vec![(0, span, 0, false)];
        let (mut poison_hand_outs, mut wrongly_buried) = (0, 0);
        while let Some((first, span, attempts, suspect)) = todo.pop() {
            let take = if suspect {
                match hand_out_again(span, attempts, max_attempts) {
                    HandOut::Bury => {
                        wrongly_buried += u32::from(first != poison);
                        continue;
                    }
                    HandOut::First(n) => n,
                }
            } else {
                span
            };
            if take < span {
                todo.push((first + take, span - take, attempts, suspect));
            }
            if (first..first + take).contains(&poison) {
                poison_hand_outs += 1;
                todo.push((first, take, attempts_after_expiry(take, attempts, max_attempts), true));
            }
        }
        (poison_hand_outs, wrongly_buried)
    }

    #[test]
    fn a_batch_of_500_buries_only_the_poison_at_exactly_max_attempts() {
        assert_eq!(play(500, 250, 10), (10, 0));
        assert_eq!(play(1, 0, 3), (3, 0));
    }

    proptest! {
        #[test]
        fn only_the_poison_is_buried(span in 1u64..6000, at in 0.0f64..1.0, max_attempts in 1u32..12) {
            let poison = ((span as f64) * at) as u64;
            let (hand_outs, wrongly_buried) = play(span, poison.min(span - 1), max_attempts);
            prop_assert_eq!(wrongly_buried, 0);
            // With one allowed attempt for a batch, a second lease is needed to isolate the poison message.
            let allowed = if max_attempts == 1 && span > 1 { 2 } else { max_attempts };
            prop_assert_eq!(hand_outs, allowed);
        }
    }
}
