//! The syntax of values on the command line: durations, retentions, positions in a log, ranges and choices.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use headwater::maintenance::{Job, MaintenancePreset};
use headwater::process::ProcessStatus;
use headwater::store::{BackfillPace, OffsetRange};
use headwater::topic::{Ordering, Partition, Semantics, Tracking};
use headwater::{Offset, Preset, Start};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};
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

impl Retention {
    /// How long; `None` without end.
    pub(crate) fn duration(self) -> Option<Duration> {
        match self {
            Retention::For(Millis(millis)) => Some(Duration::from_millis(millis)),
            Retention::Endless => None,
        }
    }
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

/// A rate: `100/s`, `30/m`, or a number a second.
pub(crate) fn per_second(text: &str) -> Result<f64, String> {
    let (count, unit) = text.split_once('/').unwrap_or((text, "s"));
    let seconds = match unit {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        _ => return Err(format!("{text:?} is no rate; write it like 100/s, 30/m or 5/h")),
    };
    match count.parse::<f64>() {
        Ok(count) if count.is_finite() && count > 0.0 => Ok(count / seconds),
        _ => Err(format!("{text:?} is no rate above zero; write it like 100/s, 30/m or 5/h")),
    }
}

/// How often something is repeated: a duration above zero.
pub(crate) fn every(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be longer than 0s".into()),
        every => Ok(every),
    }
}

/// A point in time: a timestamp, a date (its first moment in UTC), or how long ago (-1h).
pub(crate) fn timestamp(text: &str) -> Result<Timestamp, String> {
    let hint = |error: jiff::Error| format!("{error}; write it like {MOMENT}, {DATE} or -1h");
    if let Some(ago) = text.strip_prefix('-') {
        let ago = duration(ago).map_err(|error| format!("{error}, and how long ago like -1h"))?;
        return Timestamp::now().checked_sub(ago).map_err(hint);
    }
    // A date with a time is a timestamp: its offset must not be ignored.
    if text.len() == DATE.len() {
        let date: Date = text.parse().map_err(hint)?;
        return date.to_zoned(TimeZone::UTC).map(|day| day.timestamp()).map_err(hint);
    }
    text.parse().map_err(hint)
}

const MOMENT: &str = "2026-01-31T12:00:00Z";
const DATE: &str = "2026-01-31";

/// How many lanes a group can have.
pub(crate) fn lanes() -> impl TypedValueParser<Value = u16> {
    clap::value_parser!(u16).range(1..=i64::from(headwater::limits::LANES_MAX))
}

/// How many commands run at once.
pub(crate) fn concurrency() -> impl TypedValueParser<Value = usize> {
    clap::value_parser!(u16).range(1..=1_000).map(usize::from)
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
        "time" => timestamp(value).map(Start::Timestamp),
        _ if text.starts_with(|first: char| first == '-' || first.is_ascii_digit()) => {
            timestamp(text).map(Start::Timestamp)
        }
        _ => Err(format!("write beginning, now, offset:N, bounded:N or a time: {MOMENT}, {DATE}, -1h")),
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
pub(crate) fn one_of<T: Copy + Send + Sync + 'static>(
    choices: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(choices.iter().map(move |choice| name(*choice))).map(move |text| {
        let is_it = |choice: &&T| name(**choice).eq_ignore_ascii_case(&text);
        *choices.iter().find(is_it).expect("only these names are possible")
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

pub(crate) fn process_status() -> impl TypedValueParser<Value = ProcessStatus> {
    PossibleValuesParser::new(ProcessStatus::ALL.map(ProcessStatus::as_str))
        .try_map(|text| text.parse::<ProcessStatus>())
}

pub(crate) fn job() -> impl TypedValueParser<Value = Job> {
    one_of(&Job::ALL, Job::as_str)
}

/// A job and how often it runs: `message_cleanup=1m`.
pub(crate) fn interval(text: &str) -> Result<(Job, Duration), String> {
    let Some((name, every)) = text.split_once('=') else {
        return Err("write it like message_cleanup=1m".into());
    };
    let Some(job) = Job::ALL.into_iter().find(|job| job.as_str() == name) else {
        let names = Job::ALL.map(Job::as_str).join(", ");
        return Err(format!("{name} is not a job; jobs are {names}"));
    };
    Ok((job, duration(every)?))
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
        let noon = Start::Timestamp("2026-01-31T12:00:00Z".parse().unwrap());
        for written in ["time:2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00"] {
            assert_eq!(start(written), Ok(noon), "{written}");
        }
        let midnight = Start::Timestamp("2026-01-31T00:00:00Z".parse().unwrap());
        assert_eq!((start("2026-01-31"), start("time:2026-01-31")), (Ok(midnight), Ok(midnight)));
        let before = Timestamp::now();
        let Ok(Start::Timestamp(hour_ago)) = start("-1h") else { panic!("an hour ago") };
        let ago = before.duration_since(hour_ago);
        assert!((3_590..=3_600).contains(&ago.as_secs()), "{ago:?}");
        for wrong in [
            "yesterday",
            "offset:x",
            "bounded:-1",
            "time:noon",
            "now:5",
            "offset:0",
            "offset:-3",
            "-1",
            "--1h",
            "2026-13-01",
        ] {
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
