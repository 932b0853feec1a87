//! Times and numbers as people read them.

use std::time::Duration;

use serde_json::{Value, json};

const UNITS: [(u128, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];

/// A duration in the syntax of the command line: `7d`, `1d12h`, `1.5s`, `250ms`. The two largest units, and milliseconds
/// below a minute.
pub(crate) fn duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    match ms {
        0 if duration.is_zero() => return "0s".into(),
        0 => return format!("{}us", duration.as_micros()),
        1..1_000 => return format!("{ms}ms"),
        1_000..60_000 if !ms.is_multiple_of(1_000) => {
            return format!("{}.{:03}", ms / 1_000, ms % 1_000).trim_end_matches('0').to_owned() + "s";
        }
        _ => {}
    }
    let at = UNITS.iter().position(|(size, _)| ms >= *size).expect("at least a second");
    let (size, unit) = UNITS[at];
    let rest = UNITS.get(at + 1).map_or(0, |(next, _)| (ms % size) / next);
    match rest {
        0 => format!("{}{unit}", ms / size),
        rest => format!("{}{unit}{rest}{}", ms / size, UNITS[at + 1].1),
    }
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
    }

    #[test]
    fn numbers_have_their_thousands_apart() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 0.25, 12_345.6].map(rate), ["0/s", "0.2/s", "12,346/s"]);
    }
}
