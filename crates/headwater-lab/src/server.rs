//! A durable PostgreSQL of the lab's own: started on a private socket, stopped and removed with its value.
//!
//! Every system measured on PostgreSQL shares this one server and its settings, so ratios compare engines and not
//! configurations.

mod crash;
pub(crate) mod replica;

use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::{Client, Config, NoTls};

/// What differs from PostgreSQL's defaults. `fsync` and `synchronous_commit` stay on: every figure is durable.
pub(crate) const SETTINGS: [(&str, &str); 4] = [
    ("shared_buffers", "512MB"),
    ("max_wal_size", "8GB"),
    ("checkpoint_timeout", "15min"),
    ("max_connections", "300"),
];
/// What the soak needs beyond that; PostgreSQL's default is none, and the bench keeps to it.
pub(crate) const PREPARED_TRANSACTIONS: (&str, &str) = ("max_prepared_transactions", "50");

/// A PostgreSQL server to measure on.
#[derive(Debug)]
pub(crate) struct Server {
    admin_url: String,
    own: Option<OwnServer>,
}

impl Server {
    /// Starts a server of the lab's own under `work`, with these settings beside the usual ones.
    pub(crate) async fn start(work: &Path, beside: &[(&str, &str)]) -> Result<Self> {
        let own = OwnServer::start(work, beside)?;
        let server = Server { admin_url: own.url("postgres"), own: Some(own) };
        let deadline = Instant::now() + Duration::from_secs(30);
        while let Err(error) = connect(&server.admin_url).await {
            let words = server.own.as_ref().map(|own| own.files.last_words()).unwrap_or_default();
            ensure!(Instant::now() < deadline, "the lab's PostgreSQL did not come up: {error:#}; {words}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(server)
    }

    /// Uses a server that runs already; the URL must allow creating databases.
    pub(crate) fn external(url: &str) -> Self {
        Server { admin_url: url.to_owned(), own: None }
    }

    /// Makes an empty database and returns its URL.
    pub(crate) async fn create_database(&self, name: &str) -> Result<String> {
        let admin = connect(&self.admin_url).await?;
        admin.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        Ok(self.url(name))
    }

    /// Removes a database again.
    pub(crate) async fn drop_database(&self, name: &str) -> Result<()> {
        let admin = connect(&self.admin_url).await?;
        admin.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
        Ok(())
    }

    /// Takes the server away for a while, as a fail-over or a reboot does. Only one of the lab's own.
    pub(crate) async fn away_for(&self, time: Duration) -> Result<()> {
        let own = self.own.as_ref().context("only the lab's own server can be taken away")?;
        own.stop()?;
        tokio::time::sleep(time).await;
        own.serve_again()?;
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Err(error) = connect(&self.admin_url).await {
            ensure!(Instant::now() < deadline, "the lab's PostgreSQL did not come back: {error:#}");
            tokio::time::sleep(Duration::from_millis(50)).await;
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
        let rows = admin.query("SELECT pid FROM pg_stat_activity WHERE datname = $1", &[&database]).await?;
        rows.iter().map(|row| Ok(u32::try_from(row.get::<_, i32>(0))?)).collect()
    }

    /// The URL of a database on this server.
    pub(crate) fn url(&self, database: &str) -> String {
        match &self.own {
            Some(own) => own.url(database),
            None => with_database(&self.admin_url, database),
        }
    }
}

/// Replaces the database in a URL: what lies between the first slash after the authority and the query.
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
        // The client sees every error of its own calls; what is left here is the server going away at the end.
        let _ = connection.await;
    });
    Ok(client)
}

/// The child process and its files. Fields drop in order: the process ends before its files go.
#[derive(Debug)]
struct OwnServer {
    postmaster: Mutex<Option<Postmaster>>,
    files: Files,
    /// Sockets live in a short path: their names are limited to 107 bytes.
    socket: tempfile::TempDir,
    settings: Vec<(String, String)>,
}

/// Files that go with their value.
#[derive(Debug)]
struct Files {
    data: PathBuf,
    log: PathBuf,
}

/// Where a server keeps its data and is found.
#[derive(Clone, Copy)]
struct Place<'a> {
    files: &'a Files,
    socket: &'a Path,
    port: u16,
}

/// A process that is stopped with its value.
#[derive(Debug)]
struct Postmaster(Child);

const PORT: u16 = 54_390;

impl OwnServer {
    fn start(work: &Path, beside: &[(&str, &str)]) -> Result<Self> {
        let user = unprivileged_user()?;
        let files = Files::create(work, "", user)?;
        let socket = tempfile::Builder::new().prefix("headwater-lab").tempdir()?;
        if let Some((uid, gid)) = user {
            chown(socket.path(), Some(uid), Some(gid))?;
        }
        files.init(user)?;
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let settings: Vec<_> = SETTINGS.iter().chain(beside).map(own).collect();
        let place = Place { files: &files, socket: socket.path(), port: PORT };
        let postmaster = Mutex::new(Some(serve(place, &settings, user)?));
        Ok(OwnServer { postmaster, files, socket, settings })
    }

