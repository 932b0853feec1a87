//! PgQ from its Debian package: batches created by its ticker, drained whole.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::super::measure::{Rate, run_tasks};
use super::super::payload_text;
use crate::server::{Server, connect};

const DATABASE: &str = "headwater_lab_pgq";
const QUEUE: &str = "lab";
/// Messages between two ticks, and so in one batch.
pub(crate) const BATCH: usize = 5_000;

/// An installed PgQ.
#[derive(Clone, Debug)]
pub(crate) struct Pgq {
    url: String,
    pub(crate) version: String,
}

impl Pgq {
    /// Installs the package for this server version if it is missing, and creates a queue in a fresh database.
    pub(crate) async fn install(server: &Server) -> Result<Self> {
        let admin = server.admin().await?;
        let available = "SELECT default_version FROM pg_available_extensions WHERE name = 'pgq'";
        if admin.query_opt(available, &[]).await?.is_none() {
            let major: i32 = admin
                .query_one("SELECT current_setting('server_version_num')::int / 10000", &[])
                .await?
                .get(0);
            install_package(&format!("postgresql-{major}-pgq3"))?;
        }
        let version =
            admin.query_opt(available, &[]).await?.context("the server does not offer the extension pgq")?;
        let url = server.create_database(DATABASE).await?;
        let client = connect(&url).await?;
        client.batch_execute("CREATE EXTENSION pgq").await?;
        client.execute("SELECT pgq.create_queue($1)", &[&QUEUE]).await?;
        // One tick after every batch, and none by time: the ticker is called explicitly.
        let count = BATCH.to_string();
        for (name, value) in [
            ("ticker_max_count", count.as_str()),
            ("ticker_max_lag", "1 day"),
            ("ticker_idle_period", "1 day"),
        ] {
            client.execute("SELECT pgq.set_queue_config($1, $2, $3)", &[&QUEUE, &name, &value]).await?;
        }
        Ok(Pgq { url, version: version.get(0) })
    }

    /// Removes its database.
    pub(crate) async fn remove(&self, server: &Server) -> Result<()> {
        server.drop_database(DATABASE).await
    }

    /// Registers consumers (each gets everything from here on) and publishes this many messages, with a tick after each batch.
    pub(crate) async fn fill(&self, consumers: &[String], messages: usize) -> Result<()> {
        let client = connect(&self.url).await?;
        for consumer in consumers {
            client.execute("SELECT pgq.register_consumer($1, $2)", &[&QUEUE, consumer]).await?;
        }
        let payloads = vec![payload_text(); BATCH];
        let insert = client
            .prepare("SELECT count(pgq.insert_event($1, 'lab', data)) FROM unnest($2::text[]) AS data")
            .await?;
        for _ in 0..messages.div_ceil(BATCH) {
            client.query_one(&insert, &[&QUEUE, &payloads]).await?;
            client.execute("SELECT pgq.ticker($1)", &[&QUEUE]).await?;
        }
        Ok(())
    }

    /// `next_batch`, `get_batch_events`, `finish_batch` in a loop, until the time or the queue is used up.
    pub(crate) async fn drain(&self, consumer: &str, during: Duration) -> Result<Rate> {
        let client = std::sync::Arc::new(connect(&self.url).await?);
        let consumer: std::sync::Arc<str> = consumer.into();
        run_tasks(1, during, move |_, run| {
            let (client, consumer) = (std::sync::Arc::clone(&client), std::sync::Arc::clone(&consumer));
            async move {
                let next = client.prepare("SELECT pgq.next_batch($1, $2)").await?;
                let events = client
                    .prepare("SELECT ev_id, ev_time, ev_type, ev_data FROM pgq.get_batch_events($1)")
                    .await?;
                let finish = client.prepare("SELECT pgq.finish_batch($1)").await?;
                while run.goes_on() {
                    let batch: Option<i64> = client.query_one(&next, &[&QUEUE, &&*consumer]).await?.get(0);
                    let Some(batch) = batch else { break };
                    let rows = client.query(&events, &[&batch]).await?;
                    client.execute(&finish, &[&batch]).await?;
                    run.count(rows.len());
                }
                Ok(())
            }
        })
        .await
    }
}

fn install_package(package: &str) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "the package {package} is not installed, and installing it needs root"
    );
    let output = Command::new("apt-get")
        .args(["install", "-y", "--no-install-recommends", package])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .output()
        .context("running apt-get")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "apt-get install {package}: {}",
        said.lines().last().unwrap_or_default()
    );
    Ok(())
}
