//! Listening: accepts connections, serves them, and ends them when the server stops.
//!
//! Each connection is a task of the server's own set. Clients that are slow are dropped: headers have to arrive within the read timeout, each part of a
//! body too ([`crate::api::body`]), and each part of an answer has to be taken within the write timeout ([`crate::patience`]).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request};
use headwater::Headwater;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::app::App;
use crate::auth::{Denials, note_denials};
use crate::limits::Limits;
use crate::options::ServeOptions;
use crate::patience::Patient;
use crate::{metrics, routes, tls};

/// The pause after a connection could not be accepted, as when the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often what is not used any more is dropped.
const SWEEP_EVERY: Duration = Duration::from_secs(30);
/// How long the last entries of the audit may take at the end.
const LAST_ENTRIES: Duration = Duration::from_secs(2);

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Other machines reach the address, and the store has no token.
    #[error(
        "{0} is reached by other machines and the store has no token: create one with `headwater token create`, listen on 127.0.0.1, or \
         allow every caller everything with --insecure"
    )]
    NoTokens(SocketAddr),
    /// The files of TLS cannot be used.
    #[error("{0}")]
    Tls(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] headwater::Error),
}

/// A server that listens, and serves once [`Server::run`] is called.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    app: App,
    tls: Option<TlsAcceptor>,
    /// Writes denials to the audit.
    denials: JoinSet<()>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Server({})", self.address)
    }
}

impl Server {
    /// Listens; connections wait until [`Server::run`]. Refused if other machines reach the address and the store has no token, unless
    /// [`ServeOptions::insecure`] is set.
    pub async fn bind(headwater: Headwater, options: ServeOptions) -> Result<Self, ServeError> {
        let address = options.address;
        if !options.insecure && !address.ip().is_loopback() && !headwater.tokens().any().await? {
            return Err(ServeError::NoTokens(address));
        }
        metrics::record_metrics();
        let tls = options.tls.as_ref().map(tls::acceptor).transpose()?;
        let bind = |source| ServeError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let (reports, reported) = Denials::new();
        let mut denials = JoinSet::new();
        denials.spawn(note_denials(headwater.clone(), reported));
        let app = App::new(headwater, &options, reports);
        Ok(Server { listener, address, app, tls, denials })
    }

    /// Where it listens, with the port that was chosen.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` completes. Then it accepts nothing more, ends requests that wait for messages, lets the others finish within
    /// [`Limits::shutdown_timeout`], and returns. The store stays open.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
        let Server { listener, app, tls, mut denials, address } = self;
        let limits = app.limits.clone();
        let served = Served { router: routes::routes(app.clone()), limits: limits.clone(), app: app.clone() };
        let served = Arc::new(served);
        let mut connections = JoinSet::new();
        tracing::info!(%address, "server started");
        tokio::select! {
            () = accept(&listener, &served, tls.as_ref(), &mut connections) => {}
            () = sweep(&app) => {}
            () = stop => {}
        }
        drop(listener);
        app.stopping.stop();
        let ended = async {
            while connections.join_next().await.is_some() {}
            app.stopping.guests_gone().await;
        };
        if tokio::time::timeout(limits.shutdown_timeout, ended).await.is_err() {
            tracing::warn!(connections = connections.len(), "connections did not end in time, dropped");
            connections.shutdown().await;
        }
        // The last ones that report denials: then the task writes what is left and ends.
        drop((served, app));
        let _ =
            tokio::time::timeout(LAST_ENTRIES, async { while denials.join_next().await.is_some() {} }).await;
        tracing::info!(%address, "server stopped");
        Ok(())
    }
}

/// [`Server::bind`] and [`Server::run`] in one.
pub async fn serve(
    headwater: Headwater,
    options: ServeOptions,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    Server::bind(headwater, options).await?.run(stop).await
}

/// What connections share.
struct Served {
    router: Router,
    limits: Limits,
    app: App,
}

/// Accepts connections, no more at once than allowed: the others wait in the kernel's queue.
async fn accept(
    listener: &TcpListener,
    served: &Arc<Served>,
    tls: Option<&TlsAcceptor>,
    connections: &mut JoinSet<()>,
) {
    let allowed = Arc::new(Semaphore::new(served.limits.connections_max));
    loop {
        let Ok(permit) = Arc::clone(&allowed).acquire_owned().await else { return };
        // Those that have ended are forgotten, so that the set stays as large as what is open.
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, peer)) => {
                let (served, tls) = (Arc::clone(served), tls.cloned());
                connections.spawn(connection(stream, peer, served, tls, permit));
            }
            Err(error) => {
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    served: Arc<Served>,
    tls: Option<TlsAcceptor>,
    permit: OwnedSemaphorePermit,
) {
    let _open = metrics::connection();
    // Answers are small and waited for.
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else {
        serve_connection(stream, peer, &served).await;
        drop(permit);
        return;
    };
    match tokio::time::timeout(served.limits.read_timeout, tls.accept(stream)).await {
        Ok(Ok(stream)) => serve_connection(stream, peer, &served).await,
        Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS refused"),
        Err(_) => tracing::debug!(%peer, "TLS not begun in time"),
    }
    drop(permit);
}

/// Serves the requests of a connection, one after the other. When the server stops it ends after the one under way.
async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    peer: SocketAddr,
    served: &Served,
) {
    let limits = &served.limits;
    let with_peer = move |mut request: Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        request
    };
    let service = TowerToHyperService::new(served.router.clone().map_request(with_peer));
    let stream = TokioIo::new(Patient::new(stream, limits.write_timeout));
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.read_timeout)
        .max_buf_size(limits.header_bytes_max.max(8_192))
        .serve_connection(stream, service)
        .with_upgrades();
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = served.app.stopping.stopped() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // A client that does not read is counted where its time ends (patience.rs), also after an upgrade.
        if error.is_timeout() {
            metrics::dropped("slow");
        }
        tracing::debug!(%peer, %error, "connection ended");
    }
}

/// Drops what is not used any more.
async fn sweep(app: &App) {
    let mut due = tokio::time::interval(SWEEP_EVERY);
    loop {
        due.tick().await;
        app.producers.sweep();
        app.claims.sweep();
        metrics::upkeep();
    }
}
