//! The report of a bench run: rows with a verdict each, as a table and as JSON.

use serde::Serialize;
use serde_json::json;

use crate::check::report::{busy_warning, new_table};
use crate::check::{Figure, Unit};
use crate::machine::Machine;

/// What our figure is compared with.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub(crate) enum Beside {
    /// A peer or a limit measured in the same run.
    Measured { name: String, figure: Figure },
    /// A peer that could not be installed or driven, and why.
    Missing { name: String, why: String },
    /// Nothing: the floor is a plain number.
    Nothing,
}

/// The floor of a row.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Floor {
    /// At least this many times the figure beside it.
    RatioAtLeast(f64),
    /// Our figure is at most this.
    AtMost(f64),
    /// Shown, not judged.
    None,
}

/// The verdict on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Met,
    Missed,
    /// The peer is missing, so there is no verdict.
    NotMeasured,
    /// Shown without a floor.
    Shown,
}

/// One row of the table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// Which work was measured.
    pub(crate) work: String,
    pub(crate) headwater: Figure,
    pub(crate) beside: Beside,
    pub(crate) floor: Floor,
    /// How it was measured: connections, batch, durability.
    pub(crate) how: String,
    /// Every round's figures, so that noise can be judged.
    pub(crate) rounds: Vec<(f64, Option<f64>)>,
}

impl Row {
    /// Our figure divided by the one it is compared with.
    pub(crate) fn ratio(&self) -> Option<f64> {
        match &self.beside {
            Beside::Measured { figure, .. } if figure.amount > 0.0 => {
                Some(self.headwater.amount / figure.amount)
            }
            _ => None,
        }
    }

    /// Judges the row by its floor.
    pub(crate) fn verdict(&self) -> Verdict {
        let met = match (self.floor, &self.beside) {
            (Floor::None, _) => return Verdict::Shown,
            (Floor::RatioAtLeast(_), Beside::Missing { .. } | Beside::Nothing) => {
                return Verdict::NotMeasured;
            }
            (Floor::RatioAtLeast(floor), Beside::Measured { .. }) => {
                self.ratio().is_some_and(|ratio| ratio >= floor)
            }
            (Floor::AtMost(most), _) => self.headwater.amount <= most,
        };
        if met { Verdict::Met } else { Verdict::Missed }
    }
}

/// A whole run.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) versions: Vec<(String, String)>,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) quick: bool,
    /// How busy the cores were with something else just before the run.
    pub(crate) busy_before_percent: f64,
    pub(crate) seconds: f64,
    pub(crate) rows: Vec<Row>,
}

impl Report {
    /// Whether no floor was missed.
    pub(crate) fn met(&self) -> bool {
        self.rows.iter().all(|row| row.verdict() != Verdict::Missed)
    }

    /// The table with its heading.
    pub(crate) fn table(&self) -> String {
        let mut table = new_table();
        table.set_header(["", "work", "headwater", "peer / limit", "ratio", "floor", "verdict"]);
        for (number, row) in (1..).zip(&self.rows) {
            table.add_row([
                format!("{number}"),
                row.work.clone(),
                row.headwater.show(),
                show_beside(&row.beside),
                row.ratio().map_or_else(String::new, |ratio| format!("{ratio:.2}")),
                show_floor(row.floor, row.headwater.unit),
                show_verdict(row.verdict()).into(),
            ]);
        }
        let how = (1..).zip(&self.rows).map(|(number, row)| format!("{number:>3}  {}\n", row.how));
        let how: String = how.collect();
        let busy = busy_warning(self.busy_before_percent);
        format!("{}{busy}\n{table}\n{how}{}", self.heading(), self.summary())
    }

    fn heading(&self) -> String {
        let list = |pairs: &[(String, String)]| {
            pairs.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
        };
        format!(
            "payload 100 bytes; {}\nversions: {}\nPostgreSQL settings: {}",
            self.machine,
            list(&self.versions),
            list(&self.settings),
        )
    }

    fn summary(&self) -> String {
        let count = |wanted| self.rows.iter().filter(|row| row.verdict() == wanted).count();
        format!(
            "{} met, {} MISSED, {} not measured, in {:.0} s",
            count(Verdict::Met),
            count(Verdict::Missed),
            count(Verdict::NotMeasured),
            self.seconds
        )
    }

    /// The whole report, for programs.
    pub(crate) fn json(&self) -> serde_json::Value {
        let pairs = |pairs: &[(String, String)]| {
            pairs.iter().map(|(name, value)| (name.clone(), json!(value))).collect::<serde_json::Map<_, _>>()
        };
        let rows = self.rows.iter().map(|row| {
            let mut value = json!(row);
            value["ratio"] = json!(row.ratio());
            value["verdict"] = json!(row.verdict());
            value
        });
        json!({
            "payload_bytes": super::PAYLOAD_BYTES,
            "quick": self.quick,
            "busy_before_percent": self.busy_before_percent,
            "seconds": self.seconds,
            "machine": self.machine,
            "versions": pairs(&self.versions),
            "postgres_settings": pairs(&self.settings),
            "met": self.met(),
            "rows": rows.collect::<Vec<_>>(),
        })
    }
}

fn show_beside(beside: &Beside) -> String {
    match beside {
        Beside::Measured { name, figure } => format!("{name}: {}", figure.show()),
        Beside::Missing { name, why } => format!("{name}: not measured ({why})"),
        Beside::Nothing => String::new(),
    }
}

fn show_floor(floor: Floor, unit: Unit) -> String {
    match floor {
        Floor::RatioAtLeast(ratio) => format!("{ratio} x"),
        Floor::AtMost(amount) => format!("at most {}", Figure::new(amount, unit).show()),
        Floor::None => String::new(),
    }
}

pub(crate) fn show_verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Met => "met",
        Verdict::Missed => "MISSED",
        Verdict::NotMeasured => "not measured",
        Verdict::Shown => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn row(ours: f64, beside: Beside, floor: Floor) -> Row {
        let headwater = Figure::new(ours, Unit::MessagesPerSecond);
        Row { work: "work".into(), headwater, beside, floor, how: String::new(), rounds: vec![] }
    }

    fn peer(amount: f64) -> Beside {
        Beside::Measured { name: "peer".into(), figure: Figure::new(amount, Unit::MessagesPerSecond) }
    }

    #[test]
    fn a_ratio_floor_is_met_from_the_floor_on() {
        assert_eq!(row(250.0, peer(100.0), Floor::RatioAtLeast(2.5)).verdict(), Verdict::Met);
        assert_eq!(row(249.0, peer(100.0), Floor::RatioAtLeast(2.5)).verdict(), Verdict::Missed);
    }

    #[test]
    fn a_missing_peer_is_named_and_not_judged() {
        let missing = Beside::Missing { name: "pgq".into(), why: "no package".into() };
        let row = row(1.0, missing.clone(), Floor::RatioAtLeast(1.0));
        assert_eq!(row.verdict(), Verdict::NotMeasured);
        assert!(show_beside(&missing).contains("no package"));
    }

    #[test]
    fn a_limit_is_judged_without_a_peer() {
        assert_eq!(row(400.0, Beside::Nothing, Floor::AtMost(400.0)).verdict(), Verdict::Met);
        assert_eq!(row(401.0, Beside::Nothing, Floor::AtMost(400.0)).verdict(), Verdict::Missed);
    }
}
