//! A store with a manager and a worker of its commands, for cases of processes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headwater::Headwater;
use headwater::process::{
    Command, Commands, ProcessEvent, ProcessInstance, ProcessStatus, ProcessType, Processes, Step, StepError,
};
use headwater::testing::{ManualClock, Stepper};
use headwater::transaction::Transaction;
use serde_json::json;
use uuid::Uuid;

use crate::each::Place;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// What handlers of commands do next, by the name of the command; they succeed otherwise.
pub(crate) type Script = Arc<Mutex<BTreeMap<String, Vec<Reaction>>>>;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Reaction {
    Fail,
    Retry,
    Break,
}

/// A store with a manager and a worker that run when they are stepped, and a table for the effects of commands.
pub(crate) struct Scene {
    pub(crate) headwater: Headwater,
    pub(crate) clock: ManualClock,
    pub(crate) processes: Processes,
    pub(crate) manager: Stepper,
    pub(crate) worker: Stepper,
    pub(crate) script: Script,
    pub(crate) table: String,
}

/// The process of most cases.
pub(crate) fn order() -> ProcessType {
    ProcessType::new("order")
        .step(step("reserve").compensation("undo reserve"))
        .step(step("charge").compensation("undo charge"))
        .step(step("ship"))
}

pub(crate) fn step(name: &str) -> Step {
    Step::new(name, "work", name).attempts(2).backoff(SECOND * 10, SECOND * 60).timeout(SECOND * 30)
}

/// Handlers that write one row for each command into a table, unless the script says otherwise, or the data of the process:
/// `{"fails":"charge"}`, `{"is_busy":"charge"}`.
pub(crate) fn commands(names: &[&str], table: &str, script: &Script) -> Commands {
    let mut commands = Commands::new();
    for name in names {
        let insert = format!("INSERT INTO {table} (name, command_id, process_id) VALUES ($1, $2, $3)");
        let script = Arc::clone(script);
        commands = commands.on(name, move |tx: Transaction, command: Command| {
            let (insert, script) = (insert.clone(), Arc::clone(&script));
            async move {
                let ids = (command.id().to_string(), command.process_id().to_string());
                tx.execute(&insert, (command.name(), ids.0, ids.1)).await?;
                let next = script.lock().unwrap().get_mut(command.name()).and_then(Vec::pop);
                let named = |member: &str| -> headwater::Result<bool> {
                    Ok(command.data().get::<String>(member)?.as_deref() == Some(command.name()))
                };
                let asked = [("fails", Reaction::Fail), ("is_busy", Reaction::Retry)];
                let asked = asked.into_iter().find(|(member, _)| named(member).unwrap_or_default());
                match next.or(asked.map(|(_, reaction)| reaction)) {
                    None => Ok(json!({ (command.name()): command.step() })),
                    Some(Reaction::Fail) => Err(StepError::failed(format!("no {}", command.name()))),
                    Some(Reaction::Retry) => Err(StepError::retry("busy")),
                    Some(Reaction::Break) => Err("the network broke".into()),
                }
            }
        });
    }
    commands
}

/// The effects of a process that has ended: each once; all of them, or what was done and then undone in reverse.
pub(crate) fn legal(status: ProcessStatus, effects: &[String]) {
    let steps = ["reserve", "charge", "ship"];
    let legal: Vec<Vec<String>> = match status {
        ProcessStatus::Succeeded => vec![steps.map(str::to_owned).to_vec()],
        _ => (0..3)
            .map(|done| {
                let undone = steps[..done].iter().rev().map(|step| format!("undo {step}"));
                steps[..done].iter().map(|step| (*step).to_owned()).chain(undone).collect()
            })
            .collect(),
    };
    assert!(legal.iter().any(|legal| legal == effects), "{status}: {effects:?}");
}

pub(crate) const NAMES: [&str; 8] =
    ["reserve", "charge", "ship", "pack", "label", "undo reserve", "undo charge", "undo pack"];

