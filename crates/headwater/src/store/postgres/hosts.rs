//! The servers that a URL names: tried in turn, each for a bounded time, until one takes writes.
//!
//! Why no connection stays with a server that is no longer the primary. A standby is refused when the connection is made
//! (and the next server tried), because its data may lag: a claimed message that has not arrived yet would be taken for a
//! gap. A primary becomes a standby only by a restart, which ends its connections. A server that refuses writes otherwise, or
//! does not answer, is left: [`Hosts::leave`] marks every connection made before, the pools drop marked connections instead
//! of handing them out, and the LISTEN connection is made again. A server that vanished without closing its connections is
//! detected by the keepalives and the limit on unacknowledged data.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::config::{LoadBalanceHosts, TargetSessionAttrs};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, SimpleQueryMessage, Socket};

use super::address::Address;
use super::statements::in_namespace;
use super::url::{self, CONNECT_TIMEOUT, for_hosts, hosts_of};
use super::{fault, tls};
use crate::error::{Error, ErrorKind, Result};
use crate::namespace::Namespace;
use crate::store::OpenOptions;

/// How long a server may take beyond its connect timeout until the session is ready: one that accepts but does not answer is
/// skipped.
const READY_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection as the driver makes it.
pub(super) type Driven = Connection<Socket, <tls::Connector as MakeTlsConnect<Socket>>::Stream>;

/// The servers of one URL. Clones share their state.
#[derive(Clone)]
pub(super) struct Hosts(Arc<Shared>);

struct Shared {
    address: Address,
    /// One for each server, in the URL's order.
    targets: Vec<Config>,
    connector: tls::Connector,
    /// The statements that prepare a session, or refuse the server: the settings first, because they apply from the next
    /// transaction on.
    setup: [String; 2],
    /// The timeline of the server connected to last.
    timeline: Mutex<Option<String>>,
    /// The server to try first: the last one that worked.
    next: AtomicUsize,
    /// Connections made up to then are not used any more.
    left: watch::Sender<Option<Instant>>,
}

impl Hosts {
    pub(super) fn new(url: &str, namespace: &Namespace, options: &OpenOptions) -> Result<Self> {
        let (config, connector) = config_of(url, options.read_only)?;
        let setup = setup(&config, namespace, options);
        let (left, _) = watch::channel(None);
        let targets = targets_of(&config)?;
        let shared = Shared {
            address: Address::of(&targets),
            targets,
            connector,
            setup,
            timeline: Mutex::default(),
            next: AtomicUsize::new(0),
            left,
        };
        Ok(Hosts(Arc::new(shared)))
    }

    /// Refuses a namespace that was created by others since the session was prepared, as a new session does.
    pub(super) async fn check_namespace(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        client.batch_execute(&self.0.setup[1]).await
    }

    /// The TLS connector for cancel requests.
    pub(super) fn connector(&self) -> tls::Connector {
        self.0.connector.clone()
    }

    /// Where the URL leads.
    pub(super) fn address(&self) -> &Address {
        &self.0.address
    }

    /// How long it may take until every server has been tried.
    pub(super) fn connect_timeout(&self) -> Duration {
        self.0.targets.iter().map(limit_of).sum()
    }

    /// A prepared session with the first server that accepts it; `drive` runs the connection. Never returns if no server
    /// answers: the caller's deadline is [`Hosts::connect_timeout`].
    pub(super) async fn connect(
        &self,
        drive: impl Fn(Driven) -> JoinHandle<()>,
    ) -> Result<(Client, JoinHandle<()>), tokio_postgres::Error> {
        let targets = &self.0.targets;
        let first = self.0.next.load(Ordering::Relaxed);
        let mut refusal = None;
        for at in (0..targets.len()).map(|step| (first + step) % targets.len()) {
            let mut turn = Turn { next: &self.0.next, after: (at + 1) % targets.len(), found: false };
            match tokio::time::timeout(limit_of(&targets[at]), self.session(&targets[at], &drive)).await {
                Ok(Ok(session)) => {
                    self.0.next.store(at, Ordering::Relaxed);
                    turn.found = true;
                    return Ok(session);
                }
                Ok(Err(error)) => {
                    tracing::debug!(%error, server = at, "server refused");
                    // Of several errors a retryable one is reported, because another attempt may succeed.
                    if refusal.as_ref().is_none_or(|kept| !fault::may_pass(kept)) {
                        refusal = Some(error);
                    }
                }
                Err(_) => tracing::debug!(server = at, "server not answering"),
            }
        }
        match refusal {
            Some(error) => Err(error),
            None => std::future::pending().await,
        }
    }

