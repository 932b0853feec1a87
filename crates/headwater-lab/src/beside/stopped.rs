//! A consumer process is stopped in the middle of a message, as by a debugger or a suspended machine, and continues when
//! another process has the message: its settlement must then be refused.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use headwater::store::{LeaseToken, Outstanding, OutstandingState};
use rustix::process::Signal;

use super::{Place, Setting};
use crate::check::{Floor, Job, Judged, Process, Record, Unit, eventually, progress, settled, soundness};

const TOPIC: &str = "stopped";
const GROUP: &str = "workers";
/// How long the handler of the stopped process runs: longer than it takes to stop it, also on a busy machine.
const HANDLED_MS: u64 = 10_000;
/// Long enough for a heartbeat of the process.
const AT_WORK: Duration = Duration::from_secs(6);
/// Long enough for a process that continues to end its handler and to settle.
const CONTINUES: Duration = Duration::from_secs(8);

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let held = setting.hold(60, 30);
    let headwater = place.open().await?;
    headwater.topic(TOPIC).create().await?;
    let record: Arc<Mutex<Record>> = Arc::default();
    let mut stopped = start(place, &record, 0, HANDLED_MS)?;
    stopped.ready().await?;
    tokio::time::sleep(AT_WORK).await;
    headwater.producer(TOPIC).send(&1).await?;
    let started_by = |process| record.lock().expect("no panic while held").started_by(process) > 0;
    eventually("the message is in a handler", Duration::from_secs(10), async || Ok(started_by(0))).await?;
    stopped.signal(Signal::STOP)?;
    progress(&format!("SIGSTOP for {held:?}"));
    let begin = Instant::now();
    // Its handler runs until well after the other process continues.
    let at_work = held + CONTINUES * 2;
    let mut other = start(place, &record, 1, u64::try_from(at_work.as_millis())?)?;
    other.ready().await?;
    let id = headwater.groups(TOPIC).get(GROUP).await?.status.subscription_id;
    let held_by_stopped = leases(&headwater.store().outstanding(id, 100).await?);
    ensure!(!held_by_stopped.is_empty(), "the process was stopped after it had settled the message");
    let taken = eventually("another process has the message", held, async || Ok(started_by(1))).await;
    let taken_after = begin.elapsed();
    tokio::time::sleep(held.saturating_sub(begin.elapsed())).await;
    let outstanding = headwater.store().outstanding(id, 100).await?;
    let before = leases(&outstanding);
    stopped.signal(Signal::CONT)?;
    progress("SIGCONT");
    tokio::time::sleep(CONTINUES).await;
    let after = leases(&headwater.store().outstanding(id, 100).await?);
    let done = settled(&headwater, TOPIC, GROUP, at_work + Duration::from_secs(30)).await;
    other.stop().await?;
    stopped.kill().await?;
    let sound = soundness(&headwater).await?;
    headwater.close().await?;
    let record = record.lock().expect("no panic while held");
    let mut judged = judge(&before, &after, taken.is_ok(), record.ended_by(0));
    if taken.is_err() {
        judged[0].note = format!("before it continued: {outstanding:?}");
    }
    judged.extend([
        Judged::new("taken over after", taken_after.as_secs_f64() * 1_000.0, Unit::Milliseconds, Floor::None),
        Judged::none_of("messages that are not settled in the end", u64::from(done.is_err()))
            .note(done.err().map(|error| format!("{error:#}")).unwrap_or_default()),
        sound,
    ]);
    Ok(judged)
}

/// Judges the leases of other processes from before and after the stopped process continued.
fn judge(before: &[LeaseToken], after: &[LeaseToken], taken: bool, ended: u64) -> Vec<Judged> {
    let lost = before.iter().filter(|token| !after.contains(token)).count();
    vec![
        Judged::none_of("messages that no other process took", u64::from(!taken || before.is_empty())),
        Judged::none_of("leases of the other that the stopped process ended", lost as u64),
        Judged::new("handlers that ended in it", ended as f64, Unit::Count, Floor::AtLeast(1.0))
            .note("it tried to settle"),
    ]
}

fn start(place: &Place<'_>, record: &Arc<Mutex<Record>>, number: usize, handle_ms: u64) -> Result<Process> {
    let job = Job::Record { topic: TOPIC.into(), group: GROUP.into(), handlers: 2, handle_ms };
    let record = Arc::clone(record);
    Process::start(&place.url, &job, move |line| {
        record.lock().expect("no panic while held").note(number, line);
    })
}

fn leases(outstanding: &[Outstanding]) -> Vec<LeaseToken> {
    let leased = outstanding.iter().filter(|one| one.state == OutstandingState::Leased);
    leased.filter_map(|one| one.token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_ended_or_a_takeover_that_never_was_is_missed() {
        let is_met = |before: &[i64], after: &[i64], taken, ended| {
            let tokens = |all: &[i64]| all.iter().copied().map(LeaseToken).collect::<Vec<_>>();
            judge(&tokens(before), &tokens(after), taken, ended).iter().all(Judged::is_met)
        };
        assert!(is_met(&[7], &[7], true, 1));
        assert!(!is_met(&[7], &[], true, 1) && !is_met(&[7], &[8], true, 1));
        assert!(!is_met(&[7], &[7], false, 1), "it still had the message itself");
        assert!(!is_met(&[], &[], true, 1) && !is_met(&[7], &[7], true, 0));
    }
}
