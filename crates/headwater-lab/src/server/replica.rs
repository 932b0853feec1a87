//! A primary and a streaming standby of the lab's own, for what a crash, a failover and a lost tail leave behind.
//!
//! ```text
//! let mut pair = Pair::start(&work, Replication::Asynchronous, &[PREPARED_TRANSACTIONS]).await?;
//! let store = pair.create_database("soak").await?; // names both servers: postgres://…,…/soak
//! pair.cut().await?;                               // optional: what is committed from here on is the lost tail
//! pair.crash(Crash::Kill)?;                        // or Crash::Immediate
//! pair.promote().await?;                           // the standby is the primary now, and `store` finds it
//! pair.rejoin().await?;                            // the old primary is copied anew and follows: ready for the next round
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
//! | [`Pair::switch_over`] | a planned one: the old primary comes back as a read-only standby of the new one |
//! | [`Pair::rejoin`] | the server that is down becomes a standby again, from a new base backup |
//!
//! Servers and files go with the value. Both listen on one private socket directory only.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tokio_postgres::Client;

use super::{Files, Place, Postmaster, SETTINGS, as_user, binary, connect, serve, unprivileged_user};

/// Every wait for a server has this deadline.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// What a commit on the primary waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replication {
    /// For its own disk alone: a failover loses what the standby never received.
    Asynchronous,
    /// For the standby's disk too.
    Synchronous,
}

/// How a primary ends without a farewell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crash {
    /// `pg_ctl stop -m immediate`: every process leaves at once, without a checkpoint.
    Immediate,
    /// SIGKILL of the postmaster; its children notice and leave.
    Kill,
}

/// Two servers, one of which is the primary. See the module.
#[derive(Debug)]
pub(crate) struct Pair {
    nodes: [Node; 2],
    primary: usize,
    replication: Replication,
    /// Last: the sockets go after the servers.
    socket: tempfile::TempDir,
}

#[derive(Debug)]
struct Node {
    postmaster: Option<Postmaster>,
    files: Files,
    port: u16,
    settings: Vec<(String, String)>,
}

#[cfg_attr(not(test), allow(dead_code, reason = "the soak uses a part of it, its own tests all"))]
impl Pair {
    /// Starts both under `work`, with these settings beside the usual ones.
    pub(crate) async fn start(
        work: &Path,
        replication: Replication,
        beside: &[(&str, &str)],
    ) -> Result<Self> {
        let socket = tempfile::Builder::new().prefix("headwater-pair").tempdir()?;
        let user = unprivileged_user()?;
        if let Some((uid, gid)) = user {
            std::os::unix::fs::chown(socket.path(), Some(uid), Some(gid))?;
        }
        let nodes = [Node::create(work, "a", 54_391, beside)?, Node::create(work, "b", 54_392, beside)?];
        let mut pair = Pair { nodes, primary: 0, replication, socket };
        pair.nodes[0].files.init(user)?;
        pair.serve(0).await?;
        pair.rejoin().await?;
        Ok(pair)
    }

    /// The URL of a database at both servers: clients that ask for a writable one follow every failover.
    pub(crate) fn url(&self, database: &str) -> String {
        let host = self.host().replace('/', "%2F");
        // The order of the ports, not of the roles: the URL stays the same.
        let (a, b) = (self.nodes[0].port.min(self.nodes[1].port), self.nodes[0].port.max(self.nodes[1].port));
        format!("postgres://postgres@{host}:{a},{host}:{b}/{database}")
    }

    /// The URL of a database at the present primary alone.
    pub(crate) fn primary_url(&self, database: &str) -> String {
        self.node_url(self.primary, database)
    }

    /// The URL of a database at the other server alone: a standby is read-only.
    pub(crate) fn standby_url(&self, database: &str) -> String {
        self.node_url(1 - self.primary, database)
    }

    /// A connection to the primary's own database.
    pub(crate) async fn admin(&self) -> Result<Client> {
        connect(&self.primary_url("postgres")).await
    }

    /// Makes an empty database, waits until the standby has it, and returns its URL at both.
    pub(crate) async fn create_database(&self, name: &str) -> Result<String> {
        let admin = self.admin().await?;
        admin.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        self.caught_up().await?;
        Ok(self.url(name))
    }

    /// Waits until the standby has applied everything that the primary has written by now.
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

    /// Lets a standby that was cut off receive again.
    pub(crate) async fn mend(&self) -> Result<()> {
        let from = self.conninfo(self.primary);
        self.follow(&from).await?;
        self.streaming().await
    }

    /// Ends the primary without a farewell.
    pub(crate) fn crash(&mut self, how: Crash) -> Result<()> {
        let signal = match how {
            Crash::Immediate => Signal::QUIT,
            Crash::Kill => Signal::KILL,
        };
        self.stop(self.primary, signal)
    }

