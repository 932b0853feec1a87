//! What is counted, by name.

use serde::{Deserialize, Serialize};

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident $field:ident,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter {
            $($(#[$doc])* $variant,)*
        }

        impl Counter {
            /// All of them, in the order of the enum.
            pub const ALL: [Counter; [$(Counter::$variant),*].len()] = [$(Counter::$variant),*];

            /// The name in health: `ticks_flushed`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Counter::$variant => stringify!($field),)*
                }
            }

            /// The name of the metric: `headwater_pipeline_ticks_flushed`.
            pub fn metric(self) -> &'static str {
                match self {
                    $(Counter::$variant => concat!("headwater_pipeline_", stringify!($field)),)*
                }
            }
        }

        /// Counts since the start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Counts {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Counts {
            /// The count of one.
            pub fn get(&self, counter: Counter) -> u64 {
                match counter {
                    $(Counter::$variant => self.$field,)*
                }
            }

            pub(super) fn get_mut(&mut self, counter: Counter) -> &mut u64 {
                match counter {
                    $(Counter::$variant => &mut self.$field,)*
                }
            }
        }
    };
}

counters! {
    /// Ticks that the source published; a tick that is published twice counts twice.
    TicksPublished ticks_published,
    /// Ticks that were published before the source's start, by its checkpoint.
    TicksResumed ticks_resumed,
    /// Checkpoints that the source wrote.
    CheckpointsWritten checkpoints_written,
    /// Ticks in files that were written and announced.
    TicksPersisted ticks_persisted,
    /// Ticks that storage refused for good: dead letters.
    TicksBuried ticks_buried,
    /// Batches written: files by persistence, flushes by a binding of the index.
    BatchesWritten batches_written,
    /// Bytes of files, or of rows.
    BytesWritten bytes_written,
    /// Announcements that failed and were repeated.
    NotificationsFailed notifications_failed,
    /// Batches whose ticks are all committed.
    BatchesProcessed batches_processed,
    /// Ticks committed; a tick that is committed twice counts twice.
    TicksFlushed ticks_flushed,
    /// Cells committed with them.
    CellsWritten cells_written,
    /// Batches that were known to be done.
    BatchesSkipped batches_skipped,
    /// Writes that failed.
    WriteErrors write_errors,
    /// Reads that failed.
    ReadErrors read_errors,
    /// Batches given up by an attempt: redelivered or buried.
    BatchesFailed batches_failed,
    /// Batches that became dead letters.
    BatchesBuried batches_buried,
    /// Leases that had moved on before their ack.
    LeasesLost leases_lost,
    /// Messages that a binding published.
    MessagesSent messages_sent,
    /// Messages that a binding handed to its service; a redelivered one counts again.
    MessagesReceived messages_received,
    /// Messages that are done.
    MessagesDone messages_done,
    /// Messages of a type or with bytes that are not understood: dead letters.
    MessagesUndecodable messages_undecodable,
    /// Messages taken from an owner that did not settle them in time.
    StuckReassigned stuck_reassigned,
}
