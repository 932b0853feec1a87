//! Arguments of `serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use headwater::maintenance::MaintenancePreset;

use super::words::{duration, every, maintenance_preset};

/// Heading of the limits in the help.
const LIMITS: &str = "Limits";

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Serve a small shop with live traffic, in a temporary store that is removed at the end
    #[arg(long, conflicts_with_all = ["pipeline", "no_maintenance", "preset"])]
    pub(crate) demo: bool,
    /// Where it listens; port 0 is any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7411")]
    pub(crate) listen: SocketAddr,
    /// The certificate and its chain, in PEM: serve HTTPS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Accept only clients with a certificate of these authorities, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Listen where other machines reach it although there is no token: all who reach it are administrators
    #[arg(long)]
    pub(crate) insecure: bool,
    /// A name under which browsers reach it, beside localhost and its addresses; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) host_name: Vec<String>,
    /// What the dashboard calls the store [default: the context, or the store without its password]
    #[arg(long, value_name = "NAME")]
    pub(crate) label: Option<String>,
    /// Mark the dashboard as production, as a context with --production does
    #[arg(long)]
    pub(crate) production: bool,
    /// Show the runs of a pipeline: its configuration, or its directory
    #[arg(long, value_name = "PATH")]
    pub(crate) pipeline: Option<PathBuf>,
    /// Do not run maintenance jobs: another process does
    #[arg(long)]
    pub(crate) no_maintenance: bool,
    /// How often maintenance jobs run and how much they do at a time
    #[arg(long, value_parser = maintenance_preset(), default_value = "standard", conflicts_with = "no_maintenance")]
    pub(crate) preset: MaintenancePreset,
    #[command(flatten)]
    pub(crate) limits: ServeLimits,
}

/// What is not given is the server's default.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeLimits {
    /// Bytes of a request's body [default: 8388608]
    #[arg(long, value_name = "BYTES", value_parser = at_least_one, help_heading = LIMITS)]
    pub(crate) body_bytes_max: Option<usize>,
    /// Bytes of a request's headers [default: 32768]
    #[arg(long, value_name = "BYTES", value_parser = at_least_one, help_heading = LIMITS)]
    pub(crate) header_bytes_max: Option<usize>,
    /// Messages of a batch, and settlements of a request [default: 1000]
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = LIMITS)]
    pub(crate) batch_max: Option<usize>,
    /// Connections at once; further ones wait [default: 4096]
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = LIMITS)]
    pub(crate) connections_max: Option<usize>,
    /// The longest wait of a claim [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = LIMITS)]
    pub(crate) wait_max: Option<Duration>,
    /// How long a client may take to send its headers, and each part of its body [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = every, help_heading = LIMITS)]
    pub(crate) read_timeout: Option<Duration>,
    /// How long a client may take to accept a part of an answer [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = every, help_heading = LIMITS)]
    pub(crate) write_timeout: Option<Duration>,
    /// How long requests under way may take when it is stopped [default: 20s]
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = LIMITS)]
    pub(crate) grace: Option<Duration>,
}

impl ServeLimits {
    /// The server's limits, with those changed that are given.
    pub(crate) fn limits(&self) -> headwater_server::Limits {
        let mut limits = headwater_server::Limits::default();
        set(&mut limits.body_bytes_max, self.body_bytes_max);
        set(&mut limits.header_bytes_max, self.header_bytes_max);
        set(&mut limits.batch_max, self.batch_max);
        set(&mut limits.connections_max, self.connections_max);
        set(&mut limits.wait_max, self.wait_max);
        set(&mut limits.read_timeout, self.read_timeout);
        set(&mut limits.write_timeout, self.write_timeout);
        set(&mut limits.shutdown_timeout, self.grace);
        limits
    }
}

fn set<T>(limit: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *limit = given;
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("{text:?} is not a number")),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches};

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        serve: ServeArgs,
    }

    fn parse(line: &[&str]) -> Result<ServeArgs, clap::Error> {
        let given = Line::command().try_get_matches_from([&["serve"], line].concat())?;
        Ok(Line::from_arg_matches(&given)?.serve)
    }

    /// What the help says of defaults is what the server has.
    #[test]
    fn defaults_in_the_help_are_those_of_the_server() {
        let help = Line::command().render_long_help().to_string();
        let limits = headwater_server::Limits::default();
        let numbers =
            [limits.body_bytes_max, limits.header_bytes_max, limits.batch_max, limits.connections_max];
        for number in numbers {
            assert!(help.contains(&format!("[default: {number}]")), "{number}: {help}");
        }
        for limit in [limits.wait_max, limits.read_timeout, limits.write_timeout, limits.shutdown_timeout] {
            let limit = crate::human::duration(limit);
            assert!(help.contains(&format!("[default: {limit}]")), "{limit}: {help}");
        }
    }

    #[test]
    fn limits_that_are_given_replace_the_defaults() {
        let limits = parse(&["--batch-max", "7", "--wait-max", "5s"]).unwrap().limits.limits();
        assert_eq!((limits.batch_max, limits.wait_max), (7, Duration::from_secs(5)));
        assert_eq!(limits.body_bytes_max, headwater_server::Limits::default().body_bytes_max);
        for wrong in [&["--batch-max", "0"][..], &["--read-timeout", "0s"], &["--tls-cert", "c.pem"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
