//! What a program decides about a server: where it listens, who may use it, and how it calls itself.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use axum::Router;

use crate::limits::Limits;

/// How a server is run. The default listens on `127.0.0.1:7411`.
#[derive(Debug)]
#[non_exhaustive]
pub struct ServeOptions {
    /// Where the server listens; port 0 is any free port.
    pub address: SocketAddr,
    /// With TLS, if given.
    pub tls: Option<TlsFiles>,
    /// Allows an address that other machines reach although the store has no token: every caller that reaches it is an administrator.
    pub insecure: bool,
    /// Names under which browsers reach the server, beside `localhost` and IP addresses.
    pub host_names: Vec<String>,
    /// Limits on requests and connections.
    pub limits: Limits,
    /// What the dashboard shows of the database.
    pub label: Label,
    /// The queries of a pipeline, served under `/v1/pipeline`.
    pub pipeline: Option<Router>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 7411)),
            tls: None,
            insecure: false,
            host_names: Vec::new(),
            limits: Limits::default(),
            label: Label::default(),
            pipeline: None,
        }
    }
}

/// The files of TLS, in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate and its chain.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Only clients with a certificate of one of these authorities are accepted, if given.
    pub client_authorities: Option<PathBuf>,
}

/// Which database the server shows, for people.
#[derive(Clone, Debug, Default)]
pub struct Label {
    /// A name without secrets, such as `orders on db1`.
    pub name: String,
    /// Whether it is production: the dashboard is coloured accordingly.
    pub production: bool,
}
