//! A server in a process of its own, to be killed: this test program, started again as a server.

use std::process::Stdio;
use std::time::Duration;

use headwater::{Headwater, OpenOptions};
use headwater_server::{ServeOptions, Server};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::place::DEADLINE;

const STORE: &str = "HEADWATER_SERVER_TEST_STORE";
const LISTENS: &str = "child server listens on ";

/// The child's part: serves until it is killed. Without the setting it is not a child, and there is nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serve_as_a_child() {
    let Ok(store) = std::env::var(STORE) else { return };
    // Everything that is ever logged, for those that search it.
    tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(std::io::stderr).init();
    let options = OpenOptions::default().maintenance(false).auto_create(false);
    let headwater = Headwater::open_with(&store, options).await.expect("the store");
    let mut options = ServeOptions::default();
    options.address.set_port(0);
    let server = Server::bind(headwater, options).await.expect("a server");
    println!("{LISTENS}{}", server.local_addr());
    // Its parent kills it; if the parent dies, it ends by itself.
    let _ = server.run(tokio::time::sleep(Duration::from_secs(180))).await;
}

/// A running child, killed when it is dropped.
pub(crate) struct ChildServer {
    process: Child,
    pub(crate) base: String,
}

impl ChildServer {
    /// Starts a server on the store of this URL.
    pub(crate) async fn start(store: &str) -> Self {
        ChildServer::start_logged(store, Stdio::null()).await
    }

    /// The same, with its whole log written to a file.
    pub(crate) async fn start_logged(store: &str, log: impl Into<Stdio>) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["child::serve_as_a_child", "--exact", "--nocapture"]).env(STORE, store);
        command.stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
        let mut process = command.spawn().expect("started");
        let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        let address = tokio::time::timeout(DEADLINE, async {
            while let Some(line) = lines.next_line().await.expect("a line") {
                if let Some(at) = line.find(LISTENS) {
                    return line[at + LISTENS.len()..].trim().to_owned();
                }
            }
            panic!("the child ended");
        });
        let base = format!("http://{}", address.await.expect("in time"));
        ChildServer { process, base }
    }

    /// As with `kill -9`.
    pub(crate) async fn kill(mut self) {
        self.process.kill().await.expect("killed");
    }
}
