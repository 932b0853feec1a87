//! Namespaces and store URLs: where a set of topics is stored, and the one rule for its name.

use std::fmt;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::limits::NAMESPACE_BYTES_MAX;

/// The name of an isolated set of topics: a PostgreSQL schema, or one SQLite file.
///
/// The rule: upper case becomes lower case, and every character other than `a-z`, `0-9` and `_` becomes `_`. The result must
/// start with a letter, be at most 48 bytes, and not start with `pg_` (reserved by PostgreSQL). It is always quoted in
/// SQL.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Namespace(String);

impl Namespace {
    /// Sanitises a name by the rule.
    pub fn new(name: &str) -> Result<Self> {
        let lowered: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
            .collect();
        if !lowered.starts_with(|c: char| c.is_ascii_lowercase()) {
            return Err(Error::invalid("namespace", format!("{name:?} must start with a letter")));
        }
        if lowered.len() > NAMESPACE_BYTES_MAX {
            let bytes = lowered.len();
            return Err(Error::invalid(
                "namespace",
                format!("{bytes} bytes, at most {NAMESPACE_BYTES_MAX} are allowed"),
            ));
        }
        if lowered.starts_with("pg_") {
            return Err(Error::invalid("namespace", format!("{name:?}: the prefix pg_ is reserved")));
        }
        Ok(Namespace(lowered))
    }

    /// The sanitised name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as a quoted SQL identifier. The rule leaves nothing in it that could end the quotes.
    pub fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Namespace("headwater".into())
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A parsed store URL.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// `sqlite:path`, `sqlite::memory:`, with `?namespace=` naming a file beside it.
    Sqlite(SqlitePath),
    /// `postgres://…`, with `?namespace=` naming a schema and `?replica=` naming standbys. The URL is kept without these
    /// parameters. It may name several servers (`postgres://a,b/db`): the one that accepts writes is used.
    Postgres {
        /// The URL for the driver. May contain a password: never printed.
        url: String,
        /// The schema.
        namespace: Namespace,
        /// The same URL for the standbys that `?replica=host:port` names, from which messages may be read.
        replica: Option<String>,
    },
}

/// Where an embedded store is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SqlitePath {
    /// A file.
    File(PathBuf),
    /// Memory of this process only.
    Memory,
}

impl fmt::Display for SqlitePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SqlitePath::File(path) => path.display().fmt(f),
            SqlitePath::Memory => f.write_str("in memory"),
        }
    }
}

impl StoreUrl {
    /// Parses a URL; the argument `namespace` takes precedence over the URL's parameter.
    pub fn parse(url: &str, namespace: Option<&str>) -> Result<Self> {
        if let Some(rest) = url.strip_prefix("sqlite:") {
            return Self::parse_sqlite(rest, namespace);
        }
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Self::parse_postgres(url, namespace);
        }
        let rule = match url.split_once(':') {
            None => format!("{url:?} has no scheme; write sqlite:{url} for a file of that name"),
            Some((scheme, _)) => {
                format!("scheme {scheme:?} is not known; use sqlite:path or postgres://user@host/database")
            }
        };
        Err(Error::invalid("store", rule))
    }

    fn parse_sqlite(rest: &str, namespace: Option<&str>) -> Result<Self> {
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = path.strip_prefix("//").unwrap_or(path);
        let mut from_query = None;
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match name.as_ref() {
                "namespace" => from_query = Some(value.into_owned()),
                other => {
                    return Err(Error::invalid(
                        "store",
                        format!("parameter {other:?} is not known for sqlite"),
                    ));
                }
            }
        }
        if path.is_empty() {
            return Err(Error::invalid("store", "sqlite: needs a path, as in sqlite:orders.db"));
        }
        if path == ":memory:" {
            return Ok(StoreUrl::Sqlite(SqlitePath::Memory));
        }
        let path = PathBuf::from(path);
        let Some(name) = namespace.or(from_query.as_deref()) else {
            return Ok(StoreUrl::Sqlite(SqlitePath::File(path)));
        };
        let namespace = Namespace::new(name)?;
        let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
        let extension =
            extension.map_or_else(|| namespace.to_string(), |extension| format!("{namespace}.{extension}"));
        Ok(StoreUrl::Sqlite(SqlitePath::File(path.with_extension(extension))))
    }

    fn parse_postgres(url: &str, namespace: Option<&str>) -> Result<Self> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        // The other parameters stay as written: the driver decodes them by its own rule.
        let (mut kept, mut from_query, mut standbys) = (Vec::new(), None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match form_urlencoded::parse(pair.as_bytes()).next() {
                Some((name, value)) if name == "namespace" => from_query = Some(value.into_owned()),
                Some((name, value)) if name == "replica" => standbys = Some(value.into_owned()),
                _ => kept.push(pair),
            }
        }
        let replica = standbys.map(|standbys| replica_url(base, &kept, &standbys)).transpose()?;
        let kept = kept.join("&");
        let url = if kept.is_empty() { base.to_owned() } else { format!("{base}?{kept}") };
        let namespace = match namespace.or(from_query.as_deref()) {
            Some(name) => Namespace::new(name)?,
            None => Namespace::default(),
        };
        Ok(StoreUrl::Postgres { url, namespace, replica })
    }
}

