//! The one error type: opaque, with a kind for programs and a message that names what is affected.

use std::fmt;

/// The result of every fallible operation of Headwater.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of Headwater.
///
/// Match on [`Error::kind`] or check [`Error::is_retryable`]; the message is for people.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The kind of an error, by what a caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A field violates a rule; the message names both. Nothing was written.
    InvalidInput,
    /// A payload is over the topic's limit; the message has both sizes. Nothing was written.
    PayloadTooLarge,
    /// The topic does not exist and may not be created on the fly: see
    /// [`OpenOptions::auto_create`](crate::OpenOptions::auto_create).
    NoSuchTopic,
    /// The subscription does not exist.
    NoSuchSubscription,
    /// The process does not exist.
    NoSuchProcess,
    /// It exists already with other settings, or was changed since it was read; nothing was changed.
    Conflict,
    /// The state of the subscription, or the status of the process, does not allow the operation; nothing was changed.
    InvalidTransition,
    /// No subscription counts, and the topic blocks writes in that case; nothing was written.
    NoSubscriptions,
    /// The token is unknown, old, or past its deadline; nothing was changed.
    LeaseLost,
    /// The database cannot be reached now; try again.
    Unavailable,
    /// The database is busy (locked, deadlocked, timed out); try again.
    Busy,
    /// The disk or the database's quota is full; nothing was acknowledged.
    StorageFull,
    /// The store can be read but not written now: a standby, a demoted server, a read-only file system. Nothing was
    /// written. A failover ends it without a change in the program, so try again.
    ReadOnly,
    /// The role used has not been granted this operation.
    PermissionDenied,
    /// There is no store at this place, and it may not be created: see [`OpenOptions::create`](crate::OpenOptions::create).
    NoSuchStore,
    /// The file or schema is not a Headwater store, or is damaged; it was not changed. Also a file that was deleted or
    /// replaced while it was open, or that has a second name.
    NotAStore,
    /// The store's schema is missing or older than this program: run `headwater migrate`. Also a store that a
    /// development version made before the first release: it is not supported.
    SchemaOutdated,
    /// The store's schema is newer than this program: upgrade the program.
    SchemaTooNew,
    /// A request got no reply in time; it may have been handled.
    Timeout,
    /// The connection broke during a commit: it may or may not have happened.
    CommitUnknown,
    /// The store has been closed.
    Closed,
    /// Any other error of the database.
    Database,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner { kind, message: message.into(), source: None }))
    }

    pub(crate) fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Error(Box::new(Inner { kind, message: message.into(), source: Some(source.into()) }))
    }

    /// Invalid input: the text names the field, the rule and what to do.
    pub fn invalid(field: &str, rule: impl fmt::Display) -> Self {
        Error::new(ErrorKind::InvalidInput, format!("invalid {field}: {rule}"))
    }

    /// `place` is where there is no store.
    pub(crate) fn no_such_store(place: &str) -> Self {
        let creates = "`headwater migrate` or `headwater publish` creates it";
        Error::new(ErrorKind::NoSuchStore, format!("no {place}; {creates}"))
    }

    pub(crate) fn no_such_topic(topic: &str) -> Self {
        Error::new(
            ErrorKind::NoSuchTopic,
            format!("no such topic: {topic}; create it with `headwater topic create {topic}`"),
        )
    }

    pub(crate) fn payload_too_large(topic: &str, bytes: usize, bytes_max: usize) -> Self {
        Error::new(
            ErrorKind::PayloadTooLarge,
            format!(
                "payload too large: {bytes} bytes, topic {topic} allows {bytes_max}; raise its payload_bytes_max or store the payload elsewhere"
            ),
        )
    }

    pub(crate) fn no_such_subscription(topic: &str, group: &str) -> Self {
        Error::new(
            ErrorKind::NoSuchSubscription,
            format!("no such subscription: topic {topic}, group {group}; see `headwater group list {topic}`"),
        )
    }

    pub(crate) fn no_subscriptions(topic: &str) -> Self {
        Error::new(
            ErrorKind::NoSubscriptions,
            format!(
                "no subscriptions: topic {topic} blocks writes while no group subscribes; nothing was written: subscribe a group, or change block_writes_on_zero_subscriptions"
            ),
        )
    }

    pub(crate) fn lease_lost(token: i64) -> Self {
        Error::new(
            ErrorKind::LeaseLost,
            format!(
                "lease lost: token {token} is unknown, handed to another owner, or past its deadline; nothing was changed"
            ),
        )
    }

    /// The same error with what to do about it.
    #[cfg(feature = "postgres")]
    pub(crate) fn with_remedy(mut self, remedy: &str) -> Self {
        self.0.message.push_str("; ");
        self.0.message.push_str(remedy);
        self
    }

    /// The same error for another caller that waited for the same operation; the cause stays with the first.
    pub(crate) fn copy(&self) -> Self {
        Error::new(self.0.kind, self.0.message.clone())
    }

    /// The kind of the error, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the same call may succeed later without any manual change.
    ///
    /// Not for [`ErrorKind::CommitUnknown`]: a repeat is safe only with a dedup key.
    pub fn is_retryable(&self) -> bool {
        is_retryable(self.0.kind)
    }
}

/// The rule behind [`Error::is_retryable`].
pub(crate) fn is_retryable(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Busy | ErrorKind::ReadOnly)
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

/// Runs a store call of a background task. A panic there is a bug: the caller gets it as an error and continues or
/// gives up as with any other, so that a panic never ends a task silently that others rely on.
pub(crate) async fn no_panic<T>(doing: &'static str, asked: impl Future<Output = Result<T>>) -> Result<T> {
    use futures_util::FutureExt;
    std::panic::AssertUnwindSafe(asked).catch_unwind().await.unwrap_or_else(|panic| {
        let text = panic_text(&*panic);
        tracing::error!(doing, panic = text, "store call panicked");
        Err(Error::new(ErrorKind::Database, format!("{doing} panicked: {text}")))
    })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.message)?;
        match &self.0.source {
            Some(source) => write!(f, " (caused by: {source})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}
