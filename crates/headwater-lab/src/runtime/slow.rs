//! Slow messages among fast ones: a slow message does not delay others.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;

use super::Setting;
use crate::check::{
    Floor, GRACE, Job, Judged, Pace, Place, Process, Unit, eventually, ms, percentile_ms, progress, publish,
    unsettled,
};
use crate::soak::history::now_us;

const TOPIC: &str = "slow";
const GROUP: &str = "workers";
const PER_SECOND: u64 = 1_000;
/// Slow messages are grouped at the start of each block: 20 in two seconds, so that at most a third of the 64
/// handlers sleep at once.
const BLOCK_SECONDS: u64 = 15;
const SPELL_SECONDS: u64 = 2;
const SLEEP: Duration = Duration::from_secs(10);

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let blocks = if setting.quick { 1 } else { 3 };
    let messages = blocks * BLOCK_SECONDS * PER_SECOND;
    let headwater = place.open().await?;
    headwater.topic(TOPIC).create().await?;
    let taken: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let slow_done = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (add, add_slow) = (Arc::clone(&taken), Arc::clone(&slow_done));
    let handler = move |payload: Bytes, _| {
        let (add, add_slow) = (Arc::clone(&add), Arc::clone(&add_slow));
        async move {
            let (n, at_us) = publish::parse(&payload).map_err(|error| error.to_string())?;
            if is_slow(n) {
                tokio::time::sleep(SLEEP).await;
                add_slow.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            } else {
                let took = Duration::from_micros(now_us().saturating_sub(at_us));
                add.lock().expect("no panic while held").push(took);
            }
            Ok(())
        }
    };
    let running = headwater.consumer(TOPIC, GROUP).member("worker", handler).concurrency(64).run().await?;
    let slow = (0..messages).filter(|n| is_slow(*n)).count() as u64;
    progress(&format!("{messages} messages, {slow} of them take {SLEEP:?}"));
    let pace = Pace { topic: TOPIC.into(), per_second: PER_SECOND, batch: 20, tasks: 2, messages };
    let publisher = Process::start(&place.url, &Job::Publish(pace), |_| {})?;
    let status = publisher.ended(Duration::from_secs(messages / PER_SECOND * 4 + 30)).await?;
    ensure!(status.success(), "the publisher failed: {status}");
    let fast = || taken.lock().expect("no panic while held").len() as u64;
    let slow_ended = || slow_done.load(std::sync::atomic::Ordering::Relaxed);
    let all = eventually("every message is handled", SLEEP + Duration::from_secs(20), async || {
        Ok(fast() + slow_ended() >= messages)
    });
    // Missing messages show in the counts.
    let _ = all.await;
    let settled = eventually("everything is settled", Duration::from_secs(5), async || {
        Ok(unsettled(&headwater, TOPIC, GROUP).await?.is_none())
    });
    let settled = settled.await.is_ok();
    let left = unsettled(&headwater, TOPIC, GROUP).await?.unwrap_or_default();
    running.shutdown(GRACE).await?;
    headwater.close().await?;
    let taken = std::mem::take(&mut *taken.lock().expect("no panic while held"));
    let fast = taken.len() as u64;
    let last = *taken.iter().max().context("nothing was handled")?;
    let (p50, p99) = (percentile_ms(&taken, 0.5), percentile_ms(&taken, 0.99));
    Ok(vec![
        Judged::new("fast ones, publish to handled, p99", p99, Unit::Milliseconds, Floor::AtMost(100.0))
            .note(format!("p50 {p50:.1} ms, worst {:.1} ms", ms(last))),
        Judged::all_of("fast ones handled", fast, messages - slow),
        Judged::all_of("slow ones handled", slow_ended(), slow),
        Judged::none_of("groups with something outstanding in the end", u64::from(!settled)).note(left),
    ])
}

fn is_slow(n: u64) -> bool {
    n / PER_SECOND % BLOCK_SECONDS < SPELL_SECONDS && n % 100 == 50
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_twenty_slow_ones_and_they_end_before_the_next() {
        let block = BLOCK_SECONDS * PER_SECOND;
        for first in [0, block] {
            let slow: Vec<u64> = (first..first + block).filter(|n| is_slow(*n)).collect();
            assert_eq!(slow.len(), 20);
            assert!(slow.windows(2).all(|pair| pair[1] - pair[0] == 100), "one in a hundred");
            assert!(
                Duration::from_secs((slow[19] - first) / PER_SECOND) + SLEEP
                    < Duration::from_secs(BLOCK_SECONDS)
            );
        }
    }
}
