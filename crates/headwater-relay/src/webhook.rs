//! Signed HTTP requests as the sink: one request per record, several at once.
//!
//! | header | content |
//! |---|---|
//! | `headwater-id` | the message's id: the same for each repeat |
//! | `headwater-timestamp` | seconds since 1970 at which it was signed |
//! | `headwater-signature` | `v1=` and, in hexadecimal, HMAC-SHA256 of `timestamp.body` with the secret |
//! | `headwater-topic`, `headwater-key`, `headwater-type`, `headwater-correlation-id` | as the message has them |
//! | `headwater-header-NAME` | each header of the message |
//!
//! Values are percent-encoded where HTTP does not allow a byte, and `%` always is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use headwater::{Error, Result};
use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Method, StatusCode, Url};
use sha2::Sha256;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::sink::{Delivery, Record, Sink, SinkError};

/// The longest wait that an endpoint can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);
/// Bytes of an answer that are kept as the reason.
const ANSWER_BYTES_MAX: usize = 500;
/// Requests at once, unless the target says otherwise.
const CONCURRENCY: usize = 16;
/// How long a request may take, unless the target says otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Posts records to an endpoint.
pub struct WebhookSink {
    endpoint: Arc<Endpoint>,
    concurrency: usize,
}

struct Endpoint {
    client: Client,
    url: Url,
    /// `None` for requests without a signature.
    secret: Option<String>,
    timeout: Duration,
}

impl fmt::Debug for WebhookSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebhookSink({})", self.endpoint.url.host_str().unwrap_or_default())
    }
}

/// What became of one request.
enum Answer {
    /// The endpoint answered, or was cut off.
    Decided(Delivery),
    /// There was no connection.
    NotConnected(String),
}

impl WebhookSink {
    /// An endpoint, with options after `#`, which no request has: `https://hooks.example.com/orders#secret=…&timeout=10s&concurrency=8`. A
    /// secret is required, unless `unsigned=true` says that requests need no signature. A user and a password in the URL
    /// become basic authentication.
    pub fn from_url(url: &str) -> Result<Self> {
        let parsed = Url::parse(url).map_err(|error| {
            Error::invalid("target", format!("not a URL: {error}; write https://HOST/PATH"))
        })?;
        if !parsed.has_host() {
            return Err(Error::invalid("target", "it has no host; write https://HOST/PATH"));
        }
        let (mut secret, mut unsigned, mut timeout, mut concurrency) = (None, false, TIMEOUT, CONCURRENCY);
        for (name, value) in form_urlencoded::parse(parsed.fragment().unwrap_or_default().as_bytes()) {
            match &*name {
                "secret" => secret = Some(value.into_owned()).filter(|secret| !secret.is_empty()),
                "unsigned" => unsigned = value == "true",
                "timeout" => timeout = duration(&value)?,
                "concurrency" => {
                    let count = value.parse().ok().filter(|count| (1..=1_000).contains(count));
                    concurrency = count
                        .ok_or_else(|| Error::invalid("target", "concurrency must be from 1 to 1000"))?;
                }
                other => {
                    let rule = format!(
                        "option {other} is unknown; a webhook has secret, unsigned, timeout and concurrency"
                    );
                    return Err(Error::invalid("target", rule));
                }
            }
        }
        if secret.is_none() && !unsigned {
            let rule = "it has no secret to sign requests with; add #secret=${NAME}, or #unsigned=true";
            return Err(Error::invalid("target", rule));
        }
        let mut url = parsed;
        url.set_fragment(None);
        let endpoint = Endpoint { client: client()?, url, secret, timeout };
        Ok(WebhookSink { endpoint: Arc::new(endpoint), concurrency })
    }
}

fn duration(text: &str) -> Result<Duration> {
    let parsed = text.parse::<jiff::SignedDuration>().ok().and_then(|parsed| Duration::try_from(parsed).ok());
    parsed.filter(|duration| !duration.is_zero()).ok_or_else(|| {
        Error::invalid("target", format!("timeout {text} is not a duration above zero, such as 10s"))
    })
}

