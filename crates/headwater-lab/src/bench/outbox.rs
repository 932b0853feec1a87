//! The outbox: entries inserted in transactions, and swept and marked by relays. There is no peer of the same promises to put beside it.

use anyhow::{Result, ensure};
use headwater::outbox::NewEntry;
use headwater::transaction::Transaction;

use super::engine::Engine;
use super::measure::{Rate, run_tasks};
use super::report::{Beside, Floor, Row};
use super::{PAYLOAD_BYTES, Plan, progress};
use crate::check::best;
use crate::check::{Figure, Unit};

/// Entries of one transaction.
const INSERTED: usize = 100;
/// Entries of one sweep.
const SWEPT: u32 = 500;

/// Both rows, on one database.
pub(crate) async fn measure(engine: &Engine, database: &str, plan: Plan) -> Result<Vec<Row>> {
    progress(&format!("{database}: outbox"));
    let (mut inserted, mut swept) = (vec![], vec![]);
    for _ in 0..plan.rounds {
        for tasks in [1, 4] {
            inserted.push(insert(engine, tasks, plan).await?.per_second());
            swept.push(sweep(engine, tasks, plan).await?.per_second());
        }
    }
    let row = |work: &str, rounds: &[f64], how: &str| Row {
        work: format!("{database} outbox, {work}"),
        headwater: Figure::new(best(rounds), Unit::PerSecond),
        beside: Beside::Nothing,
        floor: Floor::None,
        how: format!("best of 1 and 4 tasks; {how}"),
        rounds: rounds.iter().map(|round| (*round, None)).collect(),
    };
    Ok(vec![
        row("inserted, 100 in a transaction", &inserted, "each insert is a statement of its own; durable"),
        row("swept and marked as published, 500 at a time", &swept, "one statement to sweep and one to mark"),
    ])
}

async fn insert(engine: &Engine, tasks: usize, plan: Plan) -> Result<Rate> {
    run_tasks(tasks, plan.round, |_, run| {
        let headwater = engine.headwater().clone();
        async move {
            while run.goes_on() {
                let outbox = headwater.outbox();
                let insert = headwater.transaction(move |tx: Transaction| async move {
                    let outbox = outbox.within(&tx);
                    for n in 0..INSERTED {
                        let entry =
                            NewEntry::kafka_event("orders", n.to_string(), "lab", vec![b'x'; PAYLOAD_BYTES]);
                        outbox.insert_returning_id(&entry).await?;
                    }
                    Ok::<(), headwater::Error>(())
                });
                insert.await?;
                run.count(INSERTED);
            }
            Ok(())
        }
    })
    .await
}

/// Until the time or the entries are used up.
async fn sweep(engine: &Engine, tasks: usize, plan: Plan) -> Result<Rate> {
    run_tasks(tasks, plan.round, |task, run| {
        let (outbox, claimer) = (engine.headwater().outbox(), format!("lab-{task}"));
        async move {
            while run.goes_on() {
                let entries = outbox.sweep_batch(SWEPT, &claimer).await?;
                if entries.is_empty() {
                    break;
                }
                let marked = outbox.mark_published(&entries, &claimer).await?.marked.len();
                ensure!(marked == entries.len(), "{marked} of {} were marked", entries.len());
                run.count(marked);
            }
            Ok(())
        }
    })
    .await
}
