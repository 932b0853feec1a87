//! A shop as a web service: an order and its message in one transaction, three groups, a reminder that is cancelled,
//! a report on a schedule, prices by request and reply, metrics, and a graceful end.
//!
//! The same program on both databases: `cargo run -p headwater --example shop [postgres://…]`

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, ensure};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json as Body, Router};
use headwater::cron::CronJob;
use headwater::handler::{Handled, Layer, Next};
use headwater::transaction::Transaction;
use headwater::{Context, HandlerResult, Handling, Headwater, Json, Protobuf, Running};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use uuid::Uuid;

#[path = "support/customers.rs"]
mod customers;
#[path = "support/place.rs"]
mod place;

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// JSON for customers, protobuf in messages.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
struct Order {
    #[prost(string, tag = "1")]
    customer: String,
    #[prost(int64, tag = "2")]
    cents: i64,
}

impl prost::Name for Order {
    const NAME: &'static str = "Order";
    const PACKAGE: &'static str = "shop";
}

/// What was sent, in its order.
type Sent = Arc<Mutex<Vec<Order>>>;

/// Logs every failed call of a handler, with what failed.
struct LogFailures;

impl Layer for LogFailures {
    async fn handle(&self, context: &Context, next: Next<'_>) -> Handled {
        let handled = next.run().await;
        if let Err(failure) = &handled {
            println!("{} failed, attempt {}: {failure}", context.group(), context.attempt());
        }
        handled
    }
}

/// The order, its message and the reminder: all of them, or none.
async fn place_order(
    State(headwater): State<Headwater>,
    Body(order): Body<Order>,
) -> Result<Body<Uuid>, Failed> {
    let (orders, reminders) = (headwater.producer("orders"), headwater.producer("reminders"));
    let placed = headwater.transaction(move |tx: Transaction| async move {
        tx.execute("INSERT INTO shop_order (cents) VALUES ($1)", (order.cents,)).await?;
        orders.send(Protobuf(order.clone())).key(&order.customer).within(&tx).await?;
        Ok::<_, headwater::Error>(reminders.send(&order).delay(DAY).within(&tx).await?.message_id)
    });
    Ok(Body(placed.await?))
}

/// A paid order needs no reminder.
async fn paid(State(headwater): State<Headwater>, Path(reminder): Path<Uuid>) -> Result<Body<bool>, Failed> {
    Ok(Body(headwater.scheduled("reminders").cancel(reminder).await?))
}

async fn price(State(headwater): State<Headwater>, Path(item): Path<String>) -> Result<String, Failed> {
    let Json(cents): Json<u64> = headwater.producer("prices").request(&item).answer().await?;
    Ok(cents.to_string())
}

/// An error as an answer: what may be tried again is 503.
struct Failed(headwater::Error);

impl From<headwater::Error> for Failed {
    fn from(error: headwater::Error) -> Self {
        Failed(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let status = match self.0.is_retryable() {
            true => StatusCode::SERVICE_UNAVAILABLE,
            false => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, self.0.to_string()).into_response()
    }
}

/// Retried by the group's own policy; an order that can never succeed becomes a dead letter.
async fn send_mail(Protobuf(order): Protobuf<Order>, context: Context) -> HandlerResult {
    match order.cents {
        ..0 => context.bury("a negative amount"),
        _ if context.attempt() == 1 => Err("the mail server is down".into()),
        _ => Ok(()),
    }
}

/// Exactly once: the row and the ack commit together.
async fn book(tx: Transaction, Protobuf(order): Protobuf<Order>) -> HandlerResult {
    tx.execute("INSERT INTO shop_ledger (cents) VALUES ($1)", (order.cents,)).await?;
    Ok(())
}

/// In order for each customer.
async fn send_parcel(Protobuf(order): Protobuf<Order>, context: Context) -> HandlerResult {
    context.state::<Sent>().lock().unwrap().push(order);
    Ok(())
}

/// The length of its name is the price of an item.
async fn answer_price(Json(item): Json<String>, context: Context) -> HandlerResult {
    context.reply(&(item.len() * 100)).await?;
    Ok(())
}

/// Declares the topics, the groups and the schedule.
async fn declare(headwater: &Headwater, sent: Sent) -> Result<(Vec<Running>, CronJob)> {
    headwater.topic("orders").pub_sub().create_if_missing().await?;
    for queue in ["prices", "reminders", "reports"] {
        headwater.topic(queue).create_if_missing().await?;
    }
    let email = headwater.consumer("orders", "email").layer(LogFailures).member("mailer", send_mail);
    let ledger = headwater.consumer("orders", "ledger").handling("clerk", Handling::transactional(book));
    let shipping = headwater.consumer("orders", "shipping").state(sent).member("packer", send_parcel);
    let running = vec![
        email.max_attempts(4).backoff(Duration::from_millis(50), Duration::from_secs(1)).run().await?,
        ledger.run().await?,
        shipping.ordered_by_key().run().await?,
        headwater.consumer("prices", "list").member("clerk", answer_price).run().await?,
    ];
    let report = headwater.cron("report", "* * * * * *").topic("reports").message("sales").start().await?;
    Ok((running, report))
}

fn service(headwater: Headwater, metrics: PrometheusHandle) -> Router {
    Router::new()
        .route("/orders", post(place_order))
        .route("/reminders/{reminder}/paid", post(paid))
        .route("/prices/{item}", get(price))
        .with_state(headwater)
        .route("/metrics", get(async move || metrics.render()))
}

#[tokio::main]
async fn main() -> Result<()> {
    place::Place::embedded_by_default()?.visit(shop).await
}

async fn shop(url: &str) -> Result<()> {
    let metrics = PrometheusBuilder::new().install_recorder()?; // before the store is opened
    let (headwater, sent) = (Headwater::open(url).await?, Sent::default());
    headwater.transaction(customers::create_tables).await?;
    let (_running, _report) = declare(&headwater, Sent::clone(&sent)).await?;

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (address, (close, closed)) = (listener.local_addr()?, oneshot::channel::<()>());
    let service = axum::serve(listener, service(headwater.clone(), metrics));
    let service = tokio::spawn(service.with_graceful_shutdown(async { drop(closed.await) }).into_future());

    let bought = customers::buy(address, &headwater, &sent).await;
    drop(close); // a service waits for tokio::signal::ctrl_c() here
    service.await??;
    headwater.transaction(customers::drop_tables).await?;
    let left = headwater.shutdown(Duration::from_secs(10)).await?;
    bought?;
    ensure!(left.is_clean(), "{left:?}");
    println!("the shop closed with nothing left to do");
    Ok(())
}
