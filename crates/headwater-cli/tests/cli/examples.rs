//! Every example in a help text runs, each on a store of its own that is prepared the same way.
//!
//! A new command is covered as soon as its help has an example. If the example needs something that the prepared store does not have,
//! it is added to [`prepare`], or to [`BEFORE`] if it contradicts other examples.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use headwater::outbox::NewEntry;
use headwater::store::ParkedCommand;

use super::*;

/// What runs before an example that begins with these words.
const BEFORE: [(&str, &[&str]); 12] = [
    ("headwater token rotate", &[TOKEN]),
    ("headwater token revoke", &[TOKEN]),
    ("headwater pipeline runs", &[PIPELINE]),
    ("headwater pipeline drop", &[PIPELINE]),
    ("headwater pipeline storage", &[PIPELINE]),
    ("headwater pipeline cells", &[PIPELINE]),
    ("headwater pipeline claims", &[PIPELINE]),
    ("headwater relay check", &[ARCHIVE, RELAY]),
    ("headwater relay remove", &[RELAY]),
    ("headwater relay run", &[ARCHIVE, RELAY]),
    ("headwater backfill cancel", &["headwater backfill start orders audit"]),
    (
        "headwater backfill resume",
        &["headwater backfill start orders audit", "headwater backfill cancel orders audit"],
    ),
];
/// A store that is relayed to, and a relay to it.
const ARCHIVE: &str = "env -u HEADWATER_NAMESPACE headwater topic create orders --store sqlite:archive.db";
const RELAY: &str =
    "headwater relay add orders --to headwater+sqlite:archive.db?topic=orders --group archive --name archive";
/// A token to change.
const TOKEN: &str = "headwater token create shop --scope publish";
/// A run to operate.
const PIPELINE: &str = "headwater pipeline run --ticks 20 --quiet";
/// Examples that may exit with another code than 0, as their help says. No pipeline runs whose services could be controlled, and there
/// is no certificate.
const OTHER_CODES: [(&str, i32); 5] = [
    ("headwater serve --listen 0.0.0.0", 2),
    ("headwater doctor", 3),
    ("headwater bridge run", 1),
    ("headwater pipeline service", 1),
    ("headwater pipeline service", 2),
];
/// Those on PostgreSQL.
const OTHER_CODES_ON_POSTGRES: [(&str, i32); 4] = [
    ("headwater serve --listen 0.0.0.0", 2),
    ("headwater doctor", 3),
    ("headwater bridge run", 1),
    ("headwater topic auto-create off", 2),
];
/// Examples that use no store: they run once.
const WITHOUT_STORE: [&str; 6] = [
    "headwater demo",
    "headwater serve --demo",
    "headwater completions",
    "headwater man",
    "headwater context",
    "headwater pipeline",
];

/// The help of each command, from the outermost on.
fn helps(place: &Place, path: &[String]) -> Vec<String> {
    let args: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
    // As wide as the help ever is: no example is broken into two lines.
    let help = text(place.command(&args).env("COLUMNS", "200").output().unwrap());
    let commands =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = commands.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let inner: Vec<Vec<String>> = names
        .filter(|name| !name.is_empty() && *name != "help")
        .map(|name| [path, &[name.to_owned()]].concat())
        .collect();
    let mut all = vec![help];
    all.extend(inner.iter().flat_map(|inner| helps(place, inner)));
    all
}

/// The examples of a help: lines with a command line of `headwater`.
fn examples(help: &str) -> Vec<String> {
    let lines = help.lines().map(str::trim).map(|line| line.strip_prefix("Example: ").unwrap_or(line));
    let is_example = |line: &&str| line.starts_with("headwater ") || line.contains(" | headwater ");
    lines.filter(is_example).map(str::to_owned).collect()
}

