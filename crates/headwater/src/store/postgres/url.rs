//! What a URL says to the driver: its configuration, with Headwater's defaults for a vanished server, and TLS.

use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, TargetSessionAttrs};

use super::{fault, tls};
use crate::error::{Error, Result};

/// How long one address may take to accept a connection, if the URL does not set it.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// TCP keepalives: idle time before the first probe, interval, and number of probes. A vanished server is detected in half a
/// minute; the system's default is two hours.
const KEEPALIVES_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVES_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVES_RETRIES: u32 = 3;
/// Sent data that is not acknowledged for this long ends the connection.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(20);

/// The configuration of a URL as Headwater's own connections have it, and its TLS connector: for programs with a pool of their
/// own beside the store.
///
/// Parameters of the URL override the defaults: limits within which a vanished server is detected, and of several servers the
/// one that takes writes. `sslmode=verify-full` verifies the server's certificate, which the driver alone cannot.
/// `application_name` is used unless the URL has one.
pub fn driver_config(
    url: &str,
    application_name: &str,
) -> Result<(Config, tokio_postgres_rustls::MakeRustlsConnect)> {
    let (config, connector) = config_of(url, true)?;
    let mut config = for_hosts(&config, &hosts_of(&config), config.get_ports());
    if config.get_application_name().is_none() {
        config.application_name(application_name);
    }
    Ok((config, connector))
}

/// The same without a name. Only a program that `writes` needs a server that takes writes.
pub(super) fn config_of(url: &str, writes: bool) -> Result<(Config, tls::Connector)> {
    let says = |name: &str| {
        let query = url.split_once('?').map_or("", |(_, query)| query);
        query.split('&').any(|pair| pair.split_once('=').is_some_and(|(said, _)| said == name))
    };
    let (driver_url, mode) = tls::mode_of(url);
    // The cause names the parameter; the URL itself may have a password.
    let mut config = Config::from_str(&driver_url).map_err(|error| {
        let causes = fault::causes_of(&error);
        Error::invalid("store", format!("not a PostgreSQL URL the driver understands: {causes}"))
    })?;
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(TCP_USER_TIMEOUT);
    }
    if !says("keepalives_idle") {
        config.keepalives_idle(KEEPALIVES_IDLE);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(KEEPALIVES_INTERVAL);
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(KEEPALIVES_RETRIES);
    }
    if writes && hosts_of(&config).len() > 1 && !says("target_session_attrs") {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    Ok((config, tls::connector(mode)?))
}

/// Every server named. The driver splits the list in a URL's authority, but not the one in its parameter `host`.
pub(super) fn hosts_of(config: &Config) -> Vec<Host> {
    let split = |names: &str| names.split(',').map(str::to_owned).collect::<Vec<_>>();
    let names = config.get_hosts().iter().flat_map(|host| match host {
        Host::Tcp(names) => split(names),
        #[cfg(unix)]
        Host::Unix(paths) => split(&paths.to_string_lossy()),
    });
    let host = |name: String| match name.starts_with('/') {
        #[cfg(unix)]
        true => Host::Unix(name.into()),
        _ => Host::Tcp(name),
    };
    names.map(host).collect()
}

