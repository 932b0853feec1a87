//! Why a message was not handled: [`Failure`], and the errors that choose an outcome.
//!
//! [`Retry`], [`Bury`], [`Skip`] and [`Release`] are errors: they travel through `?`, also inside an `anyhow::Error` or another
//! error that keeps its source, and are found in the chain of causes by a mark that each of them ends with.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::settle::Verdict;

/// Why a message was not handled, and which outcome it gets. Made from any error by `?`: [`Retry`], [`Bury`], [`Skip`] and
/// [`Release`] choose the outcome, any other error is retried by policy.
///
/// ```
/// use std::time::Duration;
/// use headwater::{Bury, Failure, HandlerResult, Retry, Skip};
///
/// fn charge(amount: &str) -> HandlerResult {
///     let amount: i64 = amount.parse()?;                      // an error: retried by policy
///     match amount {
///         0 => Err(Skip.into()),                              // done without handling
///         i64::MIN..0 => Err(Bury("a negative amount").into()), // a dead letter at once
///         1..100 => Ok(()),
///         _ => Err(Retry::after(Duration::from_secs(60)).because("the limit is reached").into()),
///     }
/// }
/// assert!(charge("12").is_ok());
/// # let _: Failure = charge("x").unwrap_err();
/// ```
pub struct Failure(pub(super) Verdict);

impl Failure {
    /// The verdict it stands for: a layer may decide by it.
    pub fn verdict(&self) -> &Verdict {
        &self.0
    }

    pub(crate) fn into_verdict(self) -> Verdict {
        self.0
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure(verdict_of(&*error.into()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Verdict::Failed(reason) => f.write_str(reason),
            Verdict::RetryAfter(delay, reason) => write!(f, "retry after {delay:?}: {reason}"),
            Verdict::Bury(reason) => write!(f, "buried: {reason}"),
            Verdict::Skip => f.write_str("skipped"),
            Verdict::Done => f.write_str("done"),
            Verdict::Release => f.write_str("released"),
        }
    }
}

/// Retry after a delay that the handler chooses; counts as an attempt.
#[derive(Clone, Debug)]
pub struct Retry {
    mark: Mark,
    reason: String,
}

impl Retry {
    /// Not before this delay has passed.
    pub fn after(delay: Duration) -> Self {
        Retry { mark: Mark::RetryAfter(delay), reason: "the handler requested a retry".into() }
    }

    /// Sets the reason; it is shown with the message while it waits.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }
}

impl fmt::Display for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for Retry {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.mark)
    }
}

/// The message cannot be handled: it becomes a dead letter at once, with this reason.
#[derive(Clone, Debug)]
pub struct Bury<R>(pub R);

impl<R: fmt::Display> fmt::Display for Bury<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<R: fmt::Display + fmt::Debug> Error for Bury<R> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&Mark::Bury)
    }
}

/// The message is not wanted: done without being handled, and counted separately.
#[derive(Clone, Copy, Debug)]
pub struct Skip;

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("skipped")
    }
}

impl Error for Skip {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&Mark::Skip)
    }
}

/// The message was not handled, for a reason outside of it: it is due again at once, and no attempt is counted. For a handler that
/// has to stop, or whose work was undone with that of others.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// # let headwater = headwater::Headwater::in_memory().await?;
/// use headwater::{Context, Json, Release};
///
/// let release = |_: Json<u64>, context: Context| async move {
///     assert_eq!(context.attempt(), 1, "no attempt is counted");
///     Err(Release.into())
/// };
/// let mut consumer = headwater.consumer("orders", "email").member("mailer", release).stepwise().await?;
/// headwater.producer("orders").send(&7).await?;
/// assert_eq!((consumer.step().await?, consumer.step().await?), (1, 1));
/// # assert_eq!(consumer.running().health().totals.retried, 0);
/// # headwater.close().await }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Release;

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("released")
    }
}

impl Error for Release {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&Mark::Release)
    }
}

/// Ends the chain of causes of an error that chooses an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Bury,
    Skip,
    Release,
    RetryAfter(Duration),
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mark::Bury => "bury the message",
            Mark::Skip => "skip the message",
            Mark::Release => "release the message",
            Mark::RetryAfter(_) => "retry the message later",
        })
    }
}

impl Error for Mark {}

/// The verdict that an error stands for: the one it chooses, or a failed attempt.
fn verdict_of(error: &(dyn Error + 'static)) -> Verdict {
    let (text, mark) = with_causes(error);
    match mark {
        None => Verdict::Failed(text),
        Some(Mark::Bury) => Verdict::Bury(text),
        Some(Mark::Skip) => Verdict::Skip,
        Some(Mark::Release) => Verdict::Release,
        Some(Mark::RetryAfter(delay)) => Verdict::RetryAfter(delay, text),
    }
}

/// An error with all its causes: the text is stored with the dead letter, and read long after the logs are deleted.
fn with_causes(error: &(dyn Error + 'static)) -> (String, Option<Mark>) {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(mark) = inner.downcast_ref::<Mark>() {
            return (text, Some(*mark));
        }
        let said = inner.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = inner.source();
    }
    (text, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the order is broken")]
    struct Outer(#[source] std::num::ParseIntError);

    #[test]
    fn a_failure_shows_the_whole_chain_of_causes() {
        let cause = "x".parse::<i32>().unwrap_err();
        let Verdict::Failed(text) = Failure::from(Outer(cause)).into_verdict() else { panic!("not failed") };
        assert_eq!(text, "the order is broken: invalid digit found in string");
    }

    #[test]
    fn plain_text_is_a_failure_and_the_special_outcomes_keep_their_meaning() {
        assert_eq!(Failure::from("no stock").into_verdict(), Verdict::Failed("no stock".into()));
        assert_eq!(Failure::from(Bury("broken")).into_verdict(), Verdict::Bury("broken".into()));
        assert_eq!(Failure::from(Bury(String::from("torn"))).into_verdict(), Verdict::Bury("torn".into()));
        assert_eq!(Failure::from(Skip).into_verdict(), Verdict::Skip);
        assert_eq!(Failure::from(Release).into_verdict(), Verdict::Release);
        let retry = Retry::after(Duration::from_secs(3)).because("later");
        assert_eq!(
            Failure::from(retry).into_verdict(),
            Verdict::RetryAfter(Duration::from_secs(3), "later".into())
        );
    }

    #[test]
    fn an_outcome_chosen_deep_inside_other_errors_is_found() {
        use anyhow::Context as _;
        let verdict = |error: anyhow::Error| Failure::from(error).into_verdict();
        assert_eq!(verdict(Bury("broken").into()), Verdict::Bury("broken".into()));
        let deep = Err::<(), _>(Bury("broken")).context("item 3").context("order 7").unwrap_err();
        assert_eq!(verdict(deep), Verdict::Bury("order 7: item 3: broken".into()));
        assert_eq!(verdict(anyhow::Error::from(Skip).context("not ours")), Verdict::Skip);
        let retry = anyhow::Error::from(Retry::after(Duration::from_secs(3)).because("later"));
        assert_eq!(verdict(retry), Verdict::RetryAfter(Duration::from_secs(3), "later".into()));
        let boxed: Box<dyn std::error::Error + Send + Sync> = Box::new(Bury("boxed"));
        assert_eq!(Failure::from(boxed).into_verdict(), Verdict::Bury("boxed".into()));
        assert_eq!(verdict(anyhow::anyhow!("plain")), Verdict::Failed("plain".into()));
    }
}
