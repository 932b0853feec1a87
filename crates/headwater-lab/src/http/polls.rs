//! Idle clients: long polls and streams that wait for a message, each on a connection of its own.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::serve::Served;
use super::stream::Stream;
use crate::check::eventually;

/// Longer than it takes to open all connections on a busy machine.
const OPENED_MAX: Duration = Duration::from_secs(60);

/// A message that a client got: the group, and the offset.
pub(super) type Got = (usize, i64);

/// Clients that wait for one message each. They end with this value.
#[derive(Debug, Default)]
pub(super) struct Idle {
    clients: JoinSet<Result<Got>>,
    count: usize,
}

impl Idle {
    /// Long polls, `each` of them in every group.
    pub(super) async fn polls(
        served: &Served,
        topic: &str,
        groups: &[String],
        each: usize,
        wait: Duration,
    ) -> Result<Self> {
        let mut idle = Idle::default();
        for _ in 0..each {
            for (at, group) in groups.iter().enumerate() {
                let mut client = served.client().await?;
                let path = format!("/v1/topics/{topic}/groups/{group}/claim");
                let body = json!({ "max": 1, "wait_ms": wait.as_millis() as u64, "lease_ms": 600_000 });
                idle.clients.spawn(async move {
                    let answer: Value = serde_json::from_slice(&client.post(&path, body.to_string()).await?)?;
                    let offset = answer["messages"][0]["offset"].as_i64();
                    Ok((at, offset.context("a poll ended without a message")?))
                });
            }
        }
        idle.count = each * groups.len();
        Ok(idle)
    }

    /// Streams that take a message each, `each` of them in every group.
    pub(super) async fn streams(
        served: &Served,
        topic: &str,
        groups: &[String],
        each: usize,
    ) -> Result<Self> {
        let mut idle = Idle::default();
        for _ in 0..each {
            for (at, group) in groups.iter().enumerate() {
                let mut stream = Stream::open(served, topic, group, 1).await?;
                idle.clients.spawn(async move {
                    let mut got = None;
                    while got.is_none() {
                        stream.piece(|offset, _| got = Some(offset)).await?;
                    }
                    Ok((at, got.context("just found")?))
                });
            }
        }
        idle.count = each * groups.len();
        Ok(idle)
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Waits until the server counts all of them.
    pub(super) async fn opened(&self, served: &Served, kind: &str) -> Result<()> {
        let mut client = served.client().await?;
        let what = format!("{} clients wait as {kind}", self.count);
        eventually(&what, OPENED_MAX, async || {
            Ok(served.waiting(&mut client, kind).await? >= self.count as u64)
        })
        .await
    }

    /// How many got a message of their own within the time; each message is for one client of its group.
    pub(super) async fn answered(mut self, at_most: Duration) -> Result<u64> {
        let deadline = tokio::time::Instant::now() + at_most;
        let mut got: HashSet<Got> = HashSet::new();
        while let Ok(Some(ended)) = tokio::time::timeout_at(deadline, self.clients.join_next()).await {
            match ended? {
                Ok(one) => drop(got.insert(one)),
                Err(error) => eprintln!("· a client failed: {error:#}"),
            }
        }
        Ok(got.len() as u64)
    }
}

/// Long polls of a group without messages: how many ended empty and not before their time, nor much later.
pub(super) async fn timed_out(
    served: &Served,
    topic: &str,
    group: &str,
    count: usize,
    wait: Duration,
    late_max: Duration,
) -> Result<u64> {
    let mut clients = JoinSet::new();
    for _ in 0..count {
        let mut client = served.client().await?;
        let path = format!("/v1/topics/{topic}/groups/{group}/claim");
        let body = json!({ "wait_ms": wait.as_millis() as u64 }).to_string();
        clients.spawn(async move {
            let start = Instant::now();
            let answer: Value = serde_json::from_slice(&client.post(&path, body).await?)?;
            let took = start.elapsed();
            let is_empty = answer["messages"].as_array().is_some_and(Vec::is_empty);
            anyhow::Ok(is_empty && took >= wait && took <= wait + late_max)
        });
    }
    let mut right = 0;
    while let Some(ended) = clients.join_next().await {
        right += u64::from(ended??);
    }
    Ok(right)
}
