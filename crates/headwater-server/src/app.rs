//! What all requests share.

use std::ops::Deref;
use std::sync::Arc;

use axum::Router;
use headwater::Headwater;
use headwater::jiff::Timestamp;

use crate::auth::session::csrf_of;
use crate::auth::{Caller, Denials, Tokens};
use crate::claims::SharedClaims;
use crate::limits::Limits;
use crate::options::{Label, ServeOptions};
use crate::producers::Producers;
use crate::sampler::Sampler;
use crate::stopping::Stopping;
use crate::streams::Streams;

/// The state of every handler: `State(app): State<App>`. Clones are the same. Fields are read through it, as in `app.headwater`.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

/// The fields of [`App`].
pub(crate) struct Shared {
    /// For reading. What a caller changes goes through [`App::acting`].
    pub(crate) headwater: Headwater,
    pub(crate) tokens: Tokens,
    pub(crate) limits: Limits,
    pub(crate) sampler: Arc<Sampler>,
    pub(crate) label: Label,
    pub(crate) started_at: Timestamp,
    /// The queries of a pipeline.
    pub(crate) pipeline: Option<Router>,
    /// Where what was denied is reported.
    pub(crate) denials: Denials,
    /// The CSRF token where the store has no API token.
    pub(crate) csrf: String,
    pub(crate) has_tls: bool,
    pub(crate) host_names: Vec<String>,
    /// Requests that wait or stream end when the server stops.
    pub(crate) stopping: Stopping,
    pub(crate) producers: Producers,
    pub(crate) claims: SharedClaims,
    pub(crate) streams: Streams,
}

impl App {
    pub(crate) fn new(headwater: Headwater, options: &ServeOptions, denials: Denials) -> Self {
        let may_be_open = options.insecure || options.address.ip().is_loopback();
        let process_secret: [u64; 4] = rand::random();
        App(Arc::new(Shared {
            tokens: Tokens::new(&headwater, may_be_open),
            limits: options.limits.clone(),
            sampler: Arc::new(Sampler::new(&headwater)),
            label: options.label.clone(),
            started_at: Timestamp::now(),
            pipeline: options.pipeline.clone(),
            denials,
            csrf: csrf_of(&format!("{process_secret:x?}")),
            has_tls: options.tls.is_some(),
            host_names: options.host_names.clone(),
            stopping: Stopping::default(),
            producers: Producers::default(),
            claims: SharedClaims::default(),
            streams: Streams::default(),
            headwater,
        }))
    }

    /// The handle for what a caller changes: audit entries name the caller.
    pub(crate) fn acting(&self, caller: &Caller) -> Headwater {
        self.headwater.acting_as(caller.name())
    }
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
