//! Whether other processes take the messages that this one waits for.
//!
//! Where many processes wait for one group, a publish wakes all of them: each claims, with the write lock, and one
//! gets the messages. A process that lost the last time first reads whether anything is left before it wakes its
//! waiters: a moment later, because the process that won is faster then, and without the write lock. If nothing is
//! left it continues to wait. A process that has no rival, or won the last time, wakes its waiters at once.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use rusqlite::{Connection, params};

use crate::limits::SAFETY_POLL;
use crate::subscription::SubscriptionId;
use crate::topic::TopicId;

/// How long a process that lost leaves to the others, and over which time the processes that lost are spread.
const HEAD_START: Duration = Duration::from_millis(1);
const SPREAD_US: u64 = 3_000;

/// The subscriptions that this process claims for, as its last claims found them.
#[derive(Debug, Default)]
pub(super) struct Rivals(Mutex<HashMap<SubscriptionId, Last>>);

#[derive(Clone, Copy, Debug)]
struct Last {
    topic: TopicId,
    /// The first offset never handed out, when the claim ended.
    next: i64,
    /// Another process took the messages that were new since the claim before.
    lost: bool,
}

impl Rivals {
    /// Notes the result of a claim: the cursor of the subscription before it (`found`) and after it (`next`).
    pub(super) fn note(
        &self,
        subscription: SubscriptionId,
        topic: TopicId,
        found: i64,
        next: i64,
        got: bool,
    ) {
        let mut known = self.0.lock().expect("no panic while held");
        let last = known.entry(subscription).or_insert(Last { topic, next, lost: false });
        let lost = !got && (last.lost || found > last.next);
        *last = Last { topic, next, lost };
    }

    /// How long to wait before reading a topic with new messages; `None` wakes the waiters at once.
    pub(super) fn head_start(&self, topic: TopicId) -> Option<Duration> {
        let known = self.0.lock().expect("no panic while held");
        let mut of_topic = known.values().filter(|last| last.topic == topic).peekable();
        let lost = of_topic.peek().is_some() && of_topic.all(|last| last.lost);
        lost.then(|| HEAD_START + Duration::from_micros(rand::random_range(0..SPREAD_US)))
    }

    /// Whether any subscription of a topic has something to claim, or will have before the waiter polls by itself:
    /// its claim then returns that time, such as the end of the lease that another process just took. Apart from new
    /// messages and time, something becomes claimable only with a change of the topic's wake counter, and that wakes
    /// the waiters at once.
    pub(super) fn has_more(
        &self,
        connection: &Connection,
        topic: TopicId,
        head: i64,
        now_ms: i64,
    ) -> rusqlite::Result<bool> {
        let of_topic: Vec<SubscriptionId> = {
            let known = self.0.lock().expect("no panic while held");
            known.iter().filter(|(_, last)| last.topic == topic).map(|(id, _)| *id).collect()
        };
        let soon_ms = now_ms + i64::try_from(SAFETY_POLL.as_millis()).expect("some seconds");
        let mut statement = connection.prepare_cached(super::sql!(claim.more))?;
        for subscription in of_topic {
            if statement.query_row(params![subscription.0, head, soon_ms], |row| row.get(0))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_that_lost_gives_others_a_head_start() {
        let (rivals, orders, a, b) = (Rivals::default(), TopicId(1), SubscriptionId(1), SubscriptionId(2));
        assert_eq!(rivals.head_start(orders), None, "nothing is known");
        rivals.note(a, orders, 1, 1, false);
        rivals.note(a, orders, 1, 1, false);
        assert_eq!(rivals.head_start(orders), None, "there were no messages to lose");
        rivals.note(a, orders, 2, 2, false);
        assert!(
            rivals.head_start(orders).is_some_and(|start| start >= HEAD_START),
            "another process took it"
        );
        rivals.note(a, orders, 2, 2, false);
        assert!(rivals.head_start(orders).is_some(), "it has won nothing since");
        assert_eq!(rivals.head_start(TopicId(2)), None);
        rivals.note(b, orders, 1, 1, false);
        assert_eq!(rivals.head_start(orders), None, "the other group has no rival");
        rivals.note(b, orders, 5, 5, false);
        assert!(rivals.head_start(orders).is_some());
        rivals.note(a, orders, 2, 4, true);
        assert_eq!(rivals.head_start(orders), None, "it won");
    }
}
