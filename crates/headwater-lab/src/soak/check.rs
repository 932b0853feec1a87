//! The checker: compares what members received with what publishers committed and what the log holds. Pure; its tests
//! prove that it finds violations.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::history::MemberEvent;

/// The outcome of a message's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Acknowledged; when its COMMIT was sent, in microseconds of the machine's clock.
    Committed { at_us: u64 },
    /// Its transaction or savepoint was rolled back.
    RolledBack,
    /// The answer to its COMMIT was lost: the message is stored or not.
    Unknown,
}

/// One incarnation of one member.
#[derive(Clone, Debug)]
pub(crate) struct MemberHistory {
    pub(crate) member: String,
    /// When it was ended by SIGKILL or by its own abort, so that its messages in flight are redelivered.
    pub(crate) killed_us: Option<u64>,
    pub(crate) events: Vec<MemberEvent>,
}

/// A time without a server, after which some earlier settlements may be lost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outage {
    /// Everything settled before this moment is durable: a later commit was answered and is still stored.
    pub(crate) kept_us: u64,
    /// When a server answered again.
    pub(crate) back_us: u64,
}

/// How long a running consumer collects handled messages before it acks them.
const ACKED_WITHIN_US: u64 = 1_000_000;
/// How long after an outage a consumer may still work on messages it got before it.
const STALE_WORK_US: u64 = 5_000_000;

/// The facts that a group's members are compared with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// What publishers recorded.
    pub(crate) published: HashMap<String, Fate>,
    /// The messages of the group's topic that are stored at the end; `None` if they were not read.
    pub(crate) log: Option<HashSet<String>>,
    /// Acknowledged by an asynchronous primary and lost with it: reported, but no violation of the group.
    pub(crate) excused: HashSet<String>,
    pub(crate) outages: Vec<Outage>,
    /// How long a lease lasts, in microseconds.
    pub(crate) lease_us: u64,
}

/// The checker's findings for one group. Everything up to `stolen` must be 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupFindings {
    /// Acknowledged to its publisher, never delivered, and not in the log.
    pub(crate) lost: usize,
    /// In the log, never delivered, and yet done: settled unseen.
    pub(crate) unseen: usize,
    /// Delivered although rolled back, or never published at all.
    pub(crate) ghosts: usize,
    /// Redelivered although the earlier delivery was neither in flight in a killed member or in an outage, nor
    /// refused. So redeliveries are bounded by what was in flight.
    pub(crate) doubled: usize,
    /// Offsets that did not rise within a lease.
    pub(crate) misordered: usize,
    /// Settlements refused although the lease was fresh and no outage was near: another process ended it.
    pub(crate) stolen: usize,
    /// Redelivered because they were in flight at a kill or an outage: allowed.
    pub(crate) repeated: usize,
    /// Settlements the store refused.
    pub(crate) refused: usize,
    /// Different messages delivered.
    pub(crate) delivered: usize,
    /// Examples of offending messages, for people.
    pub(crate) examples: Vec<String>,
}

impl GroupFindings {
    /// Whether the group got every message exactly as promised.
    pub(crate) fn is_clean(&self) -> bool {
        self.lost + self.unseen + self.ghosts + self.doubled + self.misordered + self.stolen == 0
    }

    fn example(&mut self, text: impl FnOnce() -> String) {
        if self.examples.len() < 5 {
            self.examples.push(text());
        }
    }
}

/// One delivery, with its outcome.
#[derive(Clone, Copy)]
struct Delivery<'h> {
    member: &'h str,
    offset: i64,
    at_us: u64,
    /// The latest time at which the store had its settlement.
    settled_us: Option<u64>,
    refused: bool,
    /// May be redelivered without a violation: in flight in a killed member or in an outage, or refused.
    excused: bool,
}

impl Delivery<'_> {
    /// Whether it was unsettled at an outage, or the outage undid its settlement.
    fn was_in_flight(&self, outage: &Outage) -> bool {
        self.at_us <= outage.back_us + STALE_WORK_US && self.settled_us.is_none_or(|us| us >= outage.kept_us)
    }
}

