//! Readers: a few threads with a read-only connection each. Reading never waits for the writer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::fault::Attempt;
use super::queue::{Queue, Sleep, Taken};
use super::trust::Trust;

/// Reads waiting at most; further callers wait for a place.
const QUEUE_PLACES: usize = 256;
/// Readers at most: one busy core each is more than an embedded store should take.
pub(super) const READERS_MAX: usize = 4;

/// A read, with its answer inside.
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
                trust.before_close(&connection);
            })?);
        }
        Ok((Readers { reads }, threads))
    }

    /// Queues a read; `false` when the store is closed.
    pub(super) async fn push(&self, read: impl FnOnce(&Connection) + Send + 'static) -> bool {
        self.reads.push(Box::new(read)).await.is_ok()
    }

    /// Ends the threads once what waits is read.
    pub(super) fn close(&self) {
        self.reads.close();
    }
}

/// Runs several reads as one look, so that what they find belongs together.
pub(super) fn at_once<T>(
    connection: &Connection,
    read: impl FnOnce(&Connection) -> Attempt<T>,
) -> Attempt<T> {
    if !connection.is_autocommit() {
        // In memory this runs inside the writer's own transaction.
        return read(connection);
    }
    // Ends when it is dropped, also by a panic: the reader is used again.
    let transaction = connection.unchecked_transaction()?;
    read(&transaction)
}

fn serve(connection: &Connection, reads: &Queue<Read>) {
    loop {
        match reads.take(1, Sleep::ForGood) {
            Taken::Items(items) => {
                for read in items {
                    // The caller sees its answer's channel break; the reader serves the next one.
                    if catch_unwind(AssertUnwindSafe(|| read(connection))).is_err() {
                        tracing::error!("a read panicked");
                    }
                }
            }
            Taken::Nothing => {}
            Taken::Closed => return,
        }
    }
}
