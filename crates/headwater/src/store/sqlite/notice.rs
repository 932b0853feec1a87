//! Notices from the kernel (inotify) that some process wrote to the write-ahead log.
//!
//! A notice is a hint to check the file and does not by itself mean new messages. It comes with each write to the
//! log, which is *before* the commit becomes visible: between the two is the wait for the disk. [`super::watch`] has
//! the rules for that.

pub(super) use self::system::{Notices, WakeSignal};

#[cfg(target_os = "linux")]
mod system {
    use std::cell::Cell;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use rustix::fs::inotify;
    use rustix::io::{Errno, read, write};

    /// Ends a wait for notices from another thread.
    #[derive(Debug)]
    pub(in super::super) struct WakeSignal(OwnedFd);

    impl WakeSignal {
        /// Ends the wait in progress, or the next one.
        pub(in super::super) fn send(&self) {
            // Fails only after 2^64 - 2 calls that no wait has consumed: the next wait then ends anyway.
            let _ = write(&self.0, &1_u64.to_ne_bytes());
        }
    }

    /// The notices of one file. Dropping it closes the descriptors and leaves nothing behind.
    #[derive(Debug)]
    pub(in super::super) struct Notices {
        inotify: OwnedFd,
        wake_signal: Arc<WakeSignal>,
        /// Waiting failed: another wait would spin.
        broken: Cell<bool>,
    }

    impl Notices {
        /// From here on every write to the file leaves a notice.
        ///
        /// The kernel merges equal notices that were not taken, so those of one file need the space of one.
        pub(in super::super) fn of(file: &Path) -> io::Result<Self> {
            let notices = Self::of_nothing()?;
            inotify::add_watch(&notices.inotify, file, inotify::WatchFlags::MODIFY)?;
            Ok(notices)
        }

        /// Never has a notice, as on a file system that does not report writes.
        pub(in super::super) fn of_nothing() -> io::Result<Self> {
            let inotify = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
            let wake_signal = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
            Ok(Notices { inotify, wake_signal: Arc::new(WakeSignal(wake_signal)), broken: Cell::new(false) })
        }

        pub(in super::super) fn wake_signal(&self) -> Arc<WakeSignal> {
            Arc::clone(&self.wake_signal)
        }

        /// Waits until a notice comes, another thread ends the wait, or the time is over.
        pub(in super::super) fn wait(&self, at_most: Duration) {
            let timeout = Timespec::try_from(at_most).ok();
            let mut sources =
                [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(&self.wake_signal.0, PollFlags::IN)];
            match poll(&mut sources, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => self.broken.set(true),
            }
            if !sources[1].revents().is_empty() {
                // Resets the event; a failure means that it was not set.
                let _ = read(&self.wake_signal.0, &mut [0_u8; 8]);
            }
        }

        /// Takes the pending notices: whether the file was written to since the last call.
        pub(in super::super) fn take(&self) -> io::Result<bool> {
            if self.broken.get() {
                return Err(io::Error::other("waiting for notices failed"));
            }
            // Space for many notices with a name, while these have none.
            match read(&self.inotify, &mut [0_u8; 1024]) {
                Ok(_) => Ok(true),
                Err(Errno::AGAIN | Errno::INTR) => Ok(false),
                Err(error) => Err(error.into()),
            }
        }
    }
}

/// Other systems have no notices, and the file is polled.
#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    #[derive(Debug)]
    pub(in super::super) enum WakeSignal {}

    impl WakeSignal {
        pub(in super::super) fn send(&self) {
            match *self {}
        }
    }

    #[derive(Debug)]
    pub(in super::super) enum Notices {}

    impl Notices {
        pub(in super::super) fn of(_file: &Path) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(in super::super) fn wake_signal(&self) -> Arc<WakeSignal> {
            match *self {}
        }

        pub(in super::super) fn wait(&self, _at_most: Duration) {
            match *self {}
        }

        pub(in super::super) fn take(&self) -> io::Result<bool> {
            match *self {}
        }
    }
}
