//! A saga: an order reserves stock, charges the customer and ships. If a step fails, those before it are undone in reverse.
//!
//! The program declares the steps and writes a handler for each command. What happens when, what was sent and what has to be
//! undone is in the database, in the same transactions as the effects: kill the program anywhere, and it continues where it was.
//! Here every step fails once for good and once for a moment. The same program on both databases.
//! `cargo run -p headwater --example order_saga [postgres://…]`

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, ensure};
use headwater::Headwater;
use headwater::process::{Command, Commands, ProcessStatus, ProcessType, Step, StepError};
use headwater::transaction::{Transaction, Value};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

#[path = "support/place.rs"]
mod place;

const PIECES: i64 = 10;
const STEPS: [&str; 3] = ["reserve", "charge", "ship"];

#[derive(Serialize, Deserialize)]
struct Order {
    cents: i64,
    /// The step that fails, for good or for a moment.
    fails: Option<String>,
    stumbles: Option<String>,
}

#[tokio::main]
async fn main() -> Result<()> {
    place::Place::embedded_by_default()?.visit(order_saga).await
}

/// What the process does. Each step names the topic of a service, its command, and the command that undoes it.
fn order() -> ProcessType {
    let step = |name: &str, topic: &str, command: &str| {
        Step::new(name, topic, command)
            .timeout(Duration::from_secs(30))
            .attempts(3)
            .backoff(Duration::from_millis(20), Duration::from_secs(1))
    };
    ProcessType::new("order")
        .step(step("reserve", "stock", "Reserve").compensation("Release"))
        .step(step("charge", "payments", "Charge").compensation("Refund"))
        .step(step("ship", "parcels", "Ship"))
}

async fn order_saga(url: &str) -> Result<()> {
    let headwater = Headwater::open(url).await?;
    let shop = Shop::open(&headwater).await?;
    let processes = headwater.processes();

    // The manager, and the services: usually programs of their own, here one.
    let manager = processes.manager(&order()).await?.run().await?;
    let mut services = Vec::new();
    for (topic, commands) in
        [("stock", shop.stock()), ("payments", shop.payments()), ("parcels", shop.parcels())]
    {
        services.push(headwater.consumer(topic, "service").handling("one", commands.handling()).run().await?);
    }

    // One order without trouble, and for each step one that fails there for good and one that fails once.
    let mut ids = Vec::new();
    let trouble = STEPS.iter().flat_map(|step| [(Some(*step), None), (None, Some(*step))]);
    for (n, (fails, stumbles)) in [(None, None)].into_iter().chain(trouble).enumerate() {
        let order = Order { cents: 500, fails: fails.map(Into::into), stumbles: stumbles.map(Into::into) };
        let start = processes.start("order").business_key(&format!("o-{n}")).data(&order).once();
        ids.push((fails, start.await?.process.id()));
    }
    for (fails, id) in ids {
        let process = processes.ended(id, Duration::from_secs(30)).await?;
        let expected = match fails {
            None => ProcessStatus::Succeeded,
            // Nothing was completed before.
            Some("reserve") => ProcessStatus::Failed,
            Some(_) => ProcessStatus::Compensated,
        };
        let key = process.business_key().unwrap_or_default();
        let log: Vec<String> =
            processes.log(id, None).await?.iter().rev().map(|entry| entry.event.tag().into()).collect();
        println!("{key}: {}", log.join(", "));
        ensure!(process.status() == expected, "{key} is {}, not {expected}", process.status());
    }

    let (pieces, charged, parcels) = shop.totals().await?;
    println!("{pieces} pieces left, {charged} cents charged, {parcels} parcels");
    ensure!(
        (pieces, charged, parcels) == (PIECES - 4, 4 * 500, 4),
        "four orders went through, and nothing else is left"
    );
    for service in services {
        service.shutdown(Duration::from_secs(10)).await?;
    }
    manager.shutdown(Duration::from_secs(10)).await?;
    shop.close().await?;
    headwater.close().await?;
    println!("every order is whole, or undone");
    Ok(())
}

