//! How often and how long a connection retries for a lock that another one holds.
//!
//! SQLite's own handler sleeps up to 100 ms between two tries: beside writers that take the lock again at once, it
//! hits the short gaps between them too rarely, and gives up. This handler tries every 0.1 ms at first, and then every
//! 1 to 2 ms. The random spread keeps several waiting processes from trying at the same moments.
//!
//! A connection belongs to one thread, so the limit is stored per thread.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rusqlite::Connection;

/// How long a connection waits for a lock of another one, by default.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(5);
/// The first tries come sooner: mostly the lock is held for a millisecond or two, the time of a maintenance step.
const QUICK_TRIES: i32 = 20;
const QUICK_PAUSE: Duration = Duration::from_micros(100);
const PAUSE: Duration = Duration::from_millis(1);

thread_local! {
    static LIMIT: Cell<Duration> = const { Cell::new(LOCK_WAIT) };
    static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Installs this handler on a connection.
pub(super) fn install(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_handler(Some(try_again))
}

/// Runs a function whose waits for a lock last at most this long.
pub(super) fn at_most<T>(limit: Duration, run: impl FnOnce() -> T) -> T {
    let before = LIMIT.replace(limit);
    let ran = run();
    LIMIT.set(before);
    ran
}

/// SQLite calls it after each failed try of one wait, counting from 0. `false` ends the wait.
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

    /// Counts the tries of one wait that lasts for its whole limit.
    #[test]
    fn a_wait_tries_every_other_millisecond_and_ends_at_its_limit() {
        let limit = Duration::from_secs(2);
        let began = Instant::now();
        let tries = at_most(limit, || (0..10_000).take_while(|tries| try_again(*tries)).count());
        assert!(began.elapsed() >= limit, "{:?}", began.elapsed());
        // SQLite's own handler has tried 30 times by then; a machine under load may oversleep most of these.
        assert!((60..=2_022).contains(&tries), "{tries} tries in {:?}", began.elapsed());
        assert_eq!(LIMIT.get(), LOCK_WAIT, "the limit is restored");
    }
}