    /// Starts the crashed primary again where it was; its standby follows it as before.
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
            self.nodes[self.primary].files.last_words()
        );
        Ok(())
    }

    /// Restarts the new primary at the address of the old one, which is down: as a virtual IP or a DNS name does.
    pub(crate) async fn take_over_address(&mut self) -> Result<()> {
        let other = 1 - self.primary;
        ensure!(self.nodes[other].postmaster.is_none(), "the old primary still has its address");
        self.stop(self.primary, Signal::INT)?;
        let (old, new) = (self.nodes[other].port, self.nodes[self.primary].port);
        self.nodes[self.primary].port = old;
        self.nodes[other].port = new;
        self.serve(self.primary).await
    }

    /// A planned failover: nothing is lost, and the old primary comes back at its address as a read-only standby.
    pub(crate) async fn switch_over(&mut self) -> Result<()> {
        let old = self.primary;
        // A fast stop sends the rest of the WAL before it ends.
        self.stop(old, Signal::INT)?;
        self.promote().await?;
        let node = &self.nodes[old];
        let conninfo = self.conninfo(self.primary);
        node.write("standby.signal", "")?;
        node.append("postgresql.auto.conf", &format!("primary_conninfo = '{conninfo}'\n"))?;
        node.append("postgresql.auto.conf", "synchronous_standby_names = ''\n")?;
        self.serve(old).await?;
        self.streaming().await
    }

    /// Makes the server that is down a standby of the present primary, from a new base backup.
    pub(crate) async fn rejoin(&mut self) -> Result<()> {
        let other = 1 - self.primary;
        ensure!(self.nodes[other].postmaster.is_none(), "the other server is up");
        let user = unprivileged_user()?;
        self.nodes[other].files.clear(user)?;
        let files = &self.nodes[other].files;
        let log = std::fs::OpenOptions::new().append(true).create(true).open(&files.log)?;
        let mut copy = as_user(&binary("pg_basebackup")?, user);
        copy.args(["--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf", "--no-sync"]);
        copy.arg("-d").arg(self.conninfo(self.primary)).arg("-D").arg(&files.data);
        let status = copy.stdout(Stdio::null()).stderr(log).status().context("running pg_basebackup")?;
        ensure!(status.success(), "pg_basebackup failed: {}", files.last_words());
        self.serve(other).await?;
        self.streaming().await
    }

    /// Waits until the standby streams, and only then makes commits wait for it where that is asked for.
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

    fn stop(&mut self, node: usize, signal: Signal) -> Result<()> {
        self.nodes[node].postmaster.take().context("the server is down already")?.stop(signal)
    }

    /// Starts a server and waits until it answers. One whose predecessor was killed is refused until the last of that
    /// one's children has left the shared memory, and is started again.
    async fn serve(&mut self, which: usize) -> Result<()> {
        let (url, user) = (self.node_url(which, "postgres"), unprivileged_user()?);
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let node = &mut self.nodes[which];
            if node.postmaster.as_mut().is_none_or(Postmaster::has_ended) {
                let place = Place { files: &node.files, socket: self.socket.path(), port: node.port };
                node.postmaster = Some(serve(place, &node.settings, user)?);
            }
            let Err(error) = connect(&url).await else { return Ok(()) };
            ensure!(
                Instant::now() < deadline,
                "a server did not come up: {error:#}; {}",
                node.files.last_words()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until a server answers a question with yes.
    async fn holds(&self, node: usize, question: &str, what: &str) -> Result<()> {
        let client = connect(&self.node_url(node, "postgres")).await?;
        let deadline = Instant::now() + WAIT_MAX;
        while !client.query_one(question, &[]).await?.get::<_, bool>(0) {
            ensure!(Instant::now() < deadline, "waited in vain until {what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    fn host(&self) -> String {
        self.socket.path().display().to_string()
    }

    fn node_url(&self, node: usize, database: &str) -> String {
        let host = self.host().replace('/', "%2F");
        format!("postgres://postgres@{host}:{}/{database}", self.nodes[node].port)
    }

    fn conninfo(&self, node: usize) -> String {
        format!("host={} port={} user=postgres", self.host(), self.nodes[node].port)
    }
}

#[cfg_attr(not(test), allow(dead_code, reason = "the soak uses a part of it, its own tests all"))]
impl Node {
    fn create(work: &Path, name: &str, port: u16, beside: &[(&str, &str)]) -> Result<Self> {
        let files = Files::create(work, &format!("-{name}"), unprivileged_user()?)?;
        // A standby that was cut off for a while finds what it missed.
        let replication = [("wal_keep_size", "1GB"), ("hot_standby", "on")];
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let settings = SETTINGS.iter().chain(&replication).chain(beside).map(own).collect();
        Ok(Node { postmaster: None, files, port, settings })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.data.join(name)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        std::fs::write(self.path(name), text)?;
        if let Some((uid, gid)) = unprivileged_user()? {
            std::os::unix::fs::chown(self.path(name), Some(uid), Some(gid))?;
        }
        Ok(())
    }

    fn append(&self, name: &str, text: &str) -> Result<()> {
        let before = std::fs::read_to_string(self.path(name)).unwrap_or_default();
        self.write(name, &format!("{before}{text}"))
    }
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

    /// Publishes until a server takes it.
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
            tokio::time::timeout(WAIT_MAX, reached).await.unwrap_or_else(|_| panic!("{number} never came"));
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

        pair.crash(Crash::Kill).unwrap();
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
        pair.crash(Crash::Kill).unwrap();
        pair.restart().await.unwrap();
        assert_eq!(count(&pair.primary_url("kept")).await, 1, "recovery in place");

        pair.caught_up().await.unwrap();
        pair.cut().await.unwrap();
        add(&pair.primary_url("kept")).await;
        pair.crash(Crash::Immediate).unwrap();
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
