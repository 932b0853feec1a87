//! The result of a soak.

use std::time::Duration;

use super::check::{Facts, Fate, GroupFindings, MemberHistory, check_group, latencies_us};
use super::publish_postgres::Prepared;
use crate::check::report::new_table;
use crate::check::{Floor, Judged, Unit, ms, percentile_ms};

/// The longest allowed time from COMMIT to delivery while another transaction stays open.
const LATENCY_MAX_US: u64 = 200_000;

/// All findings of the checker, for one table.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    groups: Vec<(String, GroupFindings)>,
    committed: usize,
    rolled_back: usize,
    unknown: usize,
    latencies: Vec<(u64, String)>,
    /// How long a transaction was held open while latency was measured.
    pub(super) held: Option<Duration>,
    /// Whether prepared transactions took part, where the database has them.
    pub(super) prepared: Option<Prepared>,
    pub(super) kills: usize,
    /// How many outages the database had.
    pub(super) outages: usize,
    /// Counts besides those of the groups.
    counts: Vec<Judged>,
    pub(super) findings: Vec<String>,
    pub(super) seconds: f64,
}

impl Verdict {
    /// Checks one group.
    pub(super) fn add_group(&mut self, group: &str, facts: &Facts, members: &[MemberHistory]) {
        let fates = &facts.published;
        self.committed = fates.values().filter(|fate| matches!(fate, Fate::Committed { .. })).count();
        self.unknown = fates.values().filter(|fate| **fate == Fate::Unknown).count();
        self.rolled_back = fates.len() - self.committed - self.unknown;
        for prefix in ["probe", "held"] {
            let of_group = latencies_us(fates, members, prefix);
            self.latencies.extend(of_group.into_iter().map(|(us, id)| (us, format!("{id} in {group}"))));
        }
        self.groups.push((group.to_owned(), check_group(facts, members)));
    }

    /// Records a count that must be zero.
    pub(super) fn count(&mut self, what: &str, count: usize) {
        self.counts.push(Judged::none_of(what, count as u64));
    }

    /// Records a count that may have any value.
    pub(super) fn show(&mut self, what: &str, count: usize) {
        self.counts.push(Judged::new(what, count as f64, Unit::Count, Floor::None));
    }

    /// Whether nothing was violated. Without a kill or an outage nothing may be refused or redelivered either.
    pub(super) fn is_clean(&self) -> bool {
        let calm =
            |found: &GroupFindings| self.kills + self.outages > 0 || found.refused + found.repeated == 0;
        !self.groups.is_empty()
            && self.counts.iter().all(Judged::is_met)
            && self.groups.iter().all(|(_, found)| found.is_clean() && calm(found))
            && self.findings.is_empty()
            && self.prepared != Some(Prepared::Refused)
            && (self.held.is_none() || self.worst_latency().is_none_or(|(us, _)| *us <= LATENCY_MAX_US))
    }

    fn worst_latency(&self) -> Option<&(u64, String)> {
        self.latencies.iter().max()
    }

    /// The table with its summary.
    pub(super) fn table(&self, seed: u64) -> String {
        let mut table = new_table();
        table.set_header([
            "group",
            "delivered",
            "lost",
            "acked unseen",
            "rolled back",
            "doubled",
            "misordered",
            "stolen",
            "repeated after a fault",
            "refused",
        ]);
        for (group, found) in &self.groups {
            let counts = [
                found.delivered,
                found.lost,
                found.unseen,
                found.ghosts,
                found.doubled,
                found.misordered,
                found.stolen,
                found.repeated,
                found.refused,
            ];
            table.add_row(std::iter::once(group.clone()).chain(counts.map(|count| count.to_string())));
        }
        let mut lines = vec![table.to_string(), self.summary()];
        lines.extend(self.counts.iter().map(|count| {
            let mark = if count.is_met() { "" } else { " VIOLATED" };
            format!("{}: {}{mark}", count.what, count.figure.show())
        }));
        lines.extend(self.groups.iter().flat_map(|(group, found)| {
            found.examples.iter().map(move |example| format!("  {group}: {example}"))
        }));
        lines.extend(self.findings.iter().map(|finding| format!("  store: {finding}")));
        let verdict = if self.is_clean() { "CLEAN" } else { "VIOLATED" };
        lines.push(format!("{verdict} in {:.0} s, seed {seed}", self.seconds));
        lines.join("\n")
    }

    fn summary(&self) -> String {
        let prepared = match self.prepared {
            Some(Prepared::Done) => ", prepared transactions committed and rolled back",
            Some(Prepared::NotAllowed) => ", prepared transactions left out (the server allows none)",
            Some(Prepared::Refused) => {
                ", PREPARE TRANSACTION REFUSED (publishing had notified a waiting consumer)"
            }
            None => "",
        };
        let Verdict { committed, rolled_back, unknown, kills, outages, .. } = self;
        let mut text = format!(
            "{committed} committed, {rolled_back} rolled back, {unknown} unanswered, {kills} kills, {outages} outages{prepared}"
        );
        let taken: Vec<_> = self.latencies.iter().map(|(us, _)| Duration::from_micros(*us)).collect();
        if let Some((worst, id)) = self.worst_latency() {
            let (held, most) = match self.held {
                Some(held) => (
                    format!(" with a transaction open for {held:?}"),
                    format!("; at most {} ms", LATENCY_MAX_US / 1_000),
                ),
                None => Default::default(),
            };
            text.push_str(&format!(
                "\ncommit to delivery{held}: p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms ({id}) over {}{most}",
                percentile_ms(&taken, 0.5),
                percentile_ms(&taken, 0.99),
                ms(Duration::from_micros(*worst)),
                taken.len(),
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soak::history::MemberEvent;

    fn verdict(at_us: u64) -> Verdict {
        let published = [("probe-1".to_owned(), Fate::Committed { at_us: 1_000 })].into();
        let facts = Facts { published, ..Facts::default() };
        let delivered = MemberEvent::Delivered { token: 1, offset: 1, id: "probe-1".into(), at_us };
        let acked = MemberEvent::Acked { token: 1, first: 1, last: 1, at_us };
        let member = MemberHistory { member: "m".into(), killed_us: None, events: vec![delivered, acked] };
        let mut verdict = Verdict { held: Some(Duration::from_secs(30)), ..Verdict::default() };
        verdict.add_group("g1", &facts, &[member]);
        verdict
    }

    #[test]
    fn a_message_that_came_too_late_is_a_violation() {
        assert!(verdict(1_000 + LATENCY_MAX_US).is_clean());
        let late = verdict(1_001 + LATENCY_MAX_US);
        assert!(!late.is_clean());
        assert!(
            Verdict { held: None, ..late }.is_clean(),
            "without a transaction held open it is only shown"
        );
    }

    #[test]
    fn a_count_that_must_be_none_is_a_violation() {
        let mut counted = verdict(1_000);
        counted.show("shown", 3);
        counted.count("none", 0);
        assert!(counted.is_clean());
        counted.count("one", 1);
        assert!(!counted.is_clean() && counted.table(1).contains("one: 1 VIOLATED"));
    }

    #[test]
    fn nothing_checked_is_not_clean() {
        assert!(!Verdict::default().is_clean());
    }
}
