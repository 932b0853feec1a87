//! A client of HTTP servers: one connection that is kept, one request at a time.
//!
//! It shares the cores with the server that it measures, so there is no pool and nothing that repeats, decodes or follows.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

pub(crate) const JSON: &str = "application/json";

/// A connection.
pub(crate) struct Client {
    host: HeaderValue,
    requests: SendRequest<Full<Bytes>>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        let (requests, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            // Ends when the client is dropped. Requests return its errors.
            let _ = connection.await;
        });
        Ok(Client { host: HeaderValue::from_str(&address.to_string())?, requests })
    }

    /// The body of an answer that must succeed.
    pub(crate) async fn get(&mut self, path: &str, accept: &'static str) -> Result<Bytes> {
        self.whole(Method::GET, path, accept, Bytes::new()).await
    }

    /// The same for a request with JSON.
    pub(crate) async fn post(&mut self, path: &str, json: impl Into<Bytes>) -> Result<Bytes> {
        self.whole(Method::POST, path, JSON, json.into()).await
    }

    /// The same for what may be there already.
    pub(crate) async fn put(&mut self, path: &str, json: impl Into<Bytes>) -> Result<Bytes> {
        self.whole(Method::PUT, path, JSON, json.into()).await
    }

    /// The body of an answer that ends when the server or its reader ends it. The client has to live as long.
    pub(crate) async fn stream(&mut self, path: &str) -> Result<Incoming> {
        let response = self.send(Method::GET, path, "text/event-stream", Bytes::new()).await?;
        let status = response.status();
        ensure!(status.is_success(), "{path}: {status}");
        Ok(response.into_body())
    }

    async fn whole(
        &mut self,
        method: Method,
        path: &str,
        accept: &'static str,
        body: Bytes,
    ) -> Result<Bytes> {
        let response = self.send(method, path, accept, body).await?;
        let status = response.status();
        let body = response.into_body().collect().await.with_context(|| path.to_owned())?.to_bytes();
        ensure!(status.is_success(), "{path}: {status}: {}", String::from_utf8_lossy(&body));
        Ok(body)
    }

    async fn send(
        &mut self,
        method: Method,
        path: &str,
        accept: &'static str,
        body: Bytes,
    ) -> Result<Response<Incoming>> {
        let mut request = Request::builder().method(method).uri(path).header(HOST, self.host.clone());
        request = request.header(ACCEPT, HeaderValue::from_static(accept));
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, HeaderValue::from_static(JSON));
        }
        let request = request.body(Full::new(body))?;
        self.requests.ready().await.with_context(|| path.to_owned())?;
        self.requests.send_request(request).await.with_context(|| path.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_body_is_read_as_long_as_it_says_and_a_problem_is_an_error() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1_024];
            for answer in [
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
                "HTTP/1.1 404 No\r\ncontent-length: 2\r\n\r\nno",
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
            ] {
                assert!(stream.read(&mut request).await.unwrap() > 0);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let mut client = Client::connect(address).await.unwrap();
        assert_eq!(client.get("/a", "*/*").await.unwrap(), "abc");
        assert!(client.post("/b", "{}").await.unwrap_err().to_string().ends_with("404 Not Found: no"));
        let body = client.stream("/c").await.unwrap().collect().await.unwrap();
        assert_eq!(body.to_bytes(), "abc");
        serving.await.unwrap();
    }
}
