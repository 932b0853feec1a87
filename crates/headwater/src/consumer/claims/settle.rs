//! Settling and extending by ticket.
//!
//! Tickets of one lease become one settlement, which the store takes as a whole or not at all. If it does not, some of its tickets are not held any more, as
//! after a request that was repeated: each is then settled alone, so that one lost ticket costs no other its result.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;

use super::{Claims, Ticket, check_lease};
use crate::error::{ErrorKind, Result};
use crate::lease::{LeaseId, OffsetRange};
use crate::message::Offset;
use crate::settle::{Outcome, Settlement, Verdict, decide};
use crate::subscription::Subscription;

/// What became of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Its message is settled as asked for.
    Settled,
    /// Nothing was changed: its lease ended, or the message was settled before, or is not this group's, or waits behind an older one of its key
    /// that is handed out again.
    Lost,
}

/// A ticket with the outcome of its message.
#[derive(Debug)]
struct Decided<'a> {
    ticket: &'a Ticket,
    outcome: Outcome,
    /// Waits behind an older message of its key, whatever was asked for.
    held_back: bool,
    /// Its place in the answer.
    at: usize,
}

/// Settlements of one lease, and what they are for.
#[derive(Debug)]
struct Planned<'a> {
    lease: LeaseId,
    decided: Vec<Decided<'a>>,
    /// Later messages of a key that is handed out again, not among the tickets.
    followers: Vec<(Offset, String)>,
}

impl Claims {
    /// Settles messages by their tickets, whichever process claimed them; the results are in their order. A failed message is retried by the group's
    /// policy, and becomes a dead letter at its last attempt.
    ///
    /// In an ordered group a message that is retried or released takes later messages of its key along that the same lease holds: their tickets are
    /// lost, also those of this call.
    pub async fn settle(&self, verdicts: &[(Ticket, Verdict)]) -> Result<Vec<Settled>> {
        let _in_use = self.enter()?;
        let mut results = vec![Settled::Lost; verdicts.len()];
        let planned = self.plan(verdicts).await?;
        let settlements: Vec<Settlement> = planned.iter().map(Planned::whole).collect();
        if settlements.is_empty() {
            return Ok(results);
        }
        let answers = self.store().settle(&settlements).await?;
        let mut again: Vec<Planned<'_>> = Vec::new();
        for (planned, answer) in planned.into_iter().zip(answers) {
            match answer {
                Ok(()) => self.settled(&planned.decided, &mut results),
                Err(error) if !is_lost(error.kind()) => return Err(error),
                Err(_) if planned.decided.len() + planned.followers.len() > 1 => again.push(planned),
                Err(_) => {}
            }
        }
        self.settle_alone(again, &mut results).await?;
        Ok(results)
    }

    /// Extends the leases of tickets to this long from now, or to the group's lease time; when each ends, or `None` if it is lost. A lease is that of
    /// all messages that were claimed together: extending one extends the others.
    pub async fn extend(
        &self,
        tickets: &[Ticket],
        lease: Option<Duration>,
    ) -> Result<Vec<Option<Timestamp>>> {
        lease.map_or(Ok(()), check_lease)?;
        let _in_use = self.enter()?;
        let lease_for = self.0.lease_for(lease);
        let own = |ticket: &&Ticket| self.is_own(ticket);
        let leases: HashSet<LeaseId> = tickets.iter().filter(own).map(Ticket::lease).collect();
        let leases: Vec<LeaseId> = leases.into_iter().collect();
        if leases.is_empty() {
            return Ok(vec![None; tickets.len()]);
        }
        // Read before the call: never later than in the store.
        let until = self.store().now().saturating_add(lease_for).unwrap_or(Timestamp::MAX);
        let answers = self.store().extend(&leases, lease_for).await?;
        let mut extended: HashSet<LeaseId> = HashSet::new();
        for (lease, answer) in leases.into_iter().zip(answers) {
            match answer {
                Ok(()) => drop(extended.insert(lease)),
                Err(error) if error.kind() == ErrorKind::LeaseLost => {}
                Err(error) => return Err(error),
            }
        }
        if !extended.is_empty() {
            self.0.group.serve_state.use_until(tokio::time::Instant::now() + lease_for);
        }
        let result =
            |ticket: &Ticket| (self.is_own(ticket) && extended.contains(&ticket.lease())).then_some(until);
        Ok(tickets.iter().map(result).collect())
    }

    fn is_own(&self, ticket: &Ticket) -> bool {
        ticket.subscription_id == self.subscription().subscription_id
    }

