//! A late group is backfilled into the completion records of many pending messages beside two groups at work and
//! transactions of another application; the worker is killed twice, the backfill cancelled once, and nothing is lost or
//! counted twice. Then every pace is compared under the same load.

mod groups;
mod paces;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater::maintenance::Job as MaintenanceJob;
use headwater::store::{BACKFILL_MESSAGES_DEFAULT, Backfill, BackfillLimits, BackfillState};
use headwater::topic::Tracking;
use headwater::{GroupName, Headwater, NewMessage, Start, TopicName, TopicSettings};

use super::Setting;
use super::oltp::{Oltp, Span};
use crate::check::{Floor, Job, Judged, Place, Process, Unit, eventually, progress, soundness};
use crate::server::connect;
use groups::Groups;

const TOPIC: &str = "backfill";
const OLTP_PER_SECOND: u64 = 500;
const LATE: &str = "late";
const STANDARD: &str = "standard";
/// Messages with `--full`, however long loads are held.
const FULL: u64 = 5_000_000;
/// How late the groups at work may get their messages.
const DELAY_MAX_MS: f64 = 1_000.0;

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let messages = if setting.full { FULL } else { setting.scaled(1_000_000, FULL) };
    let headwater = prepare(place, messages).await?;
    let (topic, late, store) = (TopicName::new(TOPIC)?, GroupName::new(LATE)?, headwater.store());
    let mut oltp = Oltp::start(&place.url, OLTP_PER_SECOND).await?;
    let groups = Groups::start(place, &headwater).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let begin = Instant::now();
    tokio::time::sleep(Duration::from_secs(15)).await;
    let (before, before_rate) = oltp.p95_within(&[(begin, Instant::now())])?;
    let asked = ask(&headwater, &topic, &late, messages).await?;
    progress(&format!("backfilling {} beside {before_rate:.0} transactions a second", asked.total));
    let begin = Instant::now();
    // Only while it makes progress: not the time until a killed worker's term ends.
    let mut at_work = Vec::new();
    let killed = [0.2, 0.45];
    for share in killed {
        let worker = Process::start(&place.url, &Job::Backfill { pace: STANDARD.into() }, |_| {})?;
        at_work.push(reaches(&headwater, share).await?);
        worker.kill().await?;
    }
    let worker = Process::start(&place.url, &Job::Backfill { pace: STANDARD.into() }, |_| {})?;
    at_work.push(reaches(&headwater, 0.7).await?);
    let cancelled = store.cancel_backfill(&topic, &late).await?;
    // Cancelled at once: its progress does not change from now on.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let stayed = find(&headwater, LATE).await?;
    worker.ended(Duration::from_secs(30)).await?;
    store.resume_backfill(&topic, &late).await?;
    let worker = Process::start(&place.url, &Job::Backfill { pace: STANDARD.into() }, |_| {})?;
    at_work.push(reaches(&headwater, 1.0).await?);
    let (during, during_rate) = oltp.p95_within(&at_work)?;
    worker.ended(Duration::from_secs(30)).await?;
    let done = find(&headwater, LATE).await?;
    let took = begin.elapsed();
    let (delay, rate) = groups.p95_since(begin)?;
    let (with_late, records) = waiting_for_late(place).await?;
    let paces = paces::run(place, &headwater, &mut oltp, setting.hold()).await?;
    drop((oltp, groups));
    let sound = soundness(&headwater).await?;
    let mut judged = vec![
        Judged::new(
            "foreign transactions, p95 of baseline",
            during / before * 100.0,
            Unit::Percent,
            Floor::AtMost(200.0),
        )
        .note(format!("{before:.2} ms at {before_rate:.0}/s, then {during:.2} ms at {during_rate:.0}/s")),
        Judged::all_of("messages that wait for the late group", with_late, messages)
            .note(format!("{records} records")),
        Judged::all_of("offsets processed", done.processed, done.total),
        Judged::none_of("offsets processed after it was cancelled", stayed.processed - cancelled.processed),
        Judged::new(
            "rate, kills and pauses included",
            messages as f64 / took.as_secs_f64(),
            Unit::MessagesPerSecond,
            Floor::None,
        )
        .note(format!("2 kills, 1 cancel, {:.0} s", took.as_secs_f64())),
        Judged::new(
            "two groups beside it, publish to fetch, p95",
            delay,
            Unit::Milliseconds,
            Floor::AtMost(DELAY_MAX_MS),
        )
        .note(format!("{rate:.0} messages a second, both groups")),
    ];
    judged.extend(paces);
    judged.push(sound);
    Ok(judged)
}

