//! How often and how long a connection tries for a lock that another one has.
//!
//! SQLite's own handler sleeps up to 100 ms between two tries: beside writers that take the lock again at once it meets the
//! short gaps between them too rarely, and gives up. This one tries every 1 to 2 ms. The spread keeps several waiting
//! processes from trying in step.
//!
//! A connection belongs to one thread, so the limit is the thread's.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rusqlite::Connection;

/// How long a connection waits for another one's lock, if nothing else is said.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(5);
/// The first tries come sooner: mostly the lock is held for less than a millisecond.
const QUICK_TRIES: i32 = 4;
const QUICK_PAUSE: Duration = Duration::from_micros(250);
const PAUSE: Duration = Duration::from_millis(1);

thread_local! {
    static LIMIT: Cell<Duration> = const { Cell::new(LOCK_WAIT) };
    static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Makes a connection wait so.
pub(super) fn install(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_handler(Some(try_again))
}

/// Runs something whose waits for a lock last at most so long.
pub(super) fn at_most<T>(limit: Duration, run: impl FnOnce() -> T) -> T {
    let before = LIMIT.replace(limit);
    let ran = run();
    LIMIT.set(before);
    ran
}

/// SQLite calls it after each failed try of one wait, counting from 0. False gives up.
fn try_again(tries: i32) -> bool {
    let now = Instant::now();
    let since = match SINCE.get() {
        Some(since) if tries > 0 => since,
        _ => now,
    };
    SINCE.set(Some(since));
    if now.duration_since(since) >= LIMIT.get() {
        return false;
    }
    let pause = match tries < QUICK_TRIES {
        true => QUICK_PAUSE,
        false => PAUSE + Duration::from_micros(rand::random_range(0..1_000)),
    };
    std::thread::sleep(pause);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the tries of one wait that lasts for as long as it is allowed to.
    #[test]
    fn a_wait_tries_every_other_millisecond_and_ends_at_its_limit() {
        let limit = Duration::from_millis(60);
        let began = Instant::now();
        let tries = at_most(limit, || (0..10_000).take_while(|tries| try_again(*tries)).count());
        assert!(began.elapsed() >= limit, "{:?}", began.elapsed());
        // SQLite's own handler has tried 8 times by then; a machine under load may oversleep most of these.
        assert!((9..=70).contains(&tries), "{tries} tries in {:?}", began.elapsed());
        assert_eq!(LIMIT.get(), LOCK_WAIT, "the limit is what it was");
    }
}
