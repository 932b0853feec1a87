//! API tokens: who may use a server of this store, and for what. Only hashes of their secrets are stored.
//!
//! A token is `hw_<id>_<secret>`: the id finds the stored record, and the SHA-256 of the secret is compared with the record's. A secret has
//! 256 random bits, so its hash needs no salt and no slow function: there is nothing to guess. A session of a dashboard is a token too,
//! short-lived and bound to the token it was started with: it ends when that one is rotated, revoked or expires.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::limits::{DELAY_MAX, RETENTION_MAX};
use crate::name::check_name;
use crate::outbox::{time_of, unreadable};
use crate::repository::Repository;
use crate::store::Store;
use crate::store::repository::Verb;
use crate::transaction::{Row, Value};

mod secret;

pub use secret::{IssuedToken, PresentedToken};

/// Most patterns of topics of one token.
const PATTERNS_MAX: usize = 64;

/// The API tokens of a store; from [`Headwater::tokens`](crate::Headwater::tokens). Every change makes an audit entry.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// use headwater::Headwater;
/// use headwater::tokens::{NewToken, PresentedToken, Scope};
///
/// let tokens = Headwater::in_memory().await?.tokens();
/// let issued = tokens.create(&NewToken::new("shop").scope(Scope::Publish).topic("orders*")).await?;
/// let text = issued.secret(); // shown once: the store has a hash of it
///
/// let presented: PresentedToken = text.parse().expect("a token");
/// let record = tokens.find(presented.id()).await?.expect("it exists");
/// assert!(record.accepts(&presented, tokens.now()));
/// assert!(record.token.allows(Scope::Publish, Some("orders.eu")));
/// assert!(!record.token.allows(Scope::Consume, Some("orders.eu")));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Tokens {
    repository: Repository,
}

/// What a token allows. Each is separate: a token with `admin` alone cannot publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Publish messages.
    Publish,
    /// Claim, settle, extend and stream messages of groups.
    Consume,
    /// See topics, groups, messages and figures.
    Read,
    /// Change topics, groups, dead letters, processes and tokens.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Scope; 4] = [Scope::Publish, Scope::Consume, Scope::Read, Scope::Admin];

    /// The scope as text.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Publish => "publish",
            Scope::Consume => "consume",
            Scope::Read => "read",
            Scope::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Scope::ALL.into_iter().find(|scope| scope.as_str() == text);
        found.ok_or_else(|| {
            Error::invalid("scope", format!("{text:?} is not publish, consume, read or admin"))
        })
    }
}

/// A token to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewToken {
    /// Its name, unique; audit entries have it.
    pub name: String,
    /// What it allows; at least one.
    pub scopes: Vec<Scope>,
    /// The topics it is for: names, in which `*` stands for any characters. Empty for all.
    pub topics: Vec<String>,
    /// How long it is valid; `None` for ever.
    pub expires_in: Option<Duration>,
}

impl NewToken {
    /// A token without scopes, for all topics, that does not expire.
    pub fn new(name: impl Into<String>) -> Self {
        NewToken { name: name.into(), scopes: Vec::new(), topics: Vec::new(), expires_in: None }
    }

    /// Adds a scope.
    #[must_use]
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scopes.push(scope);
        self
    }

    /// Adds a pattern of topics.
    #[must_use]
    pub fn topic(mut self, pattern: impl Into<String>) -> Self {
        self.topics.push(pattern.into());
        self
    }

    /// Lets it expire after this time.
    #[must_use]
    pub fn expires_in(mut self, time: Duration) -> Self {
        self.expires_in = Some(time);
        self
    }

    /// Sorted and without repetitions; `InvalidInput` if a rule is broken.
    fn checked(&self) -> Result<Self> {
        check_name("token name", &self.name)?;
        let mut new = self.clone();
        new.scopes.sort();
        new.scopes.dedup();
        if new.scopes.is_empty() {
            return Err(Error::invalid("scopes", "none; name at least one of publish, consume, read, admin"));
        }
        if new.topics.is_empty() {
            new.topics.push("*".into());
        }
        new.topics.sort();
        new.topics.dedup();
        if new.topics.len() > PATTERNS_MAX {
            let count = new.topics.len();
            return Err(Error::invalid(
                "topics",
                format!("{count} patterns, at most {PATTERNS_MAX} are allowed"),
            ));
        }
        new.topics.iter().try_for_each(|pattern| check_name("topic pattern", pattern))?;
        if new.expires_in.is_some_and(|time| time.is_zero() || time > RETENTION_MAX) {
            return Err(Error::invalid("expires_in", "must be above 0 and at most 100 years"));
        }
        Ok(new)
    }
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Token {
    /// Its id, which is part of its text and no secret.
    pub id: String,
    /// Its name.
    pub name: String,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// The topics it is for.
    pub topics: Vec<String>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last rotated.
    pub rotated_at: Option<Timestamp>,
    /// Until when the secret before the last rotation is accepted too.
    pub old_until: Option<Timestamp>,
    /// When it expires; `None` for never.
    pub expires_at: Option<Timestamp>,
}

