//! A primary and a streaming standby of the lab's own, to test a crash, a failover and a lost tail.
//!
//! ```text
//! let mut pair = Pair::start(&work, Replication::Asynchronous, &[PREPARED_TRANSACTIONS]).await?;
//! let store = pair.create_database("soak").await?; // names both servers: postgres://…,…/soak
//! pair.cut().await?;                               // optional: commits from here on are the lost tail
//! pair.crash(Stop::Kill)?;                         // or Stop::Immediate
//! pair.promote().await?;                           // the standby is the primary now, and `store` finds it
//! pair.rejoin().await?;                            // the old primary is copied again and follows: ready for the next round
//! ```
//!
//! | call | effect |
//! |---|---|
//! | [`Pair::url`] | both servers in one URL; it is the same however the roles change |
//! | [`Pair::primary_url`] | the present primary alone |
//! | [`Pair::caught_up`] | waits until the standby has applied everything: no tail to lose |
//! | [`Pair::cut`] / [`Pair::mend`] | the standby stops receiving (a synchronous primary then holds its commits) / receives again |
//! | [`Pair::crash`] then [`Pair::restart`] | the primary crashes and recovers in place, at the same address |
//! | [`Pair::crash`] then [`Pair::promote`] | an unplanned failover |
//! | [`Pair::take_over_address`] | after a promotion: the new primary is restarted at the old primary's address |
//! | [`Pair::switch_over`] | a planned failover: the old primary returns as a read-only standby of the new one |
//! | [`Pair::rejoin`] | the server that is down becomes a standby again, from a new base backup |
//!
//! Servers and files are removed on drop. Both listen on one private socket directory only.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use headwater_servers::{Listen, Server, Stop};
use tokio_postgres::Client;

use super::{POLL, SETTINGS, connect};

/// Every wait for a server has this deadline.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// What a commit on the primary waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replication {
    /// Only for its own disk: a failover loses what the standby never received.
    Asynchronous,
    /// For the standby's disk too.
    Synchronous,
}

/// Two servers, one of which is the primary. See the module.
#[derive(Debug)]
pub(crate) struct Pair {
    nodes: [Server; 2],
    primary: usize,
    replication: Replication,
}

#[cfg_attr(not(test), allow(dead_code, reason = "the soak uses some of it, its own tests all"))]
impl Pair {
    /// Starts both under `work`, with these settings in addition to the usual ones.
    pub(crate) async fn start(
        work: &Path,
        replication: Replication,
        beside: &[(&str, &str)],
    ) -> Result<Self> {
        // A standby that was cut off for a while finds the WAL it missed.
        let settings = [&SETTINGS[..], &[("wal_keep_size", "1GB"), ("hot_standby", "on")], beside].concat();
        let mut primary = Server::start(work, Listen::Socket, &settings)?;
        ready(&mut primary).await?;
        let mut standby = primary.standby(primary.port() + 1)?;
        ready(&mut standby).await?;
        let pair = Pair { nodes: [primary, standby], primary: 0, replication };
        pair.streaming().await?;
        Ok(pair)
    }

    /// The URL of a database at both servers: clients that need a writable server follow every failover.
    pub(crate) fn url(&self, database: &str) -> String {
        // In the order of the ports, not of the roles: the URL stays the same.
        let mut urls = self.nodes.each_ref().map(|node| node.url(database));
        urls.sort();
        let (authority, _) = urls[0].rsplit_once('/').expect("a path follows");
        format!("{authority},{}", urls[1].trim_start_matches("postgres://postgres@"))
    }

    /// The URL of a database at the present primary alone.
    pub(crate) fn primary_url(&self, database: &str) -> String {
        self.nodes[self.primary].url(database)
    }

    /// The URL of a database at the other server alone: a standby is read-only.
    pub(crate) fn standby_url(&self, database: &str) -> String {
        self.nodes[1 - self.primary].url(database)
    }

    /// A connection to the primary's own database.
    pub(crate) async fn admin(&self) -> Result<Client> {
        connect(&self.primary_url("postgres")).await
    }

    /// Creates an empty database, waits until the standby has it, and returns its URL at both.
    pub(crate) async fn create_database(&self, name: &str) -> Result<String> {
        let admin = self.admin().await?;
        admin.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        self.caught_up().await?;
        Ok(self.url(name))
    }

    /// Waits until the standby has applied everything that the primary has written so far.
    pub(crate) async fn caught_up(&self) -> Result<()> {
        let written: String =
            self.admin().await?.query_one("SELECT pg_current_wal_lsn()::text", &[]).await?.get(0);
        let applied = format!("SELECT coalesce(pg_last_wal_replay_lsn() >= '{written}', false)");
        self.holds(1 - self.primary, &applied, "the standby catches up").await
    }

