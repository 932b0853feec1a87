//! The reader of a pipe that messages are printed into: what it has taken, and whether it still exists.
//!
//! A write into a pipe succeeds as soon as its buffer has room, and what is left in the buffer when the reader ends is lost.
//! Two rules make sure that every message that is acked was taken:
//!
//! - A message counts as taken once the buffer is empty: its bytes are in the reader's memory then. While the reader
//!   exists the wait continues. If it ends first, the buffer keeps the unread rest, and the message is released.
//! - The next message is written only after that. A reader that takes all it finds and uses a part of it, as `head -1`
//!   does, finds one message.
//!
//! What a reader does with a message it has taken is its own affair: `cat` takes it for another pipe. Only Linux shows what
//! is unread in a pipe; elsewhere, and in sockets, a message counts as taken once it is written.

use std::io::{self, ErrorKind, StdoutLock, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, ioctl_fionread};

/// The pauses between two checks whether a message is taken: the first, and the longest for a reader that is slow.
const PAUSE_FIRST: Duration = Duration::from_micros(50);
const PAUSE_LONGEST: Duration = Duration::from_millis(20);
/// How often the end of the reader is checked while there is nothing to write.
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// Whether the output is a pipe, named or not.
pub(crate) fn is_pipe() -> bool {
    fstat(io::stdout()).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
}

/// Writes one message and waits until the reader has taken it. `BrokenPipe` if it ends first.
pub(crate) fn hand_over(write: impl FnOnce(&mut StdoutLock<'_>) -> io::Result<()>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    write(&mut out)?;
    out.flush()?;
    let mut pause = PAUSE_FIRST;
    while unread()? > 0 {
        // It may have taken the rest before it ended. After its end the buffer does not change any more.
        if ends_within(pause)? && unread()? > 0 {
            return Err(ErrorKind::BrokenPipe.into());
        }
        pause = (pause * 2).min(PAUSE_LONGEST);
    }
    Ok(())
}

/// Completes once the reader has ended; never for an output that is not a pipe.
pub(crate) async fn gone(is_pipe: bool) {
    if !is_pipe {
        return std::future::pending().await;
    }
    while !ends_within(Duration::ZERO).unwrap_or(false) {
        tokio::time::sleep(CHECK_EVERY).await;
    }
}

/// Bytes in the pipe that are not read yet.
fn unread() -> io::Result<u64> {
    if cfg!(target_os = "linux") { Ok(ioctl_fionread(io::stdout())?) } else { Ok(0) }
}

/// Whether the reader has ended; waits this long for it.
fn ends_within(wait: Duration) -> io::Result<bool> {
    let stdout = io::stdout();
    // Errors and hang-ups are reported without being asked for.
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    let wait = Timespec::try_from(wait).map_err(|_| ErrorKind::InvalidInput)?;
    match poll(&mut polled, Some(&wait)) {
        Ok(_) => Ok(polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
