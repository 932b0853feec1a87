//! One sync of the store fails, the process continues, and then the power fails. For many positions of the failing sync, and
//! several moments of the cut each: the rebuilt file opens, is sound, and holds everything acknowledged by then.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headwater::Headwater;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::Setting;
use super::child::ChaosJob;
use super::disk::{Deed, Disk, read};
use super::tools::shared_library;
use crate::check::{Floor, Job, Judged, Process, Unit, problems};

const TOPIC: &str = "synced";
const MESSAGES: u64 = 60;
/// Moments of the power cut for each failing sync; one of them is the end.
const CUTS: usize = 3;

/// The findings over all positions.
#[derive(Debug, Default)]
struct Found {
    images: u64,
    lost: u64,
    damaged: u64,
    /// An example of a position at which something was lost or damaged.
    example: String,
}

pub(super) async fn run(setting: &Setting) -> Result<Vec<Judged>> {
    let directory = tempfile::Builder::new().prefix("failed-sync").tempdir_in(&setting.work)?;
    let shim = shared_library(include_str!("shim.c"), directory.path(), "shim")?;
    let mut random = StdRng::seed_from_u64(setting.seed);
    let untouched = record(directory.path(), &shim, 0).await?;
    let syncs = untouched.iter().filter(|deed| is_sync(deed)).count() as u64;
    ensure!(syncs >= MESSAGES / 2, "only {syncs} syncs were recorded: is the library preloaded?");
    // Without a failure nothing may be lost: otherwise the rebuilt disk is wrong, not the store.
    let mut control = Found::default();
    for _ in 0..10 {
        let cut = random.random_range(1..=untouched.len());
        check(directory.path(), &untouched[..cut], 0, &mut random, &mut control).await?;
    }
    // The store is created by the first of them; a failure there is an error of opening.
    let step = (syncs / setting.positions).max(1);
    let (mut found, mut positions, mut failed) = (Found::default(), 0, 0);
    for position in (1..=syncs).step_by(usize::try_from(step)?) {
        let deeds = record(directory.path(), &shim, position).await?;
        positions += 1;
        let Some(at) = deeds.iter().position(|deed| matches!(deed, Deed::FailedSync { .. })) else {
            continue;
        };
        failed += 1;
        let mut cuts = vec![deeds.len()];
        cuts.extend((1..CUTS).map(|_| random.random_range(at + 1..=deeds.len())));
        for cut in cuts {
            check(directory.path(), &deeds[..cut], position, &mut random, &mut found).await?;
        }
    }
    let Found { images, lost, damaged, example } = found;
    Ok(vec![
        Judged::none_of("acknowledged messages lost", lost)
            .note(format!("{images} images of {failed} failed syncs. {example}")),
        Judged::none_of("images that are damaged", damaged),
        Judged::none_of("lost or damaged without a failed sync", control.lost + control.damaged)
            .note(format!("{} images. {}", control.images, control.example)),
        Judged::new("positions tried", positions as f64, Unit::Count, Floor::AtLeast(30.0))
            .note(format!("of {syncs} syncs")),
    ])
}

fn is_sync(deed: &Deed) -> bool {
    matches!(deed, Deed::Sync { file } | Deed::FailedSync { file } if file.ends_with(".db") || file.ends_with("-wal"))
}

/// Runs a process whose sync at a position fails, and reads what it wrote and synced.
async fn record(directory: &Path, shim: &Path, position: u64) -> Result<Vec<Deed>> {
    let run = directory.join(format!("run-{position}"));
    std::fs::create_dir_all(&run)?;
    let to = directory.join(format!("record-{position}"));
    let text = |path: &Path| path.display().to_string();
    let acknowledged = text(&run.join("acknowledged"));
    let job = ChaosJob::Steps { topic: TOPIC.into(), messages: MESSAGES, acknowledged };
    let env = [
        ("LD_PRELOAD".to_owned(), text(shim)),
        ("HEADWATER_LAB_WATCH".to_owned(), text(&run)),
        ("HEADWATER_LAB_RECORD".to_owned(), text(&to)),
        ("HEADWATER_LAB_FAIL_AT".to_owned(), position.to_string()),
    ];
    let url = format!("sqlite:{}", run.join("store.db").display());
    let process = Process::start_with(&url, &Job::Chaos(job), &env, |_| {})?;
    // A failed process is fine: a store that refuses to continue has acknowledged nothing.
    process.ended(Duration::from_secs(60)).await?;
    let deeds = read(&std::fs::read(&to).context("nothing was recorded")?)?;
    std::fs::remove_dir_all(&run)?;
    std::fs::remove_file(&to)?;
    Ok(deeds)
}

/// Rebuilds what the power cut left and compares it with what was acknowledged by then.
async fn check(
    directory: &Path,
    deeds: &[Deed],
    position: u64,
    random: &mut StdRng,
    found: &mut Found,
) -> Result<()> {
    let mut disk = Disk::default();
    deeds.iter().for_each(|deed| disk.apply(deed));
    let image = directory.join("image");
    std::fs::create_dir_all(&image)?;
    let (mut acknowledged, mut store) = (BTreeSet::new(), None);
    for (name, bytes) in disk.after_power_cut(random) {
        let file = Path::new(name).file_name().context("a file has a name")?;
        if file == "acknowledged" {
            // The publisher's view, not the disk's.
            let text = String::from_utf8_lossy(disk.seen(name)).into_owned();
            acknowledged = text.lines().map(str::parse).collect::<Result<BTreeSet<u64>, _>>()?;
            continue;
        }
        std::fs::write(image.join(file), bytes)?;
        if name.ends_with(".db") {
            store = Some(image.join(file));
        }
    }
    found.images += 1;
    let opened = async {
        let store = store.context("there is no store")?;
        let headwater = Headwater::open(&format!("sqlite:{}", store.display())).await?;
        let messages = headwater.published(TOPIC).await;
        let problems = problems(&**headwater.store()).await;
        headwater.close().await?;
        let numbers = messages?.iter().map(|message| Ok(serde_json::from_slice(&message.payload)?)).collect();
        anyhow::Ok((numbers, problems?))
    };
    match opened.await {
        Ok((Ok(numbers), problems)) => {
            let numbers: BTreeSet<u64> = numbers;
            let lost = acknowledged.difference(&numbers).count() as u64;
            found.lost += lost;
            found.damaged += u64::from(!problems.is_empty());
            if lost > 0 || !problems.is_empty() {
                let words = problems.join("; ");
                found.example = format!("sync {position}: {lost} of {} lost {words}", acknowledged.len());
            }
        }
        Ok((Err(error), _)) | Err(error) if !acknowledged.is_empty() => {
            found.lost += acknowledged.len() as u64;
            found.damaged += 1;
            found.example = format!("sync {position}: {error:#}");
        }
        // Nothing was acknowledged yet: the store may not exist.
        _ => {}
    }
    std::fs::remove_dir_all(&image)?;
    Ok(())
}