/// Subscribes the late group, with a backfill of all messages.
async fn ask(headwater: &Headwater, topic: &TopicName, late: &GroupName, messages: u64) -> Result<Backfill> {
    let store = headwater.store();
    store.subscribe(topic, late, Start::Beginning).await?;
    if messages > BACKFILL_MESSAGES_DEFAULT {
        // More than the default limit covers.
        store.cancel_backfill(topic, late).await?;
        let limits = BackfillLimits { messages_max: messages, ..BackfillLimits::default() };
        store.backfill(topic, late, &limits).await?;
    }
    find(headwater, LATE).await
}

/// A topic in reference counting with this many messages, all of which wait for one group.
async fn prepare(place: &Place<'_>, messages: u64) -> Result<Headwater> {
    let headwater = place.open().await?;
    let settings = TopicSettings { tracking: Tracking::ReferenceCounting, ..TopicSettings::pub_sub() };
    headwater.topic(TOPIC).settings(settings).create().await?;
    headwater.store().subscribe(&TopicName::new(TOPIC)?, &GroupName::new("early")?, Start::Now).await?;
    progress(&format!("publishing {messages} messages and recording them"));
    fill(&headwater, TOPIC, messages).await?;
    let runs = headwater.maintenance().run_once(&[MaintenanceJob::Heads, MaintenanceJob::Tracking]).await?;
    ensure!(runs.iter().all(|run| run.error.is_none()), "tracking failed: {runs:?}");
    Ok(headwater)
}

/// How many completion records wait for the late group, and how many there are.
async fn waiting_for_late(place: &Place<'_>) -> Result<(u64, u64)> {
    let row = connect(&place.url)
        .await?
        .query_one(
            "SELECT count(*) FILTER (WHERE r.required & (1::bigint << s.bit) <> 0), count(*) FROM headwater.completion_record r \
             JOIN headwater.subscription s ON s.topic_id = r.topic_id AND s.group_name = 'late'",
            &[],
        )
        .await?;
    Ok((u64::try_from(row.get::<_, i64>(0))?, u64::try_from(row.get::<_, i64>(1))?))
}

/// Publishes this many small messages as fast as possible.
pub(super) async fn fill(headwater: &Headwater, topic: &str, messages: u64) -> Result<()> {
    let topic = TopicName::new(topic)?;
    let mut left = usize::try_from(messages)?;
    while left > 0 {
        let count = left.min(10_000);
        headwater.store().publish(&topic, &vec![NewMessage::new("an order of 24 bytes ..."); count]).await?;
        left -= count;
    }
    Ok(())
}

pub(super) async fn find(headwater: &Headwater, group: &str) -> Result<Backfill> {
    let backfills = headwater.store().backfills().await?;
    backfills.into_iter().find(|backfill| backfill.group.as_str() == group).context("there is no backfill")
}

/// The same after a pause: more frequent queries would slow down the foreign transactions that are measured.
pub(super) async fn find_again(headwater: &Headwater, group: &str) -> Result<Backfill> {
    tokio::time::sleep(Duration::from_millis(250)).await;
    find(headwater, group).await
}

/// Waits until this share is done and prints the progress. Returns from when to when there was progress.
async fn reaches(headwater: &Headwater, share: f64) -> Result<Span> {
    let mut printed = Instant::now();
    let first = find(headwater, LATE).await?.processed;
    let mut began = None;
    eventually("the backfill has done this share", Duration::from_secs(600), async || {
        let backfill = find_again(headwater, LATE).await?;
        if began.is_none() && backfill.processed > first {
            began = Some(Instant::now());
        }
        if printed.elapsed() > Duration::from_secs(2) {
            printed = Instant::now();
            let remaining = backfill.remaining().unwrap_or_default().as_secs();
            progress(&format!(
                "{} of {}, {:.0} a second, {remaining} s left",
                backfill.processed, backfill.total, backfill.rate
            ));
        }
        ensure!(backfill.state != BackfillState::Failed, "it failed: {:?}", backfill.error);
        let done = backfill.state == BackfillState::Completed;
        Ok(done || backfill.processed as f64 >= share * backfill.total as f64 && share < 1.0)
    })
    .await?;
    Ok((began.context("nothing was done")?, Instant::now()))
}
