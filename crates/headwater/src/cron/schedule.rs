//! When a job fires: a cron expression applied to the real time of a time zone.
//!
//! The expression is searched in civil time, where every day has 24 hours, and the zone is applied afterwards by one
//! rule of our own: the effect of a daylight saving change must not depend on how an expression is written.

use std::collections::VecDeque;
use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp, Unit};

use crate::error::{Error, Result};

/// The span first searched for the last ticks; it doubles until it contains enough.
const SEARCH_FIRST: SignedDuration = SignedDuration::from_mins(1);

/// An expression in a zone.
#[derive(Debug)]
pub(super) struct Schedule {
    expression: String,
    cron: Cron,
    zone: TimeZone,
    /// The expression covers all 24 hours: elapsed time counts, not the wall clock.
    every_hour: bool,
}

impl Schedule {
    pub(super) fn parse(expression: &str, zone: &str) -> Result<Self> {
        let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
        let cron = parser.parse(expression).map_err(|error| {
            let error = error.to_string();
            let error = error.trim_end_matches('.');
            let help = "give five fields (minute hour day month weekday), or six with seconds in front, as `0 2 * * *`";
            Error::invalid("cron expression", format!("`{expression}`: {error}; {help}"))
        })?;
        let every_hour = cron.pattern.hours.values().len() == 24;
        let zone = TimeZone::get(zone).map_err(|_| {
            let help = "use a name such as Europe/Berlin, or UTC";
            Error::invalid("time zone", format!("`{zone}` is not in the IANA time zone database; {help}"))
        })?;
        Ok(Schedule { expression: expression.to_owned(), cron, zone, every_hour })
    }

    /// Refuses an expression that never fires, such as the 30th of February.
    pub(super) fn check_comes(&self, now: Timestamp) -> Result<()> {
        match self.next(now) {
            Some(_) => Ok(()),
            None => {
                let expression = &self.expression;
                let rule = format!("`{expression}` never fires; check that its days exist in its months");
                Err(Error::invalid("cron expression", rule))
            }
        }
    }

    /// The first tick after this instant.
    pub(super) fn next(&self, after: Timestamp) -> Option<Timestamp> {
        if self.every_hour { self.next_as_time_passes(after) } else { self.next_by_the_clock(after) }
    }

    /// The ticks after `after`, up to and including `until`.
    pub(super) fn between(&self, after: Timestamp, until: Timestamp) -> impl Iterator<Item = Timestamp> {
        std::iter::successors(self.next(after), |tick| self.next(*tick))
            .take_while(move |tick| *tick <= until)
    }

    /// The last `count` ticks after `after`, up to and including `until`, oldest first. Searched backwards from the
    /// end: a job that fires every second and was down for a year is not counted from its start.
    pub(super) fn last(&self, count: usize, after: Timestamp, until: Timestamp) -> VecDeque<Timestamp> {
        let mut span = SEARCH_FIRST;
        loop {
            let from = until.checked_sub(span).unwrap_or(Timestamp::MIN).max(after);
            let mut last = VecDeque::with_capacity(count);
            for tick in self.between(from, until) {
                if last.len() == count {
                    last.pop_front();
                }
                last.push_back(tick);
            }
            if last.len() == count || from == after {
                return last;
            }
            span = span.checked_mul(2).unwrap_or(SignedDuration::MAX);
        }
    }

    /// How long until the next tick, at most `at_most`.
    pub(super) fn wait(&self, now: Timestamp, at_most: Duration) -> Duration {
        let until = |tick: Timestamp| Duration::try_from(tick.duration_since(now)).unwrap_or_default();
        self.next(now).map_or(at_most, |tick| until(tick).min(at_most))
    }

    /// Each matching civil time fires once. Instants rise with their civil times, so the first one later than `after`
    /// is the next tick.
    fn next_by_the_clock(&self, after: Timestamp) -> Option<Timestamp> {
        let mut civil = whole_second(self.zone.to_datetime(after))?;
        loop {
            civil = self.next_civil(civil, false)?;
            let tick = self.instant(civil)?;
            if tick > after {
                return Some(tick);
            }
        }
    }

