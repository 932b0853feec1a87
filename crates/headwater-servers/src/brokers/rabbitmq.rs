//! RabbitMQ. The name, the ports, the port mapper (epmd), the cookie and the files are its own: nothing of the machine's is used.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Kind, Place};
use crate::programs::find_program;

/// Debian's program on PATH changes the user and takes the system's settings; the one in here does not.
const DEBIAN_ROOT: &str = "/usr/lib/rabbitmq/lib";

/// [`RabbitMq`](super::RabbitMq).
#[derive(Debug)]
pub struct RabbitMqKind;

impl Kind for RabbitMqKind {
    const NAME: &'static str = "rabbitmq";
    const READY: &'static str = "Server startup complete";
    const TAKEN: &'static [&'static str] =
        &["eaddrinuse", "address already in use", "Protocol 'inet_tcp': register/listen error"];
    /// For clients, for other nodes, for the port mapper.
    const PORTS: usize = 3;

    fn find() -> Result<()> {
        program().and(epmd()).map(drop)
    }

    fn configure(place: &Place) -> Result<()> {
        let text = format!(
            "listeners.tcp.1 = 127.0.0.1:{}\nlog.console = true\nlog.console.level = info\nlog.file = false\n",
            place.ports[0]
        );
        std::fs::write(place.path().join("rabbitmq.conf"), text)?;
        std::fs::write(place.path().join("enabled_plugins"), "[].\n")?;
        std::fs::write(place.path().join("environment"), "")?;
        Ok(())
    }

    fn processes(place: &Place) -> Result<Vec<Command>> {
        let port = |index: usize| place.ports[index].to_string();
        // Started here and in the foreground: one that a node starts becomes a daemon, which outlives it.
        let mut mapper = place.tied_command(&epmd()?);
        mapper.args(["-address", "127.0.0.1", "-port", &port(2)]);
        let mut broker = place.tied_command(&program()?);
        broker.env("ERL_EPMD_ADDRESS", "127.0.0.1").env("ERL_EPMD_PORT", port(2));
        // Makes the script become the broker, so that the process id is the broker's.
        broker.env("RUNNING_UNDER_SYSTEMD", "true").env_remove("NOTIFY_SOCKET");
        broker.env("RABBITMQ_NODENAME", format!("headwater-{}@localhost", place.ports[0]));
        broker.env("RABBITMQ_DIST_PORT", port(1)).env("RABBITMQ_LOGS", "-");
        broker.env(
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}",
        );
        for (name, file) in [
            ("RABBITMQ_CONF_ENV_FILE", "environment"),
            ("RABBITMQ_CONFIG_FILE", "rabbitmq.conf"),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", "advanced.config"),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", "enabled_plugins"),
            ("RABBITMQ_GENERATED_CONFIG_DIR", "generated"),
            ("RABBITMQ_LOG_BASE", "log"),
            ("RABBITMQ_MNESIA_BASE", "data"),
            ("RABBITMQ_PID_FILE", "pid"),
        ] {
            broker.env(name, place.path().join(file));
        }
        Ok(vec![mapper, broker])
    }

    fn url(place: &Place) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", place.ports[0])
    }
}

fn epmd() -> Result<PathBuf> {
    find_program("epmd").context("epmd of Erlang is not installed")
}

fn program() -> Result<PathBuf> {
    let entries = std::fs::read_dir(DEBIAN_ROOT).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.path().join("sbin/rabbitmq-server"))
        .filter(|file| file.is_file())
        .collect();
    found.sort();
    // Elsewhere than on Debian the program on PATH may be a plain one.
    let on_path = || find_program("rabbitmq-server").filter(|file| !file.starts_with(Path::new("/usr/sbin")));
    found.pop().or_else(on_path).context("rabbitmq-server is not installed")
}
