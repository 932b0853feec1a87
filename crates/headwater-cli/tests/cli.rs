//! The command as a person uses it, on both stores: one binary, real processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use headwater::Headwater;
use headwater::settle::Verdict;
use headwater::store::Owner;
use serde_json::{Value, json};

#[path = "cli/comfort.rs"]
mod comfort;
#[path = "cli/consuming.rs"]
mod consuming;
#[path = "cli/contexts.rs"]
mod contexts;
#[path = "cli/cron.rs"]
mod cron;
#[path = "cli/curl.rs"]
mod curl;
#[path = "cli/deaths.rs"]
mod deaths;
#[path = "cli/demo.rs"]
mod demo;
#[path = "cli/deploy.rs"]
mod deploy;
#[path = "cli/examples.rs"]
mod examples;
#[path = "cli/exec.rs"]
mod exec;
#[path = "cli/groups.rs"]
mod groups;
#[path = "cli/maintenance.rs"]
mod maintenance;
#[path = "cli/messages.rs"]
mod messages;
#[path = "cli/opening.rs"]
mod opening;
#[path = "cli/operators.rs"]
mod operators;
#[path = "cli/outbox.rs"]
mod outbox;
#[path = "cli/peek.rs"]
mod peek;
#[path = "cli/pipeline.rs"]
mod pipeline;
#[path = "cli/pipes.rs"]
mod pipes;
#[path = "cli/processes.rs"]
mod processes;
#[path = "cli/relay.rs"]
mod relay;
#[path = "cli/round_trip.rs"]
mod round_trip;
#[path = "cli/scheduled.rs"]
mod scheduled;
#[path = "cli/serve.rs"]
mod serve;
#[path = "cli/signals.rs"]
mod signals;
#[path = "cli/taken.rs"]
mod taken;
#[path = "cli/terminal.rs"]
mod terminal;
#[path = "cli/tokens.rs"]
mod tokens;
#[path = "cli/top.rs"]
mod top;
#[path = "cli/topics.rs"]
mod topics;
#[cfg(unix)]
#[path = "cli/unwritable.rs"]
mod unwritable;

/// An environment for the command: a working directory, and the store it uses.
struct Place {
    folder: tempfile::TempDir,
    store: Option<(String, String)>,
}

impl Place {
    fn sqlite() -> Self {
        Place { folder: tempfile::tempdir().unwrap(), store: None }
    }

    /// `None`, with a printed notice, where no server is given; a failure where nothing may be skipped.
    fn postgres(name: &str) -> Option<Self> {
        let Ok(url) = std::env::var("HEADWATER_TEST_POSTGRES") else {
            let required = std::env::var("HEADWATER_TEST_REQUIRE_ALL").is_ok();
            assert!(!required, "HEADWATER_TEST_POSTGRES is not set and nothing may be skipped");
            println!("skipped: HEADWATER_TEST_POSTGRES is not set");
            return None;
        };
        let namespace = format!("cli_{name}_{}", std::process::id());
        Some(Place { folder: tempfile::tempdir().unwrap(), store: Some((url, namespace)) })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
        command.current_dir(self.folder.path()).args(args);
        for name in ["HEADWATER_STORE", "HEADWATER_NAMESPACE", "HEADWATER_CONTEXT", "HEADWATER_LOG"] {
            command.env_remove(name);
        }
        // Not the contexts of the person who runs the tests.
        command.env("XDG_CONFIG_HOME", self.folder.path().join("config"));
        if let Some((url, namespace)) = &self.store {
            command.args(["--store", url, "--namespace", namespace]);
        }
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().unwrap()
    }

    /// Its output, if it succeeded.
    fn out(&self, args: &[&str]) -> String {
        text(self.run(args))
    }

