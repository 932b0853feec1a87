//! A relay in a process of its own, to be killed.

use std::time::Duration;

use anyhow::{Result, ensure};
use headwater::Headwater;
use headwater_relay::kafka::{End, ExactlyOnce};
use headwater_relay::target::sink_for;
use headwater_relay::{Relay, RelaySettings, Source};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::check::{GRACE, READY};

/// Records of one claim: small, so that kills meet work that is half done.
const BATCH: u32 = 200;
/// How often progress is printed.
const EVERY: Duration = Duration::from_millis(20);

/// The job of a process of a check.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "relay", rename_all = "snake_case")]
pub(crate) enum RelayJob {
    /// Relays a topic to a target, and prints how many records were confirmed whenever that has changed.
    Deliver { topic: String, group: String, target: String },
    /// Relays a topic into Kafka exactly once, in transactions of so many messages.
    ExactlyOnce { topic: String, group: String, target: String, id: String, batch: u32 },
}

/// Runs the job until the process is asked to end.
pub(crate) async fn run_job(
    headwater: &Headwater,
    job: RelayJob,
    mut ending: watch::Receiver<bool>,
) -> Result<()> {
    match job {
        RelayJob::Deliver { topic, group, target } => {
            // A killed relay costs what it had an attempt.
            let settings = RelaySettings {
                group: Some(group),
                batch: BATCH,
                max_attempts: Some(1_000),
                ..RelaySettings::default()
            };
            let sink = sink_for(&target)?.into();
            let running = Relay::new(headwater, Source::Topic(topic), sink).settings(settings).run().await?;
            println!("{READY}");
            let mut printed = 0;
            while !*ending.borrow() {
                let delivered = running.health().delivered;
                if delivered > printed {
                    println!("{delivered}");
                    printed = delivered;
                }
                // Its end is the time that has passed.
                let _ = tokio::time::timeout(EVERY, ending.wait_for(|ending| *ending)).await;
            }
            Ok(running.shutdown(GRACE).await?)
        }
        RelayJob::ExactlyOnce { topic, group, target, id, batch } => {
            println!("{READY}");
            let relay = ExactlyOnce::new(headwater, &topic, &group, &target)?.id(&id).batch(batch);
            let stop = async move {
                let _ = ending.wait_for(|ending| *ending).await;
            };
            let end = relay.run(stop).await?;
            ensure!(end == End::Stopped, "the relay was fenced by another one");
            Ok(())
        }
    }
}
