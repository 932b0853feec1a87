//! A neighbour of PostgreSQL stores: a foreign session whose transaction stays open.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headwater::store::Namespace;
use headwater::{Headwater, NewMessage, TopicName};
use tokio_postgres::Client;

use super::probe::Probe;
use crate::check::{Judged, Place, progress};
use crate::server::connect;

const BATCH: u64 = 5_000;
/// Savepoints sent to the server together.
const SAVEPOINTS: u64 = 500;
/// How long a transaction lasts of those that come and go.
const PASSING: Duration = Duration::from_millis(10);

/// An open transaction; rolled back with its session.
pub(super) struct OpenTransaction {
    client: Client,
    namespace: Namespace,
    xid: String,
}

impl OpenTransaction {
    /// Begins it, with a transaction id, as a writing transaction has.
    pub(super) async fn begin(place: &Place<'_>, headwater: &Headwater, isolation: &str) -> Result<Self> {
        let client = connect(&place.url).await?;
        client.batch_execute(&format!("BEGIN ISOLATION LEVEL {isolation}")).await?;
        let xid = client.query_one("SELECT pg_current_xact_id()::text", &[]).await?.get(0);
        Ok(OpenTransaction { client, namespace: namespace(headwater)?, xid })
    }

    /// Publishes this many messages.
    pub(super) async fn publish(&self, topic: &TopicName, messages: u64) -> Result<()> {
        let mut left = messages;
        while left > 0 {
            let batch = vec![NewMessage::new("open"); usize::try_from(left.min(BATCH))?];
            headwater::store::postgres::publish(&self.client, &self.namespace, topic.as_str(), &batch)
                .await?;
            left -= batch.len() as u64;
        }
        Ok(())
    }

    /// Publishes this many messages, each in a savepoint of its own.
    pub(super) async fn publish_in_savepoints(&self, topic: &TopicName, messages: u64) -> Result<()> {
        let (schema, mut left) = (self.namespace.quoted(), messages);
        let one =
            format!("SAVEPOINT s; SELECT {schema}.publish('{topic}', '{{\"n\":1}}'); RELEASE SAVEPOINT s;");
        while left > 0 {
            let count = left.min(SAVEPOINTS);
            self.client.batch_execute(&one.repeat(usize::try_from(count)?)).await?;
            left -= count;
        }
        Ok(())
    }

    pub(super) async fn execute(&self, sql: &str) -> Result<()> {
        Ok(self.client.batch_execute(sql).await?)
    }

    /// Fails unless it was open until now, and ends it.
    pub(super) async fn roll_back(self) -> Result<()> {
        let xid: Option<String> =
            self.client.query_one("SELECT pg_current_xact_id_if_assigned()::text", &[]).await?.get(0);
        ensure!(xid.as_ref() == Some(&self.xid), "the transaction did not stay open");
        Ok(self.client.batch_execute("ROLLBACK").await?)
    }
}

/// The schema of a PostgreSQL store's functions.
pub(super) fn namespace(headwater: &Headwater) -> Result<Namespace> {
    Ok(headwater.store().as_postgres().context("only on PostgreSQL")?.namespace().clone())
}

/// Runs something beside a session whose writing transactions come and go, as on any server in use: whether an open transaction
/// has ended since the last claim must not be concluded from others.
async fn beside_passing<T>(place: &Place<'_>, work: impl Future<Output = T>) -> Result<T> {
    let client = connect(&place.url).await?;
    let passing = async {
        loop {
            client.batch_execute("BEGIN; SELECT pg_current_xact_id()").await?;
            tokio::time::sleep(PASSING).await;
            client.batch_execute("COMMIT").await?;
        }
    };
    tokio::select! {
        done = work => Ok(done),
        failed = passing => failed,
    }
}

/// Claims of a topic into which an open transaction has published, compared with those before it.
pub(super) async fn judge_publisher(
    place: &Place<'_>,
    what: &str,
    publish: impl AsyncFnOnce(&OpenTransaction, &TopicName) -> Result<()>,
) -> Result<Vec<Judged>> {
    let headwater = place.open().await?;
    let probe = Probe::new(&headwater, "claimed").await?;
    let quiet = beside_passing(place, probe.measure()).await?;
    progress(what);
    let open = OpenTransaction::begin(place, &headwater, "READ COMMITTED").await?;
    publish(&open, &probe.topic).await?;
    progress("the transaction stays open");
    let beside = beside_passing(place, probe.measure()).await?;
    open.roll_back().await?;
    headwater.close().await?;
    Ok(beside.judge(&quiet))
}