    async fn session(
        &self,
        target: &Config,
        drive: &impl Fn(Driven) -> JoinHandle<()>,
    ) -> Result<(Client, JoinHandle<()>), tokio_postgres::Error> {
        let began_at = Instant::now();
        let (client, connection) = target.connect(self.connector()).await?;
        let task = drive(connection);
        for commands in &self.0.setup {
            client.batch_execute(commands).await?;
        }
        self.heed_timeline(&client.simple_query(TIMELINE).await?, began_at);
        Ok((client, task))
    }

    /// Another timeline is another server: one was promoted, and the former primary may still run. A range claimed on the new
    /// server must not be fetched from the old one, so earlier connections are left.
    fn heed_timeline(&self, answer: &[SimpleQueryMessage], began_at: Instant) {
        let row = answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        let Some(found) = row else { return };
        let mut timeline = self.0.timeline.lock().expect("no panic while held");
        let before = timeline.replace(found.clone());
        drop(timeline);
        if before.is_some_and(|before| before != found) {
            tracing::warn!(timeline = found, "server changed, connections to the former server dropped");
            self.leave(began_at);
        }
    }

    /// Marks connections made up to `made_at` as left. Later connections stay: they may be to the new primary.
    pub(super) fn leave(&self, made_at: Instant) {
        let later = |left: &mut Option<Instant>| {
            let moved = left.is_none_or(|left| left < made_at);
            if moved {
                *left = Some(made_at);
            }
            moved
        };
        if self.0.left.send_if_modified(later) {
            tracing::debug!("connections left, servers tried again");
        }
    }

    /// Leaves a server whose error shows that it takes no writes.
    pub(super) fn heed(&self, error: &Error, made_at: Instant) {
        if error.kind() == ErrorKind::ReadOnly {
            self.leave(made_at);
        }
    }

    /// Whether a connection made then is left.
    pub(super) fn is_left(&self, made_at: Instant) -> bool {
        self.0.left.borrow().is_some_and(|left| made_at <= left)
    }

    /// Notifies each time that connections are left.
    pub(super) fn leaving(&self) -> watch::Receiver<Option<Instant>> {
        self.0.left.subscribe()
    }
}

impl deadpool_postgres::Connect for Hosts {
    fn connect(
        &self,
        _: &Config,
    ) -> Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), tokio_postgres::Error>> + Send + '_>>
    {
        let drive = |connection: Driven| {
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "connection ended");
                }
            })
        };
        Box::pin(Hosts::connect(self, drive))
    }
}

/// One attempt with one server. If it fails, or the caller is cancelled, the next attempt begins with the next server.
struct Turn<'a> {
    next: &'a AtomicUsize,
    after: usize,
    found: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.found {
            self.next.store(self.after, Ordering::Relaxed);
        }
    }
}

/// The configuration of a URL, for sessions of the store.
fn config_of(url: &str, read_only: bool) -> Result<(Config, tls::Connector)> {
    let (mut config, connector) = url::config_of(url, !read_only)?;
    config.application_name("headwater");
    if read_only {
        // An option of the connection and not a `SET`: behind a pooler a setting would stay with a session that other programs
        // get next.
        let options = config.get_options().map(|said| format!("{said} ")).unwrap_or_default();
        config.options(format!("{options}-c default_transaction_read_only=on"));
    }
    Ok((config, connector))
}

/// The same configuration for each server alone.
fn targets_of(config: &Config) -> Result<Vec<Config>> {
    let (hosts, ports) = (hosts_of(config), config.get_ports());
    if ports.len() > 1 && ports.len() != hosts.len() {
        return Err(Error::invalid(
            "store",
            format!("{} ports for {} hosts; name one port, or one for each", ports.len(), hosts.len()),
        ));
    }
    // The driver handles addresses given apart from the names, and a random order.
    if hosts.len() < 2
        || !config.get_hostaddrs().is_empty()
        || config.get_load_balance_hosts() == LoadBalanceHosts::Random
    {
        return Ok(vec![config.clone()]);
    }
    let port_of = |at: usize| ports.get(at).or(ports.first()).copied();
    let target = |(at, host)| for_hosts(config, std::slice::from_ref(host), port_of(at).as_slice());
    Ok(hosts.iter().enumerate().map(target).collect())
}

