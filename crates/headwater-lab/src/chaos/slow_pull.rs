//! A program that pulls batches and is slower than its leases: each message is done in time, the whole batch is not.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headwater::settle::Verdict;
use headwater::{NewMessage, TopicSettings};

use super::Place;
use super::child::ChaosJob;
use crate::check::{Job, Judged, Process, Record, eventually};

const TOPIC: &str = "slow-pull";
const GROUP: &str = "workers";
const MESSAGES: u64 = 20;
const WORK_MS: u64 = 400;
const LEASE_MS: u64 = 1_500;

pub(super) async fn run(place: &Place<'_>) -> Result<Vec<Judged>> {
    let headwater = place.open().await?;
    let lease = Duration::from_millis(LEASE_MS);
    let settings = TopicSettings { lease, max_attempts: 2, ..TopicSettings::default() };
    headwater.topic(TOPIC).settings(settings).create().await?;
    let messages: Vec<NewMessage> =
        (0..MESSAGES).map(|n| NewMessage::json(&n)).collect::<headwater::Result<_>>()?;
    headwater.producer(TOPIC).send_batch(&messages).await?;
    // One attempt of each is used up, and each is due again by itself.
    let mut consumer = headwater.consumer(TOPIC, GROUP).lease(Duration::from_secs(60)).open().await?;
    let batch = consumer.next(Duration::from_secs(5)).await?.context("nothing to take")?;
    ensure!(batch.messages().len() as u64 == MESSAGES, "not all in one batch");
    let fail = |offset| (offset, Verdict::RetryAfter(Duration::from_millis(100), "on purpose".into()));
    let verdicts = batch.messages().iter().map(|message| fail(message.offset)).collect();
    batch.settle_each(verdicts).await?;
    consumer.close().await?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let reported = Arc::new(Mutex::new((Record::default(), 0, String::new())));
    let (topic, group) = (TOPIC.to_owned(), GROUP.to_owned());
    let job = ChaosJob::Pull { topic, group, work_ms: WORK_MS, lease_ms: LEASE_MS };
    let into = Arc::clone(&reported);
    let mut process = Process::start_with(&place.url, &Job::Chaos(job), &[], move |line| {
        let mut reported = into.lock().expect("no panic while held");
        match line.strip_prefix("x ") {
            Some(error) => {
                reported.1 += 1;
                error.clone_into(&mut reported.2);
            }
            None => reported.0.note(0, line),
        }
    })?;
    process.ready().await?;
    let done = eventually("each is done or buried", Duration::from_secs(45), async || {
        let status = headwater.groups(TOPIC).list().await?;
        let group = status
            .iter()
            .find(|status| status.status.group.as_str() == GROUP)
            .context("the group is gone")?;
        Ok(group.status.leased == 0 && group.status.waiting == 0)
    })
    .await;
    process.stop().await?;
    let buried = headwater.dead_letters().of(TOPIC, GROUP).count().await?;
    headwater.close().await?;
    let reported = reported.lock().expect("no panic while held");
    Ok(vec![
        Judged::all_of("messages handled", reported.0.finished(), MESSAGES),
        Judged::none_of("messages buried that were handled", buried).note(format!(
            "{MESSAGES} due retries, lease {LEASE_MS} ms, {WORK_MS} ms of work each, 2 attempts"
        )),
        Judged::none_of("messages handled twice", reported.0.doubled()),
        Judged::none_of("acks refused", reported.1).note(reported.2.clone()),
        Judged::none_of("groups that are not done", u64::from(done.is_err())),
    ])
}
