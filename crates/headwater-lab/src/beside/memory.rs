//! Large messages through a small buffer: how much memory a consumer and the command `headwater consume` use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headwater::NewMessage;
use tokio::task::JoinHandle;

use super::child::BesideJob;
use super::{Place, Setting};
use crate::check::{Floor, Job, Judged, Process, Unit, eventually, progress};
use crate::machine::peak_bytes_of;

const TOPIC: &str = "large";
const PAYLOAD_BYTES: usize = 50_000_000;
const PAYLOAD_BYTES_MAX: usize = 64 << 20;
const BUFFER_BYTES_MAX: usize = 64 << 20;
const MEMORY_MAX_MIB: f64 = 200.0;
const CONSUMED_MAX: Duration = Duration::from_secs(300);

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let messages = setting.count(30, 10);
    let headwater = place.open().await?;
    headwater.topic(TOPIC).pub_sub().payload_bytes_max(PAYLOAD_BYTES_MAX).create().await?;
    progress(&format!("publishing {messages} messages of 50 MB"));
    let message = NewMessage::new(vec![b'x'; PAYLOAD_BYTES]);
    for _ in 0..messages {
        headwater.producer(TOPIC).send(message.clone()).await?;
    }
    headwater.close().await?;
    let consumer = consumer(place, messages).await.context("the consumer")?;
    let command = command(place, messages).await.context("headwater consume")?;
    Ok([consumer.judge("a consumer", messages), command.judge("headwater consume", messages)].concat())
}

/// The most memory a process used, and how many messages it consumed.
#[derive(Debug)]
struct Used {
    peak_bytes: u64,
    consumed: u64,
}

impl Used {
    fn judge(&self, who: &str, messages: u64) -> Vec<Judged> {
        let peak_mib = self.peak_bytes as f64 / f64::from(1 << 20);
        // A process without a sample has not shown that it needs little memory.
        let peak_mib = if self.peak_bytes == 0 { f64::NAN } else { peak_mib };
        vec![
            Judged::new(
                &format!("{who}, memory in MiB at most"),
                peak_mib,
                Unit::Count,
                Floor::AtMost(MEMORY_MAX_MIB),
            ),
            Judged::all_of(&format!("{who}, whole messages"), self.consumed, messages),
        ]
    }
}

async fn consumer(place: &Place<'_>, messages: u64) -> Result<Used> {
    progress("a consumer with a buffer of 64 MiB");
    let consumed = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&consumed);
    let (topic, group) = (TOPIC.into(), "library".into());
    let job = Job::Beside(BesideJob::Large { topic, group, buffer_bytes_max: BUFFER_BYTES_MAX });
    let process = Process::start(&place.url, &job, move |line| {
        count.fetch_add(u64::from(line.parse() == Ok(PAYLOAD_BYTES)), Ordering::Relaxed);
    })?;
    let handled =
        eventually(
            "all are handled",
            CONSUMED_MAX,
            async || Ok(consumed.load(Ordering::Relaxed) >= messages),
        );
    handled.await?;
    let peak_bytes = peak_bytes_of(process.pid())?;
    process.stop().await?;
    Ok(Used { peak_bytes, consumed: consumed.load(Ordering::Relaxed) })
}

async fn command(place: &Place<'_>, messages: u64) -> Result<Used> {
    progress("headwater consume");
    let consumed = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&consumed);
    let max = messages.to_string();
    let args = ["consume", TOPIC, "--group", "command", "--create", "--max", &max, "--wait", "60s"];
    let process = Process::command(&place.url, &args, move |line| {
        count.fetch_add(u64::from(line.len() >= PAYLOAD_BYTES), Ordering::Relaxed);
    })?;
    let watching = watch(process.pid());
    let status = process.ended(CONSUMED_MAX).await?;
    ensure!(status.success(), "it failed: {status}");
    Ok(Used { peak_bytes: watching.await?, consumed: consumed.load(Ordering::Relaxed) })
}

/// The most memory that a process was seen using until its end.
fn watch(pid: u32) -> JoinHandle<u64> {
    tokio::spawn(async move {
        let mut peak = 0;
        while let Ok(bytes) = peak_bytes_of(pid) {
            peak = bytes;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        peak
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_memory_too_few_messages_and_an_unseen_process_are_missed() {
        let is_met = |peak_mib: u64, consumed| {
            let used = Used { peak_bytes: peak_mib << 20, consumed };
            used.judge("it", 30).iter().all(Judged::is_met)
        };
        assert!(is_met(200, 30));
        assert!(!is_met(201, 30) && !is_met(100, 29) && !is_met(0, 30));
    }
}
