//! Programs that write to the file by plain SQL, one transaction right after the other, beside a publisher.

use std::time::Duration;

use anyhow::Result;

use super::child::BesideJob;
use super::probe::{compare, failures, longest_ms};
use super::publisher::Publisher;
use super::{Place, Setting};
use crate::check::{Floor, Job, Judged, Process, Unit, progress, soundness};

const WRITERS: usize = 3;
/// Messages in one of their transactions.
const ROWS: u64 = 20;
const PAUSE_MS: u64 = 2;

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let during = Duration::from_secs(setting.count(60, 20));
    let headwater = place.open().await?;
    for topic in ["published", "greedy"] {
        headwater.topic(topic).pub_sub().create().await?;
    }
    let publisher = Publisher::start(place, "published", PAUSE_MS).await?;
    let rest = |time| async move {
        tokio::time::sleep(time).await;
        Ok(())
    };
    let (quiet, ()) = publisher.during(rest(during / 4)).await?;
    progress(&format!("{WRITERS} greedy writers"));
    let mut writers = vec![];
    for _ in 0..WRITERS {
        let job = Job::Beside(BesideJob::Greedy { topic: "greedy".into(), rows: ROWS });
        let mut writer = Process::start(&place.url, &job, |_| {})?;
        writer.ready().await?;
        writers.push(writer);
    }
    let (beside, ()) = publisher.during(rest(during)).await?;
    for mut writer in writers {
        writer.ensure_alive()?;
        writer.kill().await?;
    }
    publisher.stop().await?;
    let sound = soundness(&headwater).await?;
    let topics = headwater.store().topics().await?;
    let written = topics.iter().find(|status| status.topic.name.as_str() == "greedy");
    let written = written.map_or(0, |status| status.head.0);
    headwater.close().await?;
    Ok(vec![
        failures(&[quiet.errors, beside.errors].concat()),
        compare("publish, median", &quiet.times, &beside.times, 0.5, Floor::None),
        Judged::new("publish, longest", longest_ms(&beside.times), Unit::Milliseconds, Floor::None),
        Judged::new("publishes", beside.times.len() as f64, Unit::Count, Floor::AtLeast(1.0))
            .note(format!("beside {written} messages of the writers")),
        Judged::new("messages of the writers", written as f64, Unit::Count, Floor::AtLeast(1.0)),
        sound,
    ])
}
