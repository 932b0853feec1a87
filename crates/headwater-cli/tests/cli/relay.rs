//! `headwater relay`: relays are registered, listed, checked, run and removed.

use super::*;

/// The store that is relayed to, in the folder of the place.
fn archive(place: &Place) -> String {
    let path = place.folder.path().join("archive.db");
    let created = Command::new(env!("CARGO_BIN_EXE_headwater"))
        .args(["topic", "create", "archive", "--store", &format!("sqlite:{}", path.display())])
        .output()
        .unwrap();
    text(created);
    format!("headwater+sqlite:{}?topic=archive", path.display())
}

fn archived(place: &Place) -> usize {
    let path = place.folder.path().join("archive.db");
    let connection = rusqlite::Connection::open(path).unwrap();
    let count: i64 =
        connection.query_row("SELECT count(*) FROM headwater_messages", [], |row| row.get(0)).unwrap();
    usize::try_from(count).unwrap()
}

fn until(what: &str, is_true: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs until it is stopped, gracefully.
fn stopped(mut child: std::process::Child) -> String {
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let mut printed = String::new();
    child.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
    assert!(child.wait().unwrap().success(), "{printed}");
    printed
}

fn registered_and_run(place: &Place) {
    place.out(&["topic", "create", "orders"]);
    let target = archive(place);
    let refused = refusal(&place.run(&["relay", "run"]), 1);
    assert!(refused.contains("no relay is registered"), "{refused}");
    assert_eq!(place.one(&["relay", "add", "orders", "--to", &target])["relay"], "orders-headwater");
    let again = refusal(&place.run(&["relay", "add", "orders", "--to", &target]), 1);
    assert!(again.contains("relay orders-headwater exists"), "{again}");
    let listed = place.one(&["relay", "list"]);
    assert_eq!(fields(&listed, ["source", "group"]), [json!("orders"), json!("relay-headwater")]);
    assert_eq!(listed["settings"]["key_order"], true);
    assert_eq!(place.one(&["relay", "check", "orders-headwater"])["reached"], true);
    let meant = refusal(&place.run(&["relay", "check", "orders-headwter"]), 1);
    assert!(meant.contains("did you mean orders-headwater?"), "{meant}");

    // Published before it runs first: its group is there.
    place.out(&["publish", "orders", "1", "--key", "a"]);
    let child = place.command(&["relay", "run"]).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    place.out(&["publish", "orders", "2", "--key", "a"]);
    until("both arrived", || archived(place) == 2);
    let printed = stopped(child);
    assert!(printed.contains("relays started, until SIGTERM or SIGINT: orders-headwater"), "{printed}");

    assert_eq!(place.one(&["relay", "remove", "orders-headwater"])["removed"], "orders-headwater");
    assert_eq!(place.json(&["relay", "list"]), Vec::<Value>::new());
    let acts: Vec<Value> = place.json(&["audit"]).into_iter().map(|entry| entry["act"].clone()).collect();
    assert_eq!(acts[0], "remove_relay");
    assert!(acts.contains(&json!("add_relay")));
    place.assert_sound();
}

fn run_without_registration(place: &Place) {
    place.out(&["topic", "create", "orders"]);
    let target = archive(place);
    place.program(async |headwater| {
        let event = headwater::outbox::NewEntry::kafka_event("orders", "o-1", "OrderCreated", "{}");
        headwater.outbox().insert_returning_id(&event).await.unwrap();
    });
    let args = ["relay", "run", "--from", "outbox", "--to", "${TEST_TARGET}"];
    let mut command = place.command(&args);
    let child =
        command.env("TEST_TARGET", &target).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    until("it arrived", || archived(place) == 1);
    until("it is marked", || place.one(&["outbox", "show", "1"])["status"] == "PUBLISHED");
    stopped(child);
}

fn refused(place: &Place) {
    place.out(&["topic", "create", "orders"]);
    let cases: [(&[&str], &str); 7] = [
        (&["orders", "--to", "amqp://ann:hunter2@mq/shop"], "write ${NAME} instead"),
        (&["orders", "--to", "https://h/x#secret=hunter2"], "write ${NAME} instead"),
        (&["orders", "--to", "ftp://h/x"], "must begin with"),
        (&["orders", "--to", "headwater+sqlite:"], "no path"),
        (&["outbox:commands", "--to", "headwater+sqlite:a.db"], "category"),
        (&["outbox", "--to", "headwater+sqlite:a.db", "--timeout", "10m"], "claim timeout"),
        (&["orders", "--to", "headwater+sqlite:a.db", "--batch", "0"], "batch"),
    ];
    for (args, says) in cases {
        let refused = refusal(&place.run(&[&["relay", "add"], args].concat()), 2);
        assert!(refused.contains(says) && !refused.contains("hunter2"), "{args:?}: {refused}");
    }
    assert_eq!(place.json(&["relay", "list"]), Vec::<Value>::new());
    // A variable is needed where the relay runs, and not where it is added.
    let target = "headwater+sqlite:a.db?topic=${NOT_SET_HERE}";
    let added = place.run(&["relay", "add", "orders", "--to", target]);
    assert!(added.status.success());
    assert!(String::from_utf8_lossy(&added.stderr).contains("NOT_SET_HERE is not set"), "{added:?}");
    let unset = refusal(&place.run(&["relay", "run"]), 1);
    assert!(
        unset.contains("NOT_SET_HERE is not set") && unset.contains("no relay could be started"),
        "{unset}"
    );
}

#[test]
fn relays_are_registered_and_run_on_sqlite() {
    registered_and_run(&Place::sqlite());
    run_without_registration(&Place::sqlite());
    refused(&Place::sqlite());
}

#[test]
fn relays_are_registered_and_run_on_postgres() {
    let Some(place) = Place::postgres("relay") else { return };
    registered_and_run(&place);
    let Some(place) = Place::postgres("relay_from") else { return };
    run_without_registration(&place);
    let Some(place) = Place::postgres("relay_refused") else { return };
    refused(&place);
}
