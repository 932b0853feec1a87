//! The file is deleted, and later replaced by another, while processes have it open. SQLite continues with the file that no
//! longer has a name; nothing may be acknowledged into it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::crew::{Crew, GROUPS, file};
use super::tools::sqlite3;
use crate::check::{Floor, Judged, Place, Unit, eventually};
use crate::soak::history::now_us;

const PAUSE_MS: u64 = 10;
const MESSAGES: usize = 100;
/// Within this time every process has noticed: a few heartbeats.
const NOTICED_WITHIN: Duration = Duration::from_secs(15);

pub(super) async fn run(place: &Place<'_>) -> Result<Vec<Judged>> {
    let path = file(place)?;
    let copy = path.with_extension("copy");
    let mut judged = vec![];
    judged.extend(round(place, "deleted", &copy, async || remove(path)).await?);
    let replace = async || {
        remove(path)?;
        Ok(std::fs::rename(&copy, path)?)
    };
    judged.extend(round(place, "replaced", &copy, replace).await?);
    // Processes that start now have to work.
    let crew = start(place).await?;
    crew.acknowledged_since(0, MESSAGES).await?;
    judged.extend(finish(crew, "after a restart").await?);
    let _ = std::fs::remove_file(copy);
    Ok(judged)
}

/// One fault under processes of its own.
async fn round(
    place: &Place<'_>,
    what: &str,
    copy: &Path,
    fault: impl AsyncFnOnce() -> Result<()>,
) -> Result<Vec<Judged>> {
    let mut crew = start(place).await?;
    crew.acknowledged_since(0, MESSAGES).await?;
    if what == "deleted" {
        sqlite3(file(place)?, &format!(".backup '{}'", copy.display()))?;
    }
    fault().await?;
    let fault_us = now_us();
    // A process has noticed if it has ended, does not report that it runs, or has reported an error since.
    let silent = |crew: &mut Crew| {
        let states = crew.with(|heard| heard.health.clone());
        let runs = |number: &usize| states.get(number).is_none_or(|health| health.is_well_since(fault_us));
        let consumers = crew.consumers.iter_mut();
        consumers
            .filter_map(|(_, number, one)| (runs(number) && one.ensure_alive().is_ok()).then_some(()))
            .count()
    };
    let noticed = eventually("every process has noticed", NOTICED_WITHIN, async || {
        Ok(silent(&mut crew) == 0 && crew.with(|heard| heard.failed > 0))
    });
    let _ = noticed.await;
    let silent = silent(&mut crew) as u64;
    let (void, last_us, failed, failure) = crew.with(|heard| {
        let void = heard.since(fault_us);
        let last = void.iter().filter_map(|n| heard.acknowledged.get(n)).map(|sent| sent.to_us).max();
        (void.len() as u64, last.unwrap_or(fault_us), heard.failed, heard.failure.clone())
    });
    crew.kill_all().await?;
    let seconds = last_us.saturating_sub(fault_us) as f64 / 1e6;
    Ok(vec![
        Judged::none_of(&format!("{what}: acknowledged afterwards"), void)
            .note(format!("the last one {seconds:.1} s after it")),
        Judged::new(&format!("{what}: publishes refused"), failed as f64, Unit::Count, Floor::AtLeast(1.0))
            .note(failure.unwrap_or_default()),
        Judged::none_of(&format!("{what}: consumers that neither ended nor reported it"), silent),
    ])
}

async fn start(place: &Place<'_>) -> Result<Crew> {
    let headwater = place.open().await?;
    Crew::create_topic(&headwater, &GROUPS).await?;
    headwater.close().await?;
    let mut crew = Crew::new(place, vec![]);
    crew.start_all(PAUSE_MS).await?;
    Ok(crew)
}

async fn finish(mut crew: Crew, what: &str) -> Result<Vec<Judged>> {
    crew.stop_publishers().await?;
    let all = crew.with(|heard| heard.since(0));
    let missing = crew.unhandled(&all, Duration::from_secs(20)).await;
    crew.kill_all().await?;
    let judged = missing.into_iter().map(|(group, count)| {
        Judged::none_of(&format!("{what}: unhandled by {group}"), count).note(format!("of {}", all.len()))
    });
    Ok(judged.collect())
}

/// Removes the file and those beside it.
fn remove(path: &Path) -> Result<()> {
    for suffix in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        let _ = std::fs::remove_file(PathBuf::from(name));
    }
    Ok(())
}