    /// Its JSON output, if it succeeded.
    fn json(&self, args: &[&str]) -> Vec<serde_json::Value> {
        let printed = self.out(&[args, &["--output", "json"]].concat());
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The only object it printed.
    fn one(&self, args: &[&str]) -> serde_json::Value {
        let mut printed = self.json(args);
        assert_eq!(printed.len(), 1, "{args:?}: {printed:?}");
        printed.remove(0)
    }

    /// No invariant is broken; something may need an operator's attention.
    fn assert_sound(&self) {
        let doctor = self.run(&["doctor"]);
        assert!(matches!(doctor.status.code(), Some(0 | 3)), "{doctor:?}");
    }

    /// Another program on the same store.
    fn program(&self, work: impl AsyncFnOnce(&Headwater)) {
        let (url, options) = match &self.store {
            Some((url, namespace)) => (url.clone(), headwater::OpenOptions::default().namespace(namespace)),
            None => {
                let path = self.folder.path().join("headwater.db");
                (format!("sqlite:{}", path.display()), headwater::OpenOptions::default())
            }
        };
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let headwater = Headwater::open_with(&url, options).await.unwrap();
            work(&headwater).await;
            headwater.close().await.unwrap();
        });
    }

    fn with_input(&self, args: &[&str], input: &str) -> Output {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some((url, namespace)) = &self.store else { return };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let options = headwater::OpenOptions::default().namespace(namespace);
            if let Ok(store) = headwater::store::open(url, options).await {
                store.drop_namespace().await.unwrap();
            }
        });
    }
}

