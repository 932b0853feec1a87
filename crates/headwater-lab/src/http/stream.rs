//! Messages streamed over HTTP by server-sent events, and acked through requests of their own.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::load::Receive;
use super::serve::Served;
use crate::check::http::Client;

/// Receipts of a request at most: the server's limit.
pub(super) const ACKS_MAX: usize = 1_000;
/// The largest credit of a stream.
pub(super) const CREDIT_MAX: u64 = 10_000;
/// How long a stream waits for more receipts before it acks those that it has.
const ACK_AFTER: Duration = Duration::from_millis(5);
/// Longer than any check: no message comes a second time.
const LEASE_MS: u64 = 3_600_000;

/// A stream of a group.
pub(super) struct Stream {
    body: Incoming,
    events: Events,
    /// The stream lives as long.
    _client: Client,
}

impl Stream {
    pub(super) async fn open(served: &Served, topic: &str, group: &str, credit: u64) -> Result<Self> {
        let mut client = served.client().await?;
        let path = format!("/v1/topics/{topic}/groups/{group}/stream?credit={credit}&lease_ms={LEASE_MS}");
        let body = client.stream(&path).await?;
        Ok(Stream { body, events: Events::default(), _client: client })
    }

    /// Waits for a piece of the stream and passes offset and receipt of each message in it. A piece may have none.
    pub(super) async fn piece(&mut self, on_message: impl FnMut(i64, &str)) -> Result<()> {
        let frame = self.body.frame().await.context("the stream ended")??;
        match frame.data_ref() {
            Some(data) => self.events.read(data, on_message),
            None => Ok(()),
        }
    }
}

/// Finds the messages in server-sent events, whose pieces may end anywhere.
#[derive(Debug, Default)]
struct Events {
    /// A line that has not ended.
    rest: Vec<u8>,
    offset: i64,
    is_error: bool,
}

impl Events {
    fn read(&mut self, piece: &[u8], mut on_message: impl FnMut(i64, &str)) -> Result<()> {
        self.rest.extend_from_slice(piece);
        let rest = std::mem::take(&mut self.rest);
        let mut from = 0;
        while let Some(length) = rest[from..].iter().position(|byte| *byte == b'\n') {
            self.line(&rest[from..from + length], &mut on_message)?;
            from += length + 1;
        }
        self.rest = rest;
        self.rest.drain(..from);
        Ok(())
    }

    fn line(&mut self, line: &[u8], on_message: &mut impl FnMut(i64, &str)) -> Result<()> {
        if let Some(id) = line.strip_prefix(b"id: ") {
            self.offset = std::str::from_utf8(id)?.parse()?;
        } else if let Some(name) = line.strip_prefix(b"event: ") {
            self.is_error = name != b"message";
        } else if let Some(data) = line.strip_prefix(b"data: ") {
            let data = std::str::from_utf8(data)?;
            if self.is_error {
                bail!("the stream failed: {data}");
            }
            // The first field, so that nothing else has to be parsed: the client shares the cores with the server.
            let receipt = data.strip_prefix("{\"receipt\":\"").and_then(|rest| rest.split('"').next());
            on_message(self.offset, receipt.context("a message without its receipt")?);
        }
        Ok(())
    }
}

/// A stream that is received, and acked through a second connection, or not at all.
pub(super) struct Received {
    stream: Stream,
    acks: Option<Acks>,
    /// Of all messages, in the order of their arrival.
    pub(super) offsets: Vec<i64>,
}

impl Received {
    pub(super) async fn open(served: &Served, topic: &str, group: &str, is_acked: bool) -> Result<Self> {
        let stream = Stream::open(served, topic, group, CREDIT_MAX).await?;
        let acks = if is_acked { Some(Acks::open(served, topic, group).await?) } else { None };
        Ok(Received { stream, acks, offsets: Vec::new() })
    }
}