    /// Each instant whose civil time matches fires: searched from one change of the offset to the next.
    fn next_as_time_passes(&self, after: Timestamp) -> Option<Timestamp> {
        let (mut from, mut inclusive) = (after, false);
        loop {
            let offset = self.zone.to_offset(from);
            let civil = self.next_civil(whole_second(offset.to_datetime(from))?, inclusive)?;
            let tick = offset.to_timestamp(civil).ok()?;
            match self.zone.following(from).next() {
                Some(change) if change.timestamp() <= tick => (from, inclusive) = (change.timestamp(), true),
                _ => return Some(tick),
            }
        }
    }

    fn next_civil(&self, from: DateTime, inclusive: bool) -> Option<DateTime> {
        let from = from.to_zoned(TimeZone::UTC).ok()?;
        Some(self.cron.find_next_occurrence(&from, inclusive).ok()?.datetime())
    }

    /// The instant of a civil time: the first of two, or the end of the gap it lies in.
    fn instant(&self, civil: DateTime) -> Option<Timestamp> {
        match self.zone.to_ambiguous_timestamp(civil).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(civil).ok(),
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(civil).ok(),
            AmbiguousOffset::Gap { after, .. } => {
                // Converted with the offset that applies only after the change, it lies before the change.
                let before_change = after.to_timestamp(civil).ok()?;
                Some(self.zone.following(before_change).next()?.timestamp())
            }
        }
    }
}

