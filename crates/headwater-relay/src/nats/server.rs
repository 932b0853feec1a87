//! Servers of NATS: how they are reached, and what their errors mean.

use std::time::Duration;

use async_nats::jetstream::context::{ContextBuilder, GetStreamByNameErrorKind};
use async_nats::jetstream::{Context, ErrorCode};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr, ServerError};
use headwater::{Error, Result};
use tokio::sync::watch;

use super::{IN_FLIGHT_MAX, text_of};
use crate::broker_url::{BrokerUrl, host_and_port};
use crate::sink::SinkError;

/// The longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest wait for an acknowledgement, and for answers of JetStream.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the servers of a cluster are, and how to log in.
#[derive(Clone)]
pub(crate) struct Server {
    addresses: Vec<ServerAddr>,
    user: Option<String>,
    password: Option<String>,
    /// For errors and logs: without the password.
    pub(crate) place: String,
}

/// A connection. It is used until the first trouble: what then waits in it is not relied on.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) context: Context,
    trouble: watch::Receiver<Option<SinkError>>,
}

impl Server {
    /// The servers of a URL, and the URL with its path and options.
    pub(crate) fn from_url(url: &str) -> Result<(Self, BrokerUrl)> {
        let mut url = BrokerUrl::parse(url, &["nats", "tls"], 4222)?;
        let address = |host: &(String, u16)| -> Result<ServerAddr> {
            let text = format!("{}://{}", url.scheme, host_and_port(host));
            text.parse().map_err(|error| Error::invalid("url", format!("host {}: {error}", host.0)))
        };
        let addresses = url.hosts.iter().map(address).collect::<Result<_>>()?;
        let place = url.place();
        let server = Server { addresses, user: url.user.take(), password: url.password.take(), place };
        Ok((server, url))
    }

    pub(crate) async fn connect(&self, name: &str) -> Result<Session, SinkError> {
        let (report, trouble) = watch::channel(None);
        let place = self.place.clone();
        let options = ConnectOptions::new()
            .name(name)
            .connection_timeout(CONNECT_TIMEOUT)
            .request_timeout(Some(ANSWER_TIMEOUT))
            .event_callback(move |event| {
                let trouble = trouble_of(&place, &event);
                // The first trouble counts: those after it follow from it.
                report.send_if_modified(|known| {
                    let is_first = known.is_none() && trouble.is_some();
                    if is_first {
                        known.clone_from(&trouble);
                    }
                    is_first
                });
                std::future::ready(())
            });
        let options = match (&self.user, &self.password) {
            (Some(user), Some(password)) => options.user_and_password(user.clone(), password.clone()),
            (Some(token), None) => options.token(token.clone()),
            _ => options,
        };
        let connected =
            tokio::time::timeout(CONNECT_TIMEOUT, options.connect(self.addresses.as_slice())).await;
        let place = &self.place;
        let client = match connected {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => {
                let text = text_of(&error);
                let is_refused = match error.kind() {
                    ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => true,
                    _ => text.to_lowercase().contains("authorization violation"),
                };
                return Err(if is_refused {
                    SinkError::Misconfigured(format!(
                        "{place} refuses the login: {text}; check user and password, or the token, in the URL"
                    ))
                } else {
                    SinkError::Unavailable(format!("{place}: {text}"))
                });
            }
            Err(_) => {
                let longest = CONNECT_TIMEOUT.as_secs();
                return Err(SinkError::Unavailable(format!("{place} does not answer within {longest} s")));
            }
        };
        let context = ContextBuilder::new()
            .timeout(ANSWER_TIMEOUT)
            .max_ack_inflight(IN_FLIGHT_MAX)
            .backpressure_on_inflight(true)
            .build(client.clone());
        Ok(Session { client, context, trouble })
    }

    /// The name of the stream that stores a subject.
    pub(crate) async fn stream_of(&self, session: &Session, subject: &str) -> Result<String, SinkError> {
        let place = &self.place;
        session.context.stream_by_subject(subject).await.map_err(|error| match error.kind() {
            GetStreamByNameErrorKind::NotFound | GetStreamByNameErrorKind::InvalidSubject => {
                SinkError::Misconfigured(format!(
                    "{place} has no stream for subject {subject}; create one that listens to it, or name another subject in the URL"
                ))
            }
            GetStreamByNameErrorKind::JetStream(error)
                if [ErrorCode::JETSTREAM_NOT_ENABLED, ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT]
                    .contains(&error.error_code()) =>
            {
                SinkError::Misconfigured(format!("{place} has no JetStream for this account; enable it"))
            }
            _ => SinkError::Unavailable(format!("{place}: JetStream does not answer: {}", text_of(&error))),
        })
    }

    /// An error if no stream stores a subject.
    pub(crate) async fn check_stream(&self, session: &Session, subject: &str) -> Result<(), SinkError> {
        self.stream_of(session, subject).await.map(drop)
    }
}

impl Session {
    /// What happened to the connection.
    pub(crate) fn trouble(&self) -> Option<SinkError> {
        self.trouble.borrow().clone()
    }

    /// Runs something, which ends with the connection's first trouble: a lost connection, or a right that is missing.
    pub(crate) async fn unless_troubled<T>(
        &self,
        work: impl Future<Output = Result<T, SinkError>>,
    ) -> Result<T, SinkError> {
        let mut trouble = self.trouble.clone();
        let troubled = async {
            match trouble.wait_for(Option::is_some).await.map(|found| found.clone()) {
                Ok(Some(error)) => error,
                _ => SinkError::Unavailable("connection closed".to_owned()),
            }
        };
        tokio::select! {
            biased;
            done = work => done.map_err(|error| self.trouble().unwrap_or(error)),
            error = troubled => Err(error),
        }
    }

    /// Ends the connection, briefly waited for.
    pub(crate) async fn close(&self) {
        let _ = tokio::time::timeout(Duration::from_secs(2), self.client.drain()).await;
    }
}

fn trouble_of(place: &str, event: &Event) -> Option<SinkError> {
    match event {
        Event::Disconnected | Event::Closed => {
            Some(SinkError::Unavailable(format!("connection to {place} lost")))
        }
        Event::ServerError(ServerError::AuthorizationViolation) => Some(SinkError::Misconfigured(format!(
            "{place} refuses the login; check user and password, or the token, in the URL"
        ))),
        Event::ServerError(ServerError::Other(said))
            if said.to_lowercase().contains("permissions violation") =>
        {
            Some(SinkError::Misconfigured(format!(
                "{place}: {said}; grant the user this right, or name another subject in the URL"
            )))
        }
        _ => None,
    }
}
