//! Where a URL leads, for messages: the servers, the database and the user, and never the password.

use std::fmt;

use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// The port of a server whose URL names none.
const PORT_DEFAULT: u16 = 5432;

/// The servers, database and user of a URL.
pub(super) struct Address {
    servers: String,
    database: Option<String>,
    user: Option<String>,
}

impl Address {
    pub(super) fn of(targets: &[Config]) -> Self {
        let servers: Vec<String> = targets.iter().flat_map(servers_of).collect();
        let user = targets.first().and_then(Config::get_user).map(str::to_owned);
        // Without a name the server takes the user's.
        let database =
            targets.first().and_then(Config::get_dbname).map(str::to_owned).or_else(|| user.clone());
        Address { servers: servers.join(", "), database, user }
    }

    /// The database and its servers, without the user.
    pub(super) fn place(&self) -> String {
        let database = self.database.as_ref().map(|database| format!("database {database} at "));
        format!("{}{}", database.unwrap_or_default(), self.servers)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place())?;
        self.user.as_ref().map_or(Ok(()), |user| write!(f, " as user {user}"))
    }
}

fn servers_of(target: &Config) -> Vec<String> {
    let named = target.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        #[cfg(unix)]
        Host::Unix(path) => path.display().to_string(),
    });
    let mut names: Vec<String> = named.collect();
    if names.is_empty() {
        names = target.get_hostaddrs().iter().map(ToString::to_string).collect();
    }
    if names.is_empty() {
        names.push("no host".into());
    }
    let ports = target.get_ports();
    let port_of = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(PORT_DEFAULT);
    names.iter().enumerate().map(|(at, name)| format!("{name}:{}", port_of(at))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> String {
        Address::of(&[url.parse().unwrap()]).to_string()
    }

    #[test]
    fn an_address_names_everything_but_the_password() {
        assert_eq!(shown("postgres://joe:secret@db/shop"), "database shop at db:5432 as user joe");
        assert_eq!(shown("postgres://joe@db:7/"), "database joe at db:7 as user joe");
        assert_eq!(shown("postgres://a:1,b:2/shop"), "database shop at a:1, b:2");
        assert_eq!(shown("postgres:///shop?host=/run/pg&port=7"), "database shop at /run/pg:7");
        assert_eq!(shown("postgres:///?password=secret"), "no host:5432");
    }
}
