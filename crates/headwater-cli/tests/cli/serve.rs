//! `headwater serve`: it starts, answers and ends; the demo is alive; other machines are refused without a token.

use std::io::Lines;
use std::net::TcpStream;
use std::process::{Child, ChildStderr};
use std::time::Instant;

use super::*;

/// How long a server may take for what it does in a moment on an idle machine.
const WITHIN: Duration = Duration::from_secs(60);

/// A server that runs until it is dropped.
pub(super) struct Serving {
    child: Child,
    pub(super) address: String,
    /// What it says on stderr.
    notes: Option<Lines<BufReader<ChildStderr>>>,
}

impl Serving {
    /// Waits until it prints its address.
    pub(super) fn start(command: &mut Command) -> Self {
        let mut child = command
            .args(["--output", "json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let Ok(printed) = serde_json::from_str::<Value>(&line) else {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            panic!("{line}{text}");
        };
        let url = printed["url"].as_str().unwrap();
        let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
        Serving { child, address, notes: Some(BufReader::new(stderr).lines()) }
    }

    pub(super) fn of(place: &Place, args: &[&str]) -> Self {
        Serving::start(&mut place.command(&[&["serve", "--listen", "127.0.0.1:0"], args].concat()))
    }

    /// A request, and its status and body.
    pub(super) fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[&str],
        body: Option<&Value>,
    ) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(WITHIN)).unwrap();
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", self.address);
        if !body.is_empty() {
            head += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        for header in headers {
            head += &format!("{header}\r\n");
        }
        write!(stream, "{head}\r\n{body}").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.unwrap_or_else(|| panic!("{method} {path}: {answer}")), unchunked(head, body))
    }

    /// What a path answers, if it does.
    pub(super) fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path, &[], None);
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
    }

    /// What a path answers once it satisfies a condition; fails if that takes too long.
    fn until(&self, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let (status, body) = self.ask("GET", path, &[], None);
            let answer = serde_json::from_str(&body).unwrap_or_default();
            if status == 200 && is_so(&answer) {
                return answer;
            }
            assert!(begun.elapsed() < WITHIN, "{path}: {status} {body}");
        }
    }

    /// Ends it gracefully, and returns its exit code and what it said.
    pub(super) fn stop(mut self) -> (Option<i32>, String) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let notes: Vec<String> = self.notes.take().unwrap().map(|line| line.unwrap()).collect();
        (self.child.wait().unwrap().code(), notes.join("\n"))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It has ended already where the test has passed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A body, also where it was sent in chunks.
fn unchunked(head: &str, body: &str) -> String {
    if !head.to_lowercase().contains("transfer-encoding: chunked") {
        return body.to_owned();
    }
    let (mut whole, mut rest) = (String::new(), body);
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 || after.len() < size {
            break;
        }
        whole += &after[..size];
        rest = after[size..].trim_start_matches("\r\n");
    }
    whole
}

/// Of a store that does not exist yet: it is created, as `publish` creates it.
fn a_server_starts_answers_and_ends(place: &Place) {
    let serving = Serving::of(place, &["--label", "shop"]);
    assert_eq!(serving.ask("GET", "/healthz", &[], None).0, 200);
    assert_eq!(serving.ask("GET", "/readyz", &[], None).0, 200);
    assert_eq!(serving.ask("GET", "/v1/nothing", &[], None).0, 404);
    let page = serving.ask("GET", "/", &[], None);
    assert!(page.0 == 200 && page.1.contains("shop"), "{page:?}");

    let (status, body) = serving.ask("POST", "/v1/topics", &[], Some(&json!({ "name": "orders" })));
    assert_eq!(status, 201, "{body}");
    let (status, body) =
        serving.ask("POST", "/v1/topics/orders/messages", &[], Some(&json!({ "payload": { "n": 1 } })));
    assert_eq!(status, 201, "{body}");
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["offset"], 1);
    // The same store as the command's.
    assert_eq!(place.one(&["peek", "orders"])["payload"], json!({ "n": 1 }));
    // Maintenance runs beside it.
    let begun = Instant::now();
    while place.json(&["maintain", "--status"]).is_empty() {
        assert!(begun.elapsed() < WITHIN, "no job was run");
    }
    let (code, notes) = serving.stop();
    assert_eq!(code, Some(0), "{notes}");
    assert!(notes.contains("stopping after the requests under way"), "{notes}");
    assert_eq!(place.run(&["doctor"]).status.code(), Some(0));
}

#[test]
fn a_server_starts_answers_and_ends_on_sqlite() {
    a_server_starts_answers_and_ends(&Place::sqlite());
}

#[test]
fn a_server_starts_answers_and_ends_on_postgres() {
    if let Some(place) = Place::postgres("serve") {
        a_server_starts_answers_and_ends(&place);
    }
}

#[test]
fn a_server_without_maintenance_runs_no_job() {
    let place = Place::sqlite();
    let serving = Serving::of(&place, &["--no-maintenance"]);
    assert_eq!(serving.ask("GET", "/readyz", &[], None).0, 200);
    assert_eq!(serving.stop().0, Some(0));
    assert_eq!(place.json(&["maintain", "--status"]).len(), 0);
}

