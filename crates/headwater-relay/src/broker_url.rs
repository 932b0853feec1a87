//! URLs of brokers: `scheme://user:password@host:port,host:port/path?option=value`. A password is in no text that this makes.

use std::fmt;

use headwater::{Error, Result};

/// A URL of a broker, in parts that are decoded.
#[derive(Clone)]
pub(crate) struct BrokerUrl {
    pub(crate) scheme: String,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// Host and port, without brackets around an IPv6 address.
    pub(crate) hosts: Vec<(String, u16)>,
    /// What follows the first slash; `None` if nothing does.
    pub(crate) path: Option<String>,
    options: Vec<(String, String)>,
}

impl BrokerUrl {
    /// Parses a URL with one of these schemes; a host without a port gets the default one.
    pub(crate) fn parse(url: &str, schemes: &[&str], port: u16) -> Result<Self> {
        let rule = || Error::invalid("url", format!("must begin with {}://", schemes.join(":// or ")));
        let (scheme, rest) = url.split_once("://").ok_or_else(rule)?;
        if !schemes.contains(&scheme) {
            return Err(rule());
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (userinfo, hosts) = match authority.rsplit_once('@') {
            Some((userinfo, hosts)) => (Some(userinfo), hosts),
            None => (None, authority),
        };
        let (user, password) = match userinfo.map(|info| info.split_once(':').unwrap_or((info, ""))) {
            Some((user, "")) => (Some(decoded("user", user)?), None),
            Some((user, password)) => (Some(decoded("user", user)?), Some(decoded("password", password)?)),
            None => (None, None),
        };
        let hosts = hosts.split(',').map(|host| host_of(host, port)).collect::<Result<_>>()?;
        let path = (!path.is_empty()).then(|| decoded("path", path)).transpose()?;
        let options = form_urlencoded::parse(query.as_bytes())
            .map(|(name, value)| (name.into_owned(), value.into_owned()))
            .collect();
        Ok(BrokerUrl {
            scheme: scheme.to_owned(),
            user: user.filter(|user| !user.is_empty()),
            password,
            hosts,
            path,
            options,
        })
    }

    /// Takes an option; the last one counts.
    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        let mut found = None;
        self.options.retain_mut(|(option, value)| {
            let is_it = option == name;
            if is_it {
                found = Some(std::mem::take(value));
            }
            !is_it
        });
        found.filter(|value| !value.is_empty())
    }

    /// Refuses options that were not taken.
    #[cfg(any(test, feature = "nats", feature = "rabbitmq"))]
    pub(crate) fn finish(&self, known: &str) -> Result<()> {
        match self.options.first() {
            Some((name, _)) => {
                Err(Error::invalid("url", format!("unknown option {name}; there are {known}; remove it")))
            }
            None => Ok(()),
        }
    }

    /// Takes the options that are left.
    #[cfg(feature = "kafka")]
    pub(crate) fn take_rest(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.options)
    }

    /// The scheme and the hosts, for errors and logs.
    pub(crate) fn place(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(host_and_port).collect();
        format!("{}://{}", self.scheme, hosts.join(","))
    }
}

/// A host and its port as text.
pub(crate) fn host_and_port((host, port): &(String, u16)) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl fmt::Debug for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerUrl")
            .field("place", &self.place())
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

fn host_of(text: &str, default_port: u16) -> Result<(String, u16)> {
    let invalid = |rule: &str| Error::invalid("url", format!("host {text:?}: {rule}"));
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(|| invalid("] is missing"))?;
            (host, port.strip_prefix(':'))
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err(invalid("it is empty; write scheme://host:port"));
    }
    let port = match port {
        Some(port) => port.parse().map_err(|_| invalid("the port must be a number from 1 to 65535"))?,
        None => default_port,
    };
    Ok((host.to_owned(), port))
}

/// Decodes `%2F` and the like. The text may be a password: it is in no error.
fn decoded(part: &str, text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        let rule = || Error::invalid("url", format!("{part}: % must be followed by two hexadecimal digits"));
        bytes.push(byte.ok_or_else(rule)?);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).map_err(|_| Error::invalid("url", format!("{part}: is not UTF-8 once decoded")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_decoded_and_a_password_is_never_shown() {
        let mut url =
            BrokerUrl::parse("amqp://u%40x:s%3Acret@[::1]:1,h/%2Fv?a=1&b=x%20y", &["amqp"], 5672).unwrap();
        assert_eq!((url.user.as_deref(), url.password.as_deref()), (Some("u@x"), Some("s:cret")));
        assert_eq!(url.hosts, [("::1".to_owned(), 1), ("h".to_owned(), 5672)]);
        assert_eq!((url.path.as_deref(), url.place().as_str()), (Some("/v"), "amqp://[::1]:1,h:5672"));
        assert!(!format!("{url:?}").contains("cret"));
        assert_eq!(url.take("b").as_deref(), Some("x y"));
        let refused = url.finish("b").unwrap_err().to_string();
        assert_eq!(refused, "invalid url: unknown option a; there are b; remove it");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (url, says) in [
            ("h:1", "must begin with amqp://"),
            ("kafka://h", "must begin with amqp://"),
            ("amqp://", "is empty"),
            ("amqp://h:x", "port"),
            ("amqp://u:secret%@h", "password: % must be followed"),
            ("amqp://u:secret%FF@h", "password: is not UTF-8"),
        ] {
            let error = BrokerUrl::parse(url, &["amqp"], 1).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("secret"), "{error}");
        }
    }
}
