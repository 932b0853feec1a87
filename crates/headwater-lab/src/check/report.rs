//! The report of the checks: figures with a floor and a verdict each, as a table and as JSON.

use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets};
use serde::Serialize;
use serde_json::json;

use crate::check::{Figure, Unit};
use crate::machine::Machine;

/// The floor of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Floor {
    AtLeast(f64),
    AtMost(f64),
    Exactly(f64),
    /// Shown, not judged.
    None,
}

impl Floor {
    fn is_met(self, amount: f64) -> bool {
        // A figure that could not be computed is NaN and meets no floor: comparisons with it are false.
        match self {
            Floor::AtLeast(least) => amount >= least,
            Floor::AtMost(most) => amount <= most,
            Floor::Exactly(wanted) => (amount - wanted).abs() < f64::EPSILON,
            Floor::None => true,
        }
    }

    fn show(self, unit: Unit) -> String {
        let figure = |amount| Figure::new(amount, unit).show();
        match self {
            Floor::AtLeast(amount) => format!("at least {}", figure(amount)),
            Floor::AtMost(amount) => format!("at most {}", figure(amount)),
            Floor::Exactly(amount) => format!("exactly {}", figure(amount)),
            Floor::None => String::new(),
        }
    }
}

/// One figure of a check.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Judged {
    pub(crate) what: String,
    pub(crate) figure: Figure,
    pub(crate) floor: Floor,
    /// The two figures of a ratio, without and with a neighbour.
    pub(crate) compared: Option<Compared>,
    /// The underlying figures, for people.
    pub(crate) note: String,
}

/// The same figure twice: on a quiet store, and beside a neighbour.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Compared {
    pub(crate) quiet: Figure,
    pub(crate) beside: Figure,
}

impl Judged {
    pub(crate) fn new(what: &str, amount: f64, unit: Unit, floor: Floor) -> Self {
        let figure = Figure::new(amount, unit);
        Judged { what: what.into(), figure, floor, compared: None, note: String::new() }
    }

    /// A time in milliseconds on a quiet store and beside a neighbour: at most this many times as long. A time that is zero
    /// or could not be measured makes no ratio and so meets no floor.
    pub(crate) fn beside(what: &str, quiet_ms: f64, beside_ms: f64, times_max: f64) -> Self {
        let ratio = if quiet_ms > 0.0 && beside_ms > 0.0 { beside_ms / quiet_ms } else { f64::NAN };
        let figure = |amount| Figure::new(amount, Unit::Milliseconds);
        let mut judged = Judged::new(what, ratio, Unit::Times, Floor::AtMost(times_max));
        judged.compared = Some(Compared { quiet: figure(quiet_ms), beside: figure(beside_ms) });
        judged
    }

    /// A count that must be zero.
    pub(crate) fn none_of(what: &str, count: u64) -> Self {
        Judged::new(what, count as f64, Unit::Count, Floor::Exactly(0.0))
    }

    /// A count that must have this value.
    pub(crate) fn all_of(what: &str, count: u64, wanted: u64) -> Self {
        Judged::new(what, count as f64, Unit::Count, Floor::Exactly(wanted as f64))
    }

    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    pub(crate) fn is_met(&self) -> bool {
        self.floor.is_met(self.figure.amount)
    }
}

/// The result of one check on one store.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) check: String,
    pub(crate) store: &'static str,
    pub(crate) seconds: f64,
    /// Its figures, or why there are none.
    pub(crate) result: std::result::Result<Vec<Judged>, String>,
}

impl Outcome {
    /// Whether nothing was violated. A check without a result, or without figures, does not count as met.
    pub(crate) fn is_met(&self) -> bool {
        self.result.as_ref().is_ok_and(|judged| !judged.is_empty() && judged.iter().all(Judged::is_met))
    }
}

/// A whole run.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) quick: bool,
    pub(crate) seed: u64,
    /// How busy the cores were with something else just before the run.
    pub(crate) busy_before_percent: f64,
    pub(crate) seconds: f64,
    pub(crate) outcomes: Vec<Outcome>,
}

impl Report {
    /// Whether something was checked and nothing violated.
    pub(crate) fn is_met(&self) -> bool {
        !self.outcomes.is_empty() && self.outcomes.iter().all(Outcome::is_met)
    }

    /// The table with a heading and a summary.
    pub(crate) fn table(&self) -> String {
        let mut table = new_table();
        table.set_header(["check", "store", "what", "quiet", "beside", "figure", "floor", "verdict", "note"]);
        for outcome in &self.outcomes {
            let (check, store) = (outcome.check.as_str(), outcome.store);
            match &outcome.result {
                Ok(judged) => {
                    table.add_rows(judged.iter().map(|one| row(check, store, one)));
                }
                Err(error) => {
                    let what = "no result";
                    table.add_row([check, store, what, "", "", "", "", "VIOLATED", error]);
                }
            }
        }
        let figures = self.outcomes.iter().flat_map(|outcome| outcome.result.iter().flatten());
        if figures.clone().all(|one| one.compared.is_none()) {
            for column in table.column_iter_mut().skip(3).take(2) {
                column.set_constraint(ColumnConstraint::Hidden);
            }
        }
        let (machine, busy) = (&self.machine, busy_warning(self.busy_before_percent));
        let violated = self.outcomes.iter().filter(|outcome| !outcome.is_met()).count();
        let verdict = if self.is_met() { "ALL MET" } else { "VIOLATED" };
        let checks = self.outcomes.len();
        format!(
            "{machine}, seed {}{busy}\n{table}\n{verdict}: {violated} of {checks} checks violated, in {:.0} s",
            self.seed, self.seconds
        )
    }

