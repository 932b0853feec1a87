//! The detector: declares active subscriptions dead whose heartbeats have stopped for longer than their timeout.

use std::time::Duration;

use rusqlite::{OptionalExtension, params};

use super::fault::Attempt;
use super::work::{Work, wake};
use super::{clean, decode, millis, tracking};
use crate::error::Result;
use crate::maintenance::Job;
use crate::name::{GroupName, TopicName};
use crate::store::Detected;
use crate::topic::TopicId;

/// If the last check was longer ago, the detector was not running: heartbeats may be missing because none could be
/// sent.
const WATCHING_MAX: Duration = Duration::from_secs(180);

/// Checks once: see [`crate::store::Maintenance::detect_dead`].
pub(super) fn detect_dead(work: &mut Work<'_>) -> Attempt<Detected> {
    let (connection, now_ms) = (work.connection, work.now_ms());
    let checked_at_ms: Option<i64> = connection
        .prepare_cached(super::sql!(detect.last_run))?
        .query_row([Job::DeadDetection.as_str()], |row| row.get(0))
        .optional()?;
    let watched = checked_at_ms.is_some_and(|at_ms| now_ms.saturating_sub(at_ms) <= millis(WATCHING_MAX));
    let elapsed_ms = clean::elapse(work)?;
    // Heartbeats written by a clock that was ahead count as received now.
    for sql in
        [super::sql!(detect.ahead), super::sql!(detect.ahead_owners), super::sql!(detect.ahead_subscriptions)]
    {
        connection.prepare_cached(sql)?.execute([now_ms])?;
    }
    let mut found = Detected::default();
    for candidate in candidates(work)? {
        let names = || -> Result<(TopicName, GroupName)> {
            Ok((TopicName::new(candidate.topic_name.clone())?, GroupName::new(candidate.group.clone())?))
        };
        match candidate.verdict(now_ms, watched) {
            Verdict::Alive => candidate.suspect(work, None)?,
            Verdict::NearTimeout => {
                candidate.suspect(work, None)?;
                found.near_timeout.push(names()?);
            }
            Verdict::Suspected(since_ms) => {
                candidate.suspect(work, Some(since_ms))?;
                found.suspected.push(names()?);
            }
            Verdict::Dead => {
                candidate.die(work, now_ms, elapsed_ms)?;
                found.died.push(names()?);
            }
        }
    }
    work.connection
        .prepare_cached(super::sql!(detect.ran))?
        .execute(params![Job::DeadDetection.as_str(), now_ms])?;
    Ok(found)
}

/// An active subscription that has had a heartbeat.
struct Candidate {
    subscription_id: i32,
    topic: TopicId,
    topic_name: String,
    group: String,
    heartbeat_at_ms: i64,
    suspected_at_ms: Option<i64>,
    interval_ms: i64,
    timeout_ms: i64,
}

/// The result of a check of a subscription.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Alive,
    /// Without a heartbeat for four fifths of its timeout.
    NearTimeout,
    /// Without a heartbeat for too long, but first seen so at this time, when the detector had not been running.
    Suspected(i64),
    Dead,
}

fn candidates(work: &Work<'_>) -> Attempt<Vec<Candidate>> {
    let mut statement = work.connection.prepare_cached(super::sql!(detect.candidates))?;
    Ok(decode::all(&mut statement, [], |row| {
        Ok(Candidate {
            subscription_id: row.get(0)?,
            topic: TopicId(row.get(1)?),
            topic_name: decode::name(row, 2)?,
            group: row.get(3)?,
            heartbeat_at_ms: row.get(4)?,
            suspected_at_ms: row.get(5)?,
            interval_ms: row.get(6)?,
            timeout_ms: row.get(7)?,
        })
    })?)
}

impl Candidate {
    fn verdict(&self, now_ms: i64, watched: bool) -> Verdict {
        let silent_ms = now_ms.saturating_sub(self.heartbeat_at_ms);
        if silent_ms <= self.timeout_ms {
            let near = silent_ms.saturating_mul(5) >= self.timeout_ms.saturating_mul(4);
            return if near { Verdict::NearTimeout } else { Verdict::Alive };
        }
        // A heartbeat came since: the suspicion no longer holds.
        let suspected = self.suspected_at_ms.filter(|at_ms| *at_ms > self.heartbeat_at_ms);
        match suspected {
            Some(at_ms) if now_ms.saturating_sub(at_ms) < self.interval_ms => Verdict::Suspected(at_ms),
            Some(_) => Verdict::Dead,
            None if watched => Verdict::Dead,
            None => Verdict::Suspected(now_ms),
        }
    }

    /// Stores since when it is suspected, if that has changed.
    fn suspect(&self, work: &Work<'_>, since_ms: Option<i64>) -> Attempt<()> {
        if self.suspected_at_ms != since_ms {
            work.connection
                .prepare_cached(super::sql!(detect.suspect))?
                .execute(params![self.subscription_id, since_ms])?;
        }
        Ok(())
    }

    fn die(&self, work: &mut Work<'_>, now_ms: i64, elapsed_ms: i64) -> Attempt<()> {
        work.connection.prepare_cached(super::sql!(detect.die))?.execute(params![
            self.subscription_id,
            now_ms,
            elapsed_ms
        ])?;
        tracking::stop_counting(work, self.subscription_id)?;
        wake(work, self.topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(suspected_at_ms: Option<i64>) -> Candidate {
        Candidate {
            subscription_id: 1,
            topic: TopicId(1),
            topic_name: "t".into(),
            group: "g".into(),
            heartbeat_at_ms: 1_000,
            suspected_at_ms,
            interval_ms: 60,
            timeout_ms: 300,
        }
    }

    #[test]
    fn silence_is_death_only_where_detection_ran() {
        assert_eq!(candidate(None).verdict(1_239, true), Verdict::Alive);
        assert_eq!(candidate(None).verdict(1_240, true), Verdict::NearTimeout);
        assert_eq!(candidate(None).verdict(1_300, true), Verdict::NearTimeout);
        assert_eq!(candidate(None).verdict(1_301, true), Verdict::Dead);
        assert_eq!(candidate(None).verdict(1_301, false), Verdict::Suspected(1_301));
    }

    #[test]
    fn a_suspect_dies_an_interval_later_unless_it_spoke() {
        assert_eq!(candidate(Some(2_000)).verdict(2_059, true), Verdict::Suspected(2_000));
        assert_eq!(candidate(Some(2_000)).verdict(2_060, true), Verdict::Dead);
        assert_eq!(
            candidate(Some(900)).verdict(2_000, false),
            Verdict::Suspected(2_000),
            "a heartbeat since"
        );
        assert_eq!(candidate(Some(1_100)).verdict(1_100, true), Verdict::Alive);
    }

    #[test]
    fn a_clock_that_jumps_back_kills_no_group() {
        assert_eq!(candidate(None).verdict(0, true), Verdict::Alive);
    }
}
