//! A ticket: all that is needed to settle a claimed message or to extend its lease, in any process of the store, as url-safe text.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::error::{Error, Result};
use crate::lease::{LeaseId, LeaseToken, OffsetRange};
use crate::message::Offset;
use crate::name::Owner;
use crate::subscription::SubscriptionId;

/// The first byte of a ticket: a later version of the format has another.
const VERSION: u8 = 1;

/// The holder of leases that belong to no process: a client of a server, for one claim or for one connection.
///
/// Its name has 128 random bits and is part of every ticket, so that a ticket cannot be made up. It sends no heartbeats: its leases end at their
/// deadlines and not before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(u128);

impl Holder {
    /// A holder that no other has the name of.
    #[expect(clippy::new_without_default, reason = "each one differs")]
    pub fn new() -> Self {
        Holder(rand::random())
    }

    /// The owner of its leases in the store.
    pub(super) fn owner(self) -> Owner {
        Owner::new(format!("detached {:032x}", self.0)).expect("a name by the rules")
    }
}

/// The right to settle one claimed message, until its lease ends. `to_string` and `parse` are inverse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(super) subscription_id: SubscriptionId,
    pub(super) holder: Holder,
    pub(super) token: LeaseToken,
    /// The message.
    pub(super) offset: Offset,
    /// The offsets that are settled with it: the message, and offsets around it that have none.
    pub(super) range: OffsetRange,
    /// The attempt, from 1.
    pub(super) attempt: u32,
    /// In a lane, the last offset of the lease. It is part of the text; settling reads what the lease holds.
    pub(super) lane_last: Option<Offset>,
}

impl Ticket {
    /// The message's offset.
    pub fn offset(&self) -> Offset {
        self.offset
    }

    /// Who holds its lease.
    pub fn holder(&self) -> Holder {
        self.holder
    }

    /// The attempt of its message, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// What the store compares.
    pub(super) fn lease(&self) -> LeaseId {
        LeaseId { token: self.token, subscription_id: self.subscription_id, owner: self.holder.owner() }
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = Vec::with_capacity(64);
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.holder.0.to_be_bytes());
        bytes.extend_from_slice(&self.token.0.to_be_bytes());
        put(&mut bytes, self.subscription_id.0.unsigned_abs().into());
        put(&mut bytes, self.offset.0.unsigned_abs());
        put(&mut bytes, self.offset.0.abs_diff(self.range.first.0));
        put(&mut bytes, self.offset.0.abs_diff(self.range.last.0));
        put(&mut bytes, self.attempt.into());
        put(&mut bytes, self.lane_last.map_or(0, |last| last.0.abs_diff(self.offset.0) + 1));
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for Ticket {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        read(text).ok_or_else(|| {
            Error::invalid("receipt", "not of this server; pass it on as the claim returned it")
        })
    }
}

fn read(text: &str) -> Option<Ticket> {
    // Far longer than any: nothing large is decoded.
    if text.len() > 200 {
        return None;
    }
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (version, rest) = bytes.split_first()?;
    let (holder, rest) = rest.split_first_chunk::<16>()?;
    let (token, mut rest) = rest.split_first_chunk::<8>()?;
    let mut number = || take(&mut rest);
    let subscription_id = SubscriptionId(i32::try_from(number()?).ok()?);
    let offset = i64::try_from(number()?).ok()?;
    let first = offset.checked_sub_unsigned(number()?).filter(|first| *first >= 0)?;
    // No offset is the highest number, so that the one behind an offset of a ticket always exists.
    let last = offset.checked_add_unsigned(number()?).filter(|last| *last < i64::MAX)?;
    let attempt = u32::try_from(number()?).ok()?;
    let lane_last = match number()? {
        0 => None,
        distance => Some(Offset(offset.checked_add_unsigned(distance - 1)?)),
    };
    (*version == VERSION && rest.is_empty()).then_some(Ticket {
        subscription_id,
        holder: Holder(u128::from_be_bytes(*holder)),
        token: LeaseToken(i64::from_be_bytes(*token)),
        offset: Offset(offset),
        range: OffsetRange { first: Offset(first), last: Offset(last) },
        attempt,
        lane_last,
    })
}

/// Appends a number, seven bits to a byte.
fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ticket(offset: i64, before: i64, after: i64, attempt: u32, lane: Option<i64>) -> Ticket {
        Ticket {
            subscription_id: SubscriptionId(7),
            holder: Holder::new(),
            token: LeaseToken(i64::MAX - 3),
            offset: Offset(offset),
            range: OffsetRange::new(Offset(offset - before), Offset(offset + after)),
            attempt,
            lane_last: lane.map(|distance| Offset(offset + distance)),
        }
    }

    #[test]
    fn a_usual_ticket_is_short_and_url_safe() {
        let text = ticket(123_456, 0, 0, 1, None).to_string();
        assert!(text.len() <= 48, "{} characters", text.len());
        assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)), "{text}");
    }

    #[test]
    fn texts_that_are_no_tickets_are_refused() {
        let good = ticket(5, 1, 2, 3, Some(9)).to_string();
        let cut = &good[..good.len() - 2];
        for bad in ["", "x", "????", cut, &format!("{good}AA"), &"A".repeat(60), &"A".repeat(10_000)] {
            assert!(bad.parse::<Ticket>().is_err(), "{bad}");
        }
    }

    #[test]
    fn offsets_without_a_next_one_are_refused() {
        let end = ticket(i64::MAX - 1, 0, 0, 1, None);
        assert_eq!(end.to_string().parse::<Ticket>().expect("a ticket"), end);
        let behind = Ticket { range: OffsetRange { last: Offset(i64::MAX), ..end.range }, ..end.clone() };
        let message = Ticket { offset: Offset(i64::MAX), range: OffsetRange::one(Offset(i64::MAX)), ..end };
        for impossible in [behind, message] {
            let error = impossible.to_string().parse::<Ticket>().expect_err("refused");
            assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
        }
    }

    proptest! {
        #[test]
        fn a_ticket_is_read_back(offset in 1_000i64..i64::MAX / 2, before in 0i64..1_000, after in 0i64..1_000_000,
                                 attempt: u32, lane in proptest::option::of(0i64..1_000_000)) {
            let ticket = ticket(offset, before, after, attempt, lane);
            prop_assert_eq!(ticket.to_string().parse::<Ticket>().expect("a ticket"), ticket);
        }

        #[test]
        fn no_text_panics(text in "[A-Za-z0-9_-]{0,120}") {
            let _ = text.parse::<Ticket>();
        }
    }
}
