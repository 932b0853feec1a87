//! A consumer that runs only when stepped, for tests: no background task claims, and the caller controls the time.

use super::pull::revive;
use super::running::Running;
use crate::error::Result;

/// Claims and handles when stepped.
#[must_use = "nothing is handled before it is stepped"]
#[derive(Debug)]
pub struct Stepper {
    running: Running,
}

impl Stepper {
    pub(super) fn new(running: Running) -> Self {
        Stepper { running }
    }

    /// Claims once, handles the claimed messages and settles them. Returns how many leases it handled: 0 means that
    /// nothing is due now.
    pub async fn step(&mut self) -> Result<usize> {
        let group = std::sync::Arc::clone(&self.running.group);
        let (mut got, _) = self.running.feed.claim(std::slice::from_ref(&group)).await?;
        if group.serve_state.is_dead() {
            // No other heartbeats are sent for it.
            let runtime = &self.running.runtime;
            revive(runtime, &group).await?;
            (got, _) = self.running.feed.claim(std::slice::from_ref(&group)).await?;
        }
        let leases = got.values().sum();
        loop {
            let settled = group.leases.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            if group.leases.held() == 0 && !group.serve_state.own_pause.is_pending() {
                return Ok(leases);
            }
            settled.await;
        }
    }

    /// Steps until nothing is due. Returns how many steps handled something. On PostgreSQL a message that was just published may be
    /// left to the next call, while another session advances the head of its topic.
    pub async fn drain(&mut self) -> Result<usize> {
        let mut steps = 0;
        while self.step().await? > 0 {
            steps += 1;
        }
        Ok(steps)
    }

    /// The underlying consumer, for its health and members.
    pub fn running(&self) -> &Running {
        &self.running
    }
}