/// A store in which every example finds what it names.
fn prepare(place: &Place) {
    place.out(&["topic", "create", "orders", "--pub-sub", "--ack-log", "--tracking", "reference_counting"]);
    for group in ["email", "default"] {
        place.out(&["group", "subscribe", "orders", group]);
    }
    for (payload, kind) in [("1", "test"), ("2", "test"), ("3", "paid")] {
        place.out(&["publish", "orders", payload, "--key", "o-1", "--type", kind]);
    }
    place.out(&["maintain"]);
    place.program(async |headwater| {
        for group in ["email", "default"] {
            let mut consumer = headwater.consumer("orders", group).batch(1).open().await.unwrap();
            let buried = consumer.next(Duration::ZERO).await.unwrap().unwrap();
            buried.handle(|_, _| async { Verdict::Bury("mail server timed out".into()) }).await.unwrap();
            // Leased until it expires: its owner is gone.
            consumer.next(Duration::ZERO).await.unwrap().unwrap();
        }
    });
    place.out(&["group", "subscribe", "orders", "audit", "--from", "beginning"]);
    place.program(async |headwater| {
        // One under way, one parked, and a parked command.
        let outbox = headwater.outbox().max_attempts(1);
        for _ in 0..2 {
            outbox
                .insert_returning_id(&NewEntry::kafka_event("orders", "o-1", "OrderCreated", "{}"))
                .await
                .unwrap();
        }
        outbox.sweep_batch(10, "relay").await.unwrap();
        outbox.mark_failed(2, "relay", "broker away", Duration::ZERO).await.unwrap();
        let command = ParkedCommand::new("c-1", "Pay", "{}", "worker").topic("orders");
        headwater.dead_letters().park(&command).await.unwrap();
    });
    place.out(&["topic", "create", "reminders"]);
    place.out(&["publish", "reminders", "1", "--delay", "1h"]);
    place.program(async |headwater| drop(super::processes::parked(headwater).await));
}