/// The URL of standbys: what the primary's says, with their hosts, and only for reading.
fn replica_url(base: &str, kept: &[&str], standbys: &str) -> Result<String> {
    let is_host =
        |text: &str| !text.is_empty() && !text.contains(['@', '?', '#', ' ']) && !text.contains("//");
    if !standbys.split(',').all(is_host) {
        return Err(Error::invalid(
            "store",
            format!("replica={standbys:?} must be host, host:port or several with commas between them"),
        ));
    }
    // A path is the folder of a socket; in this place of a URL its slashes are encoded.
    let standbys = standbys.replace('/', "%2F");
    let (scheme, rest) = base.split_once("://").expect("the caller has checked the scheme");
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    let user = authority.rsplit_once('@').map_or(String::new(), |(user, _)| format!("{user}@"));
    let others = kept.iter().filter(|pair| {
        let name = pair.split('=').next().unwrap_or_default();
        !["host", "hostaddr", "port", "target_session_attrs"].contains(&name)
    });
    let query: Vec<&str> = others.copied().chain(["target_session_attrs=read-only"]).collect();
    Ok(format!("{scheme}://{user}{standbys}/{database}?{}", query.join("&")))
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Sqlite(path) => f.debug_tuple("Sqlite").field(path).finish(),
            // A PostgreSQL URL may contain a password.
            StoreUrl::Postgres { namespace, .. } => {
                f.debug_struct("Postgres").field("namespace", namespace).finish()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sanitised_by_one_rule() {
        assert_eq!(Namespace::new("Run-7").unwrap().as_str(), "run_7");
        assert_eq!(Namespace::new("a\"; drop schema x;--").unwrap().quoted(), "\"a___drop_schema_x___\"");
        for bad in ["", "7run", "_x", "pg_x", &"x".repeat(49)] {
            assert!(Namespace::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn urls_name_a_file_or_a_schema() {
        let parse = |url| StoreUrl::parse(url, None).unwrap();
        assert_eq!(parse("sqlite:orders.db"), StoreUrl::Sqlite(SqlitePath::File("orders.db".into())));
        assert_eq!(parse("sqlite:///tmp/x.db"), StoreUrl::Sqlite(SqlitePath::File("/tmp/x.db".into())));
        assert_eq!(
            parse("sqlite:a/o.db?namespace=Run-7"),
            StoreUrl::Sqlite(SqlitePath::File("a/o.run_7.db".into()))
        );
        assert_eq!(parse("sqlite::memory:"), StoreUrl::Sqlite(SqlitePath::Memory));
        let StoreUrl::Postgres { url, namespace, .. } =
            parse("postgres://u:p@h/d?sslmode=require&namespace=run_7")
        else {
            panic!("a PostgreSQL URL");
        };
        assert_eq!((url.as_str(), namespace.as_str()), ("postgres://u:p@h/d?sslmode=require", "run_7"));
        let StoreUrl::Postgres { url, .. } = parse("postgres://h/d?namespace=x&options=-c%20role%3Dr") else {
            panic!("a PostgreSQL URL");
        };
        assert_eq!(url, "postgres://h/d?options=-c%20role%3Dr");
        for bad in ["mysql://x", "orders.db", "sqlite:", "sqlite:x.db?cache=shared"] {
            assert!(StoreUrl::parse(bad, None).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_replica_has_the_primarys_user_and_parameters_and_its_own_hosts() {
        let replica_of = |url| match StoreUrl::parse(url, None) {
            Ok(StoreUrl::Postgres { url, replica, .. }) => (url, replica),
            other => panic!("{other:?}"),
        };
        let (url, replica) = replica_of("postgres://u:p@a,b:2/d?replica=c:7&sslmode=require");
        assert_eq!(url, "postgres://u:p@a,b:2/d?sslmode=require");
        assert_eq!(
            replica.as_deref(),
            Some("postgres://u:p@c:7/d?sslmode=require&target_session_attrs=read-only")
        );
        let (url, replica) =
            replica_of("postgres:///d?host=/run/pg&user=u&replica=c,d:9&target_session_attrs=read-write");
        assert_eq!(url, "postgres:///d?host=/run/pg&user=u&target_session_attrs=read-write");
        assert_eq!(replica.as_deref(), Some("postgres://c,d:9/d?user=u&target_session_attrs=read-only"));
        for bad in ["replica=", "replica=a,,b", "replica=postgres://x/d", "replica=u@h"] {
            let error = StoreUrl::parse(&format!("postgres://a/d?{bad}"), None).unwrap_err();
            assert!(error.to_string().contains("replica"), "{error}");
        }
    }

    #[test]
    fn a_password_never_shows_in_debug_output() {
        let url = StoreUrl::parse("postgres://u:secret@h/d", None).unwrap();
        assert!(!format!("{url:?}").contains("secret"));
    }
}
