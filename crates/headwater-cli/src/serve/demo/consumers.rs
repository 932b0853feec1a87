//! The groups of the shop. They differ as real ones do: fast, slow, in batches, failing now and then, paused.

use std::time::Duration;

use headwater::{Consumer, Context, HandlerResult, Headwater, Json, Message, Retry, Running};
use tokio::sync::watch;

use super::orders::Order;
use super::traffic::{Ticks, report};

/// How long a check for fraud takes: one at a time is somewhat more than the average rate of orders, so the lag rises and falls.
const CHECK_TAKES: Duration = Duration::from_millis(30);
/// How often the figures of all new orders are made, and of how many at once.
const FIGURES_EVERY: Duration = Duration::from_secs(5);
const FIGURES_OF: u32 = 500;
/// The mail server refuses the first attempt of one in so many mails.
const BUSY_EVERY: u64 = 23;

pub(super) async fn start(headwater: &Headwater) -> headwater::Result<Vec<Running>> {
    let of = |topic: &str, group: &str| headwater.consumer(topic, group);
    Ok(vec![
        of("orders", "email").member("mailer", send_mail).concurrency(4).run().await?,
        of("orders", "fraud-check").member("checker", check).concurrency(1).run().await?,
        of("orders", "search").member("indexer", read).ordered_by_key().run().await?,
        of("payments", "ledger").member("clerk", read).ordered_by_key().run().await?,
        of("payments", "tax").member("clerk", read).run().await?,
        of("shipments", "tracking").member("reader", read).run().await?,
        of("reminders", "mail").member("mailer", read).run().await?,
        of("reports", "finance").member("reader", read).run().await?,
        of("stock-counts", "warehouse").member("counter", read).run().await?,
    ])
}

/// Takes all orders there are, now and then, until stopped: a lag with teeth.
pub(super) async fn analytics(mut consumer: Consumer, stopped: watch::Receiver<bool>) {
    let mut ticks = Ticks::new(FIGURES_EVERY, stopped);
    while ticks.next().await {
        report("figures", make_figures(&mut consumer).await);
    }
    report("figures", consumer.close().await);
}

/// The group, subscribed before the first order.
pub(super) async fn open_analytics(headwater: &Headwater) -> headwater::Result<Consumer> {
    headwater.consumer("orders", "analytics").batch(FIGURES_OF).open().await
}

async fn make_figures(consumer: &mut Consumer) -> headwater::Result<()> {
    while let Some(batch) = consumer.next(Duration::ZERO).await? {
        batch.ack().await?;
    }
    Ok(())
}

/// Any error is retried, and the third one makes a dead letter.
async fn send_mail(Json(order): Json<Order>, context: Context) -> HandlerResult {
    if !order.email.contains('@') {
        return Err(format!("mail server refused the address {:?}", order.email).into());
    }
    if context.attempt() == 1 && order.as_number().is_multiple_of(BUSY_EVERY) {
        return Err(Retry::after(Duration::from_secs(2)).because("mail server is busy").into());
    }
    Ok(())
}

async fn check(_: Message) -> HandlerResult {
    tokio::time::sleep(CHECK_TAKES).await;
    Ok(())
}

/// Has nothing to do with it.
pub(super) async fn read(_: Message) -> HandlerResult {
    Ok(())
}
