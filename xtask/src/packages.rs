//! System packages that a run needs, and their installation on Debian and its derivatives.

use std::io::IsTerminal;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use headwater_servers::brokers::{Nats, RabbitMq};
use headwater_servers::{Programs, User, find_program, output_of};

use crate::is_ci;
use crate::process::{cargo, say};

/// Runs as root. Debian's packages would otherwise create a database cluster and start servers (PostgreSQL, RabbitMQ with epmd, NATS): tests
/// start their own, and whether one runs on a standard port is up to the developer. The settings are removed afterwards.
const INSTALL_SCRIPT: &str = r#"
set -eu
settings=/etc/postgresql-common/createcluster.d
mkdir -p "$settings"
printf 'create_main_cluster = false\n' >"$settings/headwater-install.conf"
policy=/usr/sbin/policy-rc.d
own=
if [ ! -e "$policy" ]; then
    own=$policy
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
trap 'rm -f "$settings/headwater-install.conf" $own; rmdir "$settings" 2>/dev/null || true' EXIT
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install --yes --no-install-recommends "$@"
"#;

/// A part of the system that a run uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// The programs that create and run a PostgreSQL server.
    PostgresServer,
    /// `psql`.
    PostgresClient,
    /// The `sqlite3` shell.
    Sqlite,
    /// `promtool`, which checks alert rules.
    Promtool,
    /// Python with virtual environments.
    Python,
    /// Node.
    Node,
    /// Its package manager.
    Npm,
    /// A browser.
    Chromium,
    /// `java`, which runs Kafka.
    Java,
    /// `mvn`, which fetches Kafka.
    Maven,
    /// The RabbitMQ server.
    RabbitMq,
    /// Erlang's port mapper, which a RabbitMQ server needs.
    Epmd,
    /// The NATS server.
    Nats,
}

impl Need {
    fn package(self) -> &'static str {
        match self {
            Self::PostgresServer => "postgresql",
            Self::PostgresClient => "postgresql-client",
            Self::Sqlite => "sqlite3",
            Self::Promtool => "prometheus",
            Self::Python => "python3-venv",
            Self::Node => "nodejs",
            Self::Npm => "npm",
            Self::Chromium => "chromium",
            Self::Java => "default-jre-headless",
            Self::Maven => "maven",
            Self::RabbitMq => "rabbitmq-server",
            Self::Epmd => "erlang-base",
            Self::Nats => "nats-server",
        }
    }

    fn is_met(self) -> bool {
        match self {
            Self::PostgresServer => Programs::find().is_ok(),
            Self::PostgresClient => find_program("psql").is_some(),
            Self::Sqlite => find_program("sqlite3").is_some(),
            Self::Promtool => find_program("promtool").is_some(),
            Self::Python => output_of(Command::new("python3").args(["-c", "import ensurepip, venv"])).is_ok(),
            Self::Node => find_program("node").is_some(),
            Self::Npm => find_program("npm").is_some(),
            Self::Chromium => find_program("chromium").is_some(),
            Self::Java => find_program("java").is_some(),
            Self::Maven => find_program("mvn").is_some(),
            Self::RabbitMq => RabbitMq::find().is_ok(),
            Self::Epmd => find_program("epmd").is_some(),
            Self::Nats => Nats::find().is_ok(),
        }
    }
}

/// How a command gets root privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Privilege {
    Root,
    Sudo,
    None,
}

/// Installs those of `needs` that are missing.
pub(crate) fn ensure(needs: &[Need]) -> Result<()> {
    let missing: Vec<Need> = needs.iter().copied().filter(|need| !need.is_met()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|need| need.package()).collect();
    let privilege = match (User::is_root()?, find_program("sudo")) {
        (true, _) => Privilege::Root,
        (false, Some(_)) => Privilege::Sudo,
        (false, None) => Privilege::None,
    };
    let can_ask = std::io::stdin().is_terminal() && !is_ci();
    let mut command = install_command(&packages, find_program("apt-get").is_some(), privilege, can_ask)?;
    say(&format!("installing {}", packages.join(" ")));
    // Not ended on interruption: half-configured packages are worse than a late exit.
    let status = command.status().context("cannot run the package installation")?;
    if !status.success() {
        bail!("installing {} failed ({status})", packages.join(" "));
    }
    if let Some(still) = missing.iter().find(|need| !need.is_met()) {
        if *still == Need::PostgresServer {
            // Returns the reason: a distribution may offer a server that is too old.
            Programs::find()?;
        }
        bail!("package {} was installed, but its programs are not found", still.package());
    }
    Ok(())
}

/// `cargo fmt` and `cargo clippy` are not part of a minimal Rust installation.
pub(crate) fn ensure_rust_components(root: &Path) -> Result<()> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if output_of(&mut cargo(root, &[subcommand, "--version"])).is_ok() {
            continue;
        }
        say(&format!("adding the Rust component {component}"));
        let mut rustup = Command::new("rustup");
        rustup.args(["component", "add", component]).current_dir(root);
        output_of(&mut rustup)
            .with_context(|| format!("`cargo {subcommand}` is missing; install {component}"))?;
    }
    Ok(())
}

fn install_command(packages: &[&str], has_apt: bool, privilege: Privilege, can_ask: bool) -> Result<Command> {
    let names = packages.join(" ");
    if !has_apt {
        bail!("missing: {names} (Debian's package names); there is no apt-get here, so install them");
    }
    let mut command = match (privilege, can_ask) {
        (Privilege::Root, _) => Command::new("sh"),
        (Privilege::Sudo, true) => with_arguments("sudo", &["sh"]),
        (Privilege::Sudo, false) => with_arguments("sudo", &["-n", "sh"]),
        (Privilege::None, _) => {
            bail!("missing packages: {names}; not root and no sudo, so run: apt-get install {names}")
        }
    };
    command.args(["-c", INSTALL_SCRIPT, "install"]).args(packages);
    Ok(command)
}

fn with_arguments(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> Vec<String> {
        std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|word| word.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn without_privilege_the_error_names_the_packages() {
        let error = install_command(&["postgresql", "sqlite3"], true, Privilege::None, false).unwrap_err();
        assert!(error.to_string().contains("apt-get install postgresql sqlite3"), "{error}");
        let error = install_command(&["postgresql"], false, Privilege::Root, false).unwrap_err();
        assert!(error.to_string().contains("postgresql"), "{error}");
    }

    #[test]
    fn sudo_never_asks_without_a_terminal() {
        let command = install_command(&["sqlite3"], true, Privilege::Sudo, false).unwrap();
        assert_eq!(words(&command)[..4], ["sudo", "-n", "sh", "-c"]);
        let command = install_command(&["sqlite3"], true, Privilege::Sudo, true).unwrap();
        assert_eq!(words(&command)[..3], ["sudo", "sh", "-c"]);
    }

    #[test]
    fn packages_are_arguments_and_never_part_of_the_script() {
        let command = install_command(&["postgresql", "sqlite3"], true, Privilege::Root, false).unwrap();
        assert_eq!(words(&command)[3..], ["install", "postgresql", "sqlite3"]);
    }
}
