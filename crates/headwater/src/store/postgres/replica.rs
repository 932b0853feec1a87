//! Reads messages from standbys where they have them, and from the primary otherwise.
//!
//! Why a standby never returns another message for an offset, nor hides one:
//! - A standby answers only while it is in recovery and has the row of the epoch of this store's last claim, which every
//!   statement checks itself. The row is written to the log of the server when its history begins, so a server in recovery that
//!   has it has a prefix of this history. A promoted standby, a standby of another server and one that has not followed a
//!   failover yet return nothing.
//! - What the prefix does not have yet is missing in the answer. Only an answer with a message for every offset of the range is used;
//!   offsets that no message will ever have (rolled back, removed) make the range one for the primary.
//! - A message never changes once it is stored, so reading it in several statements, and later than its claim, is sound.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::PostgresStore;
use super::connect::Connections;
use super::log::{self, Source};
use super::statements::{Statements, in_namespace};
use crate::error::Result;
use crate::lease::{Epoch, OffsetRange};
use crate::namespace::Namespace;
use crate::observe::metrics::Tally;
use crate::store::{FetchBound, Fetched, OpenOptions};
use crate::topic::TopicId;

/// How long the primary is read after a standby failed.
const LEFT_FOR: Duration = Duration::from_secs(5);
/// Holds only on a standby that has begun the epoch. A single value, so PostgreSQL evaluates it once per statement.
const FOLLOWS: &str =
    "(SELECT pg_is_in_recovery() AND EXISTS (SELECT FROM {schema}.epoch_history h WHERE h.epoch = {epoch}))";

/// The standbys of a store.
pub(super) struct Replica {
    connections: Connections,
    namespace: Namespace,
    /// The statements for the epoch of the last claim; none before the first.
    following: Mutex<Option<(Epoch, Arc<Statements>)>>,
    /// Until then the primary is read.
    left_until: Mutex<Option<Instant>>,
    /// Fetches that a standby answered, and those that the primary answered.
    pub(super) answered: [Tally; 2],
}

impl Replica {
    pub(super) fn new(url: &str, namespace: &Namespace, options: &OpenOptions) -> Result<Self> {
        Ok(Replica {
            connections: Connections::new(url, namespace, options)?,
            namespace: namespace.clone(),
            following: Mutex::default(),
            left_until: Mutex::default(),
            answered: Tally::replica_fetches(options.health_window),
        })
    }

    /// Reads only from servers that have begun this epoch from now on.
    pub(super) fn follow(&self, epoch: Epoch) {
        let mut following = self.following.lock().unwrap_or_else(PoisonError::into_inner);
        if following.as_ref().is_none_or(|(followed, _)| *followed != epoch) {
            *following = Some((epoch, Arc::new(self.statements(epoch))));
        }
    }

    /// The statements that read messages, with the condition in front of their own.
    fn statements(&self, epoch: Epoch) -> Statements {
        let follows = in_namespace(FOLLOWS, &self.namespace).replace("{epoch}", &epoch.0.to_string());
        let mut statements = Statements::of(&self.namespace);
        let reads = [
            &mut statements.log_fetch,
            &mut statements.log_sizes,
            &mut statements.log_payload,
            &mut statements.log_headers,
        ];
        for sql in reads {
            *sql = sql.replacen("WHERE topic_id", &format!("WHERE {follows} AND topic_id"), 1);
        }
        statements
    }

    /// The messages of a range as far as they fit, if a standby has all of them.
    async fn fetch(&self, topic: TopicId, range: OffsetRange, bound: FetchBound) -> Option<Fetched> {
        let statements = {
            let following = self.following.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(&following.as_ref()?.1)
        };
        let left_until = *self.left_until.lock().unwrap_or_else(PoisonError::into_inner);
        if left_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let source = Source { connections: &self.connections, statements: &statements };
        match log::fetch(source, topic, range, bound).await {
            Ok(fetched) => is_whole(range, &fetched).then_some(fetched),
            Err(error) => {
                tracing::warn!(%error, "replica not readable, messages read from the primary for 5 s");
                let until = Instant::now() + LEFT_FOR;
                *self.left_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
                None
            }
        }
    }

    pub(super) fn close(&self) {
        self.connections.close();
    }
}

/// The messages of a range, by offset, as far as they fit.
pub(super) async fn fetch(
    store: &PostgresStore,
    topic: TopicId,
    range: OffsetRange,
    bound: FetchBound,
) -> Result<Fetched> {
    if let Some(replica) = &store.replica {
        let fetched = replica.fetch(topic, range, bound).await;
        replica.answered[usize::from(fetched.is_none())].add(1);
        if let Some(fetched) = fetched {
            return Ok(fetched);
        }
    }
    log::fetch(Source { connections: &store.connections, statements: &store.statements }, topic, range, bound)
        .await
}

/// Whether there is a message for each offset up to the end, or up to the first message that did not fit.
fn is_whole(range: OffsetRange, fetched: &Fetched) -> bool {
    let end = fetched.left.map_or(range.last.0 + 1, |left| left.first.0);
    usize::try_from(end - range.first.0).is_ok_and(|expected| expected == fetched.messages.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_that_reads_messages_checks_the_epoch() {
        let options = OpenOptions::default();
        let replica = Replica::new("postgres://u@h/d", &Namespace::default(), &options).unwrap();
        let statements = replica.statements(Epoch(7));
        for sql in
            [&statements.log_fetch, &statements.log_sizes, &statements.log_payload, &statements.log_headers]
        {
            assert!(
                sql.contains("WHERE (SELECT pg_is_in_recovery()") && sql.contains("h.epoch = 7"),
                "{sql}"
            );
        }
    }
}
