//! The HTTP API against its own OpenAPI document: schemathesis makes requests from the document, valid and invalid ones, and checks every answer
//! against it. A 5xx, a status, a type or a field that the document does not describe fails the run.
//!
//! The server is the real program on an embedded store of its own with a token, and a few topics, groups and processes, so that paths of
//! the document's examples lead somewhere.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use headwater_servers::output_of;

use crate::interrupt::Interrupt;
use crate::languages::{self, install};
use crate::process::{self, say};

const SCHEMATHESIS: &str = "schemathesis==4.32.5";

/// How long the step of `cargo xtask test` takes.
pub(crate) const SECONDS: u32 = 120;

/// What is checked. Not `positive_data_acceptance`: rules between fields, such as a lease that is shorter than a back-off, are not in a schema.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
                      response_schema_conformance,negative_data_rejection,unsupported_method,ignored_auth";
/// Streams do not end by themselves.
const STREAMS: &str = "/(tail|stream|socket)$";
/// Operations that destroy what the other requests are about: schemathesis finds the id of its own token in a list, and revokes it. They have a short run of
/// their own at the end.
const DESTROYING: [&str; 5] = [
    "delete_tokens_by_id",
    "post_tokens_by_id_rotate",
    "delete_topics_by_topic",
    "delete_topics_by_topic_groups_by_group",
    "post_topics_by_topic_groups_by_group_cancel",
];
/// How long that takes.
const DESTROYING_SECONDS: u32 = 15;

/// Runs schemathesis for this long against a server of this program; true if it finds nothing.
pub(crate) fn run(root: &Path, interrupt: &Interrupt, binary: &Path, seconds: u32) -> Result<bool> {
    let home = languages::folder(root).join("schemathesis");
    install(&home, SCHEMATHESIS, |home| languages::python(home, &[SCHEMATHESIS]))?;
    let folder = languages::target(root).join("schemathesis");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let store = format!("sqlite:{}", folder.join("store.db").display());
    let token = furnish(binary, &store)?;
    let server = Server::start(binary, &store)?;
    let schemathesis = |seconds: u32| {
        let mut command = Command::new(home.join("bin/schemathesis"));
        command.arg("run").arg(format!("{}v1/openapi.json", server.url)).current_dir(&folder);
        command.args(["--url", server.url.trim_end_matches('/'), "--max-time", &seconds.to_string()]);
        command.args(["--phases", "examples,coverage,fuzzing,stateful", "--checks", CHECKS]);
        // Longer than the longest wait of a claim.
        command.args(["--request-timeout", "70", "--no-color", "--generation-database", "none"]);
        command.args(["--continue-on-failure", "--header", &format!("Authorization: Bearer {token}")]);
        command
    };
    let mut most = schemathesis(seconds);
    most.args(["--exclude-path-regex", STREAMS]);
    most.args(DESTROYING.iter().flat_map(|id| ["--exclude-operation-id", id]));
    let mut found_nothing = process::run(&mut most, interrupt)?.success();
    // Without a valid token every answer is 401, which the document describes: such a run finds nothing and proves nothing.
    ensure!(
        tokens(binary, &store)?.contains(NAME),
        "the token of the run is gone: most requests were refused"
    );
    let mut destroying = schemathesis(DESTROYING_SECONDS);
    destroying.args(DESTROYING.iter().flat_map(|id| ["--include-operation-id", id]));
    found_nothing &= process::run(&mut destroying, interrupt)?.success();
    let log = server.stop()?;
    if !found_nothing {
        say(&format!("the log of the server is {}", log.display()));
    }
    Ok(found_nothing)
}

/// The name of the token of the run.
const NAME: &str = "schemathesis-run";

/// The tokens of the store, as the command lists them.
fn tokens(binary: &Path, store: &str) -> Result<String> {
    output_of(Command::new(binary).args(["--store", store, "--output", "json", "token", "list"]))
        .context("token list")
}

/// Makes what the examples of the document name, and a token for everything.
fn furnish(binary: &Path, store: &str) -> Result<String> {
    let headwater = |arguments: &[&str]| {
        let mut command = Command::new(binary);
        command.args(["--store", store, "--output", "json"]).args(arguments);
        output_of(&mut command).with_context(|| format!("headwater {}", arguments.join(" ")))
    };
    for topic in ["orders", "reminders"] {
        headwater(&["topic", "create", topic, "--pub-sub"])?;
    }
    for group in ["email", "audit"] {
        headwater(&["group", "subscribe", "orders", group])?;
    }
    for order in ["1", "2", "3"] {
        headwater(&["publish", "orders", order])?;
    }
    let scopes = ["publish", "consume", "read", "admin"].map(|scope| ["--scope", scope]).concat();
    let created = headwater(&[&["token", "create", NAME], &scopes[..]].concat())?;
    let created: serde_json::Value =
        serde_json::from_str(created.trim()).context("the answer of token create")?;
    let token = created["secret"].as_str().context("token create prints no token")?;
    Ok(token.to_owned())
}

/// The program as a server, killed with this.
struct Server {
    child: Child,
    url: String,
    log: PathBuf,
}

impl Server {
    fn start(binary: &Path, store: &str) -> Result<Self> {
        let log = PathBuf::from(store.trim_start_matches("sqlite:")).with_extension("log");
        let mut command = Command::new(binary);
        command.args(["--store", store, "--output", "json", "serve", "--listen", "127.0.0.1:0"]);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log)?)
            .spawn()
            .context("the server does not start")?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("no output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let printed: Option<serde_json::Value> = serde_json::from_str(&line).ok();
        let url = printed.as_ref().and_then(|printed| printed["url"].as_str());
        let Some(url) = url else {
            let _ = child.kill();
            let _ = child.wait();
            bail!("the server printed no address; see {}", log.display());
        };
        Ok(Server { url: url.to_owned(), child, log })
    }

    /// Ends it, and returns where its log is. A server that has ended by itself is a failure.
    fn stop(mut self) -> Result<PathBuf> {
        let ended = self.child.try_wait()?;
        ensure!(ended.is_none(), "the server has ended by itself: {ended:?}; see {}", self.log.display());
        Ok(self.log.clone())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
