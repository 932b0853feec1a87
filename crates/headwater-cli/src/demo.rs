//! `headwater demo`: a minute of Headwater at work. It needs no setup and leaves nothing behind.
//!
//! Everything is real: processes, a SIGKILL, the store in a temporary directory. Every number shown is read from that store,
//! and every claim is checked there.

mod cast;
mod ledger;
mod publish;
mod stage;
mod story;
pub(crate) mod worker;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use headwater::{Headwater, TopicSettings};

use crate::args::{DemoArgs, Global};
use crate::stop::Stop;
use cast::Cast;
use stage::Stage;
use story::Story;

/// The topic of the demo.
pub(crate) const TOPIC: &str = "orders";
/// How often the shown figures are refreshed.
const SHOW_EVERY: Duration = Duration::from_millis(250);

/// The rates and durations of the demo.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tempo {
    /// Messages published per second.
    pub(crate) per_second: u32,
    /// Messages published at once before the crash.
    pub(crate) burst: u32,
    /// How long an uneventful phase lasts.
    pub(crate) calm: Duration,
    /// How long a dead group stays dead.
    pub(crate) dead_for: Duration,
}

impl Tempo {
    fn of(args: &DemoArgs) -> Self {
        let seconds = Duration::from_secs_f64;
        if args.fast {
            Tempo { per_second: 400, burst: 1_000, calm: seconds(0.7), dead_for: seconds(0.5) }
        } else {
            Tempo { per_second: 1_000, burst: 5_000, calm: seconds(20.0), dead_for: seconds(12.0) }
        }
    }
}

/// Short heartbeats, so that a death is detected within the demo; few attempts, so that a poison message is buried soon.
fn settings() -> TopicSettings {
    TopicSettings {
        heartbeat_interval: Duration::from_millis(500),
        heartbeat_timeout: Duration::from_secs(2),
        lease: Duration::from_secs(2),
        max_attempts: 3,
        backoff_initial: Duration::from_millis(100),
        backoff_max: Duration::from_millis(400),
        ..TopicSettings::pub_sub()
    }
}

pub(crate) async fn run(global: &Global, args: &DemoArgs) -> Result<ExitCode> {
    let mut stop = Stop::on_signals("ending the demo and cleaning up; again to stop at once")?;
    // Removed when dropped, so also when something fails or panics.
    let folder = tempfile::Builder::new().prefix("headwater-demo-").tempdir()?;
    let stage = Arc::new(Stage::new(global.output));
    let mut cast = Cast::new(folder.path())?;
    let headwater = Headwater::open(&cast.url()).await?;
    let done = tokio::select! {
        done = perform(global, args, &headwater, &stage, &mut cast) => done,
        () = stop.asked() => Err(anyhow::anyhow!("interrupted")),
    };
    stage.clear();
    if done.is_err() {
        cast.tell_troubles();
    }
    cast.end_all().await;
    headwater.close().await?;
    folder.close().context("removing the demo's temporary directory")?;
    stage.say("the processes have ended and the temporary directory is removed");
    let held = done?;
    Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the demo with everything beside it; returns whether every claim held.
async fn perform(
    global: &Global,
    args: &DemoArgs,
    headwater: &Headwater,
    stage: &Arc<Stage>,
    cast: &mut Cast,
) -> Result<bool> {
    headwater.topic(TOPIC).settings(settings()).create().await?;
    ledger::create(cast.file())?;
    // Started before any other process, so that this one is elected and not one that is killed.
    let maintaining = headwater.maintenance().start();
    let showing = Showing::start(headwater, stage);
    let mut story = Story::new(headwater, stage, cast, Tempo::of(args));
    let played = story.play().await;
    let held = match played {
        Ok(()) => story.curtain(global.output).await,
        Err(error) => Err(error),
    };
    drop(showing);
    maintaining.stop().await;
    held
}

/// Shows the groups while the demo runs; ends when dropped.
struct Showing(tokio::task::JoinHandle<()>);

impl Showing {
    fn start(headwater: &Headwater, stage: &Arc<Stage>) -> Self {
        let (headwater, stage) = (headwater.clone(), Arc::clone(stage));
        Showing(tokio::spawn(async move {
            let mut interval = tokio::time::interval(SHOW_EVERY);
            loop {
                interval.tick().await;
                if let Ok(groups) = story::groups(&headwater).await {
                    stage.show(&groups);
                }
            }
        }))
    }
}

impl Drop for Showing {
    fn drop(&mut self) {
        self.0.abort();
    }
}
