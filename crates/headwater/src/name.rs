//! Names of topics, groups and owners: one rule, checked once, carried in the type.

use std::fmt;

use crate::error::{Error, Result};
use crate::limits::NAME_BYTES_MAX;

/// The one rule for names: 1 to 255 bytes of UTF-8 without control characters.
///
/// Quotes, unicode and SQL text are fine: values are always bound, never concatenated into SQL.
pub(crate) fn check_name(field: &str, value: &str) -> Result<()> {
    if value.is_empty() {
        return Err(Error::invalid(field, "must not be empty"));
    }
    if value.len() > NAME_BYTES_MAX {
        let bytes = value.len();
        return Err(Error::invalid(field, format!("{bytes} bytes, at most {NAME_BYTES_MAX} are allowed")));
    }
    if let Some(found) = value.chars().find(|c| c.is_control()) {
        let code = u32::from(found);
        return Err(Error::invalid(field, format!("control character U+{code:04X} is not allowed")));
    }
    Ok(())
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $field:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            /// Checks the rule for names: 1 to 255 bytes without control characters.
            pub fn new(value: impl Into<String>) -> Result<Self> {
                let value = value.into();
                check_name($field, &value)?;
                Ok(Self(value))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.0)
            }
        }
    };
}

name!(
    /// The name of a topic.
    TopicName,
    "topic"
);
name!(
    /// The name of a consumer group.
    GroupName,
    "group"
);
name!(
    /// The owner of a lease: one consumer runtime of one process.
    Owner,
    "owner"
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn names_follow_one_rule() {
        let long = "x".repeat(256);
        for (bad, says) in [
            ("", "empty"),
            ("a\0b", "U+0000"),
            ("a\nb", "U+000A"),
            ("a\u{85}b", "U+0085"),
            (long.as_str(), "256 bytes"),
        ] {
            let error = TopicName::new(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(
                error.to_string().contains("invalid topic") && error.to_string().contains(says),
                "{error}"
            );
        }
        for good in
            ["orders", "Robert'); DROP TABLE message;--", "größe \"quoted\"", "日本語", &"x".repeat(255)]
        {
            assert_eq!(TopicName::new(good).unwrap().as_str(), good);
        }
    }
}