    /// Stops it as an administrator would, fast.
    fn stop(&self) -> Result<()> {
        let postmaster = self.postmaster.lock().expect("no panic while held").take();
        postmaster.context("the server is away already")?.stop(Signal::INT)
    }

    fn serve_again(&self) -> Result<()> {
        let place = Place { files: &self.files, socket: self.socket.path(), port: PORT };
        let postmaster = serve(place, &self.settings, unprivileged_user()?)?;
        *self.postmaster.lock().expect("no panic while held") = Some(postmaster);
        Ok(())
    }

    /// The host is the socket's directory, percent-encoded as libpq's URLs want it; so the port is never taken.
    fn url(&self, database: &str) -> String {
        let host = self.socket.path().display().to_string().replace('/', "%2F");
        format!("postgres://postgres@{host}:{PORT}/{database}")
    }
}

fn serve(place: Place<'_>, settings: &[(String, String)], user: Option<(u32, u32)>) -> Result<Postmaster> {
    let log = std::fs::OpenOptions::new().append(true).create(true).open(&place.files.log)?;
    let mut serve = as_user(&binary("postgres")?, user);
    serve.arg("-D").arg(&place.files.data).arg("-k").arg(place.socket).args(["-p", &place.port.to_string()]);
    for (name, value) in settings {
        serve.arg("-c").arg(format!("{name}={value}"));
    }
    // Nobody but this machine's own users gets in, and no port can be taken.
    serve.args(["-c", "listen_addresses="]);
    let child = serve.stdout(log.try_clone()?).stderr(log).spawn().context("starting postgres")?;
    Ok(Postmaster(child))
}

impl Files {
    fn create(work: &Path, name: &str, user: Option<(u32, u32)>) -> Result<Self> {
        let work = work.canonicalize().with_context(|| format!("{} is not there", work.display()))?;
        let data = work.join(format!("postgres-{}{name}", std::process::id()));
        let files = Files { log: data.with_extension("log"), data };
        files.clear(user)?;
        Ok(files)
    }

    /// An empty data directory that PostgreSQL accepts.
    fn clear(&self, user: Option<(u32, u32)>) -> Result<()> {
        let _ = std::fs::remove_dir_all(&self.data);
        let mut directory = std::fs::DirBuilder::new();
        directory.recursive(true).mode(0o700);
        directory.create(&self.data).with_context(|| format!("creating {}", self.data.display()))?;
        if let Some((uid, gid)) = user {
            chown(&self.data, Some(uid), Some(gid))?;
        }
        Ok(())
    }

    /// Makes a database cluster in the empty directory.
    fn init(&self, user: Option<(u32, u32)>) -> Result<()> {
        let log = std::fs::File::create(&self.log)?;
        let mut init = as_user(&binary("initdb")?, user);
        init.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N", "-D"]).arg(&self.data);
        let status = init.stdout(Stdio::null()).stderr(log).status().context("running initdb")?;
        ensure!(status.success(), "initdb failed: {}", self.last_words());
        Ok(())
    }

    /// The last line of the server's log, for an error.
    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().last().unwrap_or("it said nothing").to_owned()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.data);
        let _ = std::fs::remove_file(&self.log);
    }
}

impl Postmaster {
    fn has_ended(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(Some(_)))
    }

    fn stop(mut self, signal: Signal) -> Result<()> {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, signal)?;
        }
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Postmaster {
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        // Immediate shutdown: the data directory is removed right after.
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::QUIT);
        }
        let _ = self.0.wait();
    }
}

/// The command, run as another user where we are root: PostgreSQL refuses to run as root.
fn as_user(program: &Path, user: Option<(u32, u32)>) -> Command {
    let mut command = Command::new(program);
    // A group of its own: an interrupt from the terminal reaches the lab only, which then stops the server itself.
    command.stdin(Stdio::null()).current_dir("/").process_group(0);
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
    command
}

fn unprivileged_user() -> Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd")?;
    for wanted in ["postgres", "nobody"] {
        for line in users.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            if fields.len() > 3 && fields[0] == wanted {
                return Ok(Some((fields[2].parse()?, fields[3].parse()?)));
            }
        }
    }
    bail!("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")
}

/// Finds a program of the PostgreSQL server: beside wherever `postgres` on the path points to, else where
/// `pg_config` says.
fn binary(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path)
        .filter_map(|directory| directory.join("postgres").canonicalize().ok())
        .filter_map(|program| program.parent().map(Path::to_path_buf));
    let configured = Command::new("pg_config").arg("--bindir").output().ok();
    let configured = configured
        .filter(|output| output.status.success())
        .map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    let found =
        on_path.chain(configured).map(|directory| directory.join(name)).find(|program| program.exists());
    found.with_context(|| {
        format!("{name} is not installed (looked beside postgres on the path and where pg_config points)")
    })
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