/// Cron has no fractions of seconds.
fn whole_second(civil: DateTime) -> Option<DateTime> {
    let down = jiff::civil::DateTimeRound::new().smallest(Unit::Second).mode(jiff::RoundMode::Floor);
    civil.round(down).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// The next ticks, as instants.
    fn ticks(expression: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
        let schedule = Schedule::parse(expression, zone).unwrap();
        std::iter::successors(schedule.next(at(after)), |tick| schedule.next(*tick))
            .take(count)
            .map(|tick| tick.to_string())
            .collect()
    }

    #[test]
    fn five_fields_six_fields_and_names_are_understood() {
        let from = "2026-01-01T00:00:00Z";
        assert_eq!(ticks("0 2 * * *", "UTC", from, 1), ["2026-01-01T02:00:00Z"]);
        assert_eq!(ticks("30 0 2 * * *", "UTC", from, 1), ["2026-01-01T02:00:30Z"]);
        assert_eq!(
            ticks("0 9 * * MON-FRI", "UTC", from, 2),
            ["2026-01-01T09:00:00Z", "2026-01-02T09:00:00Z"]
        );
        assert_eq!(ticks("@monthly", "UTC", from, 1), ["2026-02-01T00:00:00Z"]);
        assert_eq!(ticks("0 0 29 2 *", "UTC", from, 1), ["2028-02-29T00:00:00Z"]);
        assert_eq!(ticks("0 0 L * *", "UTC", from, 1), ["2026-01-31T00:00:00Z"]);
        // Either day suffices where both are given.
        assert_eq!(ticks("0 0 13 * 5", "UTC", from, 2), ["2026-01-02T00:00:00Z", "2026-01-09T00:00:00Z"]);
    }

    #[test]
    fn tick_is_strictly_after_also_within_a_second() {
        assert_eq!(ticks("0 2 * * *", "UTC", "2026-01-01T01:59:59.9Z", 1), ["2026-01-01T02:00:00Z"]);
        assert_eq!(ticks("0 2 * * *", "UTC", "2026-01-01T02:00:00Z", 1), ["2026-01-02T02:00:00Z"]);
        assert_eq!(ticks("0 2 * * *", "UTC", "2026-01-01T02:00:00.1Z", 1), ["2026-01-02T02:00:00Z"]);
    }

    #[test]
    fn wall_clock_is_kept_across_the_seasons() {
        assert_eq!(
            ticks("0 9 1 1,7 *", "Europe/Berlin", "2025-12-01T00:00:00Z", 2),
            ["2026-01-01T08:00:00Z", "2026-07-01T07:00:00Z"]
        );
    }

    // Berlin, 29 March 2026: 02:00 to 03:00 does not exist; 03:00 is 01:00 UTC.
    #[test]
    fn tick_in_a_gap_fires_at_the_first_instant_after_it() {
        let evening = "2026-03-28T12:00:00Z";
        assert_eq!(
            ticks("30 2 * * *", "Europe/Berlin", evening, 2),
            ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
        );
        // Several in one gap are one tick, also if one of them is the end of the gap.
        assert_eq!(
            ticks("0,20,40 2,3 * * *", "Europe/Berlin", evening, 3),
            ["2026-03-29T01:00:00Z", "2026-03-29T01:20:00Z", "2026-03-29T01:40:00Z"]
        );
        // A list of hours behaves like its single hours.
        assert_eq!(
            ticks("0 2,14 * * *", "Europe/Berlin", evening, 3),
            ["2026-03-28T13:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T12:00:00Z"]
        );
    }

    // Berlin, 25 October 2026: 02:00 to 03:00 comes twice, from 00:00 and from 01:00 UTC.
    #[test]
    fn tick_in_an_overlap_fires_once_at_the_first_of_both() {
        let evening = "2026-10-24T20:00:00Z";
        assert_eq!(
            ticks("30 2 * * *", "Europe/Berlin", evening, 2),
            ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
        );
        assert_eq!(
            ticks("*/30 2-3 * * *", "Europe/Berlin", evening, 4),
            ["2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z", "2026-10-25T02:00:00Z", "2026-10-25T02:30:00Z"]
        );
        // In the second of the two hours the tick is already over.
        assert_eq!(ticks("30 2 * * *", "Europe/Berlin", "2026-10-25T01:15:00Z", 1), ["2026-10-26T01:30:00Z"]);
    }

    #[test]
    fn every_hour_means_every_hour_that_passes() {
        assert_eq!(
            ticks("30 * * * *", "Europe/Berlin", "2026-10-24T23:00:00Z", 4),
            ["2026-10-24T23:30:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"]
        );
        assert_eq!(
            ticks("30 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", 2),
            ["2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z"]
        );
        // The first instant after a change is searched too.
        assert_eq!(
            ticks("0 * * * *", "Europe/Berlin", "2026-03-29T00:30:00Z", 2),
            ["2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"]
        );
        // Lord Howe's clocks change by half an hour: from 02:00 to 01:30 on 5 April 2026, which is 15:00 UTC.
        assert_eq!(
            ticks("45 * * * *", "Australia/Lord_Howe", "2026-04-04T14:00:00Z", 3),
            ["2026-04-04T14:45:00Z", "2026-04-04T15:15:00Z", "2026-04-04T16:15:00Z"]
        );
    }

    #[test]
    fn whole_day_that_was_left_out_fires_after_it() {
        // Samoa went from 29 to 31 December 2011 at midnight, 10:00 UTC.
        assert_eq!(
            ticks("0 12 30 12 *", "Pacific/Apia", "2011-12-01T00:00:00Z", 1),
            ["2011-12-30T10:00:00Z"]
        );
    }

    #[test]
    fn last_ticks_are_found_from_the_end() {
        let every_second = Schedule::parse("* * * * * *", "Europe/Berlin").unwrap();
        let (from, until) = (at("2020-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z"));
        let last = every_second.last(2, from, until);
        assert_eq!(last, [at("2025-12-31T23:59:59Z"), until]);
        let yearly = Schedule::parse("0 0 1 1 *", "UTC").unwrap();
        assert_eq!(yearly.last(3, at("2024-06-01T00:00:00Z"), until), [at("2025-01-01T00:00:00Z"), until]);
        assert!(yearly.last(3, until, until).is_empty());
    }

    #[test]
    fn bad_expressions_and_zones_are_refused_with_what_to_do() {
        for expression in
            ["", "nonsense", "* * * *", "60 * * * *", "* 24 * * *", "0 0 0 1 1 * 2026", "a b c d e"]
        {
            let error = Schedule::parse(expression, "UTC").unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidInput, "{expression}");
            let text = error.to_string();
            assert!(
                text.starts_with(&format!("invalid cron expression: `{expression}`: "))
                    && text.contains("five fields"),
                "{text}"
            );
        }
        let error = Schedule::parse("* * * * *", "Europe/Atlantis").unwrap_err().to_string();
        assert!(error.contains("invalid time zone: `Europe/Atlantis`") && error.contains("Europe/Berlin"));
        let never = Schedule::parse("0 0 30 2 *", "UTC").unwrap();
        let error = never.check_comes(at("2026-01-01T00:00:00Z")).unwrap_err().to_string();
        assert!(error.contains("`0 0 30 2 *` never fires"), "{error}");
    }
}