/// The application's own tables, in the database that holds the messages: what makes one transaction possible.
struct Shop {
    headwater: Headwater,
    suffix: String,
    /// Which steps of which processes have failed once.
    stumbled: Arc<Mutex<HashSet<(Uuid, String)>>>,
}

impl Shop {
    async fn open(headwater: &Headwater) -> Result<Self> {
        let shop = Shop {
            headwater: headwater.clone(),
            suffix: Uuid::now_v7().simple().to_string(),
            stumbled: Arc::default(),
        };
        for table in ["shelf (pieces bigint)", "payment (id text, cents bigint)", "parcel (id text)"] {
            let (name, columns) = table.split_once(' ').expect("a name and columns");
            shop.execute(format!("CREATE TABLE {name}_{} {columns}", shop.suffix)).await?;
        }
        shop.execute(format!("INSERT INTO shelf_{} VALUES ({PIECES})", shop.suffix)).await?;
        Ok(shop)
    }

    fn stock(&self) -> Commands {
        let table = format!("shelf_{}", self.suffix);
        let take = format!("UPDATE {table} SET pieces = pieces - 1 WHERE pieces > 0");
        let put_back = format!("UPDATE {table} SET pieces = pieces + 1");
        self.on(self.on(Commands::new(), "Reserve", take), "Release", put_back)
    }

    fn payments(&self) -> Commands {
        let table = format!("payment_{}", self.suffix);
        let charge = format!("INSERT INTO {table} (id, cents) VALUES ($1, 500)");
        let refund = format!("DELETE FROM {table} WHERE id = $1");
        self.on(self.on(Commands::new(), "Charge", charge), "Refund", refund)
    }

    fn parcels(&self) -> Commands {
        self.on(Commands::new(), "Ship", format!("INSERT INTO parcel_{} (id) VALUES ($1)", self.suffix))
    }

    /// A command that is one statement. What it wrote before it fails is rolled back.
    fn on(&self, commands: Commands, name: &str, sql: String) -> Commands {
        let stumbled = Arc::clone(&self.stumbled);
        commands.on(name, move |tx: Transaction, command: Command| {
            let (sql, stumbled) = (sql.clone(), Arc::clone(&stumbled));
            async move {
                let id = command.process_id();
                let params: Vec<Value> =
                    if sql.contains("$1") { vec![id.to_string().into()] } else { Vec::new() };
                tx.execute(&sql, params).await?;
                let order: Order = command.data().decode()?;
                let step = Some(command.step().to_owned());
                if command.undoes().is_none() && order.fails == step {
                    return Err(StepError::failed(format!("no way to {}", command.step())));
                }
                if order.stumbles == step && stumbled.lock().unwrap().insert((id, command.step().to_owned()))
                {
                    return Err(StepError::retry("busy, try again"));
                }
                Ok(BTreeMap::from([(command.step().to_owned(), "done")]))
            }
        })
    }

    async fn totals(&self) -> Result<(i64, i64, i64)> {
        let suffix = &self.suffix;
        let sql = format!(
            "SELECT (SELECT pieces FROM shelf_{suffix}) AS pieces,
                    (SELECT CAST(sum(cents) AS bigint) FROM payment_{suffix}) AS cents,
                    (SELECT CAST(count(*) AS bigint) FROM parcel_{suffix}) AS parcels"
        );
        let rows: headwater::Result<Vec<headwater::transaction::Row>> =
            self.headwater.transaction(move |tx: Transaction| async move { tx.query(&sql, ()).await }).await;
        let row = &rows?[0];
        Ok((row.get("pieces")?, row.get("cents")?, row.get("parcels")?))
    }

    async fn close(self) -> Result<()> {
        for table in ["shelf", "payment", "parcel"] {
            self.execute(format!("DROP TABLE {table}_{}", self.suffix)).await?;
        }
        Ok(())
    }

    async fn execute(&self, sql: String) -> headwater::Result<u64> {
        self.headwater.transaction(move |tx: Transaction| async move { tx.execute(&sql, ()).await }).await
    }
}
