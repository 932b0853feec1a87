//! Messages that were handed out once and settled one by one: any number of waiting retries or dead letters.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use headwater::store::{ClaimRequest, OffsetRange, Outcome, Owner, Settlement, Want};
use headwater::{GroupName, NewMessage, Offset, Start, TopicName, TopicSettings};

use crate::check::{Place, progress};

/// Messages of one claim and one settlement.
const BATCH: u32 = 2_000;
const FILL_MAX: Duration = Duration::from_secs(15 * 60);
/// Retries are due long after the end of the check.
const DUE_AFTER: Duration = Duration::from_secs(24 * 3_600);

/// A retry, with an error.
pub(super) fn retried() -> Outcome {
    Outcome::Retry { after: DUE_AFTER, error: "the downstream is unavailable".into(), key: None }
}

/// A dead letter.
pub(super) fn buried() -> Outcome {
    Outcome::Bury { error: "the downstream refused it".into() }
}

/// Creates a topic with one group, publishes this many messages to it and settles each by itself. The store is closed
/// afterwards, so that no work of it is left.
pub(super) async fn fill(
    place: &Place<'_>,
    (topic, group): (&str, &str),
    settings: TopicSettings,
    messages: u64,
    outcome: &Outcome,
) -> Result<()> {
    progress(&format!("publishing and settling {messages} messages one by one"));
    let (headwater, topic) = (place.open().await?, TopicName::new(topic)?);
    let store = headwater.store();
    store.create_topic(&topic, &settings).await?;
    let subscription = store.subscribe(&topic, &GroupName::new(group)?, Start::Beginning).await?;
    let want = Want::new(subscription.subscription_id, BATCH);
    let request = ClaimRequest { owner: Owner::new("the filler")?, wants: vec![want] };
    let (mut done, deadline) = (0, Instant::now() + FILL_MAX);
    while done < messages {
        let batch = usize::try_from((messages - done).min(u64::from(BATCH)))?;
        store.publish(&topic, &vec![NewMessage::new("x"); batch]).await?;
        let target = done + batch as u64;
        while done < target {
            ensure!(Instant::now() < deadline, "{done} of {messages} messages were settled in {FILL_MAX:?}");
            for lease in store.claim(&request).await?.leases {
                let offsets = lease.range.first.0..=lease.range.last.0;
                let one = |offset| (OffsetRange::one(Offset(offset)), outcome.clone());
                let settlement = Settlement::each(&lease, offsets.map(one).collect());
                store.settle(&[settlement]).await?.remove(0)?;
                done += lease.range.span();
            }
        }
    }
    Ok(headwater.close().await?)
}