    /// The outcomes by lease. Tickets of other groups and repeated ones are left out: they are lost.
    async fn plan<'a>(&self, verdicts: &'a [(Ticket, Verdict)]) -> Result<Vec<Planned<'a>>> {
        let policy = self.0.group.policy();
        let mut leases: BTreeMap<_, Planned<'a>> = BTreeMap::new();
        let mut seen: HashSet<(i64, Offset)> = HashSet::with_capacity(verdicts.len());
        for (at, (ticket, verdict)) in verdicts.iter().enumerate() {
            if !self.is_own(ticket) || !seen.insert((ticket.token.0, ticket.offset)) {
                continue;
            }
            // The message is not read here, so that the jitter is not that of its key.
            let outcome = decide(verdict.clone(), ticket.attempt, &policy, rand::random());
            // Two holders with one token is a forgery: each is its own lease, and the store accepts one at most.
            let planned = leases.entry((ticket.token, ticket.holder)).or_insert_with(|| Planned {
                lease: ticket.lease(),
                decided: Vec::new(),
                followers: Vec::new(),
            });
            planned.decided.push(Decided { ticket, outcome, held_back: false, at });
        }
        let mut planned: Vec<Planned<'a>> = leases.into_values().collect();
        for one in &mut planned {
            one.decided.sort_by_key(|decided| decided.ticket.offset);
            self.keep_order(one).await?;
        }
        Ok(planned)
    }

    /// In a lane, holds back messages behind one of their key that is handed out again: those that are not handled yet, and those that were handled out
    /// of order.
    ///
    /// A ticket is its client's word until the store has settled it. So nothing is read by the offsets that it names: the store finds what the lease
    /// holds, which is nothing if it was made up, and at most the messages of one claim otherwise. What is settled between the read and the settlement
    /// makes the settlement as a whole fail, and each ticket is then settled alone; no lease holds more later than before.
    async fn keep_order(&self, planned: &mut Planned<'_>) -> Result<()> {
        let Subscription { topic, lanes, .. } = self.subscription();
        let comes_again = |decided: &&Decided<'_>| decided.outcome.comes_again();
        let first = planned.decided.iter().find(comes_again).map(|decided| decided.ticket.offset);
        let Some(first) = first.filter(|_| *lanes > 0) else { return Ok(()) };
        let messages = self.store().held_keys(topic.topic_id, &planned.lease, first).await?;
        let mut waiting: HashSet<&str> = HashSet::new();
        let mut named: HashMap<Offset, &mut Decided<'_>> =
            planned.decided.iter_mut().map(|decided| (decided.ticket.offset, decided)).collect();
        for (offset, key) in &messages {
            let decided = named.get_mut(offset);
            if waiting.contains(key.as_str()) {
                match decided {
                    Some(decided) => {
                        (decided.outcome, decided.held_back) = (Outcome::Park { key: key.clone() }, true);
                    }
                    None => planned.followers.push((*offset, key.clone())),
                }
            } else if let Some(decided) = decided.filter(|decided| decided.outcome.comes_again()) {
                waiting.insert(key);
                decided.outcome.hold_key(key);
            }
        }
        Ok(())
    }

    /// Settles each ticket of these leases alone, and then the followers that are still held.
    async fn settle_alone(&self, again: Vec<Planned<'_>>, results: &mut [Settled]) -> Result<()> {
        let mut settlements = Vec::new();
        let mut decided: Vec<Option<Decided<'_>>> = Vec::new();
        for planned in again {
            let Planned { lease, decided: of_lease, followers } = planned;
            for one in of_lease {
                settlements.push(Settlement::each(&lease, one.parts()));
                decided.push(Some(one));
            }
            for (offset, key) in followers {
                let part = (OffsetRange::one(offset), Outcome::Park { key });
                settlements.push(Settlement::each(&lease, vec![part]));
                decided.push(None);
            }
        }
        if settlements.is_empty() {
            return Ok(());
        }
        let answers = self.store().settle(&settlements).await?;
        for (decided, answer) in decided.into_iter().zip(answers) {
            match (decided, answer) {
                (Some(decided), Ok(())) => self.settled(&[decided], results),
                (_, Err(error)) if !is_lost(error.kind()) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Counts and reports what was settled.
    fn settled(&self, decided: &[Decided<'_>], results: &mut [Settled]) {
        let policy = self.0.group.policy();
        for Decided { ticket, outcome, held_back, at } in decided {
            results[*at] = if *held_back { Settled::Lost } else { Settled::Settled };
            self.0.group.guard.settled_by_ticket(ticket.offset, ticket.attempt, outcome, &policy);
        }
    }
}

impl Planned<'_> {
    /// One settlement for all of it. Acks of neighbours are one range.
    fn whole(&self) -> Settlement {
        let mut parts: Vec<(OffsetRange, Outcome)> = Vec::with_capacity(self.decided.len());
        let followers = self.followers.iter();
        let held_back =
            followers.map(|(offset, key)| (OffsetRange::one(*offset), Outcome::Park { key: key.clone() }));
        let mut all: Vec<_> = self.decided.iter().flat_map(Decided::parts).chain(held_back).collect();
        all.sort_by_key(|(range, _)| *range);
        for (range, outcome) in all {
            match parts.last_mut() {
                Some((last, Outcome::Ack)) if outcome == Outcome::Ack && range.first.0 == last.last.0 + 1 => {
                    last.last = range.last;
                }
                _ => parts.push((range, outcome)),
            }
        }
        Settlement::each(&self.lease, parts)
    }
}

impl Decided<'_> {
    /// The message with its outcome; offsets around it without a message are done.
    fn parts(&self) -> Vec<(OffsetRange, Outcome)> {
        let Ticket { offset, range, .. } = self.ticket;
        if self.outcome == Outcome::Ack {
            return vec![(*range, Outcome::Ack)];
        }
        let mut parts = Vec::with_capacity(3);
        if range.first < *offset {
            parts.push((OffsetRange::new(range.first, Offset(offset.0 - 1)), Outcome::Ack));
        }
        parts.push((OffsetRange::one(*offset), self.outcome.clone()));
        if *offset < range.last {
            parts.push((OffsetRange::new(Offset(offset.0 + 1), range.last), Outcome::Ack));
        }
        parts
    }
}

/// Whether a settlement found its ticket lost, or made up.
fn is_lost(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::LeaseLost | ErrorKind::InvalidInput)
}

#[cfg(test)]
mod tests;
