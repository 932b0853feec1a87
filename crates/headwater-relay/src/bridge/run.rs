//! The life of a running bridge: connect, read, commit, answer; after any trouble wait and connect again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::commit::{NotCommitted, commit};
use super::health::{BridgeState, Health};
use super::source::Source;
use super::{Bridge, BridgeError};
use crate::sink::SinkError;

const BACK_OFF_MIN: Duration = Duration::from_millis(200);
/// A broker that was restarted is read again within seconds.
const BACK_OFF_MAX: Duration = Duration::from_secs(5);
/// Between attempts that fail until an operator acts.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// Runs until it is stopped. What ends a turn is logged when it changes, and counted each time.
pub(super) async fn run(bridge: Bridge, mut stopped: watch::Receiver<bool>, health: Arc<Health>) {
    let (name, from, topic) = (bridge.name.as_str(), bridge.from.place(), bridge.topic.as_str());
    tracing::info!(bridge = name, from, topic, "bridge started");
    let (mut back_off, mut reported) = (BACK_OFF_MIN, String::new());
    while !*stopped.borrow() {
        let committed = health.read().last_batch_at;
        health.set(BridgeState::Connecting);
        let trouble = match turn(&bridge, &mut stopped, &health).await {
            Ok(()) => break,
            Err(trouble) => trouble,
        };
        let (text, is_for_an_operator) = (trouble.to_string(), trouble.is_for_an_operator());
        if health.read().last_batch_at != committed {
            (back_off, reported) = (BACK_OFF_MIN, String::new());
        }
        if text != reported {
            if is_for_an_operator {
                tracing::error!(bridge = name, from, topic, error = text, "bridge refused");
            } else {
                tracing::warn!(bridge = name, from, topic, error = text, "bridge interrupted");
            }
            reported.clone_from(&text);
        }
        health.failed(text);
        let longest = if is_for_an_operator { REFUSED_PAUSE } else { back_off };
        let wait = longest.mul_f64(rand::random_range(0.5..1.0));
        back_off = (back_off * 2).min(BACK_OFF_MAX);
        if tokio::time::timeout(wait, stop_of(&mut stopped)).await.is_ok() {
            break;
        }
    }
    health.set(BridgeState::Stopped);
    tracing::info!(bridge = name, from, topic, "bridge stopped");
}

/// What ended a turn.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Bridge(#[from] BridgeError),
    #[error(
        "positions moved by another process; stop all but one with this bridge, or give them names of their own"
    )]
    Moved,
}

impl Trouble {
    fn is_for_an_operator(&self) -> bool {
        match self {
            Trouble::Bridge(BridgeError::Broker(SinkError::Misconfigured(_))) => true,
            Trouble::Bridge(BridgeError::Store(error)) => {
                use headwater::ErrorKind::{Busy, CommitUnknown, ReadOnly, Timeout, Unavailable};
                !matches!(error.kind(), Busy | CommitUnknown | ReadOnly | Timeout | Unavailable)
            }
            Trouble::Bridge(BridgeError::Broker(SinkError::Unavailable(_))) | Trouble::Moved => false,
        }
    }
}

/// One connection: from connecting to its end. `Ok` if the bridge was stopped, which waits only for a commit in hand.
async fn turn(bridge: &Bridge, stopped: &mut watch::Receiver<bool>, health: &Health) -> Result<(), Trouble> {
    let mut source = tokio::select! {
        biased;
        () = stop_of(stopped) => return Ok(()),
        opened = bridge.from.open(bridge) => opened?,
    };
    health.set(BridgeState::Running);
    tracing::debug!(bridge = bridge.name, from = bridge.from.place(), "bridge connected");
    let ended = read(bridge, &mut *source, stopped, health).await;
    // Also after an error: a connection that stays behind would keep what was delivered to it from the next one.
    source.close().await;
    ended
}

/// Publishes what a connection delivers, until the bridge is stopped.
async fn read(
    bridge: &Bridge,
    source: &mut dyn Source,
    stopped: &mut watch::Receiver<bool>,
    health: &Health,
) -> Result<(), Trouble> {
    loop {
        let batch = tokio::select! {
            biased;
            () = stop_of(stopped) => return Ok(()),
            batch = source.next(bridge.batch_messages) => batch?,
        };
        if batch.is_empty() {
            continue;
        }
        let counts = commit(bridge, &batch).await.map_err(|error| match error {
            NotCommitted::Moved => Trouble::Moved,
            NotCommitted::Store(error) => BridgeError::Store(error).into(),
        })?;
        health.committed(counts);
        tracing::debug!(
            bridge = bridge.name,
            published = counts.published,
            duplicates = counts.duplicates,
            "batch committed"
        );
        source.done(&batch).await.map_err(BridgeError::Broker)?;
    }
}

/// Waits until the bridge is to be stopped.
async fn stop_of(stopped: &mut watch::Receiver<bool>) {
    // An error means that its handle is gone.
    let _ = stopped.wait_for(|stop| *stop).await;
}
