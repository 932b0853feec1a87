//! Other languages: every program in docs/sql.md is run as it is there, and consumers in Python, in psql and of the library share a group
//! while they are killed.
//!
//! `cargo xtask test` installs the drivers (psycopg, pg) below `target/` and names that folder in `HEADWATER_TEST_LANGUAGES`.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use headwater::Headwater;
use tokio::process::Command;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

mod languages {
    mod documents;
    mod shared_group;
}

const POSTGRES: &str = "HEADWATER_TEST_POSTGRES";
const LANGUAGES: &str = "HEADWATER_TEST_LANGUAGES";
/// Longer than any program takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// The value of a variable that a test needs; `None`, with a printed line, where the test may be skipped.
fn needed(variable: &str) -> Option<String> {
    let value = std::env::var(variable).ok().filter(|value| !value.is_empty());
    if value.is_none() {
        assert!(std::env::var_os("HEADWATER_TEST_REQUIRE_ALL").is_none(), "{variable} is not set");
        println!("skipped: {variable} is not set");
    }
    value
}

/// The folder with the drivers.
fn drivers() -> Option<PathBuf> {
    needed(LANGUAGES).map(PathBuf::from)
}

/// The Python that has psycopg.
fn python(drivers: &Path) -> PathBuf {
    drivers.join("python/bin/python")
}

/// A database of its own on the test server, with the namespace that documents use.
struct Database {
    server: String,
    name: String,
    url: String,
}

impl Database {
    async fn new() -> Option<Self> {
        let server = needed(POSTGRES)?;
        let name = format!("headwater_{}", Uuid::now_v7().simple());
        client(&server).await.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        let (before, _) = server.rsplit_once('/').expect("a URL names its database");
        let url = format!("{before}/{name}");
        Some(Database { server, name, url })
    }

    async fn open(&self) -> Headwater {
        Headwater::open(&self.url).await.unwrap()
    }

    async fn client(&self) -> Client {
        client(&self.url).await
    }

    async fn drop(self) {
        let sql = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        client(&self.server).await.batch_execute(&sql).await.unwrap();
    }
}

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Runs a program to its end.
async fn run(mut command: Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let child = command.spawn().expect("the program starts");
    tokio::time::timeout(DEADLINE, child.wait_with_output())
        .await
        .expect("it ends in time")
        .expect("its output")
}
