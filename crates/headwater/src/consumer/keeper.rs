//! What a process does for the leases it holds: extends them, acks early what is done of slow ones, gives back what
//! nobody starts. It runs on the thread for leases, so that a program that blocks its own threads loses none.

use std::collections::HashMap;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::heart::{HEARTBEAT_MAX, in_time};
use super::runtime::Runtime;
use crate::lease::LeaseId;

/// How often leases are looked at.
const BEAT: Duration = Duration::from_millis(200);
/// For how long a lease must have been held before what is done of it is acked apart.
const SLOW: Duration = Duration::from_secs(1);

/// Looks after the leases of a runtime until it is gone.
pub(crate) async fn keep(runtime: Weak<Runtime>) {
    let mut beat = BEAT;
    loop {
        tokio::time::sleep(beat).await;
        let Some(runtime) = runtime.upgrade().filter(|runtime| !runtime.settler.is_gone()) else { return };
        look_after(&runtime).await;
        // A short lease is looked at more often: twice before a third of it has passed.
        let leases = runtime.groups().into_iter().map(|group| group.lease_for());
        let shortest = leases.filter(|lease| !lease.is_zero()).min().unwrap_or(BEAT * 6);
        beat = BEAT.min(shortest / 6).max(Duration::from_millis(5));
        if runtime.settler.is_idle() {
            let settler = runtime.settler.clone();
            drop(runtime);
            settler.busy().await;
        }
    }
}

async fn look_after(runtime: &Runtime) {
    let works = runtime.settler.in_hand();
    let mut due: HashMap<Duration, Vec<LeaseId>> = HashMap::new();
    for work in &works {
        if work.needs_extension() {
            due.entry(work.lease_for).or_default().push(work.lease.id());
        }
        if let Some(settlement) = work.settle_done(SLOW) {
            runtime.settler.settle_part(work, settlement);
        }
    }
    for group in runtime.groups() {
        group.give_back_stale(SLOW);
    }
    for (lease_for, leases) in due {
        // Its time counts from before the call, so never longer than in the store.
        let asked_at = Instant::now();
        let answers = match in_time(HEARTBEAT_MAX, runtime.store.extend(&leases, lease_for)).await {
            Ok(answers) => answers,
            Err(error) => {
                // Still due: the next rounds try again while the lease lasts.
                tracing::warn!(%error, leases = leases.len(), "extending leases failed");
                continue;
            }
        };
        for (token, answer) in leases.iter().map(|lease| lease.token).zip(answers) {
            let Some(work) = works.iter().find(|work| work.token() == token) else { continue };
            if answer.is_ok() {
                work.extended(asked_at);
            } else {
                work.lost.store(true, Ordering::Relaxed);
                tracing::warn!(
                    topic = %work.of.subscription.topic.name, group = %work.of.subscription.group,
                    offsets = %work.lease.range, %token, "lease lost while handling"
                );
            }
        }
    }
}