fn text(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Some fields of an object.
fn fields<const N: usize>(object: &serde_json::Value, names: [&str; N]) -> [serde_json::Value; N] {
    names.map(|name| object.get(name).unwrap_or_else(|| panic!("no {name} in {object}")).clone())
}

fn refusal(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The README's first two commands, and what follows from them.
fn the_first_minutes(place: &Place) {
    assert_eq!(place.out(&["publish", "orders", r#"{"n":1}"#]), "orders 1\n");
    assert_eq!(place.out(&["consume", "orders", "--group", "a", "--create", "--max", "1"]), "{\"n\":1}\n");
    assert_eq!(place.out(&["consume", "orders", "--group", "a", "--wait", "0s"]), "");

    // A second group on a queue would compete by accident.
    let refused = refusal(&place.run(&["consume", "orders", "--group", "b", "--create", "--wait", "0s"]), 2);
    assert!(refused.contains("its group is a"), "{refused}");
    assert!(refused.contains("`headwater topic alter orders --semantics pub_sub`"), "{refused}");
    assert_eq!(refusal(&place.run(&["group", "subscribe", "orders", "b"]), 2), refused);

    let many: String = (0..2_500).map(|n| format!("{n}\n")).collect();
    let printed = text(place.with_input(&["publish", "orders"], &many));
    assert_eq!(printed.lines().count(), 2_500);
    let one = place.with_input(&["publish", "singular"], "1\n");
    assert!(refusal(&one, 0).ends_with("published 1 message to singular\n"), "{one:?}");
    // Messages beyond --max are released, not lost.
    assert_eq!(place.out(&["consume", "orders", "--group", "a", "--max", "3"]), "0\n1\n2\n");
    let rest = place.out(&["consume", "orders", "--group", "a", "--batch", "500", "--wait", "200ms"]);
    assert_eq!(rest, (3..2_500).map(|n| format!("{n}\n")).collect::<String>());
    assert_eq!(place.run(&["doctor"]).status.code(), Some(0));
}

fn json_lines_and_mistakes(place: &Place) {
    place.out(&["topic", "create", "events", "--pub-sub", "--lease", "30s"]);
    place.out(&["topic", "create", "events", "--pub-sub", "--lease", "30s"]);
    let conflict = refusal(&place.run(&["topic", "create", "events"]), 1);
    assert_eq!(
        conflict,
        "error: topic events exists with other settings: semantics pub_sub, not queue; max_retention 30d, not none; lease 30s, not 5m; \
         nothing was changed: alter it with `headwater topic alter events`\n"
    );

    let lines = "{\"payload\":{\"a\":1},\"key\":\"k\",\"headers\":{\"h\":\"v\"},\"dedup_key\":\"d\"}\n\
                 {\"payload\":\"text\",\"dedup_key\":\"d\"}\n";
    let printed = text(place.with_input(&["publish", "events", "--json-lines", "--output", "json"], lines));
    let answers: Vec<serde_json::Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&answers[0]["offset"], &answers[0]["duplicate"]), (&1.into(), &false.into()));
    assert_eq!((&answers[1]["offset"], &answers[1]["duplicate"]), (&1.into(), &true.into()));
    let got = place.out(&["consume", "events", "--group", "g", "--create", "--max", "1", "--output", "json"]);
    let got: serde_json::Value = serde_json::from_str(&got).unwrap();
    assert_eq!(
        (&got["payload"]["a"], &got["key"], &got["headers"]["h"]),
        (&1.into(), &"k".into(), &"v".into())
    );

    // The lines before a bad one are published, the bad one is named, and nothing after it is.
    let broken = place.with_input(
        &["publish", "events", "--json-lines"],
        "{\"payload\":1}\n{\"oops\":1}\n{\"payload\":3}\n",
    );
    let refused = refusal(&broken, 1);
    assert!(refused.contains("line 2 of stdin") && refused.contains("oops"), "{refused}");
    assert_eq!(place.out(&["consume", "events", "--group", "g", "--wait", "200ms"]), "1\n");

    assert!(
        refusal(&place.run(&["publish", "nowhere", "x", "--no-create"]), 1)
            .contains("no such topic: nowhere")
    );
    assert!(refusal(&place.run(&["publish", "", "x"]), 2).contains("invalid topic: must not be empty"));
    assert!(
        refusal(&place.run(&["consume", "events", "--group", "g", "--from", "yesterday"]), 2)
            .contains("offset:N")
    );
    let listed = place.out(&["topic", "list", "--output", "json"]);
    let listed: serde_json::Value = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
    assert_eq!((&listed["topic"], &listed["semantics"]), (&"events".into(), &"pub_sub".into()));
}

/// Consumes everything of a topic as a program that gives up on all of it, for the reason in the payload.
fn bury_all(place: &Place, topic: &str, group: &str) {
    place.program(async |headwater| {
        let mut consumer = headwater.consumer(topic, group).open().await.unwrap();
        while let Some(batch) = consumer.next(Duration::ZERO).await.unwrap() {
            let bury = |message: headwater::Message, _| async move {
                Verdict::Bury(format!("cannot do {:?}\nand more", message.payload))
            };
            batch.handle(bury).await.unwrap();
        }
    });
}

/// A payload is mended on the command line or in an editor; a rate spreads a redrive over time.
fn edited_copies(place: &Place) {
    fn redrive<'a>(rest: &[&'a str]) -> Vec<&'a str> {
        [&["dead-letter", "redrive", "mended"], rest].concat()
    }
    let publish = |n: usize| place.out(&["publish", "mended", &format!("{{\"n\":{n}}}")]);
    (1..=3).for_each(|n| drop(publish(n)));
    bury_all(place, "mended", "mail");
    let listed = place.json(&["dead-letter", "list", "mended"]);
    let id = |n: usize| listed[n]["id"].as_str().unwrap().to_owned();
    let mended = place.one(&redrive(&["--id", &id(0), "--payload", "{\"n\":10}"]));
    assert_eq!(json!(fields(&mended, ["from", "offset"])), json!([1, 4]));
    let edited = place
        .command(&redrive(&["--id", &id(1), "--edit"]))
        .env("VISUAL", "sed -i s/2/20/")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    text(edited);
    let got = place.json(&["consume", "mended", "--group", "mail", "--wait", "0s"]);
    assert_eq!(json!([got[0]["payload"]["n"], got[1]["payload"]["n"]]), json!([10, 20]));
    assert_eq!(got[0]["headers"]["headwater-edited-from"], "1");
    assert_eq!(got[0]["headers"]["headwater-edited-for"], "mail");
    let unchanged = place.run(&redrive(&["--id", &id(2), "--payload", "{\"n\":3}"]));
    assert!(refusal(&unchanged, 1).contains("unchanged"));
    assert!(refusal(&place.run(&redrive(&["--all", "--payload", "x"])), 2).contains("--id"));
    assert!(refusal(&place.run(&redrive(&["--all", "--rate", "fast"])), 2).contains("100/s"));
    let redriven = place.one(&redrive(&["--all", "--rate", "100/s"]));
    assert_eq!(redriven["redriven"], 1);
}

