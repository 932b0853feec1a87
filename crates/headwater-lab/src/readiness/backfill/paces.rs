//! Each pace beside the same load: how fast it is, and how much it slows down another application.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use headwater::store::BackfillState;
use headwater::{GroupName, Headwater, Start, TopicName};

use super::{TOPIC, find, find_again};
use crate::check::{Floor, Job, Judged, Place, Process, Unit, eventually, progress};
use crate::readiness::oltp::Oltp;

/// What other transactions may take, in percent of what they take without a backfill. What the aggressive pace costs is shown.
const PACES: [(&str, Floor); 3] =
    [("conservative", Floor::AtMost(150.0)), ("standard", Floor::AtMost(200.0)), ("aggressive", Floor::None)];

pub(super) async fn run(
    place: &Place<'_>,
    headwater: &Headwater,
    oltp: &mut Oltp,
    hold: Duration,
) -> Result<Vec<Judged>> {
    let mut judged = Vec::new();
    let mut rates = Vec::new();
    for (pace, floor) in PACES {
        let (rate, share, note) = one(place, headwater, oltp, pace, hold).await?;
        rates.push(rate);
        let what = format!("foreign transactions beside pace {pace}, p95 of baseline");
        judged.push(Judged::new(&what, share, Unit::Percent, floor).note(note));
        judged.push(Judged::new(&format!("rate of pace {pace}"), rate, Unit::MessagesPerSecond, Floor::None));
    }
    // Throttled: the most careful pace yields, and so is not the fastest.
    judged.push(
        Judged::new(
            "conservative, in times of aggressive",
            rates[0] / rates[2],
            Unit::Times,
            Floor::AtMost(1.0),
        )
        .note("under the same load"),
    );
    Ok(judged)
}

/// The rate of a backfill at one pace, and the p95 of foreign transactions meanwhile in percent of that before.
async fn one(
    place: &Place<'_>,
    headwater: &Headwater,
    oltp: &mut Oltp,
    pace: &str,
    hold: Duration,
) -> Result<(f64, f64, String)> {
    let (topic, group) = (TopicName::new(TOPIC)?, GroupName::new(pace)?);
    let begin = Instant::now();
    tokio::time::sleep(hold / 4).await;
    let (before, before_rate) = oltp.p95_within(&[(begin, Instant::now())])?;
    headwater.store().subscribe(&topic, &group, Start::Beginning).await?;
    progress(&format!("backfilling at pace {pace}"));
    let worker = Process::start(&place.url, &Job::Backfill { pace: pace.into() }, |_| {})?;
    eventually("the backfill begins", Duration::from_secs(60), async || {
        Ok(find(headwater, pace).await?.processed > 0)
    })
    .await?;
    let (began, first) = (Instant::now(), find(headwater, pace).await?.processed);
    let ends = async || Ok(find_again(headwater, pace).await?.state == BackfillState::Completed);
    // Whichever comes first: its end, or enough of it.
    let _ = eventually("the backfill ends", hold / 2, ends).await;
    let (took, now) = (began.elapsed(), find(headwater, pace).await?);
    let (during, during_rate) = oltp.p95_within(&[(began, began + took)])?;
    if now.state.is_open() {
        headwater.store().cancel_backfill(&topic, &group).await.context("it is open")?;
    }
    worker.ended(Duration::from_secs(60)).await?;
    let note = format!("{before:.2} ms at {before_rate:.0}/s, then {during:.2} ms at {during_rate:.0}/s");
    Ok(((now.processed - first) as f64 / took.as_secs_f64(), during / before * 100.0, note))
}
