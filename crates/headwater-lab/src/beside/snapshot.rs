//! A foreign REPEATABLE READ transaction holds its snapshot while a group claims: no dead row can be vacuumed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use headwater::store::{ClaimRequest, Owner, Settlement, Store, SubscriptionId, Want};
use headwater::{GroupName, NewMessage, Start, TopicName, TopicSettings};

use super::open_transaction::{OpenTransaction, namespace};
use super::probe::compare;
use super::{Place, Setting};
use crate::check::{Floor, Job, Judged, Process, progress, soundness};

/// Messages published together, and claimed in smaller batches.
const PUBLISHED: usize = 100;
const CLAIMED: u32 = 10;
/// A group with leases of 10 s, as the busiest groups have.
const LEASE: Duration = Duration::from_secs(10);

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let held = setting.hold(600, 30);
    let headwater = place.open().await?;
    let topic = TopicName::new("claimed")?;
    let settings = TopicSettings { lease: LEASE, ..TopicSettings::pub_sub() };
    headwater.store().create_topic(&topic, &settings).await?;
    let subscription =
        headwater.store().subscribe(&topic, &GroupName::new("workers")?, Start::Beginning).await?;
    let group = Group { store: Arc::clone(headwater.store()), topic, id: subscription.subscription_id };
    let mut maintenance = Process::start(&place.url, &Job::Maintenance { every_ms: 1_000 }, |_| {})?;
    maintenance.ready().await?;
    progress("claims on the quiet store");
    let quiet = group.claim_for(held / 10).await?;
    progress(&format!("claims beside a snapshot, for {held:?}"));
    let open = OpenTransaction::begin(place, &headwater, "REPEATABLE READ").await?;
    open.execute(&format!("SELECT count(*) FROM {}.cursor", namespace(&headwater)?.quoted())).await?;
    let beside = group.claim_for(held).await?;
    open.roll_back().await?;
    maintenance.stop().await?;
    let sound = soundness(&headwater).await?;
    headwater.close().await?;
    let mut judged = judge(&quiet, &beside);
    judged.push(sound);
    Ok(judged)
}

fn judge(quiet: &[Duration], beside: &[Duration]) -> Vec<Judged> {
    let tenth = beside.len() / 10;
    let (first, last) = (&beside[..tenth], &beside[beside.len() - tenth..]);
    let floor = Floor::AtMost(super::probe::TIMES_MAX);
    vec![
        compare("claim, median of the last tenth", quiet, last, 0.5, floor)
            .note(format!("{} claims beside the snapshot", beside.len())),
        compare("claim, last tenth by the first", first, last, 0.5, floor).note("both beside the snapshot"),
    ]
}

struct Group {
    store: Arc<dyn Store>,
    topic: TopicName,
    id: SubscriptionId,
}

impl Group {
    /// Publishes, claims and acks for this long; returns how long each claim took.
    async fn claim_for(&self, time: Duration) -> Result<Vec<Duration>> {
        let want = Want::new(self.id, CLAIMED);
        let request = ClaimRequest { owner: Owner::new("the worker")?, wants: vec![want] };
        let batch = vec![NewMessage::new("x"); PUBLISHED];
        let (begin, mut times) = (Instant::now(), vec![]);
        while begin.elapsed() < time {
            self.store.publish(&self.topic, &batch).await?;
            for _ in 0..PUBLISHED / CLAIMED as usize {
                let start = Instant::now();
                let claimed = self.store.claim(&request).await?;
                times.push(start.elapsed());
                for lease in &claimed.leases {
                    self.store.settle(&[Settlement::ack_all(lease)]).await?.remove(0)?;
                }
            }
        }
        Ok(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_that_get_slower_are_missed_though_their_median_is_fine() {
        let at = |ms| Duration::from_micros(ms);
        let quiet = vec![at(500); 300];
        let is_met = |beside: &[Duration]| judge(&quiet, beside).iter().all(Judged::is_met);
        assert!(is_met(&vec![at(600); 1_000]));
        let rising: Vec<Duration> = (0..1_000).map(|n| at(if n < 880 { 500 } else { 5_000 })).collect();
        assert!(!is_met(&rising));
        assert!(!is_met(&[]), "no claims at all");
        let slow_from_the_start = vec![at(2_000); 1_000];
        assert!(!is_met(&slow_from_the_start));
    }
}
