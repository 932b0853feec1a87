//! The lab's own server ends without a farewell, and recovers from its log at the same address.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::replica::Crash;
use super::{Postmaster, Server, connect};

impl Server {
    /// Ends it. Only one of the lab's own.
    pub(crate) fn crash(&self, how: Crash) -> Result<()> {
        let own = self.own.as_ref().context("only the lab's own server can be crashed")?;
        let postmaster = own.postmaster.lock().expect("no panic while held").take();
        postmaster.context("the server is away already")?.stop(match how {
            Crash::Immediate => Signal::QUIT,
            Crash::Kill => Signal::KILL,
        })
    }

    /// Starts it again and waits until it answers. After a SIGKILL the children of the old one leave by themselves; until
    /// the last has left the shared memory the new one is refused, and is started again.
    pub(crate) async fn recover(&self) -> Result<()> {
        let own = self.own.as_ref().context("only the lab's own server can be started again")?;
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let gone = {
                let mut postmaster = own.postmaster.lock().expect("no panic while held");
                postmaster.as_mut().is_none_or(Postmaster::has_ended)
            };
            if gone {
                own.serve_again()?;
            }
            let Err(error) = connect(&self.admin_url).await else { return Ok(()) };
            let words = own.files.last_words();
            ensure!(Instant::now() < deadline, "the lab's PostgreSQL did not recover: {error:#}; {words}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
