//! The checker: holds what members saw against what publishers committed. Pure, and itself tested to fail.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::history::MemberEvent;

/// What became of a message's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Committed; when its COMMIT was sent, in microseconds of the machine's clock.
    Committed { at_us: u64 },
    /// Its transaction or savepoint was rolled back.
    RolledBack,
}

/// One incarnation of one member.
#[derive(Clone, Debug)]
pub(crate) struct MemberHistory {
    pub(crate) member: String,
    /// Whether it was ended by SIGKILL or by its own abort, so that what it held comes again.
    pub(crate) killed: bool,
    pub(crate) events: Vec<MemberEvent>,
}

/// What the checker found for one group. Everything up to `misordered` must be 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupFindings {
    /// Committed and never delivered.
    pub(crate) missing: usize,
    /// Delivered although rolled back, or never published at all.
    pub(crate) ghosts: usize,
    /// Delivered again although the earlier delivery was neither in flight in a killed member nor refused.
    pub(crate) doubled: usize,
    /// Offsets that did not rise within a lease.
    pub(crate) misordered: usize,
    /// Delivered again because a member was killed with them in flight: allowed.
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
        self.missing + self.ghosts + self.doubled + self.misordered == 0
    }

    fn example(&mut self, text: impl FnOnce() -> String) {
        if self.examples.len() < 5 {
            self.examples.push(text());
        }
    }
}

/// One delivery, with what became of it.
struct Delivery<'h> {
    member: &'h str,
    token: i64,
    offset: i64,
    /// May come again without anybody's fault: in flight in a killed member, or refused.
    excused: bool,
}

/// Checks one group's members against everything published.
pub(crate) fn check_group(published: &HashMap<String, Fate>, members: &[MemberHistory]) -> GroupFindings {
    let mut findings = GroupFindings::default();
    let mut deliveries: BTreeMap<&str, Vec<Delivery<'_>>> = BTreeMap::new();
    for history in members {
        collect(history, &mut deliveries, &mut findings);
    }
    for (id, fate) in published {
        if matches!(fate, Fate::Committed { .. }) && !deliveries.contains_key(id.as_str()) {
            findings.missing += 1;
            findings.example(|| format!("{id} is missing"));
        }
    }
    for (id, mut times) in deliveries {
        findings.delivered += 1;
        if !matches!(published.get(id), Some(Fate::Committed { .. })) {
            findings.ghosts += 1;
            findings.example(|| format!("{id} was delivered although it was never committed"));
        }
        // Tokens rise with every hand-out, so they tell which delivery came first.
        times.sort_by_key(|delivery| delivery.token);
        for pair in times.windows(2) {
            if pair[0].excused {
                findings.repeated += 1;
            } else {
                findings.doubled += 1;
                let (a, b) = (&pair[0], &pair[1]);
                findings.example(|| {
                    format!(
                        "{id} at offset {} went to {} (token {}) and to {} (token {})",
                        a.offset, a.member, a.token, b.member, b.token
                    )
                });
            }
        }
    }
    findings
}