impl Token {
    /// Whether it allows this for a topic, or, without one, for the whole store: that needs the pattern `*`.
    pub fn allows(&self, scope: Scope, topic: Option<&str>) -> bool {
        let matching = |pattern: &String| match topic {
            Some(topic) => matches(pattern, topic),
            None => pattern == "*",
        };
        self.scopes.contains(&scope) && self.topics.iter().any(matching)
    }
}

/// A stored token: what is needed to check a presented one.
#[derive(Clone, Debug)]
pub struct TokenRecord {
    /// The token.
    pub token: Token,
    /// The id of the token that a session was started with; `None` if this is no session.
    pub session_of: Option<String>,
    hash: String,
    old_hash: Option<String>,
}

impl TokenRecord {
    /// Whether the presented text is this token's and it is valid at this time. Takes the same time whatever is wrong with the secret.
    pub fn accepts(&self, presented: &PresentedToken, now: Timestamp) -> bool {
        let old = self.old_hash.as_deref().filter(|_| self.token.old_until.is_some_and(|until| now < until));
        let current = presented.has_hash(&self.hash);
        let before = presented.has_hash(old.unwrap_or_default());
        let is_valid = self.token.expires_at.is_none_or(|at| now < at);
        (current | before) & is_valid
    }
}

impl Tokens {
    pub(crate) fn new(store: &Arc<dyn Store>) -> Self {
        Tokens { repository: Repository::new(store) }
    }

    /// The time by which tokens expire: the store's, as this process knows it.
    pub fn now(&self) -> Timestamp {
        self.repository.store.now()
    }

    /// Creates a token; `Conflict` if there is one of this name.
    pub async fn create(&self, new: &NewToken) -> Result<IssuedToken> {
        let new = new.checked()?;
        let issued = IssuedToken::new();
        let params = vec![
            issued.id().into(),
            new.name.as_str().into(),
            json(&new.scopes).into(),
            json(&new.topics).into(),
            issued.hash().into(),
            new.expires_in.map(millis).into(),
        ];
        if self.count(Verb::TokenCreate, params, "created").await? == 0 {
            let text = format!("token {} exists; choose another name, or rotate or revoke it", new.name);
            return Err(Error::new(ErrorKind::Conflict, text));
        }
        Ok(issued)
    }

    /// All tokens by name, without sessions.
    pub async fn list(&self) -> Result<Vec<Token>> {
        let rows = self.repository.run(Verb::TokenList, Vec::new()).await?;
        rows.iter().map(token_of).collect()
    }

    /// Whether there is any token: if not, a server on a loopback address is open.
    pub async fn any(&self) -> Result<bool> {
        Ok(self.count(Verb::TokenAny, Vec::new(), "tokens").await? > 0)
    }

    /// The token or session with this id, to check a presented text with; `None` if there is none.
    pub async fn find(&self, id: &str) -> Result<Option<TokenRecord>> {
        let rows = self.repository.run(Verb::TokenFind, vec![id.into()]).await?;
        rows.first().map(record_of).transpose()
    }

    /// Gives a token another secret. The one before is accepted for `grace` too, so that programs change over without an outage; the one
    /// before that no longer. Sessions of the token end. `InvalidInput` if there is no such token.
    pub async fn rotate(&self, id: &str, grace: Duration) -> Result<IssuedToken> {
        if grace > DELAY_MAX {
            return Err(Error::invalid("grace", "longer than 366 days"));
        }
        let issued = IssuedToken::with_id(id);
        let params = vec![id.into(), issued.hash().into(), millis(grace).into()];
        if self.count(Verb::TokenRotate, params, "rotated").await? == 0 {
            return Err(no_such_token(id));
        }
        Ok(issued)
    }

