//! The environment of an example: an empty store, removed afterwards whether the example succeeds or not.
//!
//! A program does not need this: it calls `Headwater::open("sqlite:shop.db")` or
//! `Headwater::open("postgres://…")`.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use headwater::Headwater;

/// Longer than any example takes; an example that runs this long has failed.
const DEADLINE: Duration = Duration::from_secs(60);

/// An empty store that only this run uses.
pub(crate) struct Place {
    url: String,
    /// The server and the namespace, on PostgreSQL.
    server: Option<(String, String)>,
    /// Removed with everything in it when this is dropped.
    _directory: Option<tempfile::TempDir>,
}

// Each example uses one of the two constructors, and one of the two visits.
#[allow(dead_code)]
impl Place {
    /// The embedded store, in a temporary directory; or a namespace on the PostgreSQL server that the command line names.
    pub(crate) fn embedded_by_default() -> Result<Self> {
        match url_argument()? {
            Some(server) => Self::on_server(&server),
            None => {
                let directory = tempfile::tempdir()?;
                let url = format!("sqlite:{}", directory.path().join("example.db").display());
                Ok(Place { url, server: None, _directory: Some(directory) })
            }
        }
    }

    /// A namespace on a PostgreSQL server: the one on the command line, or in the environment.
    pub(crate) fn postgres() -> Result<Self> {
        let from_environment = || {
            ["HEADWATER_TEST_POSTGRES", "DATABASE_URL"].into_iter().find_map(|name| std::env::var(name).ok())
        };
        let server = url_argument()?.or_else(from_environment).context(
            "this example needs PostgreSQL 15 or newer; give its URL as the first argument or in DATABASE_URL, \
             as in postgres://user@localhost/database",
        )?;
        Self::on_server(&server)
    }

    fn on_server(server: &str) -> Result<Self> {
        if !server.starts_with("postgres://") && !server.starts_with("postgresql://") {
            bail!("give a PostgreSQL URL, as in postgres://user@localhost/database");
        }
        if server.contains("namespace=") {
            bail!("leave the namespace out of the URL; the example creates a namespace and removes it");
        }
        let separator = if server.contains('?') { '&' } else { '?' };
        // The process id is for operators, and for the test that checks whether anything stayed.
        let name = format!("example_{}_{}", std::process::id(), uuid::Uuid::now_v7().simple());
        let url = format!("{server}{separator}namespace={name}");
        Ok(Place { url, server: Some((server.to_owned(), name)), _directory: None })
    }

    /// The same as [`Place::visit`], with the server's URL and the namespace apart: for a program with connections of its own.
    pub(crate) async fn visit_server(
        self,
        example: impl AsyncFnOnce(&str, &str) -> Result<()>,
    ) -> Result<()> {
        let (server, namespace) = self.server.clone().context("this example needs PostgreSQL")?;
        self.visit(async |_: &str| example(&server, &namespace).await).await
    }

    /// Runs an example with the store's URL, and removes everything it left.
    pub(crate) async fn visit(self, example: impl AsyncFnOnce(&str) -> Result<()>) -> Result<()> {
        let result = tokio::time::timeout(DEADLINE, example(&self.url)).await;
        let removed = async { Headwater::open(&self.url).await?.store().drop_namespace().await };
        let removed = removed.await.context("the example's namespace was not removed");
        result.with_context(|| format!("not done within {DEADLINE:?}"))??;
        removed
    }
}

/// The URL on the command line, bare or after `--store`.
fn url_argument() -> Result<Option<String>> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--store");
    let url = arguments.next();
    if let Some(more) = arguments.next() {
        bail!("unexpected argument {more:?}: give one URL only");
    }
    Ok(url)
}
