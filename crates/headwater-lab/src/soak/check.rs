//! The checker: holds what members saw against what publishers committed and what the log holds. Pure, and itself
//! tested to fail.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::history::MemberEvent;

/// What became of a message's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Acknowledged; when its COMMIT was sent, in microseconds of the machine's clock.
    Committed { at_us: u64 },
    /// Its transaction or savepoint was rolled back.
    RolledBack,
    /// The answer to its COMMIT was lost: it is there or it is not.
    Unknown,
}

/// One incarnation of one member.
#[derive(Clone, Debug)]
pub(crate) struct MemberHistory {
    pub(crate) member: String,
    /// When it was ended by SIGKILL or by its own abort, so that what it held comes again.
    pub(crate) killed_us: Option<u64>,
    pub(crate) events: Vec<MemberEvent>,
}

/// A time without a server, after which a part of what was settled before it may be settled no more.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outage {
    /// Whatever was settled before this moment is durable: a later commit was answered, and is still there.
    pub(crate) kept_us: u64,
    /// When a server answered again.
    pub(crate) back_us: u64,
}

/// How long a running consumer collects what is handled before it acks it.
const ACKED_WITHIN_US: u64 = 1_000_000;
/// How long after an outage a consumer may still work on what it was handed before it.
const STALE_WORK_US: u64 = 5_000_000;

/// What a group's members are held against.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// What publishers know.
    pub(crate) published: HashMap<String, Fate>,
    /// The messages of the group's topic that are stored at the end; `None` if they were not read.
    pub(crate) log: Option<HashSet<String>>,
    /// Acknowledged and gone with a server that was not waited for: their loss is reported and not held against the group.
    pub(crate) excused: HashSet<String>,
    pub(crate) outages: Vec<Outage>,
    /// How long a lease lasts, in microseconds.
    pub(crate) lease_us: u64,
}

/// What the checker found for one group. Everything up to `stolen` must be 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupFindings {
    /// Acknowledged to its publisher, never delivered, and not in the log.
    pub(crate) lost: usize,
    /// In the log, never delivered, and done all the same: settled unseen.
    pub(crate) unseen: usize,
    /// Delivered although rolled back, or never published at all.
    pub(crate) ghosts: usize,
    /// Delivered again although the earlier delivery was neither in flight in a killed member or in an outage, nor
    /// refused. So what comes again is bounded by what was in flight.
    pub(crate) doubled: usize,
    /// Offsets that did not rise within a lease.
    pub(crate) misordered: usize,
    /// Settlements refused although the lease was fresh and no outage was near: another ended it.
    pub(crate) stolen: usize,
    /// Delivered again because they were in flight at a kill or an outage: allowed.
    pub(crate) repeated: usize,
    /// Settlements the store refused.
    pub(crate) refused: usize,
    /// Different messages delivered.
    pub(crate) delivered: usize,
    /// A few of the offending messages, for people.
    pub(crate) examples: Vec<String>,
}

impl GroupFindings {
    /// Whether the group got everything exactly as promised.
    pub(crate) fn is_clean(&self) -> bool {
        self.lost + self.unseen + self.ghosts + self.doubled + self.misordered + self.stolen == 0
    }

    fn example(&mut self, text: impl FnOnce() -> String) {
        if self.examples.len() < 5 {
            self.examples.push(text());
        }
    }
}

/// One delivery, with what became of it.
#[derive(Clone, Copy)]
struct Delivery<'h> {
    member: &'h str,
    offset: i64,
    at_us: u64,
    /// When the store had its settlement at the latest.
    settled_us: Option<u64>,
    refused: bool,
    /// May come again without a violation: in flight in a killed member or in an outage, or refused.
    excused: bool,
}

impl Delivery<'_> {
    /// Whether an outage found it unsettled, or took its settlement away.
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
            // A refused one may have been claimed first and read late: tokens do not tell, and the store knew.
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

/// Counts what never came.
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

/// What a member's history says of its settlements.
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

    /// When the store has the settlement of a handler that began at this moment, at the latest: a plain one is acked soon after its
    /// end, and one in a transaction is settled with the others in it.
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

/// Sorts one member's deliveries by message, each with whether it may come again.
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
        // Of an answered ack a kill takes nothing away; of the end of a handler it does until the ack is sent.
        let killed =
            history.killed_us.is_some_and(|killed_us| delivery.settled_us.is_none_or(|us| us >= killed_us));
        delivery.excused =
            killed || delivery.refused || facts.outages.iter().any(|outage| delivery.was_in_flight(outage));
        deliveries.entry(id).or_default().push(delivery);
    }
}

/// Whether a lease was refused that neither its deadline nor an outage can have ended. Half of its time is left for a
/// busy machine, and a second between the claim and the record of it.
fn is_stolen(facts: &Facts, from_us: u64, refused_us: u64) -> bool {
    let near = |outage: &Outage| outage.kept_us < refused_us && from_us < outage.back_us + 1_000_000;
    refused_us - from_us < facts.lease_us / 2 && !facts.outages.iter().any(near)
}

/// The longest time from COMMIT to first delivery in this group, over messages whose id starts so, in microseconds;
/// with how many there were.
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
