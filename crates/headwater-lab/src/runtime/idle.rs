//! The cost of waiting: a hundred consumers in one process, and no messages.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::Setting;
use crate::check::{Floor, Job, Judged, Place, Process, Unit, progress};
use crate::machine::cpu_time_of;

const CONSUMERS: usize = 100;
/// Long enough for all work after a start to end.
const SETTLE: Duration = Duration::from_secs(10);
/// Idle topics of a process share a query every 15 s: only whole periods are compared.
const PERIOD: Duration = Duration::from_secs(15);

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let during = PERIOD * if setting.quick { 1 } else { 2 };
    let mut judged = vec![];
    for (what, topics, groups) in
        [("groups on one topic", 1, CONSUMERS), ("topics with a group each", CONSUMERS, 1)]
    {
        progress(&format!("{CONSUMERS} {what} wait"));
        let (process, backends) = percent(place, topics, groups, during).await?;
        judged.push(
            Judged::new(
                &format!("of a core, {CONSUMERS} {what}"),
                process + backends,
                Unit::Percent,
                Floor::AtMost(1.0),
            )
            .note(format!("the process {process:.2} %, its backends {backends:.2} %")),
        );
    }
    Ok(judged)
}

/// How much of a core a process of waiting consumers uses, and its backends.
async fn percent(place: &Place<'_>, topics: usize, groups: usize, during: Duration) -> Result<(f64, f64)> {
    let mut process = Process::start(&place.url, &Job::Wait { topics, groups }, |_| {})?;
    process.ready().await?;
    tokio::time::sleep(SETTLE).await;
    process.ensure_alive()?;
    let (own, backends) = ([process.pid()], place.backends().await?);
    let (own_before, backends_before, start) = (cpu_time_of(&own), cpu_time_of(&backends), Instant::now());
    tokio::time::sleep(during).await;
    let (own_after, backends_after) = (cpu_time_of(&own), cpu_time_of(&backends));
    let elapsed = start.elapsed();
    process.ensure_alive()?;
    process.stop().await?;
    let share = |used: Duration| used.as_secs_f64() / elapsed.as_secs_f64() * 100.0;
    Ok((share(own_after.saturating_sub(own_before)), share(backends_after.saturating_sub(backends_before))))
}
