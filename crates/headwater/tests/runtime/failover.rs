//! A PostgreSQL server that refuses writes for a while, like a demoted one: its sessions are closed, and it is found
//! again.

use std::time::Duration;

use headwater::{ErrorKind, Headwater, OpenOptions};
use tokio_postgres::{Client, NoTls};

use crate::each::{DEADLINE, Place, Seen, eventually, noting};

/// A separate database: its setting decides whether new sessions may write, and affects no other test.
struct Database {
    name: String,
    server: String,
    admin: Client,
}

impl Database {
    async fn create(place: &Place) -> Self {
        let (admin, connection) = tokio_postgres::connect(place.server(), NoTls).await.unwrap();
        tokio::spawn(connection);
        let name = format!("failover_{}", uuid::Uuid::now_v7().simple());
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        Database { name, server: place.server().to_owned(), admin }
    }

    /// Its URL, with the server listed this many times.
    fn url(&self, times: usize) -> String {
        let authority = self.server.split("://").nth(1).unwrap().split('/').next().unwrap();
        let (user, host) = authority.rsplit_once('@').unwrap_or(("postgres", authority));
        format!("postgres://{user}@{}/{}", vec![host; times].join(","), self.name)
    }

    /// Ends all sessions, as the restart of a demoted server does; new ones cannot write.
    async fn demote(&self) {
        let name = &self.name;
        let alter = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
        self.admin.batch_execute(&alter).await.unwrap();
        let end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = $1";
        self.admin.query(end, &[name]).await.unwrap();
    }

    /// Only new sessions can write: the pools must close theirs, although those work.
    async fn promote(&self) {
        let alter = format!("ALTER DATABASE {} RESET default_transaction_read_only", self.name);
        self.admin.batch_execute(&alter).await.unwrap();
    }

    async fn drop(self) {
        self.admin.batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_survives_a_server_that_turns_read_only() {
    survives(1, ErrorKind::ReadOnly).await;
}

/// Sessions that cannot write are refused when they are opened, and every server is tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_survives_while_none_of_several_servers_takes_writes() {
    survives(2, ErrorKind::Unavailable).await;
}

async fn survives(servers: usize, refused_with: ErrorKind) {
    let Some(place) = Place::postgres() else { return };
    let database = Database::create(&place).await;
    // One connection: if it is not closed it stays, and nothing works again.
    let options = OpenOptions::default().auto_create(true).connections_max(1);
    let headwater = Headwater::open_with(&database.url(servers), options).await.unwrap();
    let seen = Seen::default();
    headwater.topic("orders").create().await.unwrap();
    let running = headwater.consumer("orders", "email").handling("one", noting(&seen)).run().await.unwrap();
    headwater.producer("orders").send(&1_u64).await.unwrap();
    seen.reach(1).await;

    database.demote().await;
    refused(&headwater, refused_with).await;
    database.promote().await;

    let until = tokio::time::Instant::now() + DEADLINE;
    while let Err(error) = headwater.producer("orders").send(&3_u64).await {
        assert!(error.is_retryable() || error.kind() == ErrorKind::CommitUnknown, "{error:?}");
        assert!(tokio::time::Instant::now() < until, "publishing never recovered: {error:?}");
    }
    eventually("the consumer has recovered", async || seen.all().contains(&3)).await;
    running.shutdown(Duration::from_secs(10)).await.unwrap();
    headwater.close().await.unwrap();
    database.drop().await;
}

/// Publishes until a server that refuses writes has answered; the error must be retryable.
async fn refused(headwater: &Headwater, with: ErrorKind) {
    eventually("publishing is refused", async || {
        let Err(error) = headwater.producer("orders").send(&2_u64).await else { return false };
        assert!(error.is_retryable() || error.kind() == ErrorKind::CommitUnknown, "{error:?}");
        error.kind() == with
    })
    .await;
}
