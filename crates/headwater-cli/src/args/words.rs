//! The syntax of values on the command line: durations, retentions, positions in a log, ranges and choices.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use headwater::maintenance::{Job, MaintenancePreset};
use headwater::store::{BackfillPace, OffsetRange};
use headwater::topic::{Ordering, Partition, Semantics, Tracking};
use headwater::{Offset, Preset, Start};
use jiff::{SignedDuration, Span, SpanRelativeTo};
use serde::{Serialize, Serializer};

/// Durations as people write them: 500ms, 30s, 5m, 2h, 7d.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let hint = |error: jiff::Error| format!("{error}; write it like 30s, 5m, 24h or 7d");
    // A signed duration has no days, and a span no fractions of hours.
    let signed = match text.parse::<SignedDuration>() {
        Ok(signed) => signed,
        Err(_) => {
            let span: Span = text.parse().map_err(hint)?;
            span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(hint)?
        }
    };
    Duration::try_from(signed).map_err(|_| "must not be negative".into())
}

/// A duration as settings store it: whole milliseconds, rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Millis(u64);

pub(crate) fn millis(text: &str) -> Result<Millis, String> {
    let millis = duration(text)?.as_nanos().div_ceil(1_000_000);
    Ok(Millis(u64::try_from(millis).unwrap_or(u64::MAX)))
}

/// A duration as settings store it, or no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum Retention {
    For(Millis),
    #[serde(serialize_with = "endless")]
    Endless,
}

/// Stands for null until the settings are merged: there null means that a setting was not given.
pub(crate) const ENDLESS: &str = "endless";

fn endless<S: Serializer>(serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(ENDLESS)
}

/// A duration, `forever` or `none`.
pub(crate) fn retention(text: &str) -> Result<Retention, String> {
    match text {
        "forever" | "none" => Ok(Retention::Endless),
        _ => match millis(text) {
            Ok(limit) => Ok(Retention::For(limit)),
            Err(error) => Err(format!("{error}; or forever or none")),
        },
    }
}

/// A number that is not negative.
pub(crate) fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| match text.parse::<i128>() {
        Ok(number) if number < 0 => "must not be negative".to_owned(),
        Ok(_) => format!("must be at most {}", u32::MAX),
        Err(_) => format!("{text:?} is not a number"),
    })
}

/// A point in time.
pub(crate) fn timestamp(text: &str) -> Result<jiff::Timestamp, String> {
    text.parse().map_err(|error: jiff::Error| format!("{error}; write it like {MOMENT}"))
}

const MOMENT: &str = "2026-01-31T12:00:00Z";

/// How many lanes a group can have.
pub(crate) fn lanes() -> impl TypedValueParser<Value = u16> {
    clap::value_parser!(u16).range(1..=i64::from(headwater::limits::LANES_MAX))
}

/// A position in a log.
pub(crate) fn start(text: &str) -> Result<Start, String> {
    let (kind, value) = text.split_once(':').unwrap_or((text, ""));
    let wrong = |_| format!("{value:?} is not a number");
    match kind {
        "beginning" if value.is_empty() => Ok(Start::Beginning),
        "now" if value.is_empty() => Ok(Start::Now),
        "offset" => match value.parse().map_err(wrong)? {
            offset if offset < 1 => Err("offsets begin at 1; write beginning for the first".into()),
            offset => Ok(Start::Offset(Offset(offset))),
        },
        "bounded" | "last" => Ok(Start::BeginningBounded(value.parse().map_err(wrong)?)),
        "time" => value
            .parse()
            .map(Start::Timestamp)
            .map_err(|error: jiff::Error| format!("{error}; write it like time:{MOMENT}")),
        _ => Err("write beginning, now, offset:N, time:2026-01-31T12:00:00Z or bounded:N".into()),
    }
}

/// Offsets: `7`, or `1..100` with both ends included.
pub(crate) fn offsets(text: &str) -> Result<OffsetRange, String> {
    let hint = || format!("{text:?} is not a range of offsets; write it like 1..100, or 7 for one");
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let first: i64 = first.parse().map_err(|_| hint())?;
    let last: i64 = last.trim_start_matches('=').parse().map_err(|_| hint())?;
    if first < 1 || last < first {
        return Err(format!("{text:?}: a range runs upwards and starts at 1 or later"));
    }
    Ok(OffsetRange::new(Offset(first), Offset(last)))
}

/// How dedicated storage is partitioned: `none`, `rows:N`, `hour`, `day` or `month`.
pub(crate) fn partition(text: &str) -> Result<Partition, String> {
    text.parse().map_err(|error: headwater::Error| error.to_string())
}