type Deliveries<'h> = BTreeMap<&'h str, Vec<Delivery<'h>>>;

/// Checks one group's members against everything published.
pub(crate) fn check_group(facts: &Facts, members: &[MemberHistory]) -> GroupFindings {
    let mut findings = GroupFindings::default();
    let mut deliveries = Deliveries::new();
    for history in members {
        collect(history, facts, &mut deliveries, &mut findings);
    }
    missing(facts, &deliveries, &mut findings);
    for (id, mut times) in deliveries {
        findings.delivered += 1;
        if !matches!(facts.published.get(id), Some(Fate::Committed { .. } | Fate::Unknown)) {
            findings.ghosts += 1;
            findings.example(|| format!("{id} was delivered although it was never committed"));
        }
        times.sort_by_key(|delivery| delivery.at_us);
        for pair in times.windows(2) {
            let (a, b) = (&pair[0], &pair[1]);
            // A refused delivery may have been claimed first and read late: tokens do not show it, and the store refused it.
            if a.excused || b.refused {
                findings.repeated += 1;
            } else {
                findings.doubled += 1;
                findings.example(|| {
                    format!(
                        "{id} at offset {} went to {} and, at offset {}, to {}",
                        a.offset, a.member, b.offset, b.member
                    )
                });
            }
        }
    }
    findings
}

/// Counts messages that were never delivered.
fn missing(facts: &Facts, deliveries: &Deliveries<'_>, findings: &mut GroupFindings) {
    let stored = |id: &str| facts.log.as_ref().is_none_or(|log| log.contains(id));
    for (id, fate) in &facts.published {
        let committed = matches!(fate, Fate::Committed { .. }) && !facts.excused.contains(id);
        if committed && !stored(id) && !deliveries.contains_key(id.as_str()) {
            findings.lost += 1;
            findings.example(|| format!("{id} was acknowledged and is gone"));
        } else if !deliveries.contains_key(id.as_str()) && stored(id) && (committed || facts.log.is_some()) {
            findings.unseen += 1;
            findings.example(|| format!("{id} is in the log and was settled unseen"));
        }
    }
}

/// The settlements in a member's history.
#[derive(Default)]
struct Settled<'h> {
    /// Acked ranges by token, with the moment of the answer.
    acked: HashMap<i64, Vec<(i64, i64, u64)>>,
    refused: HashMap<i64, u64>,
    /// Ends of handlers by message, oldest first, each with its transaction.
    ended: HashMap<&'h str, Vec<(u64, i64)>>,
    /// The last end of a handler in each transaction.
    transaction_us: HashMap<i64, u64>,
}

impl<'h> Settled<'h> {
    fn of(history: &'h MemberHistory) -> Self {
        let mut settled = Settled::default();
        for event in &history.events {
            match event {
                MemberEvent::Acked { token, first, last, at_us } => {
                    settled.acked.entry(*token).or_default().push((*first, *last, *at_us));
                }
                MemberEvent::Refused { token, at_us } => {
                    settled.refused.insert(*token, *at_us);
                }
                MemberEvent::Ended { id, transaction, at_us } => {
                    settled.ended.entry(id).or_default().push((*at_us, *transaction));
                    settled.transaction_us.insert(*transaction, *at_us);
                }
                MemberEvent::Delivered { .. } | MemberEvent::Began { .. } => {}
            }
        }
        settled
    }

    /// The latest time at which the store has the settlement of a handler that began at this moment: a plain one is acked soon
    /// after its end, and one in a transaction is settled with the others in it.
    fn handled_us(&self, id: &str, began_us: u64) -> Option<u64> {
        let (ended_us, transaction) = self.ended.get(id)?.iter().find(|(us, _)| *us >= began_us)?;
        let last_us = if *transaction == 0 { ended_us } else { &self.transaction_us[transaction] };
        Some(last_us + ACKED_WITHIN_US)
    }