    /// Stops the standby's WAL receiver: it keeps what it has and receives nothing more.
    pub(crate) async fn cut(&self) -> Result<()> {
        self.follow("").await?;
        self.holds(
            1 - self.primary,
            "SELECT count(*) = 0 FROM pg_stat_wal_receiver",
            "the standby is cut off",
        )
        .await
    }

    /// Makes a standby that was cut off receive again.
    pub(crate) async fn mend(&self) -> Result<()> {
        self.follow(&self.nodes[self.primary].conninfo()).await?;
        self.streaming().await
    }

    /// Ends the primary without a shutdown.
    pub(crate) fn crash(&mut self, how: Stop) -> Result<()> {
        self.nodes[self.primary].stop(how)
    }

    /// Starts the crashed primary again at the same address; its standby follows it as before.
    pub(crate) async fn restart(&mut self) -> Result<()> {
        self.serve(self.primary).await
    }

    /// Makes the standby the primary. The other one must be down, or it stays a primary of its own.
    pub(crate) async fn promote(&mut self) -> Result<()> {
        self.primary = 1 - self.primary;
        let promoted = self.admin().await?.query_one("SELECT pg_promote(true, 60)", &[]).await?;
        ensure!(
            promoted.get::<_, bool>(0),
            "the standby was not promoted: {}",
            self.nodes[self.primary].log_tail()
        );
        Ok(())
    }

    /// Restarts the new primary at the address of the old one, which is down: as with a virtual IP or a DNS name.
    pub(crate) async fn take_over_address(&mut self) -> Result<()> {
        let other = 1 - self.primary;
        ensure!(self.nodes[other].is_stopped(), "the old primary still has its address");
        self.nodes[self.primary].stop(Stop::Fast)?;
        let (old, new) = (self.nodes[other].port(), self.nodes[self.primary].port());
        self.nodes[self.primary].move_to(old);
        self.nodes[other].move_to(new);
        self.serve(self.primary).await
    }

    /// A planned failover: nothing is lost, and the old primary returns at its address as a read-only standby.
    pub(crate) async fn switch_over(&mut self) -> Result<()> {
        let old = self.primary;
        // A fast stop sends the rest of the WAL before it ends.
        self.nodes[old].stop(Stop::Fast)?;
        self.promote().await?;
        self.nodes[old].follow(&self.nodes[self.primary])?;
        self.serve(old).await?;
        self.streaming().await
    }

    /// Makes the server that is down a standby of the present primary, from a new base backup.
    pub(crate) async fn rejoin(&mut self) -> Result<()> {
        let other = 1 - self.primary;
        ensure!(self.nodes[other].is_stopped(), "the other server is up");
        self.nodes[other] = self.nodes[self.primary].standby(self.nodes[other].port())?;
        ready(&mut self.nodes[other]).await?;
        self.streaming().await
    }

    /// Waits until the standby streams, and only then makes commits wait for it if replication is synchronous.
    async fn streaming(&self) -> Result<()> {
        let streams = "SELECT count(*) = 1 FROM pg_stat_wal_receiver WHERE status = 'streaming'";
        self.holds(1 - self.primary, streams, "the standby streams").await?;
        let names = if self.replication == Replication::Synchronous { "*" } else { "" };
        let admin = self.admin().await?;
        admin.batch_execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'")).await?;
        admin.batch_execute("SELECT pg_reload_conf()").await?;
        let wanted = match self.replication {
            Replication::Synchronous => {
                "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
            }
            Replication::Asynchronous => {
                "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'async'"
            }
        };
        self.holds(self.primary, wanted, "the primary counts the standby").await
    }

    async fn follow(&self, conninfo: &str) -> Result<()> {
        let standby = connect(&self.standby_url("postgres")).await?;
        standby.batch_execute(&format!("ALTER SYSTEM SET primary_conninfo = '{conninfo}'")).await?;
        standby.batch_execute("SELECT pg_reload_conf()").await?;
        Ok(())
    }

    async fn serve(&mut self, which: usize) -> Result<()> {
        self.nodes[which].serve()?;
        ready(&mut self.nodes[which]).await
    }

