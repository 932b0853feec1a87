//! With a layer of tracing-opentelemetry a handler's spans belong to the trace of the span that published its message.

use std::future::Future;
use std::time::Duration;

use headwater::settle::Verdict;
use headwater::{Headwater, Message, NewMessage, trace};
use opentelemetry::trace::{SpanId, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tracing::Instrument;
use tracing_subscriber::layer::SubscriberExt;

use crate::each::DEADLINE;

/// Runs a case and returns the spans it recorded. The subscriber is this thread's: so is the runtime of each case.
async fn recorded(case: impl Future<Output = ()>) -> Vec<SpanData> {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    case.await;
    drop(guard);
    exporter.get_finished_spans().unwrap()
}

fn named<'s>(spans: &'s [SpanData], name: &str) -> &'s SpanData {
    let mut found = spans.iter().filter(|span| span.name == name);
    let (span, more) = (found.next(), found.count());
    assert_eq!(more, 0, "one {name}: {spans:?}");
    span.unwrap_or_else(|| panic!("no {name}: {spans:?}"))
}

fn assert_child(child: &SpanData, parent: &SpanData) {
    assert_eq!(child.span_context.trace_id(), parent.span_context.trace_id(), "{} has the trace", child.name);
    assert_eq!(child.parent_span_id, parent.span_context.span_id(), "{} has the parent", child.name);
}

/// Publishes in a span, handles in another, and publishes there from a third.
async fn handled_by(handle: impl AsyncFn(&Headwater)) {
    let spans = recorded(async {
        let headwater = Headwater::in_memory().await.unwrap();
        let orders = headwater.producer("orders");
        orders
            .send(NewMessage::new("a"))
            .into_future()
            .instrument(tracing::info_span!("publish"))
            .await
            .unwrap();
        handle(&headwater).await;
        let mail = headwater.published("mails").await.unwrap().remove(0);
        tracing::info_span!("seen", traceparent = mail.headers["traceparent"]).in_scope(|| {});
        headwater.close().await.unwrap();
    })
    .await;
    let (publish, handle, inner) =
        (named(&spans, "publish"), named(&spans, "handle"), named(&spans, "inner"));
    assert_eq!(publish.parent_span_id, SpanId::INVALID);
    assert_child(handle, publish);
    assert!(handle.parent_span_is_remote);
    assert_child(inner, handle);
    let traceparent = format!("00-{}-{}-01", inner.span_context.trace_id(), inner.span_context.span_id());
    let seen = &named(&spans, "seen").attributes;
    assert!(seen.iter().any(|field| field.value.as_str() == traceparent), "{traceparent} in {seen:?}");
}

async fn send_mail(headwater: Headwater) {
    let current = trace::current().unwrap();
    headwater.producer("mails").send(NewMessage::new("b")).await.unwrap();
    assert_eq!(trace::current(), Some(current));
}

#[tokio::test]
async fn span_of_a_worker_is_a_child_of_the_span_that_published() {
    handled_by(async |headwater| {
        let (done, mut wait) = tokio::sync::mpsc::channel(1);
        let handler = headwater.clone();
        let running = headwater
            .consumer("orders", "email")
            .member("one", move |_: Message, _| {
                let (headwater, done) = (handler.clone(), done.clone());
                async move {
                    send_mail(headwater).instrument(tracing::info_span!("inner")).await;
                    done.send(()).await.unwrap();
                    Ok(())
                }
            })
            .run()
            .await
            .unwrap();
        tokio::time::timeout(DEADLINE, wait.recv()).await.unwrap().unwrap();
        running.shutdown(Duration::from_secs(5)).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn span_of_a_pulled_message_is_a_child_of_the_span_that_published() {
    handled_by(async |headwater| {
        let mut consumer = headwater.consumer("orders", "email").open().await.unwrap();
        let batch = consumer.next(DEADLINE).await.unwrap().expect("one message is due");
        let handler = headwater.clone();
        batch
            .handle(move |_, _| {
                let headwater = handler.clone();
                async move {
                    send_mail(headwater).instrument(tracing::info_span!("inner")).await;
                    Verdict::Done
                }
            })
            .await
            .unwrap();
    })
    .await;
}

#[tokio::test]
async fn context_of_the_message_or_of_within_wins_over_the_span() {
    let own = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01";
    let set = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let spans = recorded(async {
        let headwater = Headwater::in_memory().await.unwrap();
        let orders = headwater.producer("orders");
        let batch = [NewMessage::new("a").header("traceparent", own), NewMessage::new("b")];
        let send = trace::within(set.parse().unwrap(), async { orders.send_batch(&batch).await });
        send.instrument(tracing::info_span!("publish")).await.unwrap();
        orders.send(NewMessage::new("c")).await.unwrap();
        let messages = headwater.published("orders").await.unwrap();
        let parents: Vec<_> = messages.iter().map(|m| m.headers.get("traceparent").cloned()).collect();
        assert_eq!(parents, [Some(own.to_owned()), Some(set.to_owned()), None]);
        headwater.close().await.unwrap();
    })
    .await;
    named(&spans, "publish");
}
