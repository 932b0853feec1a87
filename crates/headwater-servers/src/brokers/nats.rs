//! NATS with JetStream.

use std::process::Command;

use anyhow::{Context, Result};

use super::{Kind, Place};
use crate::programs::find_program;

/// [`Nats`](super::Nats).
#[derive(Debug)]
pub struct NatsKind;

impl Kind for NatsKind {
    const NAME: &'static str = "nats";
    const READY: &'static str = "Server is ready";
    const TAKEN: &'static [&'static str] = &["address already in use"];
    const PORTS: usize = 1;

    fn find() -> Result<()> {
        find_program("nats-server").map(drop).context("nats-server is not installed")
    }

    fn configure(_place: &Place) -> Result<()> {
        Ok(())
    }

    fn processes(place: &Place) -> Result<Vec<Command>> {
        let program = find_program("nats-server").context("nats-server is not installed")?;
        let mut command = place.tied_command(&program);
        command.args(["-a", "127.0.0.1", "-p", &place.ports[0].to_string()]);
        command.arg("-js").arg("-sd").arg(place.path().join("data"));
        Ok(vec![command])
    }

    fn url(place: &Place) -> String {
        format!("nats://127.0.0.1:{}", place.ports[0])
    }
}
