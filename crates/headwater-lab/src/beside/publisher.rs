//! A process that publishes message after message, and how long each call took.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::chaos::ChaosJob;
use crate::check::{Job, Place, Process, eventually};
use crate::soak::history::now_us;

/// Longer than any call may take; a call not answered by then counts as that long.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    from_us: u64,
    to_us: u64,
    error: Option<String>,
}

impl Call {
    /// Reads a line: `a n from to`, or `f n from to error`.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.splitn(5, ' ').collect();
        match fields.as_slice() {
            ["a", _, from, to] => {
                Some(Call { from_us: from.parse().ok()?, to_us: to.parse().ok()?, error: None })
            }
            ["f", _, from, to, error] => Some(Call {
                from_us: from.parse().ok()?,
                to_us: to.parse().ok()?,
                error: Some((*error).to_owned()),
            }),
            _ => None,
        }
    }

    fn took(&self) -> Duration {
        Duration::from_micros(self.to_us.saturating_sub(self.from_us))
    }
}

/// The process. Killed with its value.
pub(super) struct Publisher {
    process: Process,
    calls: Arc<Mutex<Vec<Call>>>,
}

/// Calls of a span of time.
#[derive(Debug, Default)]
pub(super) struct Calls {
    pub(super) times: Vec<Duration>,
    pub(super) errors: Vec<String>,
}

impl Publisher {
    /// Starts it; the topic must exist.
    pub(super) async fn start(place: &Place<'_>, topic: &str, pause_ms: u64) -> Result<Self> {
        let calls: Arc<Mutex<Vec<Call>>> = Arc::default();
        let noted = Arc::clone(&calls);
        let job = Job::Chaos(ChaosJob::Numbers { topic: topic.into(), first: 0, pause_ms });
        let mut process = Process::start(&place.url, &job, move |line| {
            noted.lock().expect("no panic while held").extend(Call::parse(line));
        })?;
        process.ready().await?;
        Ok(Publisher { process, calls })
    }

    /// Runs the work; returns its result and the calls that were under way at any time during it.
    pub(super) async fn during<T>(&self, work: impl Future<Output = Result<T>>) -> Result<(Calls, T)> {
        let from_us = now_us();
        let done = work.await?;
        let to_us = now_us();
        // The call that is under way now may be the one that waits the longest.
        let answered = eventually("the publisher is answered", ANSWER_MAX, async || {
            let calls = self.calls.lock().expect("no panic while held");
            Ok(calls.last().is_some_and(|call| call.to_us > to_us))
        });
        let answered = answered.await.is_ok();
        let calls = self.calls.lock().expect("no panic while held");
        let mut seen = within(&calls, from_us, to_us);
        if !answered {
            seen.times.push(ANSWER_MAX);
            seen.errors.push(format!("a call was not answered within {ANSWER_MAX:?}"));
        }
        Ok((seen, done))
    }

    pub(super) async fn stop(self) -> Result<()> {
        self.process.kill().await.context("ending the publisher")
    }
}

/// The calls that began before the end and were answered after the beginning.
fn within(calls: &[Call], from_us: u64, to_us: u64) -> Calls {
    let mut seen = Calls::default();
    for call in calls.iter().filter(|call| call.from_us <= to_us && call.to_us >= from_us) {
        seen.times.push(call.took());
        seen.errors.extend(call.error.clone());
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_calls_and_nonsense_does_not() {
        let call = Call::parse("f 7 100 150 database is locked").unwrap();
        assert_eq!(
            (call.took(), call.error.as_deref()),
            (Duration::from_micros(50), Some("database is locked"))
        );
        assert_eq!(Call::parse("a 7 100 150").unwrap().error, None);
        assert_eq!((Call::parse("a 7 x 150"), Call::parse("ready")), (None, None));
    }

    #[test]
    fn a_call_that_outlasts_the_work_belongs_to_it() {
        let call = |from_us, to_us| Call { from_us, to_us, error: None };
        let calls = [call(1, 9), call(9, 20), call(21, 22), call(23, 90), call(91, 92)];
        let times = within(&calls, 10, 30).times;
        assert_eq!(times, [11, 1, 67].map(Duration::from_micros));
    }
}
