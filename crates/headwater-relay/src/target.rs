//! Targets: the URL of a sink, what stands for a password in it, and the sink that it means.

use headwater::{Error, Result};

use crate::sink::Sink;
use crate::topic_sink::HeadwaterSink;

/// The schemes of targets, and the kinds of their sinks.
const SCHEMES: [(&str, &str); 11] = [
    ("kafka", "kafka"),
    ("amqp", "rabbitmq"),
    ("amqps", "rabbitmq"),
    ("nats", "nats"),
    ("tls", "nats"),
    ("http", "webhook"),
    ("https", "webhook"),
    ("headwater+sqlite", "headwater"),
    ("headwater+postgres", "headwater"),
    ("headwater+postgresql", "headwater"),
    ("headwater", "headwater"),
];
/// Parts of the names of options that have secrets.
const SECRET_WORDS: [&str; 5] = ["password", "passwd", "secret", "token", "credential"];

/// The kind of the sink of a target: `kafka`, `rabbitmq`, `nats`, `webhook` or `headwater`.
///
/// ```
/// use headwater_relay::target::kind_of;
///
/// assert_eq!(kind_of("https://hooks.example.com/orders").unwrap(), "webhook");
/// assert!(kind_of("orders").unwrap_err().to_string().contains("kafka://"));
/// ```
pub fn kind_of(url: &str) -> Result<&'static str> {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
    let found = SCHEMES.iter().find(|(known, _)| *known == scheme);
    found.map(|(_, kind)| *kind).ok_or_else(|| {
        let rule = "it must begin with kafka://, amqp://, nats://, https://, http://, headwater+sqlite: or headwater+postgres://";
        Error::invalid("target", rule)
    })
}

/// The sink of a target. It connects when it is first used.
///
/// ```
/// # #[cfg(feature = "webhook")] {
/// use headwater_relay::target::sink_for;
///
/// let sink = sink_for("https://hooks.example.com/orders#secret=8Lq2").unwrap();
/// assert_eq!(sink.kind(), "webhook");
/// # }
/// ```
pub fn sink_for(url: &str) -> Result<Box<dyn Sink>> {
    match kind_of(url)? {
        #[cfg(feature = "webhook")]
        "webhook" => Ok(Box::new(crate::webhook::WebhookSink::from_url(url)?)),
        #[cfg(feature = "kafka")]
        "kafka" => Ok(Box::new(crate::kafka::KafkaSink::from_url(url)?)),
        #[cfg(feature = "rabbitmq")]
        "rabbitmq" => Ok(Box::new(crate::rabbitmq::RabbitMqSink::from_url(url)?)),
        #[cfg(feature = "nats")]
        "nats" => Ok(Box::new(crate::nats::NatsSink::from_url(url)?)),
        "headwater" => Ok(Box::new(HeadwaterSink::from_url(url)?)),
        kind => {
            let rule = format!("this program was built without the sink {kind}; build it with that feature");
            Err(Error::invalid("target", rule))
        }
    }
}

/// Replaces each `${NAME}` of a target by the environment variable of that name, percent-encoded in the user information and in options.
///
/// ```
/// use headwater_relay::target::expand;
///
/// let env = |name: &str| (name == "PASSWORD").then(|| "a/b".to_owned());
/// assert_eq!(expand("amqp://ann:${PASSWORD}@mq/shop", env).unwrap(), "amqp://ann:a%2Fb@mq/shop");
/// assert!(expand("amqp://ann:${OTHER}@mq/shop", env).is_err());
/// ```
pub fn expand(url: &str, variable: impl Fn(&str) -> Option<String>) -> Result<String> {
    let authority = authority(url);
    let user_ends = authority.map_or(0, |(start, end)| url[start..end].rfind('@').map_or(0, |at| start + at));
    let options_start = url.find(['?', '#']).unwrap_or(url.len());
    let (mut expanded, mut rest_at) = (String::with_capacity(url.len()), 0);
    while let Some(found) = url[rest_at..].find("${") {
        let at = rest_at + found;
        expanded.push_str(&url[rest_at..at]);
        let Some(length) = url[at..].find('}') else {
            return Err(Error::invalid("target", "a `${` has no `}`; write `${NAME}`"));
        };
        let name = &url[at + 2..at + length];
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            let rule =
                "between `${` and `}` must be the name of an environment variable: A-Z, a-z, 0-9 and _";
            return Err(Error::invalid("target", rule));
        }
        let Some(value) = variable(name) else {
            let rule = format!("the environment variable {name} is not set; set it where the relay runs");
            return Err(Error::invalid("target", rule));
        };
        let is_inside_user = authority.is_some_and(|(start, _)| at >= start && at < user_ends);
        if is_inside_user || at > options_start {
            expanded.extend(value.bytes().map(encoded));
        } else {
            expanded.push_str(&value);
        }
        rest_at = at + length + 1;
    }
    expanded.push_str(&url[rest_at..]);
    Ok(expanded)
}

fn encoded(byte: u8) -> String {
    match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    }
}

/// Where user, host and port are.
fn authority(url: &str) -> Option<(usize, usize)> {
    let start = url.find("://")? + 3;
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |at| start + at);
    Some((start, end))
}