impl Receive for Received {
    async fn receive(&mut self) -> Result<u64> {
        let Received { stream, acks, offsets } = self;
        let Some(acks) = acks else {
            let before = offsets.len();
            stream.piece(|offset, _| offsets.push(offset)).await?;
            return Ok((offsets.len() - before) as u64);
        };
        loop {
            let piece = stream.piece(|offset, receipt| {
                offsets.push(offset);
                acks.receipts.push(receipt.to_owned());
            });
            let received = tokio::time::timeout(ACK_AFTER, piece).await;
            match received {
                Ok(received) => received?,
                Err(_) if acks.receipts.is_empty() => continue,
                Err(_) => return acks.send().await,
            }
            if acks.receipts.len() >= ACKS_MAX {
                return acks.send().await;
            }
        }
    }
}

/// A connection that acks.
struct Acks {
    client: Client,
    path: String,
    receipts: Vec<String>,
}

impl Acks {
    async fn open(served: &Served, topic: &str, group: &str) -> Result<Self> {
        let path = format!("/v1/topics/{topic}/groups/{group}/settle");
        Ok(Acks { client: served.client().await?, path, receipts: Vec::new() })
    }

    /// Acks what was received, and returns how many that were.
    async fn send(&mut self) -> Result<u64> {
        let mut sent = 0;
        while !self.receipts.is_empty() {
            let count = self.receipts.len().min(ACKS_MAX);
            let answer = self.client.post(&self.path, acks_of(&self.receipts[..count])).await?;
            // A receipt has no space and no quote, so the word is nothing but a result.
            let answer = String::from_utf8_lossy(&answer);
            ensure!(!answer.contains("\"lost\""), "a receipt was lost: {answer}");
            self.receipts.drain(..count);
            sent += count as u64;
        }
        Ok(sent)
    }
}

/// The body of a request that acks.
pub(super) fn acks_of(receipts: &[String]) -> Bytes {
    let mut body = String::with_capacity(receipts.len() * 96 + 32);
    body.push_str("{\"settlements\":[");
    for (at, receipt) in receipts.iter().enumerate() {
        body.push_str(if at == 0 { "{\"receipt\":\"" } else { ",{\"receipt\":\"" });
        body.push_str(receipt);
        body.push_str("\",\"outcome\":\"ack\"}");
    }
    body.push_str("]}");
    body.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&str]) -> Result<Vec<(i64, String)>> {
        let (mut events, mut found) = (Events::default(), Vec::new());
        for piece in pieces {
            events.read(piece.as_bytes(), |offset, receipt| found.push((offset, receipt.to_owned())))?;
        }
        Ok(found)
    }

    #[test]
    fn messages_are_found_however_the_stream_is_cut() {
        let text = ": open\n\nevent: message\nid: 17\ndata: {\"receipt\":\"AdJx\",\"attempt\":1}\n\n:\n\nevent: message\nid: 18\ndata: \
                    {\"receipt\":\"BdJx\",\"attempt\":1}\n\n";
        let found = [(17, "AdJx".to_owned()), (18, "BdJx".to_owned())];
        for at in 0..text.len() {
            assert_eq!(read(&[&text[..at], &text[at..]]).unwrap(), found, "cut at {at}");
        }
    }

    #[test]
    fn an_error_of_the_stream_is_an_error_here() {
        let error = read(&["event: error\ndata: {\"title\":\"no such group\"}\n\n"]).unwrap_err();
        assert!(error.to_string().contains("no such group"), "{error}");
        assert!(read(&["event: message\nid: 1\ndata: {\"attempt\":1}\n\n"]).is_err());
    }

    #[test]
    fn acks_are_the_json_that_the_server_reads() {
        let body = acks_of(&["a".to_owned(), "b".to_owned()]);
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let expected = serde_json::json!({ "settlements": [{ "receipt": "a", "outcome": "ack" }, { "receipt": "b", "outcome": "ack" }] });
        assert_eq!(body, expected);
    }
}