fn limit_of(target: &Config) -> Duration {
    target.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT) + READY_TIMEOUT
}

/// The statements that prepare a session: the functions of the schema rely on a new snapshot per statement.
fn setup(config: &Config, namespace: &Namespace, options: &OpenOptions) -> [String; 2] {
    let timeout_ms = options.statement_timeout.as_millis();
    let refuse = match config.get_target_session_attrs() {
        TargetSessionAttrs::ReadOnly => "",
        _ if options.read_only => "",
        _ => REFUSE_STANDBY,
    };
    // Only settings that differ: behind a pooler in transaction mode a setting stays with a session that other programs get
    // next. If the role or the database already has these settings, none is set here.
    let settings = format!(
        "SELECT set_config(s.name, w.value, false)
         FROM (VALUES ('statement_timeout', '{timeout_ms}'), ('default_transaction_isolation', 'read committed'), ('jit', 'off'))
              w (name, value) JOIN pg_settings s ON s.name = w.name
         WHERE s.setting <> w.value; {DURABLE}"
    );
    [settings, format!("{refuse}; {}", in_namespace(TRUST_AND_BEGIN_EPOCH, namespace))]
}

/// Commits of the store wait for the disk, and for a synchronous standby, whatever the role's setting is; a statement may
/// disable that for itself.
const DURABLE: &str = "SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')";
/// The timeline of the server's write-ahead log; a standby has none of its own.
const TIMELINE: &str =
    "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) WHERE NOT pg_is_in_recovery()";
/// Refuses a schema whose functions this session must not run, and begins an epoch. It runs before any other statement that names
/// something in the namespace, and decides by the catalogues alone, in which no operator or function of another schema is found.
///
/// Any role that may create schemas can take the namespace's name first. A function without SECURITY DEFINER has the rights of the
/// session that calls it, so the owner of a schema acts with the rights of those who use it: a superuser, and a role that a
/// superuser has set in its session (the function may set it back), use schemas of superusers alone. That no function is
/// dangerous now would prove nothing, because the owner can replace it at any time. A session with fewer rights trusts the owner
/// of the schema in its URL, as in every call of another role's function; only what is called here, in every session, is checked.
///
/// After a promotion or restore an epoch begins before this session publishes anything: offsets then continue above those that
/// were lost. Only if the namespace exists, and the role may do more than read.
const TRUST_AND_BEGIN_EPOCH: &str = "DO $$
DECLARE
    v_schema record;
    v_superuser name;
    v_begin record;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    SELECT n.oid, n.nspowner, o.rolname AS owner, o.rolsuper INTO v_schema
    FROM pg_namespace n JOIN pg_roles o ON o.oid = n.nspowner WHERE n.nspname = '{name}';
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT r.rolname INTO v_superuser FROM pg_roles r WHERE r.rolsuper AND r.rolname IN (current_user, session_user) LIMIT 1;
    IF FOUND AND NOT v_schema.rolsuper THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = format(
            'schema {name} belongs to role %1$s, and this is a session of superuser %2$s: functions of %1$s could act with the rights '
            'of %2$s; log in as %1$s, or as a role that %1$s has granted rights, choose another namespace, or make a superuser the '
            'owner of the schema and of everything in it (ALTER SCHEMA {name} OWNER TO %2$s) if it is yours; nothing was changed',
            v_schema.owner, v_superuser);
    END IF;
    IF current_setting('transaction_read_only') <> 'off' OR NOT has_schema_privilege(v_schema.oid, 'USAGE') THEN
        RETURN;
    END IF;
    SELECT p.oid, p.prosecdef AND p.proowner = v_schema.nspowner
                  AND p.proconfig @> ARRAY['search_path=pg_catalog, pg_temp'] IS TRUE AS is_ours INTO v_begin
    FROM pg_proc p WHERE p.pronamespace = v_schema.oid AND p.proname = 'begin_epoch' AND p.pronargs = 0;
    IF NOT FOUND OR NOT has_function_privilege(v_begin.oid, 'EXECUTE') THEN
        RETURN;
    END IF;
    IF NOT v_begin.is_ours THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = format(
            'function begin_epoch of schema {name}, which belongs to role %s, is not the one of Headwater: it could act with the '
            'rights of %s; choose another namespace; nothing was changed', v_schema.owner, current_user);
    END IF;
    PERFORM {schema}.begin_epoch();