/// A new table for the effects of commands, in their order.
pub(crate) async fn effects_table(headwater: &Headwater) -> String {
    let table = format!("effect_{}", Uuid::now_v7().simple());
    let number = match headwater.store().engine() {
        "sqlite" => "n INTEGER PRIMARY KEY",
        _ => "n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    };
    let create = format!("CREATE TABLE {table} ({number}, name text, command_id text, process_id text)");
    let created: headwater::Result<u64> =
        headwater.transaction(move |tx: Transaction| async move { tx.execute(&create, ()).await }).await;
    created.unwrap();
    table
}

impl Scene {
    pub(crate) async fn new(place: &Place, process_type: &ProcessType) -> Self {
        let clock = ManualClock::at("2026-03-02T09:00:00Z".parse().unwrap());
        let headwater = place.open_at(&clock).await;
        let table = effects_table(&headwater).await;
        let script = Script::default();
        Self::on(headwater, clock, process_type, table, script).await
    }

    pub(crate) async fn on(
        headwater: Headwater,
        clock: ManualClock,
        process_type: &ProcessType,
        table: String,
        script: Script,
    ) -> Self {
        let processes = headwater.processes();
        let manager = processes.manager(process_type).await.unwrap().stepwise().await.unwrap();
        let worker = headwater.consumer("work", "worker").backoff(SECOND, SECOND);
        let worker = worker.handling("one", commands(&NAMES, &table, &script).handling());
        let worker = worker.stepwise().await.unwrap();
        Scene { headwater, clock, processes, manager, worker, script, table }
    }

    /// The same store opened again, as after a restart.
    pub(crate) async fn restarted(self, place: &Place, process_type: &ProcessType) -> Self {
        let Scene { headwater, clock, table, script, .. } = self;
        headwater.close().await.unwrap();
        let headwater = place.open_at(&clock).await;
        Self::on(headwater, clock, process_type, table, script).await
    }

    pub(crate) fn react(&self, command: &str, reactions: &[Reaction]) {
        self.script.lock().unwrap().insert(command.to_owned(), reactions.iter().rev().copied().collect());
    }

    pub(crate) async fn start(&self) -> Uuid {
        self.processes.start("order").data(&json!({ "n": 1 })).await.unwrap().process.id()
    }

    /// Manager and worker in turn, until neither has anything to do now.
    pub(crate) async fn drain(&mut self) {
        loop {
            let (manager, worker) = (self.manage().await, self.worker.drain().await.unwrap());
            if manager + worker == 0 {
                return;
            }
        }
    }

    pub(crate) async fn manage(&mut self) -> usize {
        self.manager.drain().await.unwrap()
    }

    pub(crate) async fn pass(&mut self, time: Duration) {
        self.clock.advance(time);
        self.drain().await;
    }

    pub(crate) async fn process(&self, id: Uuid) -> ProcessInstance {
        let stored = self.processes.find_by_id(id).await.unwrap().unwrap();
        assert_eq!(self.processes.replay(id).await.unwrap().as_ref(), Some(&stored));
        stored
    }

    pub(crate) async fn status(&self, id: Uuid) -> ProcessStatus {
        self.process(id).await.status()
    }

    /// The log in short, oldest first.
    pub(crate) async fn events(&self, id: Uuid) -> Vec<String> {
        let mut log = self.processes.log(id, None).await.unwrap();
        log.reverse();
        let short = |event: &ProcessEvent| match event.step() {
            Some(step) => format!("{} {step}", event.tag()),
            None => event.tag().to_owned(),
        };
        log.iter().map(|entry| short(&entry.event)).collect()
    }

    /// The commands that had an effect, in order.
    pub(crate) async fn effects(&self, id: Uuid) -> Vec<String> {
        let sql = format!("SELECT name FROM {} WHERE process_id = $1 ORDER BY n", self.table);
        let rows: headwater::Result<Vec<headwater::transaction::Row>> = self
            .headwater
            .transaction(move |tx: Transaction| async move { tx.query(&sql, (id.to_string(),)).await })
            .await;
        rows.unwrap().iter().map(|row| row.get("name").unwrap()).collect()
    }

    /// The commands in the worker's topic, by type, with their ids.
    pub(crate) async fn sent(&self) -> Vec<(String, Uuid)> {
        let messages = self.headwater.published("work").await.unwrap();
        messages.iter().map(|message| (message.message_type.clone().unwrap(), message.message_id)).collect()
    }

    pub(crate) async fn leave(self, place: Place) {
        let drop_table = format!("DROP TABLE {}", self.table);
        let dropped: headwater::Result<u64> = self
            .headwater
            .transaction(move |tx: Transaction| async move { tx.execute(&drop_table, ()).await })
            .await;
        dropped.unwrap();
        place.leave(&self.headwater).await;
    }
}