/// With the cryptography of the rest of the tree, and the certificates of the machine.
fn client() -> Result<Client> {
    let failed = |error: &dyn fmt::Display| Error::invalid("target", format!("no HTTP client: {error}"));
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("headwater-relay/", env!("CARGO_PKG_VERSION")))
        .build();
    client.map_err(|error| failed(&error))
}

/// The signature of a body: what the header `headwater-signature` has. For receivers that verify it.
///
/// ```
/// let signature = headwater_relay::webhook::signature("secret", 1_767_225_600, b"{}");
/// assert_eq!(signature, "v1=fa7eaa06bf97d7815f3f456e97cde70c9e50cb005f01660c8d10b10c21964887");
/// ```
pub fn signature(secret: &str, timestamp: i64, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("a key of any length is fine");
    mac.update(timestamp.to_string().as_bytes());
    mac.update(b".");
    mac.update(body);
    let digest = mac.finalize().into_bytes();
    digest.iter().fold("v1=".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

impl Endpoint {
    async fn post(&self, record: &Record) -> Answer {
        let request = self
            .client
            .request(Method::POST, self.url.clone())
            .timeout(self.timeout)
            .headers(self.headers(record, Timestamp::now().as_second()))
            .body(record.payload.clone());
        match request.send().await {
            Ok(response) => Answer::Decided(judged(response).await),
            Err(error) if error.is_connect() => Answer::NotConnected(text_of(error)),
            Err(error) if error.is_timeout() => {
                let reason = format!("no answer within {:?}", self.timeout);
                Answer::Decided(Delivery::Failed { reason, retry_after: None })
            }
            Err(error) => Answer::Decided(Delivery::Failed { reason: text_of(error), retry_after: None }),
        }
    }

    fn headers(&self, record: &Record, timestamp: i64) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut set = |name: &str, value: &str| {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_str(&safe(value))) {
                headers.insert(name, value);
            }
        };
        for (name, value) in &record.headers {
            set(&format!("headwater-header-{}", header_name(name)), value);
        }
        set("content-type", record.content_type.as_deref().unwrap_or("application/octet-stream"));
        set("headwater-id", &record.message_id);
        set("headwater-topic", &record.destination);
        let optional = [
            ("headwater-key", &record.key),
            ("headwater-type", &record.message_type),
            ("headwater-correlation-id", &record.correlation_id),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                set(name, value);
            }
        }
        set("headwater-timestamp", &timestamp.to_string());
        if let Some(secret) = &self.secret {
            set("headwater-signature", &signature(secret, timestamp, &record.payload));
        }
        headers
    }
}

/// A value that HTTP allows: other bytes, and `%`, are percent-encoded.
fn safe(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'%' | 0..=0x1f | 0x7f.. => text.push_str(&format!("%{byte:02X}")),
            _ => text.push(char::from(byte)),
        }
    }
    text
}

/// A name that HTTP allows: other bytes become `-`.
fn header_name(name: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "!#$&'*+-.^_`|~".contains(c);
    name.chars().map(|c| if allowed(c) { c.to_ascii_lowercase() } else { '-' }).collect()
}

/// What an answer means.
async fn judged(response: reqwest::Response) -> Delivery {
    let status = response.status();
    if status.is_success() {
        return Delivery::Delivered;
    }
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after = retry_after.and_then(|value| wait_of(value, Timestamp::now()));
    let reason = reason_of(status, response).await;
    let may_pass =
        [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY].contains(&status);
    match status.is_server_error() || may_pass {
        true => Delivery::Failed { reason, retry_after },
        false => Delivery::Refused { reason },
    }
}

async fn reason_of(status: StatusCode, mut response: reqwest::Response) -> String {
    let mut body = Vec::new();
    while body.len() < ANSWER_BYTES_MAX
        && let Ok(Some(chunk)) = response.chunk().await
    {
        body.extend_from_slice(&chunk);
    }
    body.truncate(ANSWER_BYTES_MAX);
    let hint = if status.is_redirection() { "; redirects are not followed: give the final URL" } else { "" };
    match String::from_utf8_lossy(&body).trim() {
        "" => format!("HTTP {status}{hint}"),
        body => format!("HTTP {status}{hint}: {body}"),
    }
}

