//! A server of AMQP: how it is reached, and what its errors mean.

use std::time::Duration;

use headwater::{Error, Result};
use lapin::options::ConfirmSelectOptions;
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::uri::{AMQPAuthority, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{Channel, Connection, ConnectionProperties, ErrorKind};

use crate::broker_url::BrokerUrl;
use crate::sink::SinkError;

/// The longest wait for a connection.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a connection that is waited for is checked to be there.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// Where a broker is, and how to log in.
#[derive(Clone)]
pub(crate) struct Server {
    uri: AMQPUri,
    /// For errors and logs: without the password.
    pub(crate) place: String,
}

/// A connection with a channel that confirms.
pub(super) struct Session {
    pub(super) connection: Connection,
    pub(super) channel: Channel,
}

impl Server {
    /// The server of a URL, and the URL with the options that are not the connection's.
    pub(crate) fn from_url(url: &str) -> Result<(Self, BrokerUrl)> {
        let port = if url.starts_with("amqps:") { 5671 } else { 5672 };
        let mut url = BrokerUrl::parse(url, &["amqp", "amqps"], port)?;
        let [host] = url.hosts.as_slice() else {
            return Err(Error::invalid("url", "several hosts; name one, or a load balancer of the cluster"));
        };
        let (host, port) = host.clone();
        let vhost = url.path.clone().unwrap_or_else(|| "/".to_owned());
        let place = format!("{}{}{vhost}", url.place(), if vhost.starts_with('/') { "" } else { "/" });
        let mut uri = AMQPUri { vhost, ..AMQPUri::default() };
        uri.scheme = if url.scheme == "amqps" { AMQPScheme::AMQPS } else { AMQPScheme::AMQP };
        let guest = AMQPUserInfo::default();
        let userinfo = AMQPUserInfo {
            username: url.user.take().unwrap_or(guest.username),
            password: url.password.take().unwrap_or(guest.password),
        };
        uri.authority = AMQPAuthority { userinfo, host, port };
        let number = |name: &str, value: Option<String>, most: u32| -> Result<Option<u32>> {
            let rule = || Error::invalid("url", format!("{name} must be a number up to {most}"));
            let Some(value) = value else { return Ok(None) };
            value.parse().ok().filter(|number| *number <= most).map(Some).ok_or_else(rule)
        };
        let heartbeat = number("heartbeat", url.take("heartbeat"), u32::from(u16::MAX))?;
        uri.query.heartbeat = heartbeat.and_then(|seconds| u16::try_from(seconds).ok()).or(Some(20));
        uri.query.frame_max = number("frame_max", url.take("frame_max"), u32::MAX)?;
        Ok((Server { uri, place }, url))
    }

    pub(crate) async fn connect(&self, name: &str) -> Result<Connection, SinkError> {
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let connected = Connection::connect_uri(self.uri.clone(), properties);
        match tokio::time::timeout(CONNECT_TIMEOUT, connected).await {
            Ok(connected) => connected.map_err(|error| self.sink_error(&error, "the connection")),
            Err(_) => Err(SinkError::Unavailable(format!(
                "{} does not answer within {} s",
                self.place,
                CONNECT_TIMEOUT.as_secs()
            ))),
        }
    }

    pub(super) async fn open_session(&self) -> Result<Session, SinkError> {
        let connection = self.connect("headwater relay").await?;
        let opened = async {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok(channel)
        };
        let opened = while_connected(self, &connection, CONNECT_TIMEOUT, opened).await?;
        let channel = opened.map_err(|error: lapin::Error| self.sink_error(&error, "the channel"))?;
        Ok(Session { connection, channel })
    }

    /// What an error means for the relay. `named` is what was used.
    pub(crate) fn sink_error(&self, error: &lapin::Error, named: &str) -> SinkError {
        let place = &self.place;
        let ErrorKind::ProtocolError(protocol) = error.kind() else {
            return SinkError::Unavailable(format!("{place}: {error}"));
        };
        let said = protocol.get_message();
        let to_do = match protocol.kind() {
            AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => {
                "check user and password in the URL, and that the user may write to it"
            }
            AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => "declare it, or name another in the URL",
            AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED | AMQPSoftError::RESOURCELOCKED) => {
                "change what the broker says, or name another in the URL"
            }
            AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) => {
                "check the virtual host (the path of the URL) and the user's right to it"
            }
            _ => return SinkError::Unavailable(format!("{place}: {said}")),
        };
        SinkError::Misconfigured(format!("{place} refuses {named}: {said}; {to_do}"))
    }
}

/// Runs something on a connection: an error if that is lost, or if it takes too long. A publish on a connection that was just lost may
/// never be answered by the library itself.
pub(crate) async fn while_connected<T>(
    server: &Server,
    connection: &Connection,
    longest: Duration,
    work: impl Future<Output = T>,
) -> Result<T, SinkError> {
    let lost = async {
        while connection.status().connected() {
            tokio::time::sleep(CHECK_EVERY).await;
        }
        // What the work has to say about it is more precise.
        tokio::time::sleep(CHECK_EVERY).await;
    };
    tokio::select! {
        biased;
        done = work => Ok(done),
        () = lost => Err(SinkError::Unavailable(format!("connection to {} lost", server.place))),
        () = tokio::time::sleep(longest) => Err(SinkError::Unavailable(format!(
            "{} does not answer within {} s: it may be short of memory or disk",
            server.place,
            longest.as_secs()
        ))),
    }
}

/// Ends a connection, briefly waited for.
pub(crate) async fn close(connection: &Connection) {
    let _ = tokio::time::timeout(Duration::from_secs(2), connection.close(200, "OK".into())).await;
}