/// The same configuration for these servers alone. The driver handles addresses that are given apart from the names.
pub(super) fn for_hosts(config: &Config, hosts: &[Host], ports: &[u16]) -> Config {
    if !config.get_hostaddrs().is_empty() {
        return config.clone();
    }
    let mut other = Config::new();
    for host in hosts {
        match host {
            Host::Tcp(name) => other.host(name),
            #[cfg(unix)]
            Host::Unix(path) => other.host_path(path),
        };
    }
    for port in ports {
        other.port(*port);
    }
    config.get_user().map(|user| other.user(user));
    config.get_password().map(|password| other.password(password));
    config.get_dbname().map(|dbname| other.dbname(dbname));
    config.get_options().map(|options| other.options(options));
    config.get_application_name().map(|name| other.application_name(name));
    config.get_connect_timeout().map(|timeout| other.connect_timeout(*timeout));
    config.get_tcp_user_timeout().map(|timeout| other.tcp_user_timeout(*timeout));
    config.get_keepalives_interval().map(|interval| other.keepalives_interval(interval));
    config.get_keepalives_retries().map(|retries| other.keepalives_retries(retries));
    other
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .channel_binding(config.get_channel_binding())
        .load_balance_hosts(config.get_load_balance_hosts())
        .target_session_attrs(config.get_target_session_attrs());
    other
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Config {
        config_of(url, true).unwrap().0
    }

    #[test]
    fn several_hosts_ask_for_a_writable_one() {
        let attrs = |url| config(url).get_target_session_attrs();
        assert_eq!(attrs("postgres://u@a,b/d"), TargetSessionAttrs::ReadWrite);
        assert_eq!(attrs("postgres://u@a:1,b:2/d?sslmode=require"), TargetSessionAttrs::ReadWrite);
        assert_eq!(attrs("postgres:///d?host=a,b&user=u"), TargetSessionAttrs::ReadWrite);
        assert_eq!(attrs("postgres://u@a,b/d?target_session_attrs=any"), TargetSessionAttrs::Any);
        assert_eq!(attrs("postgres://u@a,b/d?target_session_attrs=read-only"), TargetSessionAttrs::ReadOnly);
        assert_eq!(attrs("postgres://u@a/d"), TargetSessionAttrs::Any);
        let read_only = config_of("postgres://u@a,b/d", false).unwrap().0;
        assert_eq!(read_only.get_target_session_attrs(), TargetSessionAttrs::Any);
    }

    #[test]
    fn a_vanished_server_is_noticed_in_bounded_time_unless_the_url_says_otherwise() {
        let default = config("postgres://u@h/d");
        assert_eq!(default.get_connect_timeout(), Some(&CONNECT_TIMEOUT));
        assert_eq!(default.get_tcp_user_timeout(), Some(&TCP_USER_TIMEOUT));
        assert!(default.get_keepalives());
        let probes = KEEPALIVES_INTERVAL * KEEPALIVES_RETRIES;
        assert!(default.get_keepalives_idle() + probes <= Duration::from_secs(30));
        assert_eq!(default.get_keepalives_interval(), Some(KEEPALIVES_INTERVAL));
        assert_eq!(default.get_keepalives_retries(), Some(KEEPALIVES_RETRIES));
        let said = config(
            "postgres://u@h/d?connect_timeout=2&tcp_user_timeout=3&keepalives_idle=4&keepalives_interval=5&keepalives_retries=6",
        );
        assert_eq!(said.get_connect_timeout(), Some(&Duration::from_secs(2)));
        assert_eq!(said.get_tcp_user_timeout(), Some(&Duration::from_secs(3)));
        assert_eq!(said.get_keepalives_idle(), Duration::from_secs(4));
        assert_eq!(said.get_keepalives_interval(), Some(Duration::from_secs(5)));
        assert_eq!(said.get_keepalives_retries(), Some(6));
    }

    #[test]
    fn the_driver_gets_what_it_knows_and_each_server_by_itself() {
        let (config, _) = driver_config("postgres://h/d?sslmode=verify-full", "index").unwrap();
        assert_eq!(config.get_ssl_mode(), tokio_postgres::config::SslMode::Require);
        assert_eq!(config.get_application_name(), Some("index"));
        let (config, _) =
            driver_config("postgres://h/d?sslmode=prefer&application_name=own", "index").unwrap();
        assert_eq!(config.get_ssl_mode(), tokio_postgres::config::SslMode::Prefer);
        assert_eq!(config.get_application_name(), Some("own"));
        let (config, _) = driver_config("postgres:///d?host=a,%2Frun%2Fb&port=7&user=u", "index").unwrap();
        assert_eq!(config.get_hosts(), [Host::Tcp("a".into()), Host::Unix("/run/b".into())]);
        assert_eq!((config.get_ports(), config.get_user()), (&[7][..], Some("u")));
        let refused = driver_config("postgres://u:secret@h/d?nonsense=1", "index").err().unwrap().to_string();
        assert!(refused.contains("nonsense") && !refused.contains("secret"), "{refused}");
    }
}
