//! The epoch of an open file: detects that an older copy was restored into it.
//!
//! SQLite's own locks and counters cannot distinguish a restore from any other commit. The log can: it is
//! append-only, and every message has a unique id. So the store remembers, per topic, the newest message it has
//! handed out from: the anchor. A history that still contains the anchor contains everything before it, and whatever
//! a client read up to there is valid. A history that has another message at that offset, or ends before it, is a
//! different one. Each claim compares the anchor inside its own transaction, before it hands out anything, so no
//! lease of a new history is combined with messages read from the old one.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use super::fault::Attempt;
use super::log;
use super::progress::TopicRange;
use super::work::Work;
use crate::lease::Epoch;
use crate::topic::TopicId;

/// What one process has observed of a file's history.
#[derive(Debug, Default)]
pub(super) struct History {
    epoch: AtomicI64,
    anchors: Mutex<HashMap<TopicId, Anchor>>,
}

/// The newest message of a topic that this process has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Anchor {
    offset: i64,
    message_id: [u8; 16],
}

/// What a claim found out about the history of its topics. Recorded once the claim is committed: until then the
/// newest message may be one that is never committed.
#[derive(Debug, Default)]
pub(super) struct Seen {
    anchors: Vec<(TopicId, Anchor)>,
    /// Topics whose anchor is no longer in the log.
    broken: Vec<TopicId>,
    /// Whether the cause cannot be retention.
    replaced: bool,
}

impl Seen {
    /// Compares the topic's anchor with the log.
    ///
    /// An anchor that retention removed together with everything before it proves nothing and is no break: offsets
    /// below the first are never handed out, and this process has read none above the anchor.
    pub(super) fn check(
        &mut self,
        work: &Work<'_>,
        history: &History,
        topic: TopicId,
        head: i64,
    ) -> Attempt<()> {
        if self.anchors.iter().any(|(known, _)| *known == topic) {
            return Ok(());
        }
        let anchor = history.anchors.lock().expect("no panic while held").get(&topic).copied();
        if let Some(anchor) = anchor {
            let stored = log::message_id(work.connection, topic, anchor.offset)?;
            let removed = stored.is_none() && anchor.offset < TopicRange::load(work.connection, topic)?.first;
            if stored != Some(anchor.message_id) && !removed {
                self.broken.push(topic);
                // An offset up to the head without a message may have been removed by retention.
                self.replaced |= stored.is_some() || anchor.offset > head;
            }
        }
        if self.replaced {
            let sql = super::sql!(epoch.changed);
            work.connection.prepare_cached(sql)?.execute([work.now_ms().to_string()])?;
        }
        Ok(())
    }

    /// Takes the newest message as the next anchor. Called after scheduled messages were promoted: they may be handed
    /// out too.
    pub(super) fn take(&mut self, work: &Work<'_>, topic: TopicId, head: i64) -> Attempt<()> {
        if let Some(message_id) = log::message_id(work.connection, topic, head)? {
            self.anchors.retain(|(known, _)| *known != topic);
            self.anchors.push((topic, Anchor { offset: head, message_id }));
        }
        Ok(())
    }
}

impl History {
    /// Records what a committed claim has found out, and returns the epoch of its leases.
    pub(super) fn note(&self, seen: Seen, location: &str) -> Epoch {
        let mut anchors = self.anchors.lock().expect("no panic while held");
        if !seen.broken.is_empty() {
            anchors.clear();
            self.epoch.fetch_add(1, Ordering::SeqCst);
        }
        for (topic, anchor) in seen.anchors {
            // Claims are recorded in any order: the anchor is the newest message that any of them handed out from.
            let newest = anchors.entry(topic).or_insert(anchor);
            if anchor.offset > newest.offset {
                *newest = anchor;
            }
        }
        if seen.replaced {
            tracing::warn!(
                location,
                "epoch changed: an older copy was restored into the open file; messages published after the copy was \
                 made are lost, and messages settled after it are redelivered"
            );
        }
        Epoch(self.epoch.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_anchor_is_lowered_by_another_history_only() {
        let history = History::default();
        let seen = |offset, broken: &[TopicId]| Seen {
            anchors: vec![(TopicId(1), Anchor { offset, message_id: [7; 16] })],
            broken: broken.to_vec(),
            replaced: false,
        };
        let anchored = || history.anchors.lock().unwrap()[&TopicId(1)].offset;
        history.note(seen(5, &[]), "here");
        history.note(seen(3, &[]), "here");
        assert_eq!(anchored(), 5);
        history.note(seen(3, &[TopicId(1)]), "here");
        assert_eq!(anchored(), 3);
    }
}