#[test]
fn other_machines_are_refused_without_a_token() {
    let place = Place::sqlite();
    let public = ["serve", "--listen", "0.0.0.0:0"];
    let refused = refusal(&place.run(&public), 2);
    assert!(refused.contains("token") && refused.contains("--insecure"), "{refused}");
    // With a token it starts, and refuses those that do not have it.
    let made = place.one(&["token", "create", "ann", "--scope", "read"]);
    let mut serving = Serving::start(&mut place.command(&public));
    serving.address = serving.address.replace("0.0.0.0", "127.0.0.1");
    assert_eq!(serving.ask("GET", "/v1/topics", &[], None).0, 401);
    let header = format!("authorization: Bearer {}", made["secret"].as_str().unwrap());
    assert_eq!(serving.ask("GET", "/v1/topics", &[&header], None).0, 200);
    assert_eq!(serving.stop().0, Some(0));
}

#[test]
fn an_open_server_is_insecure_on_purpose_only() {
    let place = Place::sqlite();
    let mut serving = Serving::start(&mut place.command(&["serve", "--listen", "0.0.0.0:0", "--insecure"]));
    serving.address = serving.address.replace("0.0.0.0", "127.0.0.1");
    assert_eq!(serving.ask("GET", "/v1/topics", &[], None).0, 200);
    assert_eq!(serving.stop().0, Some(0));
}

/// With a directory for its temporary files, to check that they are removed afterwards.
fn demo(place: &Place) -> Serving {
    let folder = place.folder.path().join("tmp");
    std::fs::create_dir_all(&folder).unwrap();
    Serving::start(place.command(&["serve", "--demo", "--listen", "127.0.0.1:0"]).env("TMPDIR", folder))
}

/// What a newcomer sees within a minute, and the disk afterwards.
#[test]
fn the_demo_is_alive_within_a_minute_and_leaves_nothing_behind() {
    let place = Place::sqlite();
    let serving = demo(&place);
    let page = serving.ask("GET", "/", &[], None);
    assert!(page.0 == 200 && page.1.contains("demo shop"), "{page:?}");
    let items = |answer: &Value| answer["items"].as_array().cloned().unwrap_or_default();
    let has = |answer: &Value, field: &str, value: &str| items(answer).iter().any(|one| one[field] == value);

    let topics = serving.until("/v1/topics", |answer| items(answer).len() >= 10);
    for topic in ["orders", "payments", "shipments"] {
        assert!(has(&topics, "name", topic), "{topic}: {topics}");
    }
    let lagging = |answer: &Value| items(answer).iter().any(|group| group["lag"].as_u64() > Some(0));
    serving.until("/v1/groups?topic=orders", lagging);
    assert!(has(&serving.get("/v1/groups?topic=payments"), "state", "paused"));
    serving.until("/v1/dead-letters", |answer| !items(answer).is_empty());
    serving.until("/v1/processes", |answer| has(answer, "status", "SUCCEEDED"));
    assert!(!items(&serving.get("/v1/topics/reminders/scheduled")).is_empty());
    assert_eq!(items(&serving.get("/v1/cron")).len(), 2);
    assert_eq!(items(&serving.get("/v1/relays")).len(), 1);
    serving.until("/v1/outbox?status=PUBLISHED", |answer| has(answer, "topic", "shop.parcels"));

    // The world: a run with indexed ticks, and cells in the last of them.
    let runs = serving.until("/v1/pipeline/runs", |runs| last_tick(runs).is_some());
    let (run, tick) = last_tick(&runs).unwrap();
    let cells = serving.get(&format!("/v1/pipeline/runs/{run}/ticks/{tick}/cells"));
    assert!(cells["cells"].as_array().is_some_and(|cells| !cells.is_empty()), "{cells}");
    assert_eq!(serving.ask("GET", "/v1/pipeline/services", &[], None).0, 200);

    let (code, notes) = serving.stop();
    assert_eq!(code, Some(0), "{notes}");
    let left: Vec<_> = std::fs::read_dir(place.folder.path().join("tmp")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The newest run and its last indexed tick.
fn last_tick(runs: &Value) -> Option<(String, i64)> {
    let run = runs["runs"].as_array()?.first()?;
    Some((run["run_id"].as_str()?.to_owned(), run["indexed"]["last_tick"].as_i64()?))
}

#[test]
fn the_demo_of_the_server_refuses_a_store_it_would_ignore() {
    let place = Place::sqlite();
    let refused = refusal(&place.run(&["serve", "--demo", "--store", "sqlite:mine.db"]), 2);
    assert!(refused.contains("a store of its own") && refused.contains("--store"), "{refused}");
}

#[test]
fn mistakes_of_serving_are_explained() {
    let place = Place::sqlite();
    let refused = |args: &[&str], code| refusal(&place.run(&[&["serve"], args].concat()), code);
    assert!(refused(&["--listen", "here"], 2).contains("--listen"));
    assert!(refused(&["--tls-cert", "c.pem"], 2).contains("--tls-key"));
    let missing = refused(&["--listen", "127.0.0.1:0", "--tls-cert", "c.pem", "--tls-key", "k.pem"], 2);
    assert!(missing.contains("c.pem"), "{missing}");
    let no_pipeline = refused(&["--listen", "127.0.0.1:0", "--pipeline", "none.toml"], 2);
    assert!(no_pipeline.contains("none.toml"), "{no_pipeline}");
    let serving = Serving::of(&place, &[]);
    let taken = refused(&["--listen", &serving.address], 1);
    assert!(taken.contains(&serving.address), "{taken}");
    assert_eq!(serving.stop().0, Some(0));
}