    /// The whole report, for programs.
    pub(crate) fn json(&self) -> serde_json::Value {
        let outcomes = self.outcomes.iter().map(|outcome| {
            let figures = outcome.result.iter().flatten().map(|one| {
                let mut value = json!(one);
                value["met"] = json!(one.is_met());
                value
            });
            json!({
                "check": outcome.check,
                "store": outcome.store,
                "seconds": outcome.seconds,
                "met": outcome.is_met(),
                "error": outcome.result.as_ref().err(),
                "figures": figures.collect::<Vec<_>>(),
            })
        });
        json!({
            "machine": self.machine,
            "quick": self.quick,
            "seed": self.seed,
            "busy_before_percent": self.busy_before_percent,
            "seconds": self.seconds,
            "met": self.is_met(),
            "checks": outcomes.collect::<Vec<_>>(),
        })
    }
}

/// A table for a terminal, or with a fixed width for a log.
pub(crate) fn new_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    if !table.is_tty() {
        table.set_width(180);
    }
    table
}

/// A warning: figures measured beside other work are unreliable.
pub(crate) fn busy_warning(busy_before_percent: f64) -> String {
    if busy_before_percent <= 15.0 {
        return String::new();
    }
    format!("\nWARNING: the cores were {busy_before_percent:.0} % busy with something else before this run")
}

/// Writes a report for programs, if a file is given.
pub(crate) fn write_json(path: Option<&Path>, report: &serde_json::Value) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(report)?;
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn row(check: &str, store: &str, one: &Judged) -> [String; 9] {
    let compared = one.compared.map(|both| (both.quiet.show(), both.beside.show()));
    let (quiet, beside) = compared.unwrap_or_default();
    let (figure, floor) = (one.figure.show(), one.floor.show(one.figure.unit));
    let (check, store, verdict) = (check.into(), store.into(), verdict(one).into());
    [check, store, one.what.clone(), quiet, beside, figure, floor, verdict, one.note.clone()]
}

fn verdict(judged: &Judged) -> &'static str {
    match (judged.floor, judged.is_met()) {
        (Floor::None, _) => "",
        (_, true) => "met",
        (_, false) => "VIOLATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(result: std::result::Result<Vec<Judged>, String>) -> Outcome {
        Outcome { check: "once".into(), store: "sqlite", seconds: 1.0, result }
    }

    #[test]
    fn floors_are_met_from_the_floor_on() {
        let judged = |amount, floor| Judged::new("x", amount, Unit::Percent, floor).is_met();
        assert!(judged(70.0, Floor::AtLeast(70.0)) && !judged(69.9, Floor::AtLeast(70.0)));
        assert!(judged(1.0, Floor::AtMost(1.0)) && !judged(1.01, Floor::AtMost(1.0)));
        assert!(judged(5.0, Floor::Exactly(5.0)) && !judged(6.0, Floor::Exactly(5.0)));
        assert!(!judged(f64::NAN, Floor::AtLeast(0.0)) && !judged(f64::NAN, Floor::AtMost(1.0)));
    }

    #[test]
    fn a_ratio_without_both_times_is_violated() {
        let met = |quiet, beside| Judged::beside("claim", quiet, beside, 2.0).is_met();
        assert!(met(1.0, 2.0) && !met(1.0, 2.01));
        assert!(!met(0.0, 0.0) && !met(0.0, 1.0) && !met(1.0, 0.0), "a time of zero was not measured");
        assert!(!met(f64::NAN, 1.0) && !met(1.0, f64::NAN) && !met(f64::INFINITY, f64::INFINITY));
    }

    #[test]
    fn one_violation_or_a_check_without_a_result_spoils_the_run() {
        let clean = outcome(Ok(vec![Judged::none_of("doubled", 0)]));
        let doubled = outcome(Ok(vec![Judged::none_of("missing", 0), Judged::none_of("doubled", 1)]));
        let stuck = outcome(Err("not done in time".into()));
        let mut report = Report {
            machine: Machine::read(std::path::Path::new(".")),
            quick: true,
            seed: 1,
            busy_before_percent: 0.0,
            seconds: 1.0,
            outcomes: vec![],
        };
        assert!(!report.is_met(), "a run without checks is not met");
        for (outcomes, met) in
            [(vec![clean.clone()], true), (vec![clean.clone(), doubled], false), (vec![clean, stuck], false)]
        {
            report.outcomes = outcomes;
            assert_eq!(report.is_met(), met);
            assert_eq!(report.table().contains("VIOLATED"), !met);
            assert_eq!(report.json()["met"], json!(met));
        }
        assert!(!outcome(Ok(vec![])).is_met());
    }
}
