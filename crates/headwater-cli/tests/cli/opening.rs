//! Opening a store: reading creates nothing, what cannot be written can be read, and an error says which server, which user, why.

use headwater_servers::{Listen, Server};

use super::*;

/// Commands that only read.
const READING: [&str; 12] = [
    "topic list",
    "topic show orders",
    "group list",
    "group list orders",
    "group show orders mail",
    "group stuck orders",
    "dead-letter list orders --group mail",
    "backfill list",
    "maintain --status",
    "audit",
    "doctor",
    "migrate --status",
];

fn words(command: &str) -> Vec<&str> {
    command.split(' ').collect()
}

/// The command read everything; the doctor may have found something that needs attention.
fn answered(command: &str, output: &Output) {
    let code = output.status.code();
    let is_right = code == Some(0) || (command == "doctor" && code == Some(3));
    assert!(is_right, "{command}: {code:?} {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs a query on the server of a place and returns the texts of its first column.
fn texts(place: &Place, sql: &str) -> Vec<String> {
    let (url, _) = place.store.as_ref().unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (client, connection) =
            headwater::tokio_postgres::connect(url, headwater::tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let rows = client.query(sql, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    })
}

/// The schemas and roles of a namespace.
fn traces(place: &Place) -> Vec<String> {
    let (_, namespace) = place.store.as_ref().unwrap();
    texts(
        place,
        &format!(
            "SELECT nspname::text FROM pg_namespace WHERE nspname = '{namespace}'
             UNION ALL SELECT rolname::text FROM pg_roles WHERE rolname LIKE '{namespace}\\_%' ORDER BY 1"
        ),
    )
}

#[test]
fn reading_commands_install_nothing_on_postgres() {
    let Some(place) = Place::postgres("reading") else { return };
    let (_, namespace) = place.store.clone().unwrap();
    let all = READING.iter().copied().filter(|command| *command != "migrate --status");
    for command in all.chain(["consume orders --group mail --wait 0s", "group pause orders mail"]) {
        let refused = refusal(&place.run(&words(command)), 1);
        assert!(
            refused.contains(&format!("no headwater schema {namespace} in database ")),
            "{command}: {refused}"
        );
        assert!(refused.contains(" at ") && refused.contains("`headwater migrate`"), "{command}: {refused}");
    }
    assert!(place.out(&["migrate", "--status"]).contains("does not exist"));
    assert_eq!(traces(&place), Vec::<String>::new(), "nothing was created");
    place.out(&["migrate"]);
    assert!(traces(&place).len() > 1, "the schema and its roles");
    place.out(&["topic", "list"]);
}

#[test]
fn a_role_that_only_reads_can_run_every_reading_command() {
    let Some(mut place) = Place::postgres("reader") else { return };
    prepare(&place);
    let (url, namespace) = place.store.clone().unwrap();
    let between = if url.contains('?') { '&' } else { '?' };
    place.store = Some((format!("{url}{between}options=-c%20role%3D{namespace}_reader"), namespace.clone()));
    for command in READING {
        answered(command, &place.run(&words(command)));
    }
    let refused = refusal(&place.run(&["publish", "orders", "x"]), 1);
    assert!(
        refused.contains(&format!("needs role {namespace}_"))
            && refused.contains(&format!("_producer; you are {namespace}_reader")),
        "{refused}"
    );
    let refused = refusal(&place.run(&["group", "pause", "orders", "mail"]), 1);
    assert!(
        refused.contains("; needs ") && refused.contains(&format!("you are {namespace}_reader")),
        "{refused}"
    );
    place.store = Some((url, namespace));
}

fn prepare(place: &Place) {
    place.out(&["topic", "create", "orders", "--pub-sub"]);
    place.out(&["group", "subscribe", "orders", "mail"]);
    text(place.with_input(&["publish", "orders"], "1\n2\n"));
    place.out(&["maintain"]);
}

/// A copy of the server's files that follows it: everything is read-only.
#[test]
fn a_standby_can_be_inspected() {
    if Place::postgres("standby").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let settings =
        [("wal_level", "replica"), ("hot_standby", "on"), ("max_wal_senders", "4"), ("fsync", "off")];
    let mut primary = Server::start(folder.path(), Listen::Socket, &settings).unwrap();
    primary.wait(|| Ok(())).unwrap();
    let mut place = Place::sqlite();
    place.store = Some((primary.url("postgres"), "shop".into()));
    prepare(&place);
    let mut standby = primary.standby(primary.port() + 1).unwrap();
    standby.wait(|| Ok(())).unwrap();
    place.store = Some((standby.url("postgres"), "shop".into()));
    for command in READING {
        let output = place.run(&words(command));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        answered(command, &output);
        assert!(command == "migrate --status" || said.contains("opened read-only: "), "{command}: {said}");
    }
    assert_eq!(place.one(&["topic", "show", "orders"])["head"], 2);
    for change in ["publish orders x", "group pause orders mail", "topic create other"] {
        let refused = refusal(&place.run(&words(change)), 1);
        assert!(
            refused.contains("read-only") && refused.contains("nothing was written"),
            "{change}: {refused}"
        );
    }
    // It is dropped with its server.
    place.store = None;
}

/// A command's refusal of a store.
fn refused_store(store: &str) -> String {
    refusal(&Place::sqlite().run(&["topic", "list", "--store", store]), 1)
}

#[test]
fn a_connection_error_names_the_server_the_user_and_the_cause() {
    let refused = refused_store("postgres://joe:s3cret@127.0.0.1:1/shop");
    assert_eq!(
        refused,
        "error: database unavailable while connecting to database shop at 127.0.0.1:1 as user joe: error connecting to server: \
         Connection refused (os error 111)\n"
    );
    let unknown = refused_store("postgres://joe@no-such-host.invalid/shop");
    assert!(unknown.contains("database shop at no-such-host.invalid:5432 as user joe"), "{unknown}");
    assert!(unknown.contains("lookup"), "{unknown}");
    let file = refusal(&Place::sqlite().run(&["topic", "list", "--store", "shop.db"]), 2);
    assert!(file.contains("write sqlite:shop.db for a file"), "{file}");
}

#[test]
fn a_server_that_wants_a_password_or_has_no_tls_is_named() {
    let Some(place) = Place::postgres("unable") else { return };
    let (url, _) = place.store.as_ref().unwrap();
    let between = if url.contains('?') { '&' } else { '?' };
    // A socket in the file system has no TLS at all.
    if url.contains("127.0.0.1") || url.contains("localhost") {
        let refused = refused_store(&format!("{url}{between}sslmode=require"));
        assert!(
            refused.contains("server does not support TLS; enable TLS") && refused.contains(" at "),
            "{refused}"
        );
    }
    let (before, _) = url.rsplit_once('/').unwrap();
    let refused = refused_store(&format!("{before}/no_such_database"));
    assert!(refused.contains("connecting to database no_such_database at "), "{refused}");
    assert!(refused.contains("does not exist"), "{refused}");
}

#[test]
fn a_file_that_cannot_be_opened_is_named_once() {
    let place = Place::sqlite();
    std::fs::create_dir(place.folder.path().join("headwater.db")).unwrap();
    let refused = refusal(&place.run(&["publish", "orders", "x"]), 1);
    assert_eq!(refused.matches("headwater.db").count(), 1, "{refused}");
}

#[test]
fn a_password_is_never_printed() {
    let place = Place::sqlite();
    let url = "postgres://user:s3cret@127.0.0.1:1/nothing";
    for args in [&["topic", "list", "--store", url][..], &["--help"], &["migrate", "--store", url]] {
        let output = place.command(args).env("HEADWATER_STORE", url).output().unwrap();
        let all = [output.stdout, output.stderr].concat();
        assert!(!String::from_utf8_lossy(&all).contains("s3cret"), "{args:?}");
    }
}
