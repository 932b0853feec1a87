//! The topics as all jobs of a worker know them: read by one at a time, and never waited for by the others.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::time::Instant;

use super::plan::TOPICS_KEPT;
use crate::topic::TopicStatus;

/// What was last read.
#[derive(Debug, Default)]
pub(super) struct Topics(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    known: Option<(Instant, Arc<[TopicStatus]>)>,
    /// Somebody reads them now.
    reading: bool,
}

/// What a look at them says.
pub(super) enum Look {
    /// Good enough.
    Known(Arc<[TopicStatus]>),
    /// To be read by whoever looked; this is known so far.
    Read(Option<Arc<[TopicStatus]>>),
}

/// Somebody's reading; over when dropped.
pub(super) struct Reading<'a>(pub(super) &'a Topics);

impl Topics {
    pub(super) fn look(&self) -> Look {
        let mut kept = self.lock();
        let known = match &kept.known {
            Some((read_at, topics)) if kept.reading || read_at.elapsed() < TOPICS_KEPT => {
                return Look::Known(Arc::clone(topics));
            }
            known => known.as_ref().map(|(_, topics)| Arc::clone(topics)),
        };
        kept.reading = true;
        Look::Read(known)
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
