//! Notices that the write-ahead log was written to, whoever did it, from the kernel: inotify.
//!
//! A notice is a hint to look and never news by itself. It comes with each write to the log, which is *before* the
//! commit is to be seen: between the two lies the wait for the disk. [`super::watch`] knows what to make of that.

pub(super) use self::system::{Bell, Notices};

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
    pub(in super::super) struct Bell(OwnedFd);

    impl Bell {
        /// Ends the wait under way, or the next one.
        pub(in super::super) fn ring(&self) {
            // Refused only when it has been rung 2^64 - 2 times without anybody listening: it rings already.
            let _ = write(&self.0, &1_u64.to_ne_bytes());
        }
    }

    /// The notices of one file. Closing it, by dropping it, leaves nothing behind.
    #[derive(Debug)]
    pub(in super::super) struct Notices {
        inotify: OwnedFd,
        bell: Arc<Bell>,
        /// Waiting failed: whoever goes on with it would spin.
        broken: Cell<bool>,
    }

    impl Notices {
        /// From here on no write to the file goes unnoticed.
        ///
        /// The kernel merges equal notices that nobody took, so those of one file take the room of one.
        pub(in super::super) fn of(file: &Path) -> io::Result<Self> {
            let notices = Self::of_nothing()?;
            inotify::add_watch(&notices.inotify, file, inotify::WatchFlags::MODIFY)?;
            Ok(notices)
        }

        /// Stays silent, like a file system that does not tell.
        pub(in super::super) fn of_nothing() -> io::Result<Self> {
            let inotify = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
            let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
            Ok(Notices { inotify, bell: Arc::new(Bell(bell)), broken: Cell::new(false) })
        }

        pub(in super::super) fn bell(&self) -> Arc<Bell> {
            Arc::clone(&self.bell)
        }

        /// Waits until there is a notice, the bell rings, or the time is over.
        pub(in super::super) fn wait(&self, at_most: Duration) {
            let timeout = Timespec::try_from(at_most).ok();
            let mut sources =
                [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(&self.bell.0, PollFlags::IN)];
            match poll(&mut sources, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => self.broken.set(true),
            }
            if !sources[1].revents().is_empty() {
                // Silences it; nothing to silence is as well.
                let _ = read(&self.bell.0, &mut [0_u8; 8]);
            }
        }

        /// Takes what there is: whether the file was written to since the last time.
        pub(in super::super) fn take(&self) -> io::Result<bool> {
            if self.broken.get() {
                return Err(io::Error::other("waiting for notices failed"));
            }
            // Room for many notices with a name, while these have none.
            match read(&self.inotify, &mut [0_u8; 1024]) {
                Ok(_) => Ok(true),
                Err(Errno::AGAIN | Errno::INTR) => Ok(false),
                Err(error) => Err(error.into()),
            }
        }
    }
}

/// Elsewhere there are none, and the file is looked at on a beat.
#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    #[derive(Debug)]
    pub(in super::super) enum Bell {}

    impl Bell {
        pub(in super::super) fn ring(&self) {
            match *self {}
        }
    }

    #[derive(Debug)]
    pub(in super::super) enum Notices {}

    impl Notices {
        pub(in super::super) fn of(_file: &Path) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(in super::super) fn bell(&self) -> Arc<Bell> {
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
