//! What an owner has told of the groups it serves, so that each message counts once.
//!
//! A group's counts go on for as long as the process lives. What an owner tells is kept beside what others told, and added to
//! what is known of those that left when it takes its leave: from there on it begins anew.

use std::collections::HashMap;
use std::sync::Mutex;

use super::group::Group;
use crate::observe::metrics::Counted;
use crate::store::Served;
use crate::subscription::{Activity, SubscriptionId};

/// One owner's.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<HashMap<SubscriptionId, Entry>>);

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// What was counted before: told by another, or before this owner last took its leave.
    since: Counted,
    /// What the store knows of since then.
    told: Activity,
}

impl Ledger {
    /// The owner begins to serve a group, if it does not already: what was done before is not its.
    pub(crate) fn begin(&self, group: &Group) {
        let mut entries = self.0.lock().expect("no panic while held");
        let anew = || Entry { since: group.metrics.counted(), told: Activity::default() };
        entries.entry(group.subscription.subscription_id).or_insert_with(anew);
    }

    /// What there is to tell of a group.
    pub(crate) fn activity(&self, group: &Group) -> Activity {
        self.begin(group);
        let entries = self.0.lock().expect("no panic while held");
        group.metrics.activity(entries[&group.subscription.subscription_id].since)
    }

    /// The store knows it.
    pub(crate) fn told(&self, served: &[Served]) {
        let mut entries = self.0.lock().expect("no panic while held");
        for one in served {
            if let Some(entry) = entries.get_mut(&one.subscription_id) {
                entry.told = one.activity;
            }
        }
    }

    /// The owner has taken its leave: what it told is kept without it.
    pub(crate) fn departed(&self) {
        for entry in self.0.lock().expect("no panic while held").values_mut() {
            let Activity { processed, failed, filtered, .. } = std::mem::take(&mut entry.told);
            entry.since.processed += processed;
            entry.since.failed += failed;
            entry.since.filtered += filtered;
        }
    }
}
