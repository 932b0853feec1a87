//! pgmq, driven over plain SQL with its batch calls, in a database of its own.
//!
//! Its SQL comes from the `pgmq` crate, which contains it for installing without the extension. The crate is fetched
//! by cargo at run time and not linked: its own SQL client would slow down every build of this workspace.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio_postgres::types::Json;

use super::super::measure::{Rate, run_tasks};
use super::super::payload_text;
use crate::server::{Server, connect};

const CRATE_VERSION: &str = "0.34.0-alpha.7";
const DATABASE: &str = "headwater_lab_pgmq";
/// Longer than any run, so that nothing is read twice.
const VISIBILITY_SECONDS: i32 = 300;

/// An installed pgmq.
#[derive(Clone, Debug)]
pub(crate) struct Pgmq {
    url: String,
    /// The version of its SQL.
    pub(crate) version: String,
}

impl Pgmq {
    /// Fetches its SQL and installs it into a fresh database.
    pub(crate) async fn install(server: &Server, work: &Path) -> Result<Self> {
        let scripts = fetch(&work.join("pgmq"))?;
        let script = std::fs::read_to_string(scripts.join("sql/pgmq.sql"))?;
        let control = std::fs::read_to_string(scripts.join("pgmq.control"))?;
        let version = control.lines().find(|line| line.starts_with("default_version"));
        let version = version.and_then(|line| line.split('\'').nth(1)).unwrap_or("unknown").to_owned();
        let url = server.create_database(DATABASE).await?;
        connect(&url).await?.batch_execute(&script).await.context("installing pgmq's SQL")?;
        Ok(Pgmq { url, version })
    }

    /// Removes its database.
    pub(crate) async fn remove(&self, server: &Server) -> Result<()> {
        server.drop_database(DATABASE).await
    }

    /// Creates an empty queue of this name.
    pub(crate) async fn create_queue(&self, queue: &str) -> Result<()> {
        connect(&self.url).await?.execute("SELECT pgmq.create($1)", &[&queue]).await?;
        Ok(())
    }

    /// Drops a queue, so that autovacuum after its deletes does not run during the next round, which may be ours.
    pub(crate) async fn drop_queue(&self, queue: &str) -> Result<()> {
        connect(&self.url).await?.execute("SELECT pgmq.drop_queue($1)", &[&queue]).await?;
        Ok(())
    }

    /// `send_batch` in a loop on each connection.
    pub(crate) async fn send_batches(
        &self,
        queue: &str,
        batch: usize,
        connections: usize,
        during: Duration,
    ) -> Result<Rate> {
        let clients = Arc::new(self.connect_all(connections).await?);
        let queue: Arc<str> = queue.into();
        run_tasks(connections, during, move |task, run| {
            let (clients, queue) = (Arc::clone(&clients), Arc::clone(&queue));
            async move {
                let client = &clients[task];
                let statement = client.prepare("SELECT * FROM pgmq.send_batch($1, $2)").await?;
                let text = payload_text();
                while run.goes_on() {
                    let messages: Vec<Json<&str>> = vec![Json(text.as_str()); batch];
                    let sent = client.query(&statement, &[&&*queue, &messages]).await?;
                    ensure!(sent.len() == batch, "pgmq sent {} of {batch}", sent.len());
                    run.count(batch);
                }
                Ok(())
            }
        })
        .await
    }

    /// `send` of one message at a time on each connection.
    pub(crate) async fn send_singles(
        &self,
        queue: &str,
        connections: usize,
        during: Duration,
    ) -> Result<Rate> {
        let clients = Arc::new(self.connect_all(connections).await?);
        let queue: Arc<str> = queue.into();
        run_tasks(connections, during, move |task, run| {
            let (clients, queue) = (Arc::clone(&clients), Arc::clone(&queue));
            async move {
                let client = &clients[task];
                let statement = client.prepare("SELECT * FROM pgmq.send($1, $2)").await?;
                let text = payload_text();
                while run.goes_on() {
                    client.query_one(&statement, &[&&*queue, &Json(text.as_str())]).await?;
                    run.count(1);
                }
                Ok(())
            }
        })
        .await
    }

    /// Fills a queue with this many messages.
    pub(crate) async fn fill(&self, queue: &str, messages: usize) -> Result<()> {
        let client = connect(&self.url).await?;
        let text = payload_text();
        for _ in 0..messages.div_ceil(1_000) {
            let batch: Vec<Json<&str>> = vec![Json(text.as_str()); 1_000];
            client.query("SELECT * FROM pgmq.send_batch($1, $2)", &[&queue, &batch]).await?;
        }
        Ok(())
    }

    /// `read` and `delete` by array in a loop on each connection, until the time or the queue is used up.
    pub(crate) async fn read_and_delete(
        &self,
        queue: &str,
        batch: i32,
        connections: usize,
        during: Duration,
    ) -> Result<Rate> {
        let clients = Arc::new(self.connect_all(connections).await?);
        let queue: Arc<str> = queue.into();
        run_tasks(connections, during, move |task, run| {
            let (clients, queue) = (Arc::clone(&clients), Arc::clone(&queue));
            async move {
                let client = &clients[task];
                let read = client.prepare("SELECT msg_id, message FROM pgmq.read($1, $2, $3)").await?;
                let delete = client.prepare("SELECT * FROM pgmq.delete($1, $2::bigint[])").await?;
                while run.goes_on() {
                    let rows = client.query(&read, &[&&*queue, &VISIBILITY_SECONDS, &batch]).await?;
                    if rows.is_empty() {
                        break;
                    }
                    let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
                    let deleted = client.query(&delete, &[&&*queue, &ids]).await?;
                    ensure!(deleted.len() == ids.len(), "pgmq deleted {} of {}", deleted.len(), ids.len());
                    run.count(ids.len());
                }
                Ok(())
            }
        })
        .await
    }

    async fn connect_all(&self, connections: usize) -> Result<Vec<tokio_postgres::Client>> {
        futures_util::future::try_join_all((0..connections).map(|_| connect(&self.url))).await
    }
}

/// Has cargo fetch the crate for a manifest that depends only on it, and returns the directory of its scripts.
fn fetch(directory: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(directory.join("src"))?;
    std::fs::write(directory.join("src/lib.rs"), "")?;
    let manifest = directory.join("Cargo.toml");
    let text = format!(
        "[package]\nname = \"pgmq-scripts\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\npgmq = {{ version = \"={CRATE_VERSION}\", default-features = false }}\n"
    );
    std::fs::write(&manifest, text)?;
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--quiet", "--manifest-path"])
        .arg(&manifest)
        .output()
        .context("cargo is needed to fetch the pgmq crate")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let package =
        packages.iter().find(|package| package["name"] == "pgmq").context("pgmq was not fetched")?;
    let path = PathBuf::from(package["manifest_path"].as_str().context("pgmq has no manifest")?);
    Ok(path.with_file_name("src").join("install/embedded"))
}
