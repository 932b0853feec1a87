//! Maintains the leases that a process holds: extends them, acks early what is done of slow ones, releases what no
//! worker starts. It runs on the thread for leases, so that a program that blocks its own threads loses none.

use std::collections::HashMap;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::heartbeat::{HEARTBEAT_MAX, in_time};
use super::runtime::Runtime;
use crate::lease::LeaseId;

/// How often leases are checked.
const CHECK_EVERY: Duration = Duration::from_millis(200);
/// How long a lease must have been held before what is done of it is acked separately.
const SLOW: Duration = Duration::from_secs(1);

/// Maintains the leases of a runtime until it is dropped.
pub(crate) async fn keep(runtime: Weak<Runtime>) {
    let mut pause = CHECK_EVERY;
    loop {
        tokio::time::sleep(pause).await;
        let Some(runtime) = runtime.upgrade().filter(|runtime| !runtime.settler.is_gone()) else { return };
        check(&runtime).await;
        // A short lease is checked more often: twice before a third of it has passed.
        let leases = runtime.groups().into_iter().map(|group| group.lease_for());
        let shortest = leases.filter(|lease| !lease.is_zero()).min().unwrap_or(CHECK_EVERY * 6);
        pause = CHECK_EVERY.min(shortest / 6).max(Duration::from_millis(5));
        if runtime.settler.is_idle() {
            let settler = runtime.settler.clone();
            drop(runtime);
            settler.busy().await;
        }
    }
}

async fn check(runtime: &Runtime) {
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
        // Its time counts from before the call, so that it never lasts longer here than in the store.
        let asked_at = Instant::now();
        let answers = match in_time(HEARTBEAT_MAX, runtime.store.extend(&leases, lease_for)).await {
            Ok(answers) => answers,
            Err(error) => {
                // Still due: the next rounds retry while the lease lasts.
                tracing::warn!(%error, leases = leases.len(), "lease extension failed");
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
