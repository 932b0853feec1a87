//! A group with very many dead letters is removed while another process publishes.

use std::time::{Duration, Instant};

use anyhow::Result;
use headwater::TopicSettings;

use super::probe::{failures, longest_ms};
use super::publisher::Publisher;
use super::waiting::{buried, fill};
use super::{Place, Setting};
use crate::check::{Floor, Judged, Unit, progress, soundness};

const PAUSE_MS: u64 = 2;
const WAIT_MAX_MS: f64 = 250.0;

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let buried_messages = setting.count(2_000_000, 200_000);
    fill(place, ("buried", "workers"), TopicSettings::pub_sub(), buried_messages, &buried()).await?;
    let headwater = place.open().await?;
    headwater.topic("published").pub_sub().create().await?;
    let publisher = Publisher::start(place, "published", PAUSE_MS).await?;
    let rest = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok(())
    };
    let (quiet, ()) = publisher.during(rest).await?;
    progress("removing the group");
    let begin = Instant::now();
    let removing = async { Ok(headwater.groups("buried").remove("workers", Duration::ZERO).await?) };
    let (beside, _) = publisher.during(removing).await?;
    let took = begin.elapsed().as_secs_f64() * 1_000.0;
    publisher.stop().await?;
    let left = headwater.groups("buried").list().await?.len() as u64;
    let sound = soundness(&headwater).await?;
    headwater.close().await?;
    Ok(vec![
        Judged::new(
            "longest publish beside the removal",
            longest_ms(&beside.times),
            Unit::Milliseconds,
            Floor::AtMost(WAIT_MAX_MS),
        )
        .note(format!("{} publishes; {:.1} ms before", beside.times.len(), longest_ms(&quiet.times))),
        Judged::new("the removal", took, Unit::Milliseconds, Floor::None)
            .note(format!("{buried_messages} dead letters")),
        failures(&[quiet.errors, beside.errors].concat()),
        Judged::none_of("groups that are left", left),
        sound,
    ])
}
