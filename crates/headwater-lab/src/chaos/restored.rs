//! An older copy is restored into the open file. Messages published since the copy are gone, as they must be; messages
//! published afterwards have the same offsets and must reach every group unchanged.

use std::time::Duration;

use anyhow::Result;

use super::crew::{Crew, GROUPS, file, stored};
use super::tools::sqlite3;
use crate::check::{Judged, Place, eventually};
use crate::soak::history::now_us;

const PAUSE_MS: u64 = 10;
const MESSAGES: usize = 150;

pub(super) async fn run(place: &Place<'_>) -> Result<Vec<Judged>> {
    let (headwater, path) = (place.open().await?, file(place)?);
    let copy = path.with_extension("copy");
    Crew::create_topic(&headwater, &GROUPS).await?;
    headwater.close().await?;
    let mut crew = Crew::new(place, vec![]);
    crew.start_all(PAUSE_MS).await?;
    crew.acknowledged_since(0, MESSAGES).await?;
    sqlite3(path, &format!(".backup '{}'", copy.display()))?;
    let copied_us = now_us();
    crew.acknowledged_since(copied_us, MESSAGES).await?;
    // The consumers have handled messages that the restored file does not contain.
    let before = crew.with(|heard| heard.since(0));
    crew.unhandled(&before, Duration::from_secs(10)).await;
    eventually("the copy is restored into the busy file", Duration::from_secs(20), async || {
        Ok(sqlite3(path, &format!(".restore '{}'", copy.display())).is_ok())
    })
    .await?;
    let restored_us = now_us();
    crew.acknowledged_since(restored_us, 2 * MESSAGES).await?;
    crew.stop_publishers().await?;
    let afterwards = crew.with(|heard| heard.since(restored_us));
    let missing = crew.unhandled(&afterwards, Duration::from_secs(20)).await;
    let ended = crew.consumers.iter_mut().filter_map(|(_, _, one)| one.ensure_alive().err()).count();
    let headwater = place.open().await?;
    let log = stored(&headwater).await?;
    let unseen = crew.unhandled(&log, Duration::from_secs(1)).await;
    let gone = afterwards.iter().filter(|n| !log.contains(n)).count();
    crew.kill_all().await?;
    let (restores, others): (Vec<_>, Vec<_>) =
        headwater.store().doctor().await?.into_iter().partition(|finding| finding.check == "epoch_changed");
    headwater.close().await?;
    let _ = std::fs::remove_file(copy);
    let mut judged = vec![];
    for ((group, after), (_, all)) in missing.into_iter().zip(unseen) {
        judged.push(
            Judged::none_of(&format!("published after the restore, unhandled by {group}"), after)
                .note(format!("of {} acknowledged", afterwards.len())),
        );
        judged.push(
            Judged::none_of(&format!("in the log, unhandled by {group}"), all)
                .note(format!("of {} in the log", log.len())),
        );
    }
    judged.push(Judged::none_of("acknowledged after the restore and gone", gone as u64));
    judged.push(Judged::none_of("consumers that ended", ended as u64));
    judged.push(Judged::none_of("restores that doctor does not report", u64::from(restores.is_empty())));
    let words: Vec<_> = others.iter().map(|finding| finding.problem.as_str()).collect();
    judged.push(
        Judged::none_of("other problems found in the store", words.len() as u64).note(words.join("; ")),
    );
    Ok(judged)
}
