//! Three groups in three processes; one is killed, declared dead, and resurrected with a bounded backlog: in offset
//! watermark under load, and in reference counting with a backfill of the last messages.

mod counting;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater::store::SubscriptionStatus;
use headwater::{GroupName, Headwater, SubscriptionState, TopicName, TopicSettings};

use super::Setting;
use super::sample::{Sample, Sampler};
use crate::check::{Floor, Job, Judged, Pace, Place, Process, Unit, eventually, ms, progress, soundness};

const TOPIC: &str = "kill";
const PER_SECOND: u64 = 1_000;
const INTERVAL: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(4);
const RETENTION: Duration = Duration::from_secs(3);
/// How many messages the killed group may be behind when it is resurrected.
const BEHIND_MAX: u64 = 500;

/// When the processes of a group last handled a message, and their longest pause.
#[derive(Debug)]
struct Activity {
    last: Instant,
    longest: Duration,
    handled: u64,
}

type Heard = Arc<Mutex<Activity>>;

fn serve(place: &Place<'_>, group: &str) -> Result<(Process, Heard)> {
    let heard = Arc::new(Mutex::new(Activity { last: Instant::now(), longest: Duration::ZERO, handled: 0 }));
    let shared = Arc::clone(&heard);
    let job = Job::Numbered { topic: TOPIC.into(), group: group.into() };
    let process = Process::start(&place.url, &job, move |_| {
        let mut activity = shared.lock().expect("no panic while held");
        activity.longest = activity.longest.max(activity.last.elapsed());
        activity.last = Instant::now();
        activity.handled += 1;
    })?;
    Ok((process, heard))
}

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let mut judged = under_load(place, setting).await?;
    judged.extend(counting::run(place, setting).await?);
    Ok(judged)
}

async fn under_load(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let headwater = prepare(place).await?;
    let topic = TopicName::new(TOPIC)?;
    let (mut first, first_heard) = serve(place, "first")?;
    let (mut second, second_heard) = serve(place, "second")?;
    let (mut killed, _) = serve(place, "killed")?;
    first.ready().await?;
    second.ready().await?;
    killed.ready().await?;
    let maintenance = Process::start(&place.url, &Job::Maintenance { every_ms: 500 }, |_| {})?;
    let dead_for = setting.hold() / 2;
    let seconds = (dead_for + Duration::from_secs(60)).as_secs();
    let pace = Pace {
        topic: TOPIC.into(),
        per_second: PER_SECOND,
        batch: 10,
        tasks: 2,
        messages: PER_SECOND * seconds,
    };
    let publisher = Process::start(&place.url, &Job::Publish(pace), |_| {})?;
    progress("three groups at work");
    tokio::time::sleep(RETENTION * 5).await;
    let sampler = Sampler::new(place, &headwater, TOPIC).await?;
    let reset = |heard: &Heard| {
        let mut activity = heard.lock().expect("no panic while held");
        (activity.last, activity.longest) = (Instant::now(), Duration::ZERO);
    };
    [&first_heard, &second_heard].into_iter().for_each(reset);
    killed.kill().await?;
    let begin = Instant::now();
    eventually("the killed group is dead", TIMEOUT * 4, async || {
        Ok(status(&headwater, &topic, "killed").await?.state == SubscriptionState::Dead)
    })
    .await?;
    let died_after = begin.elapsed();
    progress(&format!("dead after {died_after:.1?}"));
    // From here on it holds nothing back: first the messages that were kept for it are removed.
    tokio::time::sleep(RETENTION * 2).await;
    let before = sampler.sample().await?;
    tokio::time::sleep(dead_for).await;
    let after = sampler.sample().await?;
    let stalled = longest(&first_heard).max(longest(&second_heard));
    let group = GroupName::new("killed")?;
    let back = headwater.store().resurrect(&topic, &group, Some(BEHIND_MAX)).await?;
    let backlog = status(&headwater, &topic, "killed").await?.lag;
    let (mut returned, heard) = serve(place, "killed")?;
    returned.ready().await?;
    eventually("the resurrected group keeps up", Duration::from_secs(30), async || {
        let status = status(&headwater, &topic, "killed").await?;
        Ok(status.lag < PER_SECOND && heard.lock().expect("no panic while held").handled > PER_SECOND)
    })
    .await?;
    drop(publisher);
    for process in [first, second, returned, maintenance] {
        process.stop().await?;
    }
    ensure!(back.resurrected, "the group was not dead any more");
    let sound = soundness(&headwater).await?;
    let mut judged = judge(died_after, stalled, (&before, &after));
    judged.push(
        Judged::new(
            "backlog after resurrection",
            backlog as f64,
            Unit::Count,
            Floor::AtMost((BEHIND_MAX + PER_SECOND) as f64),
        )
        .note(format!("bounded to {BEHIND_MAX}; {} missed to retention", back.missed.count)),
    );
    judged.push(sound);
    Ok(judged)
}

async fn prepare(place: &Place<'_>) -> Result<Headwater> {
    let headwater = place.open().await?;
    let settings = TopicSettings {
        heartbeat_interval: INTERVAL,
        heartbeat_timeout: TIMEOUT,
        message_retention: Some(RETENTION),
        ..TopicSettings::pub_sub()
    };
    headwater.topic(TOPIC).settings(settings).create().await?;
    Ok(headwater)
}

fn longest(heard: &Heard) -> Duration {
    heard.lock().expect("no panic while held").longest
}

fn judge(died_after: Duration, stalled: Duration, (before, after): (&Sample, &Sample)) -> Vec<Judged> {
    let growth = (after.database_bytes / before.database_bytes - 1.0) * 100.0;
    let in_time = Floor::AtMost(ms(TIMEOUT + INTERVAL * 2));
    vec![
        Judged::new("killed to dead", ms(died_after), Unit::Milliseconds, in_time)
            .note(format!("timeout {TIMEOUT:?}, dead detection every half second")),
        Judged::new("longest stall of the others", ms(stalled), Unit::Milliseconds, Floor::AtMost(1_000.0)),
        Judged::new("growth of the database while it was dead", growth, Unit::Percent, Floor::AtMost(10.0))
            .note(format!("{} messages stored, then {}", before.stored, after.stored)),
    ]
}

async fn status(headwater: &Headwater, topic: &TopicName, group: &str) -> Result<SubscriptionStatus> {
    let all = headwater.store().subscriptions(topic).await?;
    all.into_iter().find(|status| status.group.as_str() == group).context("the group is gone")
}