END $$";
const REFUSE_STANDBY: &str = "DO $$ BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION USING ERRCODE = 'read_only_sql_transaction',
            MESSAGE = 'this server is a standby; name the primary, or all servers, in the URL';
    END IF;
END $$";

#[cfg(test)]
mod tests {
    use tokio_postgres::config::Host;

    use super::*;

    fn config(url: &str) -> Config {
        config_of(url, false).unwrap().0
    }

    #[test]
    fn each_server_is_a_target_of_its_own_with_everything_the_url_says() {
        let url =
            "postgres://u:p@a:1,%2Frun%2Fpg:2,c:3/d?options=-c%20x%3D1&sslmode=require&keepalives_retries=9";
        let targets = targets_of(&config(url)).unwrap();
        let ports: Vec<_> = targets.iter().map(|target| target.get_ports().to_vec()).collect();
        assert_eq!(ports, [[1], [2], [3]]);
        assert_eq!(targets[1].get_hosts(), [Host::Unix("/run/pg".into())]);
        // Each is what the driver would make of a URL with that server alone.
        let alone = url.replace("a:1,%2Frun%2Fpg:2,c:3", "c:3") + "&target_session_attrs=read-write";
        assert!(targets[2] == config(&alone));
        let one_port = targets_of(&config("postgres:///d?host=a,%2Frun%2Fb&port=7")).unwrap();
        assert_eq!(one_port[1].get_ports(), [7]);
        assert_eq!(one_port[1].get_hosts(), [Host::Unix("/run/b".into())]);
        let refused = targets_of(&config("postgres:///d?host=a,b,c&port=1,2")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    }

    #[test]
    fn what_was_connected_before_is_left_and_what_came_later_stays() {
        let hosts = Hosts::new("postgres://u@a,b/d", &Namespace::default(), &OpenOptions::default()).unwrap();
        let old = Instant::now();
        let new = old + Duration::from_secs(1);
        let mut leaving = hosts.leaving();
        hosts.heed(&Error::new(ErrorKind::Busy, "locked"), new);
        assert!(!hosts.is_left(old) && !leaving.has_changed().unwrap());
        hosts.heed(&Error::new(ErrorKind::ReadOnly, "demoted"), old);
        assert!(hosts.is_left(old) && !hosts.is_left(new) && leaving.has_changed().unwrap());
        leaving.mark_unchanged();
        hosts.leave(old - Duration::from_secs(1));
        assert!(hosts.is_left(old) && !leaving.has_changed().unwrap(), "the mark never moves back");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_accepts_and_says_nothing_is_passed_over() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!(
            "postgres://u@{},{}/d?sslmode=disable",
            silent.local_addr().unwrap(),
            gone.local_addr().unwrap()
        );
        drop(gone);
        let hosts = Hosts::new(&url, &Namespace::default(), &OpenOptions::default()).unwrap();
        let drive = |connection: Driven| {
            tokio::spawn(async move {
                let _ = connection.await;
            })
        };
        // The refusal of the second server is reported, and waiting for the silent first one took no more than its limit.
        let asked = tokio::time::timeout(hosts.connect_timeout(), hosts.connect(drive)).await;
        assert!(fault::may_pass(&asked.expect("in time").unwrap_err()));
        assert_eq!(hosts.0.next.load(Ordering::Relaxed), 0);
        // After a caller that was cancelled during the first server, the next attempt begins with the second.
        let hasty = tokio::time::timeout(Duration::from_millis(10), hosts.connect(drive)).await;
        assert!(hasty.is_err());
        assert_eq!(hosts.0.next.load(Ordering::Relaxed), 1);
    }
}