/// How long `Retry-After` asks to wait: seconds, or a date.
fn wait_of(value: &str, now: Timestamp) -> Option<Duration> {
    let wait = match value.trim().parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let at = jiff::fmt::rfc2822::parse(value.trim()).ok()?.timestamp();
            Duration::try_from(at.duration_since(now)).unwrap_or_default()
        }
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

/// An error with its causes, without the URL, which may have a password.
fn text_of(error: reqwest::Error) -> String {
    let error = error.without_url();
    let (mut text, mut cause) = (error.to_string(), std::error::Error::source(&error));
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

#[async_trait]
impl Sink for WebhookSink {
    fn kind(&self) -> &'static str {
        "webhook"
    }

    /// A record is answered when its endpoint has; if no request of a call had a connection, the endpoint is unavailable.
    async fn deliver(&self, records: &[Record]) -> Result<Vec<Delivery>, SinkError> {
        let permits = Arc::new(Semaphore::new(self.concurrency));
        let mut requests = JoinSet::new();
        for (at, record) in records.iter().cloned().enumerate() {
            let (endpoint, permits) = (Arc::clone(&self.endpoint), Arc::clone(&permits));
            requests.spawn(async move {
                let _permit = permits.acquire_owned().await.expect("it is never closed");
                (at, endpoint.post(&record).await)
            });
        }
        let lost = || Delivery::Failed { reason: "the request was not completed".into(), retry_after: None };
        let mut deliveries: Vec<Delivery> = records.iter().map(|_| lost()).collect();
        let (mut unconnected, mut why) = (0, String::new());
        while let Some(ended) = requests.join_next().await {
            match ended {
                Ok((at, Answer::Decided(delivery))) => deliveries[at] = delivery,
                Ok((at, Answer::NotConnected(reason))) => {
                    (unconnected, why) = (unconnected + 1, reason.clone());
                    deliveries[at] = Delivery::Failed { reason, retry_after: None };
                }
                Err(panic) => tracing::error!(%panic, "webhook request panicked"),
            }
        }
        if unconnected == records.len() {
            return Err(SinkError::Unavailable(why));
        }
        Ok(deliveries)
    }

    /// Asks with HEAD, which changes nothing: any answer but that of a gateway without its server shows that it can be reached.
    async fn check(&self) -> Result<(), SinkError> {
        let endpoint = &self.endpoint;
        let request = endpoint.client.request(Method::HEAD, endpoint.url.clone()).timeout(endpoint.timeout);
        let response = request.send().await.map_err(|error| SinkError::Unavailable(text_of(error)))?;
        let away = [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
        match away.contains(&response.status()) {
            true => Err(SinkError::Unavailable(format!("HTTP {}", response.status()))),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date_and_bounded() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        assert_eq!(wait_of("7", now), Some(Duration::from_secs(7)));
        assert_eq!(wait_of("Fri, 02 Jan 2026 03:04:35 GMT", now), Some(Duration::from_secs(30)));
        assert_eq!(wait_of("Fri, 02 Jan 2026 03:04:00 GMT", now), Some(Duration::ZERO), "it has passed");
        assert_eq!(wait_of("99999999", now), Some(RETRY_AFTER_MAX));
        assert_eq!(wait_of("soon", now), None);
    }

    #[test]
    fn headers_of_any_text_become_valid_ones() {
        assert_eq!(safe("größe 50%\n"), "gr%C3%B6%C3%9Fe 50%25%0A");
        assert_eq!(header_name("Trace Parent:ü"), "trace-parent--");
    }

    #[test]
    fn what_is_shown_has_no_secret() {
        let sink = WebhookSink::from_url("https://ann:hunter2@hooks.example.com/a#secret=hunter3").unwrap();
        assert_eq!(format!("{sink:?}"), "WebhookSink(hooks.example.com)");
        assert_eq!(sink.endpoint.url.fragment(), None);
    }
}