/// Sorts one member's deliveries by message, each with whether it may come again.
fn collect<'h>(
    history: &'h MemberHistory,
    deliveries: &mut BTreeMap<&'h str, Vec<Delivery<'h>>>,
    findings: &mut GroupFindings,
) {
    let mut acked: HashMap<i64, Vec<(i64, i64)>> = HashMap::new();
    let mut refused = HashSet::new();
    for event in &history.events {
        match event {
            MemberEvent::Acked { token, first, last } => {
                acked.entry(*token).or_default().push((*first, *last));
            }
            MemberEvent::Refused { token } => {
                refused.insert(*token);
            }
            MemberEvent::Delivered { .. } => {}
        }
    }
    findings.refused += refused.len();
    let mut last_of_token: HashMap<i64, i64> = HashMap::new();
    for event in &history.events {
        let MemberEvent::Delivered { token, offset, id, .. } = event else { continue };
        if last_of_token.insert(*token, *offset).is_some_and(|last| last >= *offset) {
            findings.misordered += 1;
            findings.example(|| format!("{id} at offset {offset} came out of order under token {token}"));
        }
        let is_acked = acked
            .get(token)
            .is_some_and(|ranges| ranges.iter().any(|(first, last)| (*first..=*last).contains(offset)));
        let excused = !is_acked && (history.killed || refused.contains(token));
        let delivery = Delivery { member: &history.member, token: *token, offset: *offset, excused };
        deliveries.entry(id).or_default().push(delivery);
    }
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
mod tests {
    use super::*;

    fn published() -> HashMap<String, Fate> {
        let committed = ["a", "b", "c"].map(|id| (id.to_owned(), Fate::Committed { at_us: 1_000 }));
        committed.into_iter().chain([("x".to_owned(), Fate::RolledBack)]).collect()
    }

    fn delivered(token: i64, offset: i64, id: &str) -> MemberEvent {
        MemberEvent::Delivered { token, offset, id: id.into(), at_us: 1_500 }
    }

    fn acked(token: i64, first: i64, last: i64) -> MemberEvent {
        MemberEvent::Acked { token, first, last }
    }

    fn member(killed: bool, events: Vec<MemberEvent>) -> MemberHistory {
        MemberHistory { member: "m".into(), killed, events }
    }

    /// A history in which everything went well; tests damage it.
    fn clean() -> Vec<MemberHistory> {
        vec![
            member(false, vec![delivered(1, 1, "a"), delivered(1, 2, "b"), acked(1, 1, 2)]),
            member(false, vec![delivered(2, 3, "c"), acked(2, 3, 3)]),
        ]
    }

    #[test]
    fn a_clean_history_passes() {
        let findings = check_group(&published(), &clean());
        assert!(findings.is_clean(), "{findings:?}");
        assert_eq!(findings.delivered, 3);
    }

    #[test]
    fn a_dropped_message_fails() {
        let mut members = clean();
        members[0].events.remove(1);
        let findings = check_group(&published(), &members);
        assert_eq!((findings.missing, findings.is_clean()), (1, false));
    }

    #[test]
    fn a_doubled_message_fails() {
        let mut members = clean();
        members[1].events.push(delivered(3, 1, "a"));
        let findings = check_group(&published(), &members);
        assert_eq!((findings.doubled, findings.is_clean()), (1, false));
    }

    #[test]
    fn a_message_doubled_under_one_token_fails() {
        let mut members = clean();
        members[1].events.push(delivered(2, 3, "c"));
        let findings = check_group(&published(), &members);
        assert_eq!((findings.doubled, findings.misordered), (1, 1));
    }

    #[test]
    fn a_message_of_a_rolled_back_transaction_fails() {
        let mut members = clean();
        members[1].events.push(delivered(3, 4, "x"));
        assert_eq!(check_group(&published(), &members).ghosts, 1);
        members[1].events.push(delivered(4, 5, "never-published"));
        assert_eq!(check_group(&published(), &members).ghosts, 2);
    }

    #[test]
    fn a_reordered_lease_fails() {
        let mut members = clean();
        members[0].events.swap(0, 1);
        assert_eq!(check_group(&published(), &members).misordered, 1);
    }

    #[test]
    fn what_was_in_flight_in_a_killed_member_may_come_again() {
        let mut members = clean();
        members.push(member(true, vec![delivered(0, 3, "c")]));
        let findings = check_group(&published(), &members);
        assert!(findings.is_clean(), "{findings:?}");
        assert_eq!(findings.repeated, 1);
    }

    #[test]
    fn what_a_killed_member_had_acked_may_not_come_again() {
        let mut members = clean();
        members.push(member(true, vec![delivered(0, 3, "c"), acked(0, 3, 3)]));
        assert_eq!(check_group(&published(), &members).doubled, 1);
    }

    #[test]
    fn what_a_live_member_did_not_ack_may_not_come_again() {
        let mut members = clean();
        members.push(member(false, vec![delivered(0, 3, "c")]));
        assert_eq!(check_group(&published(), &members).doubled, 1);
    }

    #[test]
    fn latency_runs_from_commit_to_first_delivery() {
        let mut found = latencies_us(&published(), &clean(), "a");
        assert_eq!(found.pop(), Some((500, "a".to_owned())));
        assert!(found.is_empty());
    }
}
