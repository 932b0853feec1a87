//! Indexers that compete for the files of one run on PostgreSQL, each in a process of its own.

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use headwater_pipeline::index::{Index, IndexOptions};

use super::files::{self, Prepared};
use super::indexing::{IndexJob, Indexed};
use super::{OCCUPANCY, Setting, WORLD, index};
use crate::check::{Floor, Judged, Place, Unit, best, progress};

const INSTANCES: [usize; 3] = [1, 2, 4];
/// Few, so that one instance does not hold what another one waits for at the end.
const FILES_MAX: usize = 4;

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let (ticks, rounds) = (setting.count(100_000, 30_000), setting.count(3, 2));
    let directory = setting.directory()?;
    let files = directory.path().join("files");
    let world = files::torus(&WORLD)?;
    let prepared = files::prepare(&place.url, &files, &world, OCCUPANCY, ticks, setting.seed).await?;
    let mut rates: [Vec<f64>; INSTANCES.len()] = Default::default();
    let mut incomplete = 0;
    for round in 1..=rounds {
        for (at, instances) in INSTANCES.into_iter().enumerate() {
            progress(&format!("{instances} instances, round {round} of {rounds}"));
            let group = format!("environment-{instances}-{round}");
            let (rate, indexed) = compete(place, &prepared, &files, instances, &group).await?;
            rates[at].push(rate);
            incomplete += prepared.ticks.saturating_sub(indexed);
        }
    }
    let mut judged = Vec::new();
    for (instances, rates) in INSTANCES.into_iter().zip(&rates) {
        let list = rates.iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" ");
        let what = format!("ticks indexed by {instances}");
        judged.push(
            Judged::new(&what, best(rates), Unit::PerSecond, Floor::None).note(format!("rounds: {list}")),
        );
    }
    let times = best(&rates[1]) / best(&rates[0]);
    judged.push(Judged::new("two, times one", times, Unit::Times, Floor::AtLeast(1.0)));
    judged.push(
        Judged::none_of("ticks that are missing", incomplete).note(format!("of {ticks} in each round")),
    );
    Ok(judged)
}

/// Ticks per second of all instances together, from the start of the first to the last commit, and the rows in the index.
async fn compete(
    place: &Place<'_>,
    prepared: &Prepared,
    files: &std::path::Path,
    instances: usize,
    group: &str,
) -> Result<(f64, u64)> {
    let options = IndexOptions::default();
    files::index_with_metadata(&place.url, &prepared.metadata, &options).await?.close().await;
    let job = IndexJob {
        run_id: prepared.run.run_id.clone(),
        files: files.to_owned(),
        index: None,
        group: group.to_owned(),
        buffer_files_max: FILES_MAX,
    };
    let started: Vec<_> =
        (0..instances).map(|_| index::start(&place.url, job.clone())).collect::<Result<_>>()?;
    let indexed = try_join_all(started.into_iter().map(index::Indexer::result)).await?;
    let all: u64 = indexed.iter().map(|one| one.ticks).sum();
    ensure!(all >= prepared.ticks, "{all} of {} ticks were indexed", prepared.ticks);
    let index = Index::open(&place.url, &prepared.run.run_id, &options)?;
    let rows = index.ticks(0..=i64::MAX, prepared.ticks + 1).await?.len() as u64;
    index.remove().await?;
    Ok((all as f64 / span(&indexed), rows))
}

/// From the first start to the last commit, in seconds.
fn span(indexed: &[Indexed]) -> f64 {
    // An instance that got no file has committed nothing.
    let began = indexed.iter().map(|one| one.began_us).min().unwrap_or_default();
    let ended = indexed.iter().map(|one| one.committed_us).max().unwrap_or_default();
    ended.saturating_sub(began) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_span_is_from_the_first_start_to_the_last_commit() {
        let one = |began_us, committed_us| Indexed { began_us, committed_us, ..Indexed::default() };
        assert_eq!(span(&[one(2_000_000, 5_000_000), one(1_000_000, 0), one(3_000_000, 4_000_000)]), 4.0);
    }
}
