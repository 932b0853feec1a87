//! Members: the handlers of a group in this process, and which of them gets a message.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::error::panic_text;
use crate::handler::{Filter, Handler, Identity};
use crate::message::Message;

/// One handler of a group.
pub(crate) struct Member {
    pub(crate) identity: Arc<Identity>,
    pub(crate) handler: Handler,
    pub(crate) filter: Option<Filter>,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Member({}, {:?})", self.identity.member, self.handler)
    }
}

/// The present members of a group. Replaced as a whole when one joins or leaves, so that a page of messages is routed
/// by one set of members.
#[derive(Clone, Debug, Default)]
pub(crate) struct Members(pub(crate) Vec<Arc<Member>>);

/// The destination of a message.
#[derive(Debug)]
pub(crate) enum Route {
    /// This member, by index.
    To(usize),
    /// No member accepts it: done without being handled.
    Filtered,
    /// A filter panicked.
    Broken(String),
}

impl Members {
    /// The only member, if there is no choice to be made.
    pub(crate) fn only(&self) -> Option<&Arc<Member>> {
        match &self.0[..] {
            [only] if only.filter.is_none() => Some(only),
            _ => None,
        }
    }

    /// Selects by the stable hash of the key (or of the id, without a key) among the members that accept the message:
    /// the same message goes to the same member as long as the members are the same.
    pub(crate) fn route(&self, message: &Message) -> Route {
        let eligible = catch_unwind(AssertUnwindSafe(|| {
            let wanted = |member: &Member| member.filter.as_ref().is_none_or(|filter| filter(message));
            self.0
                .iter()
                .enumerate()
                .filter(|(_, member)| wanted(member))
                .map(|(at, _)| at)
                .collect::<Vec<_>>()
        }));
        match eligible {
            Ok(eligible) => match eligible.len() {
                0 => Route::Filtered,
                count => Route::To(eligible[choose(message.key_hash(), count)]),
            },
            Err(panic) => Route::Broken(format!("a member's filter panicked: {}", panic_text(&*panic))),
        }
    }
}

/// An index below `count`; unsigned throughout, so it cannot be negative.
fn choose(hash: u64, count: usize) -> usize {
    let count = u64::try_from(count).expect("a count fits 64 bits");
    usize::try_from(hash % count).expect("a remainder is below its divisor")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_choice_is_stable_and_within_bounds(hash: u64, count in 1usize..100) {
            prop_assert!(choose(hash, count) < count);
            prop_assert_eq!(choose(hash, count), choose(hash, count));
        }
    }
}