/// Refuses a target that has a password in clear: it would be stored, and shown to operators.
///
/// ```
/// use headwater_relay::target::check_no_secret;
///
/// assert!(check_no_secret("amqp://ann:${PASSWORD}@mq/shop").is_ok());
/// assert!(check_no_secret("amqp://ann:hunter2@mq/shop").is_err());
/// ```
pub fn check_no_secret(url: &str) -> Result<()> {
    let refuse = |what: &str| {
        let rule = format!(
            "{what} is given in clear and would be stored; write ${{NAME}} instead, and set the environment variable NAME where \
             the relay runs"
        );
        Err(Error::invalid("target", rule))
    };
    if let Some((start, end)) = authority(url)
        && let Some((user, _)) = url[start..end].rsplit_once('@')
    {
        let is_token = kind_of(url).is_ok_and(|kind| kind == "nats");
        match user.split_once(':') {
            Some((_, password)) if !password.is_empty() && !is_variable(password) => {
                return refuse("the password");
            }
            None if is_token && !is_variable(user) => return refuse("the token"),
            _ => {}
        }
    }
    let options = url.split_once(['?', '#']).map_or("", |(_, options)| options);
    for option in options.split(['&', '#', '?']) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let name = name.to_ascii_lowercase();
        if SECRET_WORDS.iter().any(|word| name.contains(word)) && !value.is_empty() && !is_variable(value) {
            return refuse(&format!("the option {name}"));
        }
    }
    Ok(())
}

fn is_variable(text: &str) -> bool {
    text.strip_prefix("${")
        .and_then(|text| text.strip_suffix('}'))
        .is_some_and(|name| !name.contains(['$', '}']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_encoded_where_the_url_needs_it() {
        let env = |name: &str| match name {
            "HOSTS" => Some("a:1,b:2".to_owned()),
            "P" => Some("p@ss/wörd&1".to_owned()),
            "URL" => Some("https://x/y".to_owned()),
            _ => None,
        };
        let encoded = "p%40ss%2Fw%C3%B6rd%261";
        let cases = [
            ("kafka://${HOSTS}/orders", "kafka://a:1,b:2/orders".to_owned()),
            ("amqp://u:${P}@h/v", format!("amqp://u:{encoded}@h/v")),
            ("kafka://h/t?sasl.password=${P}", format!("kafka://h/t?sasl.password={encoded}")),
            ("https://h/p#secret=${P}", format!("https://h/p#secret={encoded}")),
            (
                "headwater+sqlite:/data/${HOSTS}.db?topic=${P}",
                format!("headwater+sqlite:/data/a:1,b:2.db?topic={encoded}"),
            ),
            ("${URL}", "https://x/y".to_owned()),
            ("https://h/plain", "https://h/plain".to_owned()),
        ];
        for (url, expected) in cases {
            assert_eq!(expand(url, env).unwrap(), expected, "{url}");
        }
        for (url, says) in [
            ("https://${", "`}`"),
            ("https://${a b}/", "name of"),
            ("https://${}/", "name of"),
            ("https://${NOT_SET}/", "NOT_SET"),
        ] {
            let error = expand(url, env).unwrap_err().to_string();
            assert!(error.starts_with("invalid target: ") && error.contains(says), "{url}: {error}");
        }
    }

    #[test]
    fn passwords_in_clear_are_refused_and_never_repeated() {
        let bad = [
            "amqp://ann:hunter2@mq:5672/shop",
            "amqp://ann:x${hunter2}@mq/shop",
            "https://ann:hunter2@hooks.example.com/",
            "https://hooks.example.com/a#secret=hunter2",
            "https://hooks.example.com/a?Access_Token=hunter2",
            "kafka://h:1/orders?security.protocol=sasl_ssl&sasl.password=hunter2",
            "nats://hunter2@h/orders",
            "headwater+postgres://ann:hunter2@db/shop?topic=a",
        ];
        for url in bad {
            let error = check_no_secret(url).unwrap_err().to_string();
            assert!(error.contains("${NAME}") && !error.contains("hunter2"), "{url}: {error}");
        }
        let good = [
            "amqp://ann:${PASSWORD}@mq/shop",
            "amqp://ann@mq/shop",
            "nats://ann:${PASSWORD}@h/orders",
            "nats://${TOKEN}@h/orders",
            "https://hooks.example.com/a?page=1#secret=${HOOK_SECRET}&timeout=5s",
            "headwater+sqlite:archive.db?topic=a",
        ];
        for url in good {
            check_no_secret(url).unwrap();
        }
    }

    #[test]
    fn bad_targets_are_refused_with_what_to_do() {
        let cases = [
            ("", "must begin with"),
            ("orders", "must begin with"),
            ("ftp://h/x", "must begin with"),
            ("https://#secret=a", "host"),
            ("https://h/x", "secret"),
            ("https://h/x#secret=", "secret"),
            ("https://h/x#secret=a&timeout=soon", "timeout"),
            ("https://h/x#secret=a&timeout=0s", "timeout"),
            ("https://h/x#secret=a&concurrency=0", "concurrency"),
            ("https://h/x#secret=a&colour=red", "colour"),
            ("headwater+sqlite:", "path"),
            ("headwater+sqlite:a.db?topic=", "topic"),
            ("headwater+mysql://h/x", "must begin with"),
            ("headwater:a.db", "headwater+sqlite:"),
        ];
        for (url, says) in cases {
            let error = sink_for(url).err().unwrap_or_else(|| panic!("{url} is accepted"));
            assert_eq!(error.kind(), headwater::ErrorKind::InvalidInput, "{url}");
            assert!(error.to_string().contains(says), "{url}: {error}");
        }
    }
}
