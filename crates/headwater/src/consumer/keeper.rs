//! What a process does for the leases it holds: extends them, acks early what is done of slow ones, gives back what
//! nobody starts, and says that it is alive.

use std::collections::HashMap;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use super::runtime::Runtime;
use crate::lease::LeaseToken;
use crate::limits::DELAY_MAX;

/// How often leases are looked at.
const BEAT: Duration = Duration::from_millis(200);
/// For how long a lease must have been held before what is done of it is acked apart.
const SLOW: Duration = Duration::from_secs(1);

/// Looks after the leases of a runtime until it is gone.
pub(crate) async fn keep(runtime: Weak<Runtime>) {
    let mut beat = BEAT;
    loop {
        tokio::time::sleep(beat).await;
        let Some(runtime) = runtime.upgrade() else { return };
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
    let mut due: HashMap<Duration, Vec<LeaseToken>> = HashMap::new();
    for work in &works {
        if work.take_extension() {
            due.entry(work.lease_for).or_default().push(work.token());
        }
        if let Some(settlement) = work.settle_done(SLOW) {
            runtime.settler.settle(std::sync::Arc::clone(work), settlement, false);
        }
    }
    for group in runtime.groups() {
        group.give_back_stale(SLOW);
    }
    for (lease_for, tokens) in due {
        let answers = match runtime.store.extend(&tokens, lease_for).await {
            Ok(answers) => answers,
            Err(error) => {
                // The next beats try again: two more come before the lease ends.
                tracing::warn!(%error, leases = tokens.len(), "extending leases failed");
                works
                    .iter()
                    .filter(|work| tokens.contains(&work.token()))
                    .for_each(|work| work.extension_failed());
                continue;
            }
        };
        for (token, answer) in tokens.iter().zip(answers) {
            if answer.is_err()
                && let Some(work) = works.iter().find(|work| work.token() == *token)
            {
                work.lost.store(true, Ordering::Relaxed);
                tracing::warn!(
                    topic = %work.group.subscription.topic.name, group = %work.group.subscription.group,
                    offsets = %work.lease.range, %token, "lease lost while handling"
                );
            }
        }
    }
}

/// How often an owner beats. It is also how often others are looked at, so that a dead one is noticed within
/// `silent_for` and one beat: four, because with two that were 22 s by default.
fn beat_every(silent_for: Duration) -> Duration {
    silent_for / 4
}

/// Says that the owner is alive, four times per `silent_for`, until the runtime is gone or serves nobody.
///
/// Others are judged only by whoever was itself in touch with the database all the time: after an outage everybody looks
/// silent, and gets as long to speak up as it may be silent before anyone is taken for dead.
pub(crate) async fn beat(runtime: Weak<Runtime>, silent_for: Duration) {
    // Since when every beat came in time, by a clock that also counts while the machine sleeps.
    let mut in_touch_since: Option<SystemTime> = None;
    let mut beaten_at = SystemTime::now();
    loop {
        let Some(alive) = runtime.upgrade() else { return };
        let since = |at: SystemTime| SystemTime::now().duration_since(at).unwrap_or_default();
        if since(beaten_at) > silent_for / 2 {
            in_touch_since = None;
        }
        let in_touch = in_touch_since.is_some_and(|at| since(at) >= silent_for);
        let judged = if in_touch { silent_for } else { DELAY_MAX };
        let pause = match alive.store.heartbeat(&alive.owner, judged).await {
            Ok(ended) => {
                if ended > 0 {
                    tracing::warn!(leases = ended, "leases of silent owners were handed on");
                }
                beaten_at = SystemTime::now();
                in_touch_since.get_or_insert(beaten_at);
                if let Err(error) = alive.measure_lag().await {
                    tracing::debug!(%error, "the lag is not known now");
                }
                beat_every(silent_for)
            }
            Err(error) => {
                tracing::warn!(%error, "the heartbeat failed, trying again");
                (silent_for / 10).min(Duration::from_secs(1))
            }
        };
        // Handlers of a dropped consumer go on, and so does this.
        let settled = alive.heart_may_end();
        drop(alive);
        if settled {
            return;
        }
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consumer::runtime::SILENT_FOR;

    #[test]
    fn a_dead_process_is_noticed_within_twenty_seconds_and_three_lost_beats_are_no_death() {
        let longest = SILENT_FOR + beat_every(SILENT_FOR);
        assert!(longest < Duration::from_secs(20), "{longest:?}");
        assert!(beat_every(SILENT_FOR) * 3 < SILENT_FOR);
    }
}
