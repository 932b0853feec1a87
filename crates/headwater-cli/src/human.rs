//! Times and numbers as people read them.

use std::time::Duration;

use jiff::fmt::friendly::{Designator, FractionalUnit, Spacing, SpanPrinter};
use jiff::{RoundMode, Span, SpanRound, Unit};
use serde_json::{Value, json};

/// Without spaces: it can be pasted into a command line.
const PRINTER: SpanPrinter = SpanPrinter::new().designator(Designator::HumanTime).spacing(Spacing::None);
/// The longest that jiff rounds: 20,000 years.
const SECONDS_MAX: u64 = 631_107_417_600;

/// A duration in the syntax of the command line: `7d`, `1d12h`, `1.5s`, `250ms`. The two largest units, and milliseconds
/// below a minute.
pub(crate) fn duration(duration: Duration) -> String {
    let (smallest, printer) = match duration.as_secs() {
        86_400.. => (Unit::Hour, PRINTER),
        3_600.. => (Unit::Minute, PRINTER),
        60.. => (Unit::Second, PRINTER),
        1.. => (Unit::Millisecond, PRINTER.fractional(Some(FractionalUnit::Second))),
        0 if duration.as_millis() > 0 => (Unit::Millisecond, PRINTER),
        0 => (Unit::Microsecond, PRINTER),
    };
    let round =
        SpanRound::new().largest(Unit::Day).smallest(smallest).mode(RoundMode::Trunc).days_are_24_hours();
    let span =
        Span::try_from(duration.min(Duration::from_secs(SECONDS_MAX))).and_then(|span| span.round(round));
    printer.span_to_string(&span.expect("no longer than jiff rounds"))
}

/// A duration, or this text if there is no limit.
pub(crate) fn limit(limit: Option<Duration>, endless: &str) -> String {
    limit.map_or_else(|| endless.to_owned(), duration)
}

/// Milliseconds, for programs.
pub(crate) fn ms(duration: Duration) -> Value {
    json!(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// Fractions of milliseconds, for programs: handling may take microseconds.
pub(crate) fn ms_f64(duration: Duration) -> Value {
    json!((duration.as_secs_f64() * 1_000_000.0).round() / 1_000.0)
}

/// A rate, with a decimal where it matters.
pub(crate) fn rate(per_second: f64) -> String {
    match per_second {
        0.0 => "0/s".into(),
        rate if rate < 10.0 => format!("{rate:.1}/s"),
        rate => format!("{}/s", group(&format!("{rate:.0}"))),
    }
}

/// A number with thousands separators.
pub(crate) fn count(number: u64) -> String {
    group(&number.to_string())
}

fn group(digits: &str) -> String {
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_they_are_written() {
        let read = [
            (0, "0s"),
            (250, "250ms"),
            (1_500, "1.5s"),
            (1_050, "1.05s"),
            (30_000, "30s"),
            (300_000, "5m"),
            (90_000, "1m30s"),
            (86_400_000, "1d"),
            (7 * 86_400_000, "7d"),
            (36 * 3_600_000 + 5_000, "1d12h"),
        ];
        for (ms, text) in read {
            assert_eq!(duration(Duration::from_millis(ms)), text);
            let whole = Duration::from_millis(ms);
            if ms % 60_000 == 0 || ms < 60_000 {
                assert_eq!(crate::args::words::duration(text), Ok(whole), "{text}");
            }
        }
        assert_eq!(duration(Duration::from_micros(40)), "40us");
        assert_eq!(duration(Duration::MAX), "7304484d");
    }

    #[test]
    fn numbers_have_their_thousands_apart() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 0.25, 12_345.6].map(rate), ["0/s", "0.2/s", "12,346/s"]);
    }
}
