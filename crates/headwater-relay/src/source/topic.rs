//! A topic as the source: a batch handler in a group of its own, so leases, order per key, retries, dead letters, lag, pause and replay are
//! the engine's.
//!
//! Each handler has the batch of one lane. Their records meet in a queue, and one call of the sink takes all that wait there: while a
//! call is under way the next one grows. While the sink is unavailable handlers wait with what they have; their leases are extended, no
//! attempt is counted, and once the buffers are full nothing more is claimed. A shutdown releases it.

use std::sync::Arc;

use headwater::consumer::{ConsumerBuilder, GroupOrder};
use headwater::{
    Bury, Context, Error, Failure, Handling, Headwater, Message, Messages, Result, Retry, Running, Verdicts,
};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinSet;

use crate::courier::Courier;
use crate::relay::RelaySettings;
use crate::sink::{Delivery, Record};

/// Most records of one call, unless a single batch has more.
const CALL_RECORDS_MAX: usize = 5_000;
/// Payload bytes after which a call takes no more batches.
const CALL_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Batches that may wait for a call.
const WAITING_MAX: usize = 64;
/// Handlers at once: each lane has at most one batch in flight.
const HANDLERS: usize = 16;

/// The batch of one handler.
struct Job {
    records: Vec<Record>,
    context: Context,
    answer: oneshot::Sender<Vec<Option<Delivery>>>,
}

impl Job {
    fn bytes(&self) -> usize {
        self.records.iter().map(|record| record.payload.len()).sum()
    }
}

/// Starts it: the running group, and the tasks that call the sink.
pub(crate) async fn run(
    headwater: &Headwater,
    topic: &str,
    group: &str,
    settings: &RelaySettings,
    courier: &Arc<Courier>,
) -> Result<(Running, JoinSet<()>)> {
    let (queue, waiting) = mpsc::channel(WAITING_MAX);
    let waiting = Arc::new(Mutex::new(waiting));
    let handling = Handling::batch(move |messages: Messages, context: Context| {
        let queue = queue.clone();
        async move { handle(&queue, &messages, context).await }
    });
    let consumer = consumer(headwater, topic, group, settings).handling("relay", handling);
    let running = consumer.run().await?;
    if settings.key_order && running.subscription().lanes == 0 {
        running.shutdown(std::time::Duration::ZERO).await?;
        let rule = format!(
            "{group} on topic {topic} exists and is not ordered by key; choose another group, or do without the order of keys"
        );
        return Err(Error::invalid("group", rule));
    }
    let mut calls = JoinSet::new();
    for _ in 0..courier.sink.calls_at_once().max(1) {
        calls.spawn(deliver_all(Arc::clone(&waiting), Arc::clone(courier)));
    }
    Ok((running, calls))
}

/// The consumer of a relay, without its handler: what subscribing the group needs.
pub(crate) fn consumer(
    headwater: &Headwater,
    topic: &str,
    group: &str,
    settings: &RelaySettings,
) -> ConsumerBuilder {
    let order = if settings.key_order { GroupOrder::ByKey { lanes: None } } else { GroupOrder::Unordered };
    let mut consumer = headwater
        .consumer(topic, group)
        .order(order)
        .batch(settings.batch)
        .concurrency(HANDLERS)
        .start_from(settings.start);
    if let Some(attempts) = settings.max_attempts {
        consumer = consumer.max_attempts(attempts);
    }
    if let Some((initial, longest)) = settings.backoff {
        consumer = consumer.backoff(initial, longest);
    }
    consumer
}

async fn handle(
    queue: &mpsc::Sender<Job>,
    messages: &Messages,
    context: Context,
) -> Result<Verdicts, Failure> {
    let records = messages.iter().map(|message| record_of(context.topic(), message)).collect();
    let (answer, answered) = oneshot::channel();
    queue.send(Job { records, context, answer }).await.map_err(|_| "the relay has stopped")?;
    let results = answered.await.map_err(|_| "the lease was lost before the records were sent")?;
    let mut verdicts = Verdicts::new();
    for (message, result) in messages.iter().zip(results) {
        match result {
            // Without a result it waits behind a failed message of its key, which the group knows.
            Some(Delivery::Delivered | Delivery::Unconfirmed { .. }) | None => {}
            Some(Delivery::Failed { reason, retry_after: None }) => verdicts.failed(message.offset, reason),
            Some(Delivery::Failed { reason, retry_after: Some(after) }) => {
                verdicts.failed(message.offset, Retry::after(after).because(reason));
            }
            Some(Delivery::Refused { reason }) => verdicts.failed(message.offset, Bury(reason)),
        }
    }
    Ok(verdicts)
}

fn record_of(topic: &str, message: &Message) -> Record {
    Record {
        message_id: message.message_id.to_string(),
        destination: topic.to_owned(),
        key: message.key.clone(),
        message_type: message.message_type.clone(),
        content_type: message.content_type.clone(),
        correlation_id: message.correlation_id.clone(),
        headers: message.headers.clone(),
        payload: message.payload.clone(),
        created_at: message.created_at,
    }
}

/// Calls the sink with what waits, until it is aborted.
async fn deliver_all(waiting: Arc<Mutex<mpsc::Receiver<Job>>>, courier: Arc<Courier>) {
    loop {
        let jobs = {
            let mut waiting = waiting.lock().await;
            // Not taken while nothing can be sent: a lease that is lost meanwhile is found lost.
            courier.breaker.closed().await;
            let Some(first) = waiting.recv().await else { return };
            with_more(first, &mut waiting)
        };
        // Another process may have it by now.
        let (jobs, _lost): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(|job| !job.context.is_lost());
        let (mut counts, mut answers, mut records) = (Vec::new(), Vec::new(), Vec::new());
        for job in jobs {
            counts.push(job.records.len());
            answers.push(job.answer);
            records.extend(job.records);
        }
        if records.is_empty() {
            continue;
        }
        let mut results = courier.deliver(courier.load(records)).await.into_iter();
        for (count, answer) in counts.into_iter().zip(answers) {
            // A handler that was stopped has released its messages.
            let _ = answer.send(results.by_ref().take(count).collect());
        }
    }
}

/// The first batch with those that wait behind it, as far as one call takes them.
fn with_more(first: Job, waiting: &mut mpsc::Receiver<Job>) -> Vec<Job> {
    let (mut count, mut bytes) = (first.records.len(), first.bytes());
    let mut jobs = vec![first];
    while count < CALL_RECORDS_MAX && bytes < CALL_BYTES_MAX {
        let Ok(next) = waiting.try_recv() else { break };
        count += next.records.len();
        bytes += next.bytes();
        jobs.push(next);
    }
    jobs
}
