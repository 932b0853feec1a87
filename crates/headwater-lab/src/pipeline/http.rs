//! A client of the query API: one connection that is kept, one request at a time.

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// A connection.
pub(super) struct Client(BufReader<TcpStream>);

impl Client {
    pub(super) async fn connect(address: std::net::SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Client(BufReader::new(stream)))
    }

    /// The body of an answer with status 200.
    pub(super) async fn get(&mut self, path: &str, accept: &str) -> Result<Vec<u8>> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: lab\r\nAccept: {accept}\r\n\r\n");
        self.0.get_mut().write_all(request.as_bytes()).await?;
        let status = self.line().await?;
        let mut length = None;
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = Some(value.trim().parse()?);
            }
        }
        let mut body = vec![0; length.with_context(|| format!("{path}: no length"))?];
        self.0.read_exact(&mut body).await?;
        let is_ok = status.split(' ').nth(1) == Some("200");
        ensure!(is_ok, "{path}: {status}: {}", String::from_utf8_lossy(&body));
        Ok(body)
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).await?;
        ensure!(line.ends_with("\r\n"), "the answer ended too early");
        Ok(line.trim_end().to_owned())
    }
}

#[cfg(test)]
mod tests {
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
            ] {
                assert!(stream.read(&mut request).await.unwrap() > 0);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let mut client = Client::connect(address).await.unwrap();
        assert_eq!(client.get("/a", "*/*").await.unwrap(), b"abc");
        assert!(client.get("/b", "*/*").await.unwrap_err().to_string().ends_with("404 No: no"));
        serving.await.unwrap();
    }
}
