//! Addresses of pages. Names may be any text: each becomes one segment of a path, whatever is in it.

use std::fmt::Write;

use serde::{Deserialize, Deserializer};

/// A name from the path of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name(pub(crate) String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut name = String::deserialize(deserializer)?;
        if name.starts_with('~') {
            name.remove(0);
        }
        Ok(Name(name))
    }
}

/// A name as a segment of a path. One that begins with a dot has a tilde in front: browsers take `..`, also encoded, for the parent.
pub(crate) fn segment(name: &str) -> String {
    let tilde = if name.starts_with(['.', '~']) { "~" } else { "" };
    format!("{tilde}{}", encoded(name))
}

/// A text for a path or a query, with everything encoded that could mean something there.
pub(crate) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => encoded.push(byte.into()),
            _ => write!(encoded, "%{byte:02X}").unwrap_or_default(),
        }
    }
    encoded
}

/// A path with the parameters that are not empty.
pub(crate) fn with_query(path: &str, parameters: &[(&str, &str)]) -> String {
    let mut url = path.to_owned();
    let mut separator = '?';
    for (name, value) in parameters.iter().filter(|(_, value)| !value.is_empty()) {
        url.push(separator);
        separator = '&';
        url.push_str(name);
        url.push('=');
        url.push_str(&encoded(value));
    }
    url
}

/// The page of a topic.
pub(crate) fn topic(topic: &str) -> String {
    format!("/topics/{}", segment(topic))
}

/// The page of a group.
pub(crate) fn group(topic: &str, group: &str) -> String {
    format!("/topics/{}/groups/{}", segment(topic), segment(group))
}

/// Where a login leads: a page of this server, and nothing else.
pub(crate) fn local(target: &str) -> &str {
    // Browsers drop tabs and take backslashes for slashes.
    let is_odd = |c: char| c == '\\' || c.is_control();
    let is_local = target.starts_with('/') && !target.starts_with("//") && !target.contains(is_odd);
    if is_local { target } else { "/" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_is_one_segment_and_comes_back() {
        for name in ["orders", "a/b", "..", ".", "~x", "../../etc", "größe", "<script>", "a?b#c%2F", " "] {
            let segment = segment(name);
            assert!(!segment.contains('/') && segment != ".." && segment != ".", "{segment}");
            let mut decoded = Vec::new();
            let mut bytes = segment.bytes();
            while let Some(byte) = bytes.next() {
                let hex =
                    |bytes: &mut std::str::Bytes<'_>| char::from(bytes.next().unwrap()).to_digit(16).unwrap();
                let byte = if byte == b'%' {
                    u8::try_from(hex(&mut bytes) * 16 + hex(&mut bytes)).unwrap()
                } else {
                    byte
                };
                decoded.push(byte);
            }
            let json = serde_json::to_string(&String::from_utf8(decoded).unwrap()).unwrap();
            assert_eq!(serde_json::from_str::<Name>(&json).unwrap().0, name);
        }
    }

    #[test]
    fn empty_parameters_are_left_out() {
        assert_eq!(with_query("/topics", &[("q", ""), ("page", "")]), "/topics");
        assert_eq!(with_query("/topics", &[("q", "a b&c"), ("page", "2")]), "/topics?q=a%20b%26c&page=2");
    }

    #[test]
    fn a_login_leads_nowhere_else() {
        for elsewhere in [
            "https://evil.example",
            "//evil.example",
            "/\\evil.example",
            "/\t/evil.example",
            "javascript:alert(1)",
            "",
        ] {
            assert_eq!(local(elsewhere), "/");
        }
        assert_eq!(local("/topics?q=1"), "/topics?q=1");
    }
}
