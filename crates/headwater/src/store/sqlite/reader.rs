//! Readers: a few threads, each with a read-only connection. A read never waits for the writer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::fault::Attempt;
use super::queue::{Queue, Sleep, Taken};
use super::trust::Trust;

/// Reads waiting at most; further callers wait for a slot.
const QUEUE_PLACES: usize = 256;
/// Readers at most: an embedded store should not keep more cores busy.
pub(super) const READERS_MAX: usize = 4;

/// A read that also sends its answer.
type Read = Box<dyn FnOnce(&Connection) + Send>;

/// The queue to the readers.
#[derive(Debug)]
pub(super) struct Readers {
    reads: Arc<Queue<Read>>,
}

impl Readers {
    /// Starts a thread per connection.
    pub(super) fn start(
        connections: Vec<Connection>,
        trust: &Arc<Trust>,
    ) -> std::io::Result<(Self, Vec<JoinHandle<()>>)> {
        let reads = Arc::new(Queue::new(QUEUE_PLACES));
        let mut threads = Vec::with_capacity(connections.len());
        for connection in connections {
            let thread = std::thread::Builder::new().name("headwater-reader".into());
            let (reads, trust) = (Arc::clone(&reads), Arc::clone(trust));
            threads.push(thread.spawn(move || {
                serve(&connection, &reads);
                trust.close(connection);
            })?);
        }
        Ok((Readers { reads }, threads))
    }

    /// Queues a read; `false` when the store is closed.
    pub(super) async fn push(&self, read: impl FnOnce(&Connection) + Send + 'static) -> bool {
        self.reads.push(Box::new(read)).await.is_ok()
    }

    /// Ends the threads after the queued reads have run.
    pub(super) fn close(&self) {
        self.reads.close();
    }
}

/// Runs several reads on one snapshot, so that their results are consistent.
pub(super) fn at_once<T>(
    connection: &Connection,
    read: impl FnOnce(&Connection) -> Attempt<T>,
) -> Attempt<T> {
    if !connection.is_autocommit() {
        // In memory the read runs inside the writer's transaction.
        return read(connection);
    }
    // The transaction ends when it is dropped, also by a panic: the reader is used again.
    let transaction = connection.unchecked_transaction()?;
    read(&transaction)
}

fn serve(connection: &Connection, reads: &Queue<Read>) {
    loop {
        match reads.take(1, Sleep::ForGood) {
            Taken::Items(items) => {
                for read in items {
                    // The caller sees the channel of its answer break; the reader continues with the next read.
                    if catch_unwind(AssertUnwindSafe(|| read(connection))).is_err() {
                        tracing::error!("read panicked");
                    }
                }
            }
            Taken::Nothing => {}
            Taken::Closed => return,
        }
    }
}
