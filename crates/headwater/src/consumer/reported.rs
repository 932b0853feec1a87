//! What an owner has reported of the groups it serves, so that each message counts once.
//!
//! A group's counts grow for as long as the process lives. The store keeps what an owner reported beside what others
//! reported, and adds it to the sum of departed owners when the owner departs: from then on the owner reports from zero
//! again.

use std::collections::HashMap;
use std::sync::Mutex;

use super::group::Group;
use crate::observe::metrics::Counted;
use crate::store::Served;
use crate::subscription::{Activity, SubscriptionId};

/// The reports of one owner.
#[derive(Debug, Default)]
pub(crate) struct ReportedActivity(Mutex<HashMap<SubscriptionId, Entry>>);

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Counts not to be reported: those from before this owner served the group, or before it last departed.
    since: Counted,
    /// What the store has of the counts since then.
    reported: Activity,
}

impl ReportedActivity {
    /// The owner starts to serve a group, if it does not already: earlier counts are not its own.
    pub(crate) fn begin(&self, group: &Group) {
        let mut entries = self.0.lock().expect("no panic while held");
        let anew = || Entry { since: group.metrics.counted(), reported: Activity::default() };
        entries.entry(group.subscription.subscription_id).or_insert_with(anew);
    }

    /// What is to be reported of a group.
    pub(crate) fn activity(&self, group: &Group) -> Activity {
        self.begin(group);
        let entries = self.0.lock().expect("no panic while held");
        group.metrics.activity(entries[&group.subscription.subscription_id].since)
    }

    /// The store has these reports.
    pub(crate) fn reported(&self, served: &[Served]) {
        let mut entries = self.0.lock().expect("no panic while held");
        for one in served {
            if let Some(entry) = entries.get_mut(&one.subscription_id) {
                entry.reported = one.activity;
            }
        }
    }

    /// The owner has departed: the store keeps the sum of its reports.
    pub(crate) fn departed(&self) {
        for entry in self.0.lock().expect("no panic while held").values_mut() {
            let Activity { processed, failed, filtered, .. } = std::mem::take(&mut entry.reported);
            entry.since.processed += processed;
            entry.since.failed += failed;
            entry.since.filtered += filtered;
        }
    }
}