fn dead_letters(place: &Place) {
    place.out(&["publish", "orders", r#"{"n":1}"#, "--key", "a", "--type", "paid", "--header", "h=v"]);
    place.out(&["publish", "orders", "two", "--key", "b"]);
    bury_all(place, "orders", "mail");
    let on = |verb: &str, rest: &[&str]| {
        let base = ["dead-letter", verb, "orders", "--group", "mail"];
        place.run(&[&base[..], rest].concat())
    };
    let table = text(on("list", &[]));
    assert!(
        table.contains("orders") && table.contains("cannot do") && !table.contains("and more"),
        "{table}"
    );
    let listed = text(on("list", &["--key", "a", "--output", "json"]));
    let letter: serde_json::Value = serde_json::from_str(listed.trim()).expect("one line");
    assert_eq!((&letter["payload"]["n"], &letter["type"]), (&1.into(), &"paid".into()));
    assert_eq!((&letter["attempts"], &letter["headers"]["h"]), (&1.into(), &"v".into()));
    assert!(letter["error"].as_str().unwrap().ends_with("and more"));

    let id = letter["id"].as_str().unwrap();
    let shown = text(on("show", &[id]));
    assert!(shown.contains(&format!("id              {id}\n")), "{shown}");
    assert!(shown.ends_with("payload         {\"n\":1}\n"), "{shown}");
    let unknown = refusal(&on("show", &["00000000-0000-0000-0000-000000000000"]), 1);
    assert!(unknown.contains("no such dead letter") && unknown.contains("orders"), "{unknown}");

    // No filter does not mean all of them, and nothing is removed without confirmation.
    assert!(refusal(&on("redrive", &[]), 2).contains("--all"));
    assert!(refusal(&on("redrive", &["--all", "--key", "a"]), 2).contains("cannot be used with"));
    assert!(refusal(&on("purge", &["--all"]), 2).contains("--yes"));
    // Without a group those of all groups are listed, and without a topic those of all topics.
    for args in [&["dead-letter", "list", "orders"][..], &["dead-letter", "list"]] {
        let all = place.json(args);
        assert_eq!(json!([all.len(), all[0]["topic"], all[1]["group"]]), json!([2, "orders", "mail"]));
    }
    let counted = place.one(&["dead-letter", "list", "--count"]);
    assert_eq!(counted, json!({"topic": "orders", "group": "mail", "dead_letters": 2, "gone": 0}));
    let noon = refusal(&on("list", &["--buried-after", "noon"]), 2);
    assert!(noon.contains("; write it like 2026-01-31T12:00:00Z"), "{noon}");
    let unknown = refusal(&place.run(&["dead-letter", "list", "orders", "--group", "other"]), 1);
    assert!(unknown.contains("no such subscription") && unknown.contains("other"), "{unknown}");

    let on_json = |verb: &str, rest: &[&str]| -> Vec<Value> {
        let printed = text(on(verb, &[rest, &["--output", "json"]].concat()));
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let redriven = |dry_run: bool, count: u64| {
        vec![json!({"topic": "orders", "group": "mail", "dry_run": dry_run, "redriven": count, "gone": 0})]
    };
    assert_eq!(on_json("redrive", &["--all", "--dry-run"]), redriven(true, 2));
    assert_eq!(on_json("redrive", &["--id", id]), redriven(false, 1));
    assert_eq!(on_json("redrive", &["--id", id]), redriven(false, 0));
    assert_eq!(place.out(&["consume", "orders", "--group", "mail", "--wait", "0s"]), "{\"n\":1}\n");
    let purged = |dry_run: bool, count: u64| {
        vec![json!({"topic": "orders", "group": "mail", "dry_run": dry_run, "purged": count})]
    };
    assert_eq!(on_json("purge", &["--error-contains", "nothing", "--yes"]), purged(false, 0));
    assert_eq!(on_json("purge", &["--all", "--dry-run"]), purged(true, 1));
    edited_copies(place);
    assert_eq!(on_json("purge", &["--all", "--yes"]), purged(false, 1));
    assert_eq!(on_json("list", &[]), [] as [Value; 0]);
    assert_eq!(place.run(&["doctor"]).status.code(), Some(0));
}

#[test]
fn dead_letters_on_sqlite() {
    dead_letters(&Place::sqlite());
}

#[test]
fn dead_letters_on_postgres() {
    if let Some(place) = Place::postgres("dead_letters") {
        dead_letters(&place);
    }
}

#[test]
fn the_first_minutes_on_sqlite() {
    the_first_minutes(&Place::sqlite());
}

#[test]
fn the_first_minutes_on_postgres() {
    if let Some(place) = Place::postgres("first") {
        the_first_minutes(&place);
    }
}

#[test]
fn json_lines_and_mistakes_on_sqlite() {
    json_lines_and_mistakes(&Place::sqlite());
}

#[test]
fn json_lines_and_mistakes_on_postgres() {
    if let Some(place) = Place::postgres("json") {
        json_lines_and_mistakes(&place);
    }
}

#[test]
fn a_waiting_consumer_gets_what_another_process_publishes_and_heeds_sigterm() {
    let place = Place::sqlite();
    place.out(&["topic", "create", "orders"]);
    place.out(&["group", "subscribe", "orders", "mail"]);
    let consume = &mut place.command(&["consume", "orders", "--group", "mail", "--max", "1"]);
    let waiting = consume.stdout(Stdio::piped()).spawn().unwrap();
    place.out(&["publish", "orders", "hello"]);
    assert_eq!(text(waiting.wait_with_output().unwrap()), "hello\n");

    let consume = &mut place.command(&["consume", "orders", "--group", "mail"]);
    let mut waiting = consume.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    place.out(&["publish", "orders", "again"]);
    // Once it has printed something, it handles signals.
    let mut line = String::new();
    BufReader::new(waiting.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "again\n");
    assert!(Command::new("kill").args(["-TERM", &waiting.id().to_string()]).status().unwrap().success());
    assert!(waiting.wait().unwrap().success());
}

#[test]
fn a_foreign_file_is_refused_and_adopted_when_asked() {
    let place = Place::sqlite();
    std::fs::write(place.folder.path().join("headwater.db"), "these are my notes, not a database\n").unwrap();
    let refused = refusal(&place.run(&["publish", "orders", "x"]), 1);
    assert!(refused.contains("headwater.db"), "{refused}");
    let kept = std::fs::read_to_string(place.folder.path().join("headwater.db")).unwrap();
    assert_eq!(kept, "these are my notes, not a database\n");

    let app = place.folder.path().join("app.db");
    application(&app);
    let store = ["--store", "sqlite:app.db"];
    let refused = refusal(&place.run(&[&["publish", "orders", "x"], &store[..]].concat()), 1);
    assert!(refused.contains("headwater migrate --adopt"), "{refused}");
    assert!(refusal(&place.run(&[&["topic", "list"], &store[..]].concat()), 1).contains("migrate --adopt"));
    assert!(place.out(&[&["migrate", "--status"], &store[..]].concat()).contains("holds no store"));
    place.out(&[&["migrate", "--adopt"], &store[..]].concat());
    assert_eq!(place.out(&[&["publish", "orders", "x"], &store[..]].concat()), "orders 1\n");
}

/// A command that only reads creates nothing: neither a file for a mistyped name, nor a topic.
#[test]
fn reading_commands_create_no_store() {
    let place = Place::sqlite();
    let commands = [
        "topic list",
        "topic show orders",
        "group list orders",
        "group show orders mail",
        "dead-letter list orders",
        "backfill list",
        "maintain --status",
        "audit",
        "doctor",
        "consume orders --group mail --create --wait 0s",
        "peek orders",
    ];
    for command in commands {
        let refused = refusal(&place.run(&command.split(' ').collect::<Vec<_>>()), 1);
        let names_it = refused.contains("no store at ") && refused.contains("headwater.db; ");
        assert!(names_it, "{command}: {refused}");
        assert!(refused.contains("`headwater migrate` or `headwater publish` creates it"), "{refused}");
    }
    let status = place.one(&["migrate", "--status"]);
    assert_eq!((&status["version"], &status["pending"]), (&serde_json::Value::Null, &status["newest"]));
    assert!(place.out(&["migrate", "--status"]).contains("no store at headwater.db"));
    assert_eq!(std::fs::read_dir(place.folder.path()).unwrap().count(), 0, "nothing was created");
    let made = place.one(&["migrate"]);
    assert_eq!((&made["from"], &made["to"]), (&0.into(), &status["newest"]));
    let file = place.folder.path().join("headwater.db");
    let before = std::fs::read(&file);
    assert!(place.out(&["migrate", "--status"]).contains("; nothing is pending"));
    assert_eq!(std::fs::read(&file).unwrap(), before.unwrap());
    assert_eq!(std::fs::read_dir(place.folder.path()).unwrap().count(), 1, "nothing was left beside it");
    // What is only in the write-ahead log, because another connection has the file open, counts too.
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection.execute("UPDATE headwater_meta SET value = '0' WHERE key = 'schema'", []).unwrap();
    let now = place.one(&["migrate", "--status"]);
    assert_eq!((&now["version"], &now["pending"]), (&0.into(), &now["newest"]));
}

/// Another program's database.
fn application(path: &Path) {
    let table = "CREATE TABLE invoice (id INTEGER PRIMARY KEY, total INTEGER)";
    rusqlite::Connection::open(path).unwrap().execute_batch(table).unwrap();
}
