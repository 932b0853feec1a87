//! What customers do: orders at a rate that rises and falls, a saga for some of them, reminders for later.

use std::f64::consts::TAU;
use std::time::Duration;

use headwater::{Headwater, NewMessage};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::orders::Order;

/// How often orders are published, together.
const PUBLISH_EVERY: Duration = Duration::from_millis(200);
/// Orders per second: on average, and how much more or less.
const PER_SECOND: f64 = 24.0;
const SWING: f64 = 16.0;
/// From one peak to the next.
const PERIOD: Duration = Duration::from_secs(120);
/// One of so many orders has a wrong address; the second order is the first of them.
const WRONG_EVERY: u64 = 1_500;
/// How often a saga begins, and a reminder is scheduled.
const SAGA_EVERY: Duration = Duration::from_secs(1);
const REMINDER_EVERY: Duration = Duration::from_secs(15);
/// When reminders are due: the first ones soon and late, so that some can be seen, moved and cancelled at once.
const REMINDERS: [Duration; 4] =
    [Duration::from_secs(30), Duration::from_secs(180), Duration::from_secs(600), Duration::from_secs(3_600)];
const REMINDED_AFTER: Duration = Duration::from_secs(240);

/// Orders, until stopped.
pub(super) async fn orders(headwater: Headwater, stopped: watch::Receiver<bool>) {
    let producer = headwater.producer("orders");
    let (began, mut number, mut owed) = (Instant::now(), 0_u64, 0.0);
    let mut ticks = Ticks::new(PUBLISH_EVERY, stopped);
    while ticks.next().await {
        owed += rate(began.elapsed()) * PUBLISH_EVERY.as_secs_f64();
        let mut messages = Vec::new();
        while owed >= 1.0 {
            owed -= 1.0;
            number += 1;
            messages.extend(message(number));
        }
        if !messages.is_empty() {
            report("orders", producer.send_batch(&messages).await);
        }
    }
}

/// Orders per second, so long after the start.
fn rate(since: Duration) -> f64 {
    PER_SECOND + SWING * (since.as_secs_f64() / PERIOD.as_secs_f64() * TAU).sin()
}

fn message(number: u64) -> headwater::Result<NewMessage> {
    let order = Order::number(number);
    let order = if number % WRONG_EVERY == 2 { order.with_wrong_address() } else { order };
    let message = NewMessage::json(&order)?.key(order.customer).message_type("OrderPlaced");
    Ok(message.header("channel", if number.is_multiple_of(3) { "app" } else { "web" }))
}

/// Sagas, until stopped.
pub(super) async fn sagas(headwater: Headwater, stopped: watch::Receiver<bool>) {
    let (processes, mut number) = (headwater.processes(), 0_u64);
    let mut ticks = Ticks::new(SAGA_EVERY, stopped);
    while ticks.next().await {
        number += 1;
        let order = Order::number(number);
        let started = processes.start("order").business_key(&order.order).data(&order).once().await;
        report("saga", started);
    }
}

/// Reminders, until stopped.
pub(super) async fn reminders(headwater: Headwater, stopped: watch::Receiver<bool>) {
    let (producer, mut number) = (headwater.producer("reminders"), 0_usize);
    let mut ticks = Ticks::new(REMINDER_EVERY, stopped);
    while ticks.next().await {
        let first = number == 0;
        let delays = if first { REMINDERS.to_vec() } else { vec![REMINDED_AFTER] };
        for delay in delays {
            number += 1;
            let order = Order::number(number as u64);
            let text = json!({ "order": order.order, "email": order.email, "ask": "how was your tea?" });
            let sent = producer.send(&text).key(&order.customer).message_type("Reminder").delay(delay);
            report("reminder", sent.await);
        }
    }
}

/// Moments at which something is done: at once, and then at each interval. Missed ones are not made up for: after a laptop was asleep
/// nothing comes in a burst.
pub(super) struct Ticks {
    interval: Interval,
    stopped: watch::Receiver<bool>,
}

impl Ticks {
    pub(super) fn new(period: Duration, stopped: watch::Receiver<bool>) -> Self {
        let mut interval = interval(period);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ticks { interval, stopped }
    }

    /// Waits for the next one; false once it is stopped.
    pub(super) async fn next(&mut self) -> bool {
        tokio::select! {
            biased;
            () = until_stopped(&mut self.stopped) => false,
            _ = self.interval.tick() => true,
        }
    }
}

/// Waits for the end of the demo.
pub(super) async fn until_stopped(stopped: &mut watch::Receiver<bool>) {
    // If the sender is gone, so is the demo.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// What the demo cannot do it tries again at the next tick.
pub(super) fn report<T>(what: &'static str, done: headwater::Result<T>) {
    if let Err(error) = done {
        tracing::warn!(what, %error, "step of the demo failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_come_at_a_rate_that_never_stops() {
        let rates: Vec<f64> = (0..240).map(|second| rate(Duration::from_secs(second))).collect();
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        assert!(rates.iter().all(|rate| *rate > 1.0), "{rates:?}");
        assert!((mean - PER_SECOND).abs() < 1.0, "{mean}");
    }
}
