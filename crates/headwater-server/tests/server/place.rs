//! Where a case runs: a store of its own, and servers on it.

use std::net::SocketAddr;
use std::time::Duration;

use headwater::tokens::{NewToken, Scope};
use headwater::{Headwater, OpenOptions, Start};
use headwater_server::{ServeError, ServeOptions, Server};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longer than anything here takes on a busy machine; a wait of this length has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A store, removed at the end.
pub(crate) struct Place {
    _folder: tempfile::TempDir,
    url: String,
    pub(crate) headwater: Headwater,
    is_postgres: bool,
}

impl Place {
    pub(crate) async fn sqlite() -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let url = format!("sqlite:{}", folder.path().join("server.db").display());
        Place::open(folder, url, false).await
    }

    /// `None`, with a printed notice, where no server is given, and a failure where nothing may be skipped.
    pub(crate) async fn postgres() -> Option<Self> {
        let Ok(server) = std::env::var("HEADWATER_TEST_POSTGRES") else {
            let required = ["HEADWATER_TEST_REQUIRE_ALL", "CI"];
            let required = required.iter().any(|name| std::env::var_os(name).is_some());
            assert!(!required, "HEADWATER_TEST_POSTGRES is not set, and nothing may be skipped");
            println!("skipped: HEADWATER_TEST_POSTGRES is not set");
            return None;
        };
        let separator = if server.contains('?') { '&' } else { '?' };
        let url = format!("{server}{separator}namespace=serve_{}", uuid::Uuid::now_v7().simple());
        Some(Place::open(tempfile::tempdir().expect("a temporary directory"), url, true).await)
    }

    async fn open(folder: tempfile::TempDir, url: String, is_postgres: bool) -> Self {
        let headwater = Headwater::open_with(&url, options()).await.expect("a store");
        Place { _folder: folder, url, headwater, is_postgres }
    }

    /// Another process's handle on the same store.
    pub(crate) async fn another_handle(&self) -> Headwater {
        Headwater::open_with(&self.url, options()).await.expect("the store")
    }

    /// The URL of the store.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A topic with a group.
    pub(crate) async fn group(&self, topic: &str, group: &str) {
        self.headwater.topic(topic).create_if_missing().await.expect("a topic");
        self.headwater.groups(topic).subscribe(group, Start::Beginning).await.expect("a group");
    }

    /// A token with these scopes for these topics; for all without any.
    pub(crate) async fn token(&self, name: &str, scopes: &[Scope], topics: &[&str]) -> String {
        let new = NewToken {
            name: name.into(),
            scopes: scopes.to_vec(),
            topics: topics.iter().map(|&topic| topic.into()).collect(),
            expires_in: None,
        };
        self.headwater.tokens().create(&new).await.expect("a token").secret().to_owned()
    }

    /// A server on this handle.
    pub(crate) async fn serve(&self) -> Running {
        self.serve_with(|_| {}).await
    }

    pub(crate) async fn serve_with(&self, change: impl FnOnce(&mut ServeOptions)) -> Running {
        serve(self.headwater.clone(), change).await.expect("a server")
    }

    /// The last entries of the audit.
    pub(crate) async fn audit(&self) -> Vec<headwater::store::AuditEntry> {
        self.headwater.audit(100).await.expect("the audit")
    }

    /// No invariant is broken; then everything is removed.
    pub(crate) async fn end(self) {
        assert_eq!(self.headwater.doctor().await.expect("checked"), []);
        if self.is_postgres {
            self.headwater.drop_namespace().await.expect("removed");
        } else {
            self.headwater.close().await.expect("closed");
        }
    }
}

fn options() -> OpenOptions {
    // Topics are created by cases; maintenance would run beside them.
    OpenOptions::default().maintenance(false).auto_create(false)
}

/// A server on any free port of 127.0.0.1.
pub(crate) async fn serve(
    headwater: Headwater,
    change: impl FnOnce(&mut ServeOptions),
) -> Result<Running, ServeError> {
    let mut options = ServeOptions::default();
    options.address = SocketAddr::from(([127, 0, 0, 1], 0));
    change(&mut options);
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let server = Server::bind(headwater, options).await?;
    let address = server.local_addr();
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(async move {
        server.run(async { drop(stopped.await) }).await.expect("served");
    });
    Ok(Running {
        address,
        base: format!("{scheme}://{address}"),
        token: None,
        client: client().build().expect("a client"),
        stop: Some(stop),
        task,
    })
}

/// A client to be made, with the cryptography of the rest of the tree.
pub(crate) fn client() -> reqwest::ClientBuilder {
    // The second one is refused, which is the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().timeout(DEADLINE)
}

/// A server that runs, and a client of it.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) base: String,
    token: Option<String>,
    pub(crate) client: reqwest::Client,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Running {
    /// Sends this token from now on.
    pub(crate) fn with(&mut self, token: &str) -> &mut Self {
        self.token = Some(token.to_owned());
        self
    }

    /// Stops it, and waits until it has ended.
    pub(crate) async fn end(mut self) {
        drop(self.stop.take());
        tokio::time::timeout(DEADLINE, &mut self.task)
            .await
            .expect("it ends in time")
            .expect("without a panic");
    }

    /// Kills it: what runs is dropped in the middle.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// The status and the JSON of an answer.
    pub(crate) async fn answer(&self, request: reqwest::RequestBuilder) -> (StatusCode, Value) {
        let response = request.send().await.expect("an answer");
        let status = response.status();
        let bytes = response.bytes().await.expect("a body");
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    pub(crate) async fn try_post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        self.answer(self.request(Method::POST, path).json(body)).await
    }

    pub(crate) async fn try_get(&self, path: &str) -> (StatusCode, Value) {
        self.answer(self.request(Method::GET, path)).await
    }

    /// The JSON of an answer that must succeed.
    pub(crate) async fn post(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.try_post(path, &body).await;
        assert!(status.is_success(), "POST {path}: {status} {answer}");
        answer
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, answer) = self.try_get(path).await;
        assert!(status.is_success(), "GET {path}: {status} {answer}");
        answer
    }

    /// Publishes payloads to `orders`.
    pub(crate) async fn publish(&self, payloads: impl IntoIterator<Item = Value>) {
        let messages: Vec<Value> =
            payloads.into_iter().map(|payload| json!({ "payload": payload })).collect();
        self.post("/v1/topics/orders/batches", json!({ "messages": messages })).await;
    }

    /// Claims from the group `email` of `orders`.
    pub(crate) async fn claim(&self, body: Value) -> Vec<Value> {
        let answer = self.post("/v1/topics/orders/groups/email/claim", body).await;
        answer["messages"].as_array().expect("messages").clone()
    }

    /// Settles messages of `orders` for `email`; the results.
    pub(crate) async fn settle(&self, messages: &[Value], outcome: &str) -> Vec<String> {
        let settlement = |message: &Value| json!({ "receipt": message["receipt"], "outcome": outcome });
        let settlements: Vec<Value> = messages.iter().map(settlement).collect();
        let answer =
            self.post("/v1/topics/orders/groups/email/settle", json!({ "settlements": settlements })).await;
        results(&answer)
    }
}

/// The results of an answer.
pub(crate) fn results(answer: &Value) -> Vec<String> {
    let results = answer["results"].as_array().expect("results");
    results.iter().map(|result| result["result"].as_str().expect("a result").to_owned()).collect()
}

/// The kind of a problem, without its prefix.
pub(crate) fn kind(problem: &Value) -> &str {
    problem["type"]
        .as_str()
        .and_then(|kind| kind.strip_prefix("urn:headwater:problem:"))
        .unwrap_or("no problem")
}
