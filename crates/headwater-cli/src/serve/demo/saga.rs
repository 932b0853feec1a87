//! Orders as processes: reserve stock, charge, ship. Some are declined and undone, some have to wait for a courier, and one waits for a
//! person.
//!
//! Handlers run in the store's transaction, with their event and their outbox entry: none of them waits, since others write meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use headwater::outbox::{NewEntry, Outbox};
use headwater::process::{Command, Commands, ProcessType, Step, StepError};
use headwater::transaction::Transaction;
use headwater::{Headwater, NewMessage, Running};
use serde_json::{Value, json};

use super::orders::Order;

/// The attempts of a step.
const ATTEMPTS: u32 = 3;
/// The order whose stock is not released: a person has to retry it, in the dashboard, and then it works.
const STUCK: u64 = 4;
/// How long the warehouse refuses it: longer than all attempts take.
const REFUSED_FOR: Duration = Duration::from_secs(30);
/// How long there is no courier for one in three orders: until the second attempt.
const NO_COURIER_FOR: Duration = Duration::from_millis(1_500);

pub(super) async fn start(headwater: &Headwater) -> headwater::Result<Vec<Running>> {
    let mut running = vec![headwater.processes().manager(&order()).await?.run().await?];
    let services = [
        ("stock.commands", "warehouse", stock()),
        ("payment.commands", "bank", payments()),
        ("shipping.commands", "carrier", shipping(&headwater.outbox())),
    ];
    for (topic, group, commands) in services {
        running.push(headwater.consumer(topic, group).handling("service", commands.handling()).run().await?);
    }
    Ok(running)
}

fn order() -> ProcessType {
    let step = |name: &str, topic: &str, command: &str| {
        Step::new(name, topic, command)
            .timeout(Duration::from_secs(60))
            .attempts(ATTEMPTS)
            .backoff(Duration::from_secs(2), Duration::from_secs(10))
    };
    ProcessType::new("order")
        .step(step("reserve", "stock.commands", "Reserve").compensation("Release"))
        .step(step("charge", "payment.commands", "Charge").compensation("Refund"))
        .step(step("ship", "shipping.commands", "Ship"))
}

/// Orders that have to wait, since when. By time and not by attempt: a handler may be called twice for one attempt.
#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<HashMap<u64, Instant>>>);

impl Waiting {
    /// Whether an order has waited for so long since it was first asked for; then it is forgotten.
    fn is_over(&self, number: u64, after: Duration) -> bool {
        let mut since = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = since.entry(number).or_insert_with(Instant::now).elapsed() >= after;
        if is_over {
            since.remove(&number);
        }
        is_over
    }
}

fn stock() -> Commands {
    let waiting = Waiting::default();
    Commands::new()
        .on("Reserve", |_: Transaction, command: Command| async move {
            let order: Order = command.data().decode()?;
            Ok(json!({ "shelf": order.as_number() % 9 }))
        })
        .on("Release", move |_: Transaction, command: Command| {
            let waiting = waiting.clone();
            async move {
                let number = command.data().decode::<Order>()?.as_number();
                if number == STUCK && !waiting.is_over(number, REFUSED_FOR) {
                    return Err(StepError::retry("the warehouse counts its stock"));
                }
                Ok(())
            }
        })
}

fn payments() -> Commands {
    Commands::new()
        .on("Charge", |tx: Transaction, command: Command| async move {
            let order: Order = command.data().decode()?;
            let number = order.as_number();
            if number == STUCK || number % 9 == 7 {
                return Err(StepError::failed("card declined"));
            }
            tx.publish("payments", event("PaymentReceived", &order)?).await?;
            Ok(json!({ "payment": format!("p-{number}") }))
        })
        .on("Refund", |tx: Transaction, command: Command| async move {
            let order: Order = command.data().decode()?;
            tx.publish("payments", event("PaymentRefunded", &order)?).await?;
            Ok(())
        })
}

/// A parcel is an event for the shop's own groups, and an outbox entry for the partner.
fn shipping(outbox: &Outbox) -> Commands {
    let (outbox, waiting) = (outbox.clone(), Waiting::default());
    Commands::new().on("Ship", move |tx: Transaction, command: Command| {
        let (outbox, waiting) = (outbox.clone(), waiting.clone());
        async move {
            let order: Order = command.data().decode()?;
            let number = order.as_number();
            if number.is_multiple_of(3) && !waiting.is_over(number, NO_COURIER_FOR) {
                return Err(StepError::retry("no courier is free"));
            }
            if number % 17 == 12 {
                return Err(StepError::failed("address is outside of the delivery area"));
            }
            tx.publish("shipments", event("ParcelSent", &order)?).await?;
            let payload = json!({ "order": order.order, "city": order.city }).to_string();
            let entry = NewEntry::kafka_event("shop.parcels", order.customer, "ParcelSent", payload);
            outbox.within(&tx).insert_returning_id(&entry).await?;
            Ok(json!({ "parcel": format!("x-{number}") }))
        }
    })
}

fn event(message_type: &str, order: &Order) -> headwater::Result<NewMessage> {
    let order_only: Value =
        json!({ "order": order.order, "total_cents": order.total_cents, "city": order.city });
    Ok(NewMessage::json(&order_only)?.key(&order.customer).message_type(message_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_once_and_leaves_nothing_behind() {
        let waiting = Waiting::default();
        assert!(!waiting.is_over(1, Duration::MAX));
        assert!(!waiting.is_over(1, Duration::MAX), "asked twice for one attempt");
        assert!(waiting.is_over(1, Duration::ZERO));
        assert!(waiting.0.lock().unwrap().is_empty());
    }
}