    fn acked_us(&self, token: i64, offset: i64) -> Option<u64> {
        let ranges = self.acked.get(&token)?;
        ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&offset)).map(|(_, _, at_us)| *at_us)
    }
}

/// Sorts one member's deliveries by message, each with whether it may be redelivered.
fn collect<'h>(
    history: &'h MemberHistory,
    facts: &Facts,
    deliveries: &mut Deliveries<'h>,
    findings: &mut GroupFindings,
) {
    let settled = Settled::of(history);
    findings.refused += settled.refused.len();
    let mut last_of_token: HashMap<i64, i64> = HashMap::new();
    let mut stolen = HashSet::new();
    for event in &history.events {
        let (id, mut delivery) = match event {
            MemberEvent::Delivered { token, offset, id, at_us } => {
                if last_of_token.insert(*token, *offset).is_some_and(|last| last >= *offset) {
                    findings.misordered += 1;
                    findings
                        .example(|| format!("{id} at offset {offset} came out of order under token {token}"));
                }
                let settled_us = settled.acked_us(*token, *offset);
                let refused_us = settled.refused.get(token).filter(|_| settled_us.is_none());
                if refused_us.is_some_and(|us| is_stolen(facts, *at_us, *us)) && stolen.insert(*token) {
                    findings.stolen += 1;
                    findings.example(|| format!("{id} at offset {offset}: fresh lease {token} refused"));
                }
                let refused = refused_us.is_some();
                let delivery = Delivery {
                    member: &history.member,
                    offset: *offset,
                    at_us: *at_us,
                    settled_us,
                    refused,
                    excused: false,
                };
                (id, delivery)
            }
            MemberEvent::Began { offset, id, at_us } => {
                let settled_us = settled.handled_us(id, *at_us);
                let delivery = Delivery {
                    member: &history.member,
                    offset: *offset,
                    at_us: *at_us,
                    settled_us,
                    refused: false,
                    excused: false,
                };
                (id, delivery)
            }
            MemberEvent::Acked { .. } | MemberEvent::Refused { .. } | MemberEvent::Ended { .. } => continue,
        };
        // A kill cannot undo an answered ack; it can lose the end of a handler until the ack is sent.
        let killed =
            history.killed_us.is_some_and(|killed_us| delivery.settled_us.is_none_or(|us| us >= killed_us));
        delivery.excused =
            killed || delivery.refused || facts.outages.iter().any(|outage| delivery.was_in_flight(outage));
        deliveries.entry(id).or_default().push(delivery);
    }
}

/// Whether a lease was refused that neither its deadline nor an outage can have ended. Half of its time is allowed for a
/// busy machine, and a second between the claim and its record.
fn is_stolen(facts: &Facts, from_us: u64, refused_us: u64) -> bool {
    let near = |outage: &Outage| outage.kept_us < refused_us && from_us < outage.back_us + 1_000_000;
    refused_us - from_us < facts.lease_us / 2 && !facts.outages.iter().any(near)
}

/// The times from COMMIT to first delivery in this group, in microseconds and with the message's id, over messages whose id
/// has this prefix.
pub(crate) fn latencies_us(
    published: &HashMap<String, Fate>,
    members: &[MemberHistory],
    id_prefix: &str,
) -> Vec<(u64, String)> {
    let mut first: HashMap<&str, u64> = HashMap::new();
    for event in members.iter().flat_map(|history| &history.events) {
        let MemberEvent::Delivered { id, at_us, .. } = event else { continue };
        let earliest = first.entry(id).or_insert(*at_us);
        *earliest = (*earliest).min(*at_us);
    }
    let of_prefix = published.iter().filter(|(id, _)| id.starts_with(id_prefix));
    of_prefix
        .filter_map(|(id, fate)| match (fate, first.get(id.as_str())) {
            (Fate::Committed { at_us }, Some(delivered_us)) => {
                Some((delivered_us.saturating_sub(*at_us), id.clone()))
            }
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests;
