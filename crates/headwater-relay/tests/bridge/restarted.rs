//! Brokers that are stopped and started again while bridges run: each message is published once.

use headwater_relay::bridge::Bridge;
use headwater_servers::Stop;
use headwater_servers::brokers::{Broker, KafkaKind, Kind, NatsKind, RabbitMqKind};

use crate::brokers::{From, kafka, nats, rabbitmq};
use crate::place::{Place, eventually, eventually_or, own, payloads};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_is_restarted() {
    let Some(mut broker) = own::<KafkaKind>() else { return };
    let from = kafka(&broker.url(), "in", 2).await;
    restarted(&mut broker, &from, || Box::pin(async { None })).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rabbitmq_is_restarted() {
    let Some(mut broker) = own::<RabbitMqKind>() else { return };
    let (url, from) = (broker.url(), rabbitmq(&broker.url(), "in").await);
    restarted(&mut broker, &from, || {
        let url = url.clone();
        Box::pin(async move { Some(rabbitmq(&url, "in").await) })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_is_restarted() {
    let Some(mut broker) = own::<NatsKind>() else { return };
    let from = nats(&broker.url(), "in").await;
    restarted(&mut broker, &from, || Box::pin(async { None })).await;
}

type Again<'a> = std::pin::Pin<Box<dyn Future<Output = Option<From>> + Send + 'a>>;

/// `again` connects the publisher once more, where its library does not do that itself.
async fn restarted<K: Kind>(broker: &mut Broker<K>, from: &From, again: impl Fn() -> Again<'static>) {
    let place = Place::sqlite().expect("a file");
    let headwater = place.open().await;
    headwater.topic("t").create().await.unwrap();
    from.publish_numbers(0..500).await;
    let bridge = Bridge::from_url(&headwater, from.url(), "t").unwrap().name("in").batch_messages(20);
    let running = bridge.start().unwrap();
    eventually("some", async || running.health().published > 100).await;
    broker.stop(Stop::Kill).expect("stopped");
    broker.serve().expect("started");
    broker.wait(|| Ok(())).expect("ready");
    let anew = again().await;
    anew.as_ref().unwrap_or(from).publish_numbers(500..1_000).await;
    let what = || format!("all: {:?}; the broker's log:\n{}", running.health(), broker.log_tail());
    eventually_or(what, async || payloads(&headwater, "t").await.len() >= 1_000).await;
    let mut numbers: Vec<usize> =
        payloads(&headwater, "t").await.iter().map(|payload| payload.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..1_000).collect::<Vec<_>>(), "{}: each once", K::NAME);
    running.stop().await;
    place.leave(&headwater).await;
}
