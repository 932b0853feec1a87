//! The text of a token: how it is made, shown once, read and compared.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::error::{Error, Result};

/// Bytes of an id and of a secret.
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;

/// A token that was just created or rotated, with its secret: the only moment at which it is known. Its debug form hides it.
pub struct IssuedToken {
    id: String,
    text: String,
}

impl IssuedToken {
    pub(super) fn new() -> Self {
        IssuedToken::with_id(&hex(&rand::random::<[u8; ID_BYTES]>()))
    }

    pub(super) fn with_id(id: &str) -> Self {
        IssuedToken {
            id: id.to_owned(),
            text: format!("hw_{id}_{}", hex(&rand::random::<[u8; SECRET_BYTES]>())),
        }
    }

    /// Its id, which is no secret.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The text that a caller presents: show it once, store it nowhere.
    pub fn secret(&self) -> &str {
        &self.text
    }

    /// What is stored of the secret.
    pub(super) fn hash(&self) -> String {
        hash_of(&self.text)
    }
}

impl fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IssuedToken(hw_{}_…)", self.id)
    }
}

/// A text of the form of a token. Its debug form hides the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct PresentedToken {
    id: String,
    hash: String,
}

impl PresentedToken {
    /// The id that it claims to have.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether the secret has this hash. Takes the same time wherever they differ.
    pub(super) fn has_hash(&self, hash: &str) -> bool {
        self.hash.as_bytes().ct_eq(hash.as_bytes()).into()
    }
}

impl FromStr for PresentedToken {
    type Err = Error;

    /// The error does not repeat the text: it may be a password of something else.
    fn from_str(text: &str) -> Result<Self> {
        let parts = text.strip_prefix("hw_").and_then(|rest| rest.split_once('_'));
        let is_hex = |text: &str, bytes: usize| {
            text.len() == 2 * bytes && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        match parts {
            Some((id, secret)) if is_hex(id, ID_BYTES) && is_hex(secret, SECRET_BYTES) => {
                Ok(PresentedToken { id: id.to_owned(), hash: hash_of(text) })
            }
            _ => Err(Error::invalid("token", "not of the form hw_<id>_<secret>")),
        }
    }
}

impl fmt::Debug for PresentedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PresentedToken(hw_{}_…)", self.id)
    }
}

/// Of the whole text, with the id: a hash belongs to one token.
fn hash_of(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issued_token_is_read_back_and_differs_each_time() {
        let (one, two) = (IssuedToken::new(), IssuedToken::new());
        assert_ne!(one.secret(), two.secret());
        let presented: PresentedToken = one.secret().parse().expect("a token");
        assert_eq!(presented.id(), one.id());
        assert!(presented.has_hash(&one.hash()));
        assert!(!presented.has_hash(&two.hash()) && !presented.has_hash(""));
    }

    #[test]
    fn no_debug_form_and_no_error_has_the_secret() {
        let issued = IssuedToken::new();
        let secret = issued.secret().rsplit('_').next().expect("a secret").to_owned();
        let presented: PresentedToken = issued.secret().parse().expect("a token");
        assert!(!format!("{issued:?} {presented:?}").contains(&secret));
        assert!(!format!("{presented:?}").contains(&issued.hash()));
        for bad in ["", "hw_", "hunter2", "hw_zz_zz", &format!("{}0", issued.secret())] {
            let error = bad.parse::<PresentedToken>().expect_err("refused").to_string();
            assert!(bad.is_empty() || !error.contains(bad) || bad == "hw_", "{error}");
        }
    }
}
