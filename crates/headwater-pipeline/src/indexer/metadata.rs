//! The metadata component: waits for the metadata of the run in the index.

use std::time::Duration;

use tokio::time::Instant;

use crate::contracts::SimulationMetadata;
use crate::error::{Error, ErrorCode, Result};
use crate::health::Health;
use crate::resource::MetadataRead;
use crate::service::Stop;

/// How long to wait for metadata.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Between two reads.
    pub(super) poll_interval: Duration,
    /// In all, from the discovery of the run.
    pub(super) poll_duration_max: Duration,
}

/// The metadata of the run, once the metadata indexer has written it; `None` if a stop is requested first.
pub(super) async fn wait_for_metadata(
    index: &dyn MetadataRead,
    run_id: &str,
    discovered: Instant,
    patience: Patience,
    health: &Health,
    stop: &mut Stop,
) -> Result<Option<SimulationMetadata>> {
    let give_up_at = discovered + patience.poll_duration_max;
    let mut last_error = None;
    loop {
        match index.metadata(run_id).await {
            Ok(Some(metadata)) => return Ok(Some(metadata)),
            Ok(None) => last_error = None,
            Err(error) if error.is_transient() => {
                health.record_error(&error, format_args!("metadata of run {run_id}"));
                // Once per outage: the wait ends with an error that names it.
                if last_error.is_none() {
                    tracing::warn!(run = run_id, %error, "metadata not read");
                }
                last_error = Some(error);
            }
            Err(error) => {
                health.record_error(&error, format_args!("metadata of run {run_id}"));
                return Err(error);
            }
        }
        let now = Instant::now();
        if now >= give_up_at {
            let waited_ms = patience.poll_duration_max.as_millis();
            let why =
                last_error.map_or_else(|| "it is not in the index".to_owned(), |error| error.to_string());
            let message = format!("metadata of run {run_id} did not come within {waited_ms} ms: {why}");
            let error = Error::permanent(ErrorCode::ReadFailed, message);
            health.record_error(&error, format_args!("metadata of run {run_id}"));
            return Err(error);
        }
        tokio::select! {
            biased;
            () = stop.requested() => return Ok(None),
            () = tokio::time::sleep_until(give_up_at.min(now + patience.poll_interval)) => {}
        }
    }
}