    /// Waits until a query on a server returns true.
    async fn holds(&self, node: usize, question: &str, what: &str) -> Result<()> {
        let client = connect(&self.nodes[node].url("postgres")).await?;
        let deadline = Instant::now() + WAIT_MAX;
        while !client.query_one(question, &[]).await?.get::<_, bool>(0) {
            ensure!(Instant::now() < deadline, "timed out waiting until {what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

async fn ready(server: &mut Server) -> Result<()> {
    while !server.poll()? {
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// They need a PostgreSQL installation and some ten seconds each: `cargo test -p headwater-lab -- --ignored`.
#[cfg(test)]
mod tests {
    use super::*;

    async fn count(url: &str) -> i64 {
        let client = connect(url).await.unwrap();
        client.query_one("SELECT count(*) FROM kept", &[]).await.unwrap().get(0)
    }

    async fn add(url: &str) {
        connect(url).await.unwrap().batch_execute("INSERT INTO kept VALUES (1)").await.unwrap();
    }

    async fn pair(replication: Replication) -> (Pair, tempfile::TempDir) {
        let work =
            tempfile::Builder::new().prefix("headwater-replica").tempdir_in(std::env::temp_dir()).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(work.path(), mode).unwrap();
        (Pair::start(work.path(), replication, &[]).await.unwrap(), work)
    }

    /// Publishes, with retries until a server accepts it.
    async fn publish(headwater: &headwater::Headwater, number: u64) {
        let deadline = Instant::now() + WAIT_MAX;
        while let Err(error) = headwater.producer("orders").send(&number).await {
            let may_repeat = error.is_retryable() || error.kind() == headwater::ErrorKind::CommitUnknown;
            assert!(may_repeat && Instant::now() < deadline, "{error:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "starts two PostgreSQL servers"]
    async fn a_consumer_follows_every_failover_and_no_standby_serves_it() {
        use headwater::{ErrorKind, Handling, Headwater, Json, OpenOptions};
        let (mut pair, _work) = pair(Replication::Synchronous).await;
        let url = pair.create_database("app").await.unwrap();
        let headwater = Headwater::open_with(&url, OpenOptions::default().auto_create(true)).await.unwrap();
        headwater.topic("orders").create().await.unwrap();
        let (sender, mut seen) = tokio::sync::mpsc::unbounded_channel();
        let handling = Handling::one(move |Json(number): Json<u64>, _| {
            let _ = sender.send(number);
            async { Ok(()) }
        });
        let running = headwater.consumer("orders", "email").handling("one", handling).run().await.unwrap();
        let mut reach = async |number: u64| {
            let reached = async { while seen.recv().await.expect("it runs") != number {} };
            tokio::time::timeout(WAIT_MAX, reached)
                .await
                .unwrap_or_else(|_| panic!("{number} was never received"));
        };
        publish(&headwater, 1).await;
        reach(1).await;

        pair.switch_over().await.unwrap();
        publish(&headwater, 2).await;
        reach(2).await;

        pair.caught_up().await.unwrap();
        let standby = pair.standby_url("app");
        let refused = Headwater::open(&standby).await.unwrap_err();
        assert_eq!((refused.kind(), refused.is_retryable()), (ErrorKind::ReadOnly, true), "{refused}");
        let reader = format!("{standby}?target_session_attrs=read-only");
        let reader = Headwater::open(&reader).await.unwrap();
        assert_eq!(reader.store().topics().await.unwrap().len(), 1, "it can be read");
        let refused = reader.producer("orders").send(&9_u64).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
        reader.close().await.unwrap();

        pair.crash(Stop::Kill).unwrap();
        pair.promote().await.unwrap();
        publish(&headwater, 3).await;
        reach(3).await;
        running.shutdown(Duration::from_secs(10)).await.unwrap();
        headwater.close().await.unwrap();
    }

    #[tokio::test]
    #[ignore = "starts two PostgreSQL servers"]
    async fn a_pair_fails_over_with_and_without_its_tail() {
        let (mut pair, _work) = pair(Replication::Asynchronous).await;
        pair.create_database("kept").await.unwrap();
        connect(&pair.primary_url("kept"))
            .await
            .unwrap()
            .batch_execute("CREATE TABLE kept (n int)")
            .await
            .unwrap();

        add(&pair.primary_url("kept")).await;
        pair.crash(Stop::Kill).unwrap();
        pair.restart().await.unwrap();
        assert_eq!(count(&pair.primary_url("kept")).await, 1, "recovery in place");

        pair.caught_up().await.unwrap();
        pair.cut().await.unwrap();
        add(&pair.primary_url("kept")).await;
        pair.crash(Stop::Immediate).unwrap();
        pair.promote().await.unwrap();
        assert_eq!(count(&pair.primary_url("kept")).await, 1, "the tail is lost");

        let (address, both) = (pair.standby_url("kept"), pair.url("kept"));
        pair.take_over_address().await.unwrap();
        assert_eq!(pair.primary_url("kept"), address);
        assert_eq!(pair.url("kept"), both);

        pair.rejoin().await.unwrap();
        pair.cut().await.unwrap();
        pair.mend().await.unwrap();
        pair.replication = Replication::Synchronous;
        pair.streaming().await.unwrap();
        add(&pair.primary_url("kept")).await;
        pair.switch_over().await.unwrap();
        assert_eq!(count(&pair.primary_url("kept")).await, 2, "nothing is lost");
        let standby = connect(&pair.standby_url("kept")).await.unwrap();
        let refused = standby.batch_execute("INSERT INTO kept VALUES (1)").await.unwrap_err();
        assert_eq!(refused.code().unwrap().code(), "25006");
    }
}
