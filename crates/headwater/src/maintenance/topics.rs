//! The topics as last read, shared by all jobs of a process: one job at a time reads them, and the others never wait
//! for it.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::time::Instant;

use super::plan::TOPICS_KEPT;
use crate::topic::TopicStatus;

/// The topics as last read.
#[derive(Debug, Default)]
pub(super) struct Topics(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    known: Option<(Instant, Arc<[TopicStatus]>)>,
    /// A job is reading them now.
    reading: bool,
}

/// The result of a lookup.
pub(super) enum Known {
    /// The last read is recent enough.
    Current(Arc<[TopicStatus]>),
    /// The caller has to read them; this is the last read, if any.
    Read(Option<Arc<[TopicStatus]>>),
}

/// A read under way; ends when dropped.
pub(super) struct Reading<'a>(pub(super) &'a Topics);

impl Topics {
    pub(super) fn known(&self) -> Known {
        let mut kept = self.lock();
        let known = match &kept.known {
            Some((read_at, topics)) if kept.reading || read_at.elapsed() < TOPICS_KEPT => {
                return Known::Current(Arc::clone(topics));
            }
            known => known.as_ref().map(|(_, topics)| Arc::clone(topics)),
        };
        kept.reading = true;
        Known::Read(known)
    }

    pub(super) fn keep(&self, topics: &Arc<[TopicStatus]>) {
        self.lock().known = Some((Instant::now(), Arc::clone(topics)));
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().expect("no panic while held")
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.lock().reading = false;
    }
}
