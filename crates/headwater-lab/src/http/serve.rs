//! The server of a check: `headwater serve` in a process of its own.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::check::http::Client;
use crate::check::{Place, Process};

/// Longer than a server needs to open a large store on a busy machine.
const START_MAX: Duration = Duration::from_secs(60);
/// Longer than its own limit for requests under way.
const STOP_MAX: Duration = Duration::from_secs(60);
/// What differs from the defaults: any free port, the address for programs, no notes, and claims that wait longer than a minute.
const ARGS: [&str; 8] =
    ["serve", "--listen", "127.0.0.1:0", "--output", "json", "--quiet", "--wait-max", "10m"];

/// A server that accepts connections. Killed with its value.
#[derive(Debug)]
pub(super) struct Served {
    process: Process,
    address: SocketAddr,
}

impl Served {
    /// Starts it, with the defaults of the command otherwise, and waits until it listens.
    pub(super) async fn start(place: &Place<'_>) -> Result<Self> {
        let (found, mut listens) = watch::channel(None);
        let process = Process::command(&place.url, &ARGS, move |line| {
            if let Some(address) = address_in(line) {
                found.send_replace(Some(address));
            }
        })?;
        let listening = tokio::time::timeout(START_MAX, listens.wait_for(Option::is_some)).await;
        let listening = listening.context("the server does not listen")?;
        let address = listening.context("the server ended before it listened")?.context("just found")?;
        Ok(Served { process, address })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// A connection of its own.
    pub(super) async fn client(&self) -> Result<Client> {
        Client::connect(self.address).await
    }

    /// Creates a topic that every one of these groups gets everything of.
    pub(super) async fn topic(&self, topic: &str, groups: &[String]) -> Result<()> {
        let mut client = self.client().await?;
        let new = json!({ "name": topic, "settings": { "semantics": "pub_sub" } });
        client.post("/v1/topics", new.to_string()).await?;
        for group in groups {
            client.put(&format!("/v1/topics/{topic}/groups/{group}"), "{}").await?;
        }
        Ok(())
    }

    /// How many clients of a kind wait, as the server counts them.
    pub(super) async fn waiting(&self, client: &mut Client, kind: &str) -> Result<u64> {
        let metrics = client.get("/metrics", "text/plain").await?;
        let gauge = format!("headwater_http_waiting{{kind=\"{kind}\"}}");
        Ok(value_in(&String::from_utf8_lossy(&metrics), &gauge).unwrap_or(0.0) as u64)
    }

    /// Stops it as an operator would.
    pub(super) async fn stop(self) -> Result<()> {
        self.process.terminate()?;
        let status = self.process.ended(STOP_MAX).await?;
        ensure!(status.success(), "the server failed: {status}");
        Ok(())
    }
}

/// The address in the line that the command prints once it listens.
fn address_in(line: &str) -> Option<SocketAddr> {
    let line: Value = serde_json::from_str(line).ok()?;
    line["url"].as_str()?.strip_prefix("http://")?.trim_end_matches('/').parse().ok()
}

/// The value of a metric, given with its labels.
fn value_in(metrics: &str, name: &str) -> Option<f64> {
    metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_what_the_command_prints() {
        let line = r#"{"url":"http://127.0.0.1:7411/","store":"sqlite:x.db"}"#;
        assert_eq!(address_in(line), Some(SocketAddr::from(([127, 0, 0, 1], 7_411))));
        assert_eq!(address_in("serving until SIGTERM or SIGINT"), None);
    }

    #[test]
    fn a_metric_is_found_by_its_labels() {
        let metrics = "# TYPE w gauge\nw{kind=\"tail\"} 3\nw{kind=\"claim\"} 1000\n";
        assert_eq!(value_in(metrics, "w{kind=\"claim\"}"), Some(1_000.0));
        assert_eq!(value_in(metrics, "w{kind=\"live\"}"), None);
    }
}