/// Values that an example shows and only the store knows.
fn with_real_values(place: &Place, example: &str) -> String {
    let shown = place.one(&["group", "show", "orders", "email"]);
    let letters = place.json(&["dead-letter", "list", "orders", "--group", "email"]);
    let scheduled = place.json(&["scheduled", "list", "reminders"]);
    let parked = place.json(&["process", "list", "--parked"]);
    let id_of = |listed: &[Value], field: &str| listed[0][field].as_str().unwrap().to_owned();
    let word = |word: &str| match word {
        "4711" => shown["outstanding"][0]["token"].to_string(),
        word if word.starts_with("0199a1b2") && example.starts_with("headwater scheduled") => {
            id_of(&scheduled, "message_id")
        }
        word if word.starts_with("0199a1b2") && example.starts_with("headwater parked") => {
            id_of(&place.json(&["parked", "list"]), "id")
        }
        word if word.starts_with("0199a1b2") && example.starts_with("headwater process") => {
            id_of(&parked, "id")
        }
        word if word.starts_with("0199a1b2") => id_of(&letters, "id"),
        // Not the port of a server that runs on this machine.
        "127.0.0.1:7411" if example.starts_with("headwater serve") => "127.0.0.1:0".to_owned(),
        "0.0.0.0:7411" => "0.0.0.0:0".to_owned(),
        "--demo" => "--demo --listen 127.0.0.1:0".to_owned(),
        "postgres://localhost/shop" => "\"$HEADWATER_STORE\"".to_owned(),
        word => word.to_owned(),
    };
    example.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// Runs an example as a person would, in a shell.
fn run(place: &Place, env: &[(&str, String)], example: &str) -> (ExitStatus, String) {
    let programs = Path::new(env!("CARGO_BIN_EXE_headwater")).parent().unwrap().display();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    // With `exec` a signal reaches the command itself.
    let line = match example {
        example if runs_until_stopped(example) => format!("exec {example} 2>&1"),
        example => example.to_owned(),
    };
    shell.arg("-c").arg(line).current_dir(place.folder.path()).env("PATH", path);
    shell.env("XDG_CONFIG_HOME", place.folder.path().join("config"));
    shell.envs(env.iter().map(|(name, value)| (name, value)));
    let log = place.folder.path().join("printed.txt");
    let printed = std::fs::File::create(&log).unwrap();
    shell.stdin(Stdio::null()).stderr(printed.try_clone().unwrap());
    let status = if runs_until_stopped(example) {
        let mut child = shell.stdout(Stdio::piped()).spawn().unwrap();
        // Once it has printed something, it is at work.
        let mut first = [0];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
        child.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
        child.wait().unwrap()
    } else {
        shell.stdout(printed).status().unwrap()
    };
    (status, std::fs::read_to_string(log).unwrap())
}

/// Whether a command ends only when it is stopped.
fn runs_until_stopped(example: &str) -> bool {
    let has = |word: &str| example.split(' ').any(|found| found == word);
    let ends = has("--max") || has("--wait") || has("--dry-run");
    let serves = example.starts_with("headwater relay run") || example.starts_with("headwater serve");
    serves
        || (example.starts_with("headwater pipeline run") && has("--service"))
        || has("--watch")
        || has("--follow")
        || (has("watch") && !has("--run"))
        || (has("consume") && !ends)
}

/// The example with what it printed, if it did not end as it should.
fn failure(place: &Place, env: &[(&str, String)], example: &str, others: &[(&str, i32)]) -> Option<String> {
    let script = place.folder.path().join("send-mail");
    std::fs::write(&script, "#!/bin/sh\ncat\necho sent\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(place.folder.path().join("messages.jsonl"), "{\"payload\":{\"n\":1}}\n{\"payload\":2}\n")
        .unwrap();
    let pipeline = headwater_pipeline::Config::embedded_text().replace("${DIRECTORY}", "tides");
    std::fs::write(place.folder.path().join("pipeline.toml"), pipeline).unwrap();
    place.out(&["context", "add", "staging", &env[0].1, "--namespace", &env[1].1]);
    for (_, before) in BEFORE.iter().filter(|(of, _)| example.starts_with(of)) {
        for before in *before {
            let (status, printed) = run(place, env, before);
            assert!(status.success(), "{before}: {printed}");
        }
    }
    let (status, printed) = run(place, env, example);
    let was_stopped = runs_until_stopped(example) && status.signal() == Some(15);
    let is_other = |(of, code): &(&str, i32)| example.starts_with(of) && status.code() == Some(*code);
    let is_right = was_stopped || status.success() || others.iter().any(is_other);
    (!is_right).then(|| format!("`{example}` ended with {status}:\n{printed}"))
}

fn all() -> Vec<String> {
    let helps = helps(&Place::sqlite(), &[]);
    let mut all: Vec<String> = helps.iter().flat_map(|help| examples(help)).collect();
    all.sort();
    all.dedup();
    assert!(all.len() > 40, "{all:?}");
    all
}

#[test]
fn every_example_runs_on_sqlite() {
    let origin = Place::sqlite();
    prepare(&origin);
    let mut failures = Vec::new();
    for example in all() {
        let place = Place::sqlite();
        std::fs::copy(origin.folder.path().join("headwater.db"), place.folder.path().join("hw.shop.db"))
            .unwrap();
        let example = with_real_values(&origin, &example);
        let env = [("HEADWATER_STORE", "sqlite:hw.db".into()), ("HEADWATER_NAMESPACE", "shop".into())];
        failures.extend(failure(&place, &env, &example, &OTHER_CODES));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A database with the prepared namespace; each example gets a copy of it.
#[test]
fn every_example_runs_on_postgres() {
    let Some(mut origin) = Place::postgres("examples") else { return };
    let (server, namespace) = origin.store.clone().unwrap();
    let (before, _) = server.rsplit_once('/').unwrap();
    let (template, copy) = (namespace.clone(), format!("{namespace}_copy"));
    sql(&server, &[format!("CREATE DATABASE {template}")]);
    origin.store = Some((format!("{before}/{template}"), namespace.clone()));
    prepare(&origin);
    let uses_store = |example: &String| !WITHOUT_STORE.iter().any(|without| example.starts_with(without));
    let mut failures = Vec::new();
    for example in all().into_iter().filter(uses_store) {
        let example = with_real_values(&origin, &example);
        sql(
            &server,
            &[
                format!("DROP DATABASE IF EXISTS {copy} WITH (FORCE)"),
                format!("CREATE DATABASE {copy} TEMPLATE {template}"),
            ],
        );
        let env =
            [("HEADWATER_STORE", format!("{before}/{copy}")), ("HEADWATER_NAMESPACE", namespace.clone())];
        failures.extend(failure(&Place::sqlite(), &env, &example, &OTHER_CODES_ON_POSTGRES));
    }
    sql(&server, &[format!("DROP DATABASE {copy} WITH (FORCE)")]);
    // Its roles go with the namespace.
    origin.program(async |headwater| headwater.store().drop_namespace().await.unwrap());
    origin.store = None;
    sql(&server, &[format!("DROP DATABASE {template} WITH (FORCE)")]);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn sql(url: &str, statements: &[String]) {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (client, connection) =
            headwater::tokio_postgres::connect(url, headwater::tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        for statement in statements {
            client.batch_execute(statement).await.unwrap();
        }
    });
}