/// One of these choices, by its name.
fn one_of<T: Copy + Send + Sync + 'static>(
    choices: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(choices.iter().map(move |choice| name(*choice))).map(move |text| {
        *choices.iter().find(|choice| name(**choice) == text).expect("only these names are possible")
    })
}

pub(crate) fn semantics() -> impl TypedValueParser<Value = Semantics> {
    one_of(&[Semantics::Queue, Semantics::PubSub], Semantics::as_str)
}

pub(crate) fn tracking() -> impl TypedValueParser<Value = Tracking> {
    one_of(&[Tracking::OffsetWatermark, Tracking::ReferenceCounting], Tracking::as_str)
}

pub(crate) fn ordering() -> impl TypedValueParser<Value = Ordering> {
    one_of(&[Ordering::None, Ordering::Key], Ordering::as_str)
}

pub(crate) fn preset() -> impl TypedValueParser<Value = Preset> {
    one_of(&Preset::ALL, Preset::as_str)
}

pub(crate) fn job() -> impl TypedValueParser<Value = Job> {
    one_of(&Job::ALL, Job::as_str)
}

pub(crate) fn maintenance_preset() -> impl TypedValueParser<Value = MaintenancePreset> {
    const ALL: [MaintenancePreset; 4] = [
        MaintenancePreset::Standard,
        MaintenancePreset::LowThroughput,
        MaintenancePreset::HighThroughput,
        MaintenancePreset::Critical,
    ];
    one_of(&ALL, |preset| match preset {
        MaintenancePreset::Standard => "standard",
        MaintenancePreset::LowThroughput => "low_throughput",
        MaintenancePreset::HighThroughput => "high_throughput",
        MaintenancePreset::Critical => "critical",
    })
}

pub(crate) fn pace() -> impl TypedValueParser<Value = BackfillPace> {
    const ALL: [BackfillPace; 3] =
        [BackfillPace::Conservative, BackfillPace::Standard, BackfillPace::Aggressive];
    one_of(&ALL, |pace| match pace {
        BackfillPace::Conservative => "conservative",
        BackfillPace::Standard => "standard",
        BackfillPace::Aggressive => "aggressive",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_people_do() {
        let seconds = |text: &str| duration(text).map(|duration| duration.as_secs_f64());
        let written = ["500ms", "0s", "30s", "5m", "24h", "7d", "1w", "1d 12h", "1h30m"];
        let meant = [0.5, 0.0, 30.0, 300.0, 86_400.0, 604_800.0, 604_800.0, 129_600.0, 5_400.0];
        for (written, meant) in written.into_iter().zip(meant) {
            assert_eq!(seconds(written), Ok(meant), "{written}");
        }
        for wrong in ["", "soon", "-5s", "5", "1 month"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_retention_may_be_without_end() {
        assert_eq!(retention("forever"), Ok(Retention::Endless));
        assert_eq!(retention("none"), Ok(Retention::Endless));
        assert_eq!(retention("7d"), Ok(Retention::For(Millis(604_800_000))));
        assert_eq!(millis("1500us"), Ok(Millis(2)), "rounded up");
        assert!(retention("never").unwrap_err().contains("forever"));
    }

    #[test]
    fn places_and_ranges() {
        assert_eq!(start("bounded:5"), Ok(Start::BeginningBounded(5)));
        assert_eq!(start("last:5"), Ok(Start::BeginningBounded(5)));
        assert_eq!(start("offset:7"), Ok(Start::Offset(Offset(7))));
        assert_eq!(start("now"), Ok(Start::Now));
        assert!(start("time:2026-01-31T12:00:00Z").is_ok());
        for wrong in ["yesterday", "offset:x", "bounded:-1", "time:noon", "now:5", "offset:0", "offset:-3"] {
            assert!(start(wrong).is_err(), "{wrong}");
        }
        assert_eq!(offsets("3..5"), Ok(OffsetRange::new(Offset(3), Offset(5))));
        assert_eq!(offsets("3..=5"), Ok(OffsetRange::new(Offset(3), Offset(5))));
        assert_eq!(offsets("7"), Ok(OffsetRange::one(Offset(7))));
        for wrong in ["", "0..3", "5..3", "a..b", "1.."] {
            assert!(offsets(wrong).is_err(), "{wrong}");
        }
        assert_eq!(partition("rows:5000"), Ok(Partition::Rows(5_000)));
        assert!(partition("rows").is_err() && partition("week").is_err());
    }
}