    /// Revokes a token with its sessions; false if there is none. Servers accept it for a few seconds more.
    pub async fn revoke(&self, id: &str) -> Result<bool> {
        Ok(self.count(Verb::TokenRevoke, vec![id.into()], "revoked").await? > 0)
    }

    /// Starts a session with the rights of a token, which ends after this time, or with the token. Sessions that have ended are removed.
    pub async fn start_session(&self, id: &str, lasts: Duration) -> Result<IssuedToken> {
        if lasts.is_zero() || lasts > DELAY_MAX {
            return Err(Error::invalid("session", "must last longer than 0 and at most 366 days"));
        }
        let issued = IssuedToken::new();
        let params = vec![issued.id().into(), id.into(), issued.hash().into(), millis(lasts).into()];
        if self.count(Verb::SessionStart, params, "started").await? == 0 {
            return Err(no_such_token(id));
        }
        Ok(issued)
    }

    /// Ends a session; false if there is none.
    pub async fn end_session(&self, id: &str) -> Result<bool> {
        Ok(self.count(Verb::SessionEnd, vec![id.into()], "ended").await? > 0)
    }

    async fn count(&self, verb: Verb, params: Vec<Value>, column: &str) -> Result<u64> {
        let rows = self.repository.run(verb, params).await?;
        rows.iter().map(|row| row.get::<u64>(column)).sum()
    }
}

fn no_such_token(id: &str) -> Error {
    Error::invalid("token", format!("there is none with the id {id:?}; see `headwater token list`"))
}

fn json<T: Serialize>(list: &[T]) -> String {
    serde_json::to_string(list).expect("a list of texts is always JSON")
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

fn token_of(row: &Row) -> Result<Token> {
    Ok(Token {
        id: row.get("token_id")?,
        name: row.get("name")?,
        scopes: list_of(row, "scopes")?,
        topics: list_of(row, "topics")?,
        created_at: time_of(row, "created_at_us")?.ok_or_else(|| unreadable("created_at", "NULL"))?,
        rotated_at: time_of(row, "rotated_at_us")?,
        old_until: time_of(row, "old_until_us")?,
        expires_at: time_of(row, "expires_at_us")?,
    })
}

fn record_of(row: &Row) -> Result<TokenRecord> {
    let (hash, old_hash) = (row.get("hash")?, row.get("old_hash")?);
    Ok(TokenRecord { token: token_of(row)?, session_of: row.get("session_of")?, hash, old_hash })
}

fn list_of<T: for<'a> Deserialize<'a>>(row: &Row, column: &str) -> Result<Vec<T>> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(|_| unreadable(column, &text))
}

/// Whether a name matches a pattern, in which `*` stands for any characters. Linear for each `*`: no pattern is slow.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut left) = name.strip_prefix(first) else { return false };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return left.ends_with(part);
        }
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    unreachable!("a split has a last part")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_whole_names() {
        for (pattern, yes, no) in [
            ("orders", &["orders"][..], &["orders2", "my-orders", "order", ""][..]),
            ("orders*", &["orders", "orders.eu"], &["order", "my-orders"]),
            ("*.eu", &["orders.eu", ".eu"], &["orders.eu2", "orders"]),
            ("shop.*.eu", &["shop.a.eu", "shop..eu"], &["shop.eu", "shop.a.us"]),
            ("a*a", &["aa", "aba"], &["a", "ab"]),
            ("*", &["", "anything"], &[]),
            ("**", &["", "x"], &[]),
            ("a*b*c", &["abc", "axbxbxc"], &["acb", "ab"]),
        ] {
            for name in yes {
                assert!(matches(pattern, name), "{pattern} and {name}");
            }
            for name in no {
                assert!(!matches(pattern, name), "{pattern} and {name}");
            }
        }
    }

    #[test]
    fn what_is_not_about_a_topic_needs_all_topics() {
        let token = |topics: &[&str]| Token {
            id: "a".into(),
            name: "a".into(),
            scopes: vec![Scope::Read],
            topics: topics.iter().map(|&topic| topic.into()).collect(),
            created_at: Timestamp::UNIX_EPOCH,
            rotated_at: None,
            old_until: None,
            expires_at: None,
        };
        assert!(token(&["*"]).allows(Scope::Read, None));
        assert!(!token(&["orders*", "shop*"]).allows(Scope::Read, None));
        assert!(!token(&["*"]).allows(Scope::Admin, Some("orders")));
    }
}
