//! Handlers that block every thread of their runtime for a long time, beside a second process with nothing to do. The
//! lease is longer than the block: no other process may get the messages.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use headwater::{NewMessage, TopicSettings};

use super::child::ChaosJob;
use super::{Place, Setting};
use crate::check::{Job, Judged, Process, Record, eventually, settled};

const TOPIC: &str = "blocked";
const GROUP: &str = "workers";
/// As many as the runtime has threads.
const THREADS: usize = 2;

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let headwater = place.open().await?;
    let settings = TopicSettings { lease: Duration::from_secs(300), ..TopicSettings::default() };
    headwater.topic(TOPIC).settings(settings).create().await?;
    let messages: Vec<NewMessage> =
        (0..THREADS).map(|n| NewMessage::json(&n)).collect::<headwater::Result<_>>()?;
    headwater.producer(TOPIC).send_batch(&messages).await?;
    let record = Arc::new(Mutex::new(Record::default()));
    let start = |number: usize, block: Duration| {
        let block_ms = u64::try_from(block.as_millis()).unwrap_or(u64::MAX);
        let job = ChaosJob::Block { topic: TOPIC.into(), group: GROUP.into(), handlers: THREADS, block_ms };
        let record = Arc::clone(&record);
        let env = [("TOKIO_WORKER_THREADS".to_owned(), THREADS.to_string())];
        Process::start_with(&place.url, &Job::Chaos(job), &env, move |line| {
            if !line.starts_with('h') {
                record.lock().expect("no panic while held").note(number, line);
            }
        })
    };
    let begun = || record.lock().expect("no panic while held").begun();
    let ended = || record.lock().expect("no panic while held").finished();
    let busy = start(0, setting.blocked)?;
    eventually("every thread is blocked", Duration::from_secs(30), async || Ok(begun() == THREADS as u64))
        .await?;
    let mut idle = start(1, Duration::from_millis(1))?;
    idle.ready().await?;
    let at_most = 2 * setting.blocked + Duration::from_secs(20);
    eventually("every handler has ended", at_most, async || Ok(ended() == THREADS as u64)).await?;
    let done = settled(&headwater, TOPIC, GROUP, Duration::from_secs(20)).await;
    idle.stop().await?;
    busy.stop().await?;
    headwater.close().await?;
    let record = record.lock().expect("no panic while held");
    Ok(vec![
        Judged::none_of("messages that ran twice", record.doubled())
            .note(format!("{THREADS} handlers, blocked for {:?}, lease 300 s", setting.blocked)),
        Judged::none_of("messages that are not settled", u64::from(done.is_err()))
            .note(done.err().map(|error| format!("{error:#}")).unwrap_or_default()),
    ])
}
