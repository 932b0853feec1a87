//! A durable PostgreSQL server of the lab's own, at a private socket, or one that runs already.
//!
//! Every system measured on PostgreSQL shares this one server and its settings, so ratios compare engines and not
//! configurations.

pub(crate) mod replica;

use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result};
use headwater_servers::{Listen, Server as OwnServer, Stop};
use tokio_postgres::{Client, Config, NoTls};

/// Settings that differ from PostgreSQL's defaults. `fsync` and `synchronous_commit` stay on: every figure is durable.
pub(crate) const SETTINGS: [(&str, &str); 4] = [
    ("shared_buffers", "512MB"),
    ("max_wal_size", "8GB"),
    ("checkpoint_timeout", "15min"),
    ("max_connections", "300"),
];
/// A further setting for the soak; PostgreSQL's default is none, and the bench uses the default.
pub(crate) const PREPARED_TRANSACTIONS: (&str, &str) = ("max_prepared_transactions", "50");

/// A PostgreSQL server to measure on.
#[derive(Debug)]
pub(crate) struct Server {
    admin_url: String,
    own: Option<Mutex<OwnServer>>,
}

impl Server {
    /// Starts a server of the lab's own under `work`, with these settings in addition to the usual ones.
    pub(crate) async fn start(work: &Path, beside: &[(&str, &str)]) -> Result<Self> {
        let own = OwnServer::start(work, Listen::Socket, &[&SETTINGS[..], beside].concat())?;
        let server = Server { admin_url: own.url("postgres"), own: Some(Mutex::new(own)) };
        server.ready().await?;
        Ok(server)
    }

    /// Uses a server that runs already; the URL must allow creating databases.
    pub(crate) fn external(url: &str) -> Self {
        Server { admin_url: url.to_owned(), own: None }
    }

    /// Creates an empty database and returns its URL.
    pub(crate) async fn create_database(&self, name: &str) -> Result<String> {
        self.drop_database(name).await?;
        self.admin().await?.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        Ok(self.url(name))
    }

    /// Removes a database.
    pub(crate) async fn drop_database(&self, name: &str) -> Result<()> {
        let admin = self.admin().await?;
        admin.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
        Ok(())
    }

    /// Stops the server for a while, as in a failover or a reboot.
    pub(crate) async fn away_for(&self, time: Duration) -> Result<()> {
        self.stop(Stop::Fast)?;
        tokio::time::sleep(time).await;
        self.recover().await
    }

    /// Ends it.
    pub(crate) fn stop(&self, how: Stop) -> Result<()> {
        self.own()?.stop(how)
    }

    /// Starts it again and waits until it answers.
    pub(crate) async fn recover(&self) -> Result<()> {
        self.own()?.serve()?;
        self.ready().await
    }

    fn own(&self) -> Result<MutexGuard<'_, OwnServer>> {
        let own = self.own.as_ref().context("only the lab's own server can be stopped and started")?;
        Ok(own.lock().expect("no panic while held"))
    }

    async fn ready(&self) -> Result<()> {
        while !self.own()?.poll()? {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// A connection to the server's own database.
    pub(crate) async fn admin(&self) -> Result<Client> {
        connect(&self.admin_url).await
    }

    /// The processes that serve a database, where the server is the lab's own and so on this machine.
    pub(crate) async fn backends(&self, database: &str) -> Result<Vec<u32>> {
        if self.own.is_none() {
            return Ok(vec![]);
        }
        let admin = self.admin().await?;
        let rows = admin
            .query(
                "SELECT pid FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend'",
                &[&database],
            )
            .await?;
        rows.iter().map(|row| Ok(u32::try_from(row.get::<_, i32>(0))?)).collect()
    }

    /// The URL of a database on this server.
    pub(crate) fn url(&self, database: &str) -> String {
        with_database(&self.admin_url, database)
    }
}

/// How often a starting server is polled.
const POLL: Duration = Duration::from_millis(20);

/// Replaces the database in a URL: the part between the first slash after the authority and the query.
fn with_database(url: &str, database: &str) -> String {
    let (base, query) = url.split_once('?').map_or((url, None), |(base, query)| (base, Some(query)));
    let authority_at = base.find("://").map_or(0, |at| at + 3);
    let slash = base[authority_at..].find('/').map_or(base.len(), |at| authority_at + at);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{}/{database}{query}", &base[..slash])
}

/// Connects without TLS and drives the connection in the background.
pub(crate) async fn connect(url: &str) -> Result<Client> {
    connect_with(&url.parse()?).await
}

/// The same as another user.
pub(crate) async fn connect_as(url: &str, user: &str, password: &str) -> Result<Client> {
    let mut config: Config = url.parse()?;
    connect_with(config.user(user).password(password)).await
}

async fn connect_with(config: &Config) -> Result<Client> {
    let (client, connection) = config.connect(NoTls).await.context("connecting to PostgreSQL")?;
    tokio::spawn(async move {
        // The client gets every error of its own calls; what is left here is the server closing the connection at the end.
        let _ = connection.await;
    });
    Ok(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_of_a_url_is_replaced() {
        assert_eq!(with_database("postgres://u@h:1/a", "b"), "postgres://u@h:1/b");
        assert_eq!(with_database("postgres://u@h?x=1", "b"), "postgres://u@h/b?x=1");
        assert_eq!(with_database("postgres://u@h/a?x=/y", "b"), "postgres://u@h/b?x=/y");
    }
}
