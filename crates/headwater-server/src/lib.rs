//! The HTTP API, the dashboard and the metrics of a Headwater store.
//!
//! [`Server::bind`] takes a [`Headwater`](headwater::Headwater) and [`ServeOptions`]; [`Server::run`] serves until it has to stop, and then ends what is
//! under way. Everything goes through the library's public API: no code here knows an engine.

mod api;
mod app;
mod auth;
mod claims;
mod dashboard;
mod limits;
mod listen;
mod metrics;
mod options;
mod patience;
mod problem;
mod producers;
mod routes;
mod sampler;
mod stopping;
mod streams;
mod tls;

pub use limits::Limits;
pub use listen::{ServeError, Server, serve};
pub use metrics::record_metrics;
pub use options::{Label, ServeOptions, TlsFiles};
