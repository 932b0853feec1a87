//! The messages a handler gets: a view into a page that several groups share, or some messages picked from one.

use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::message::Message;

/// Messages of one batch, offsets rising. Cheap to clone: the messages themselves are shared.
#[derive(Clone, Debug)]
pub struct Messages {
    page: Arc<[Message]>,
    range: Range<usize>,
}

impl Messages {
    pub(crate) fn new(page: Arc<[Message]>, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= page.len(), "a view lies within its page");
        Messages { page, range }
    }

    /// A subrange of this view, by index.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        Messages::new(Arc::clone(&self.page), self.range.start + range.start..self.range.start + range.end)
    }
}

impl From<Vec<Message>> for Messages {
    fn from(messages: Vec<Message>) -> Self {
        let len = messages.len();
        Messages { page: messages.into(), range: 0..len }
    }
}

impl Deref for Messages {
    type Target = [Message];

    fn deref(&self) -> &[Message] {
        &self.page[self.range.clone()]
    }
}

impl<'m> IntoIterator for &'m Messages {
    type Item = &'m Message;
    type IntoIter = std::slice::Iter<'m, Message>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
