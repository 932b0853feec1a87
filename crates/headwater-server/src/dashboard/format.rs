//! Numbers and times as people read them.

use std::time::Duration;

use headwater::jiff::Timestamp;
use maud::{Markup, html};

/// A number with thousands separators.
pub(crate) fn count(number: u64) -> String {
    group(&number.to_string())
}

/// A number in little room: `940`, `12.4k`, `3.1M`.
#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
pub(crate) fn compact(number: u64) -> String {
    let scaled = |by: f64, unit: &str| {
        let scaled = number as f64 / by;
        if scaled < 100.0 { format!("{scaled:.1}{unit}") } else { format!("{scaled:.0}{unit}") }
    };
    match number {
        0..10_000 => count(number),
        10_000..1_000_000 => scaled(1e3, "k"),
        1_000_000..1_000_000_000 => scaled(1e6, "M"),
        _ => scaled(1e9, "G"),
    }
}

/// A rate without its unit, with a decimal where it matters.
pub(crate) fn rate(per_s: f64) -> String {
    match per_s {
        rate if rate.is_nan() || rate < 0.05 => "0".into(),
        rate if rate < 10.0 => format!("{rate:.1}"),
        rate => group(&format!("{rate:.0}")),
    }
}

fn group(digits: &str) -> String {
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A size in bytes.
#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
pub(crate) fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1_024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

/// A duration in its two largest units.
pub(crate) fn duration(duration: Duration) -> String {
    let two = |large: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large} {unit}"),
        _ => format!("{large} {unit} {small} {small_unit}"),
    };
    let seconds = duration.as_secs();
    match seconds {
        0 if duration.is_zero() => "0 s".into(),
        0 if duration.as_millis() == 0 => format!("{} µs", duration.as_micros()),
        0 => format!("{} ms", duration.as_millis()),
        1..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3_600 => two(seconds / 60, "min", seconds % 60, "s"),
        3_600..86_400 => two(seconds / 3_600, "h", seconds % 3_600 / 60, "min"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

/// How far away a time is, in one unit: `3 s ago`, `in 5 min`.
pub(crate) fn relative(now: Timestamp, at: Timestamp) -> String {
    let distance = now.duration_since(at);
    let seconds = distance.unsigned_abs().as_secs();
    let text = match seconds {
        0 => return "now".into(),
        1..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    };
    if distance.is_negative() { format!("in {text}") } else { format!("{text} ago") }
}

/// A time for machines and titles.
pub(crate) fn exact(at: Timestamp) -> String {
    format!("{at:.3}")
}

/// A time as text: the day only if it is not today.
pub(crate) fn clock(now: Timestamp, at: Timestamp) -> String {
    let format = if at.strftime("%F").to_string() == now.strftime("%F").to_string() {
        "%H:%M:%S%.3f"
    } else {
        "%F %H:%M:%S"
    };
    at.strftime(format).to_string()
}

/// How far away a time is; its title is exact.
pub(crate) fn ago(now: Timestamp, at: Timestamp) -> Markup {
    html! { time datetime=(exact(at)) title=(exact(at)) { (relative(now, at)) } }
}

/// A time of the day in UTC; its title is exact.
pub(crate) fn at_clock(now: Timestamp, at: Timestamp) -> Markup {
    html! { time datetime=(exact(at)) title=(exact(at)) { (clock(now, at)) } }
}

/// The first characters of a text, with an ellipsis if there are more.
pub(crate) fn cut(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_digits_as_help() {
        assert_eq!([count(0), count(1_234_567)], ["0", "1,234,567"]);
        assert_eq!([compact(9_999), compact(12_440), compact(3_140_000)], ["9,999", "12.4k", "3.1M"]);
        assert_eq!([rate(f64::NAN), rate(0.01), rate(3.12), rate(1_234.6)], ["0", "0", "3.1", "1,235"]);
        assert_eq!([bytes(12), bytes(2_048), bytes(5_500_000)], ["12 B", "2.0 KiB", "5.2 MiB"]);
    }

    #[test]
    fn times_are_told_in_the_units_that_matter() {
        let read = |ms: u64| duration(Duration::from_millis(ms));
        assert_eq!(
            [0, 12, 1_500, 42_000, 90_000, 3_600_000, 90_000_000].map(read),
            ["0 s", "12 ms", "1.5 s", "42 s", "1 min 30 s", "1 h", "1 d 1 h"]
        );
        let now: Timestamp = "2026-03-02T09:00:00Z".parse().unwrap();
        let at = |seconds: i64| relative(now, now + headwater::jiff::SignedDuration::from_secs(seconds));
        assert_eq!(
            [at(0), at(-5), at(300), at(-7_200), at(-400_000)],
            ["now", "5 s ago", "in 5 min", "2 h ago", "4 d ago"]
        );
        assert_eq!(clock(now, now), "09:00:00.000");
        assert_eq!(clock(now, "2026-03-01T09:00:00Z".parse().unwrap()), "2026-03-01 09:00:00");
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!([cut("größe", 3), cut("größe", 5)], ["grö…", "größe"]);
    }
}
