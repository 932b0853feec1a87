//! A client of the control API: one request per connection, which needs no HTTP library.

use std::net::SocketAddr;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::bindings::ResourceStatus;
use crate::error::{Error, ErrorCode, Result};
use crate::manager::{Action, ServiceStatus};

/// How long a connection may take: it is to this machine.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long an answer may take: a stop waits for the last flush.
const ANSWER_MAX: Duration = Duration::from_secs(360);
/// The longest answer.
const ANSWER_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Calls the control API of a process.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    address: SocketAddr,
}

impl Client {
    /// The API at this address.
    pub fn new(address: SocketAddr) -> Self {
        Client { address }
    }

    /// All services.
    pub async fn services(&self) -> Result<Vec<ServiceStatus>> {
        self.request("GET", "/services").await
    }

    /// All resources.
    pub async fn resources(&self) -> Result<Vec<ResourceStatus>> {
        self.request("GET", "/resources").await
    }

    /// Acts on one service, or on all of them; their states afterwards.
    pub async fn act(&self, action: Action, service: Option<&str>) -> Result<Vec<ServiceStatus>> {
        let action = action.as_str();
        match service {
            Some(service) => self.request("POST", &format!("/services/{}/{action}", encoded(service))).await,
            None => self.request("POST", &format!("/services/{action}")).await,
        }
    }

    async fn request<T: DeserializeOwned>(&self, method: &str, path: &str) -> Result<T> {
        let failed = |error: &dyn std::fmt::Display| {
            let advice = "is the pipeline running? See control.listen in its configuration";
            Error::transient(
                ErrorCode::ReadFailed,
                format!("control API at {}: {error}; {advice}", self.address),
            )
        };
        let connecting = tokio::time::timeout(CONNECT_MAX, TcpStream::connect(self.address));
        let mut connection = match connecting.await {
            Ok(connected) => connected.map_err(|error| failed(&error))?,
            Err(_) => return Err(failed(&"no connection in time")),
        };
        let host = self.address;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        let mut answer = Vec::new();
        let exchange = async {
            connection.write_all(request.as_bytes()).await?;
            connection.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await
        };
        match tokio::time::timeout(ANSWER_MAX, exchange).await {
            Ok(exchanged) => drop(exchanged.map_err(|error| failed(&error))?),
            Err(_) => return Err(failed(&"no answer in time")),
        }
        let (status, body) = parse(&answer).ok_or_else(|| failed(&"the answer is not HTTP"))?;
        if status != 200 {
            let said: Option<serde_json::Value> = serde_json::from_slice(body).ok();
            let text = said.and_then(|said| said["error"].as_str().map(str::to_owned));
            return Err(Error::invalid(
                text.unwrap_or_else(|| format!("control API answered with status {status}")),
            ));
        }
        serde_json::from_slice(body).map_err(|error| failed(&error))
    }
}

/// The status and the body of an answer whose length is given, as this API's is.
fn parse(answer: &[u8]) -> Option<(u16, &[u8])> {
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.1 ")?.split(' ').next()?.parse().ok()?;
    Some((status, &answer[end + 4..]))
}

/// A name as a part of a path.
fn encoded(name: &str) -> String {
    let mut path = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                path.push(char::from(byte));
            }
            other => path.push_str(&format!("%{other:02X}")),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_part_of_the_path() {
        assert_eq!(encoded("environment-indexer_2.a"), "environment-indexer_2.a");
        assert_eq!(encoded("a/../b c"), "a%2F..%2Fb%20c");
    }

    #[test]
    fn answers_are_split_into_status_and_body() {
        assert_eq!(parse(b"HTTP/1.1 404 Not Found\r\nx: y\r\n\r\n{}"), Some((404, &b"{}"[..])));
        assert_eq!(parse(b"SSH-2.0\r\n\r\n"), None);
    }
}
