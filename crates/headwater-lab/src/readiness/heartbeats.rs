//! Hundreds of processes of one group send heartbeats: none of them waits for the group's row, and the group is not declared
//! dead, not even when the server stops and starts again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use headwater::store::{Owner, Served, Signal};
use headwater::{GroupName, Headwater, OpenOptions, Start, SubscriptionState, TopicName, TopicSettings};
use tokio::task::JoinSet;

use super::Setting;
use crate::check::{Floor, Judged, Place, Unit, percentile_ms, progress, soundness};
use crate::server::connect;

const TOPIC: &str = "heartbeats";
const INSTANCES: usize = 500;
/// Instances share stores: real processes would have one each, and the server would need as many connections.
const STORES: usize = 25;
const INTERVAL: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(8);
const SILENT_FOR: Duration = Duration::from_secs(15);

#[derive(Debug, Default)]
struct Seen {
    taken: Mutex<Vec<Duration>>,
    failed: AtomicU64,
    not_active: AtomicU64,
}

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let headwater = place.open().await?;
    let settings = TopicSettings {
        heartbeat_interval: INTERVAL,
        heartbeat_timeout: TIMEOUT,
        ..TopicSettings::pub_sub()
    };
    headwater.topic(TOPIC).settings(settings).create().await?;
    let (topic, group) = (TopicName::new(TOPIC)?, GroupName::new("workers")?);
    let subscription = headwater.store().subscribe(&topic, &group, Start::Now).await?;
    let seen: Arc<Seen> = Arc::default();
    let mut tasks = JoinSet::new();
    for store in 0..STORES {
        let shared = Headwater::open_with(&place.url, OpenOptions::default().connections_max(2)).await?;
        for instance in 0..INSTANCES / STORES {
            let (shared, seen) = (shared.clone(), Arc::clone(&seen));
            let owner = Owner::new(format!("instance-{store}-{instance}"))?;
            let served = Served::new(subscription.subscription_id);
            let offset = INTERVAL / 3 * u32::try_from(store * INSTANCES / STORES + instance)?
                / u32::try_from(INSTANCES)?;
            tasks.spawn(async move { send_heartbeats(&shared, &owner, served, offset, &seen).await });
        }
    }
    progress(&format!("{INSTANCES} instances of one group send heartbeats every {:?}", INTERVAL / 3));
    let time = setting.hold() / 2;
    // Beside the detection of dead groups, which must not hold up a heartbeat either.
    let (waits, _) = tokio::try_join!(watch(place, time), detect_dead(&headwater, time))?;
    let taken = std::mem::take(&mut *seen.taken.lock().expect("no panic while held"));
    anyhow::ensure!(!taken.is_empty(), "no heartbeat was sent");
    let (p50, p99) = (percentile_ms(&taken, 0.5), percentile_ms(&taken, 0.99));
    let (failed, dead) = (seen.failed.load(Ordering::Relaxed), seen.not_active.load(Ordering::Relaxed));
    let outage = setting.hold() * 2;
    progress(&format!("the server stops for {outage:?}"));
    let server = place.server().context("there is a server")?;
    server.away_for(outage).await?;
    let deaths = detect_dead(&headwater, TIMEOUT * 3).await?;
    let afterwards: Vec<Duration> = std::mem::take(&mut *seen.taken.lock().expect("no panic while held"));
    tasks.abort_all();
    let states = headwater.store().subscriptions(&topic).await?;
    let alive = states.iter().filter(|status| status.state == SubscriptionState::Active).count();
    let sound = soundness(&headwater).await?;
    Ok(vec![
        Judged::none_of("sessions seen waiting for a lock", waits.len() as u64).note(waits.join("; ")),
        Judged::new("a heartbeat, p99", p99, Unit::Milliseconds, Floor::AtMost(100.0))
            .note(format!("p50 {p50:.2} ms, {} heartbeats", taken.len())),
        Judged::none_of("heartbeats that failed", failed),
        Judged::none_of("heartbeats answered as not active", dead),
        Judged::none_of("deaths after the outage", deaths)
            .note(format!("outage of {outage:?}, timeout {TIMEOUT:?}")),
        Judged::all_of("groups active in the end", alive as u64, 1)
            .note(format!("{} heartbeats since", afterwards.len())),
        sound,
    ])
}

async fn send_heartbeats(
    headwater: &Headwater,
    owner: &Owner,
    served: Served,
    offset: Duration,
    seen: &Seen,
) {
    tokio::time::sleep(offset).await;
    let mut every = tokio::time::interval(INTERVAL / 3);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let start = Instant::now();
        match headwater.store().heartbeat(owner, Some(SILENT_FOR), &[served]).await {
            Ok(answer) => {
                seen.taken.lock().expect("no panic while held").push(start.elapsed());
                if answer.signals != [Signal::Active] {
                    seen.not_active.fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(_) => {
                seen.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Lists which locks sessions wait for, for this long. The lock for adding a page to a table is not listed: the server holds it
/// for that moment only, and no transaction keeps it.
async fn watch(place: &Place<'_>, time: Duration) -> Result<Vec<String>> {
    let client = connect(&place.url).await?;
    let (begin, mut waits) = (Instant::now(), Vec::new());
    while begin.elapsed() < time {
        let rows = client
            .query(
                "SELECT wait_event || ' in ' || regexp_replace(left(query, 200), '\\s+', ' ', 'g') FROM pg_stat_activity \
                 WHERE datname = current_database() AND backend_type = 'client backend' \
                   AND wait_event_type = 'Lock' AND wait_event <> 'extend'",
                &[],
            )
            .await?;
        waits.extend(rows.iter().map(|row| row.get::<_, String>(0)));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(waits)
}

/// Runs dead detection every second for this long; returns how many groups died.
async fn detect_dead(headwater: &Headwater, time: Duration) -> Result<u64> {
    let (begin, mut died) = (Instant::now(), 0);
    while begin.elapsed() < time {
        // The pool notices on its first use that its connections are closed.
        if let Ok(detected) = headwater.store().detect_dead().await {
            died += detected.died.len() as u64;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(died)
}
