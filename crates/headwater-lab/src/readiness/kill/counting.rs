//! The same in reference counting: a dead group is not waited for by any completion record, and after its resurrection a
//! backfill adds it to those of the last messages, in time, and nothing stays pending in the end.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater::store::{Backfill, BackfillState, ClaimRequest, Owner, Settlement, SubscriptionId, Want};
use headwater::topic::Tracking;
use headwater::{GroupName, Headwater, Start, SubscriptionState, TopicName, TopicSettings};

use super::{INTERVAL, TIMEOUT, status};
use crate::check::{Floor, Job, Judged, Place, Process, Unit, eventually, ms, progress, soundness};
use crate::readiness::Setting;
use crate::readiness::backfill::fill;
use crate::server::connect;

const TOPIC: &str = "kill-counting";
/// Messages published while the group is dead, at a minute or more, and the share of them that it comes back for.
const MESSAGES: u64 = 900_000;
const SHARE: u64 = 9;
/// How long the backfill may take.
const WITHIN: Duration = Duration::from_secs(300);

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let messages = setting.scaled(MESSAGES, MESSAGES);
    let headwater = place.open().await?;
    let settings = TopicSettings {
        tracking: Tracking::ReferenceCounting,
        heartbeat_interval: INTERVAL,
        heartbeat_timeout: TIMEOUT,
        ..TopicSettings::pub_sub()
    };
    headwater.topic(TOPIC).settings(settings).create().await?;
    let topic = TopicName::new(TOPIC)?;
    let store = headwater.store();
    // Far behind until the end: without it every record would be completed before the dead group is back.
    let sleeper = store.subscribe(&topic, &GroupName::new("sleeper")?, Start::Now).await?.subscription_id;
    let job = Job::Numbered { topic: TOPIC.into(), group: "killed".into() };
    let mut killed = Process::start(&place.url, &job, |_| {})?;
    killed.ready().await?;
    let maintenance = Process::start(&place.url, &Job::Maintenance { every_ms: 500 }, |_| {})?;
    // A group that never had a heartbeat is not declared dead.
    let served = async || Ok(status(&headwater, &topic, "killed").await?.processes > 0);
    eventually("the group is served", TIMEOUT, served).await?;
    killed.kill().await?;
    eventually("the killed group is dead", TIMEOUT * 4, async || {
        Ok(status(&headwater, &topic, "killed").await?.state == SubscriptionState::Dead)
    })
    .await?;
    progress(&format!("publishing {messages} messages while one group is dead"));
    fill(&headwater, TOPIC, messages).await?;
    let recorded = async || Ok(records(place, "true").await? == messages);
    eventually("every message has its completion record", WITHIN, recorded).await?;
    let group = GroupName::new("killed")?;
    let back = store.resurrect(&topic, &group, Some(messages / SHARE)).await?;
    ensure!(back.resurrected, "the group was not dead any more");
    let total = find(&headwater).await?.total;
    progress(&format!("resurrected, backfilling {total} of {messages}"));
    let begin = Instant::now();
    let done = async || Ok(find(&headwater).await?.state == BackfillState::Completed);
    eventually("the backfill is completed", WITHIN, done).await?;
    let took = begin.elapsed();
    let waiting = records(place, "r.required & (1::bigint << s.bit) <> 0").await?;
    let returned = status(&headwater, &topic, "killed").await?.subscription_id;
    for subscription in [returned, sleeper] {
        drain(&headwater, subscription).await?;
    }
    let none_pending = async || Ok(records(place, "r.completed_at IS NULL").await? == 0);
    let settled = eventually("no completion record is pending", WITHIN, none_pending).await;
    let left = records(place, "r.completed_at IS NULL").await?;
    maintenance.stop().await?;
    let sound = soundness(&headwater).await?;
    Ok(vec![
        Judged::new("backfill after resurrection", ms(took), Unit::Milliseconds, Floor::AtMost(ms(WITHIN)))
            .note(format!("{total} of {messages} messages, by maintenance")),
        Judged::all_of("records that wait for the resurrected group", waiting, total),
        Judged::none_of("records left pending", left.max(u64::from(settled.is_err()))),
        sound,
    ])
}

async fn find(headwater: &Headwater) -> Result<Backfill> {
    let backfills = headwater.store().backfills().await?;
    backfills.into_iter().find(|backfill| backfill.group.as_str() == "killed").context("there is no backfill")
}

/// How many completion records of the topic fulfil a condition; `s` is the killed group.
async fn records(place: &Place<'_>, condition: &str) -> Result<u64> {
    let row = connect(&place.url)
        .await?
        .query_one(
            &format!(
                "SELECT count(*) FROM headwater.completion_record r JOIN headwater.topic t ON t.topic_id = r.topic_id \
                 JOIN headwater.subscription s ON s.topic_id = t.topic_id AND s.group_name = 'killed' \
                 WHERE t.name = '{TOPIC}' AND {condition}"
            ),
            &[],
        )
        .await?;
    Ok(u64::try_from(row.get::<_, i64>(0))?)
}

/// Acks everything that a group has not done.
async fn drain(headwater: &Headwater, subscription: SubscriptionId) -> Result<()> {
    let store = headwater.store();
    let request =
        ClaimRequest { owner: Owner::new("the lab")?, wants: vec![Want::new(subscription, 10_000)] };
    loop {
        let claimed = store.claim(&request).await?;
        if claimed.leases.is_empty() {
            return Ok(());
        }
        for lease in claimed.leases {
            store.settle(&[Settlement::ack_all(&lease)]).await?.remove(0)?;
        }
    }
}
