//! What people write into forms: durations, times, positions in a log.

use std::time::Duration;

use headwater::jiff::civil::DateTime;
use headwater::jiff::tz::TimeZone;
use headwater::jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};
use headwater::{Offset, Start};

use super::view::Failure;
use crate::problem::Problem;

/// A field of a form that is not filled in counts as absent.
pub(crate) fn given(text: Option<&str>) -> Option<&str> {
    text.map(str::trim).filter(|text| !text.is_empty())
}

/// A duration: `500ms`, `30s`, `5m`, `2h`, `7d`.
pub(crate) fn duration(field: &str, text: &str) -> Result<Duration, Failure> {
    let refused =
        || Problem::invalid(field, format!("{text:?} is not a duration; write it like 30s, 5m, 24h or 7d"));
    // A signed duration has no days, and a span no fractions of hours.
    let signed = match text.parse::<SignedDuration>() {
        Ok(signed) => signed,
        Err(_) => {
            let span: Span = text.parse().map_err(|_| refused())?;
            span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| refused())?
        }
    };
    Ok(Duration::try_from(signed).map_err(|_| refused())?)
}

/// A time: RFC 3339, or what a browser's field for date and time sends, which is taken as UTC.
pub(crate) fn time(field: &str, text: &str) -> Result<Timestamp, Failure> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(at);
    }
    let civil = text.parse::<DateTime>().ok().and_then(|civil| civil.to_zoned(TimeZone::UTC).ok());
    let refused =
        || Problem::invalid(field, format!("{text:?} is not a time; write it like 2026-03-02T09:00:00Z"));
    Ok(civil.map(|zoned| zoned.timestamp()).ok_or_else(refused)?)
}

/// A number that is not negative.
pub(crate) fn number(field: &str, text: &str) -> Result<u64, Failure> {
    let digits = text.replace([',', '_', ' '], "");
    Ok(digits.parse().map_err(|_| Problem::invalid(field, format!("{text:?} is not a number")))?)
}

/// An offset.
pub(crate) fn offset(field: &str, text: &str) -> Result<Offset, Failure> {
    let number = number(field, text)?;
    Ok(Offset(i64::try_from(number).map_err(|_| Problem::invalid(field, "there is no such offset"))?))
}

/// A position in a log: which kind, and the value it needs.
pub(crate) fn position(kind: &str, value: Option<&str>) -> Result<Start, Failure> {
    let needed = || {
        given(value).ok_or_else(|| Failure::from(Problem::invalid("value", "is needed for this position")))
    };
    Ok(match kind {
        "beginning" => Start::Beginning,
        "now" => Start::Now,
        "offset" => Start::Offset(offset("value", needed()?)?),
        "time" => Start::Timestamp(time("value", needed()?)?),
        "back" => Start::BeginningBounded(number("value", needed()?)?),
        _ => return Err(Problem::invalid("to", "must be beginning, now, offset, time or back").into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_times_are_read_as_people_write_them() {
        let seconds = |text: &str| duration("lease", text).map(|duration| duration.as_secs()).ok();
        assert_eq!(
            [seconds("30s"), seconds("5m"), seconds("1d12h"), seconds("soon"), seconds("-3s")],
            [Some(30), Some(300), Some(129_600), None, None]
        );
        let at = |text: &str| time("at", text).map(|at| at.to_string()).ok();
        assert_eq!(at("2026-03-02T09:00:00Z").unwrap(), "2026-03-02T09:00:00Z");
        assert_eq!(at("2026-03-02T09:00").unwrap(), "2026-03-02T09:00:00Z");
        assert_eq!(at("2026-03-02T09:00:00+01:00").unwrap(), "2026-03-02T08:00:00Z");
        assert_eq!(at("yesterday"), None);
    }

    #[test]
    fn positions_need_their_value() {
        assert_eq!(position("beginning", None).unwrap(), Start::Beginning);
        assert_eq!(position("offset", Some(" 1,200 ")).unwrap(), Start::Offset(Offset(1_200)));
        assert!(position("offset", Some(" ")).is_err());
        assert!(position("offset", Some("99999999999999999999")).is_err());
        assert!(position("elsewhere", None).is_err());
    }
}
