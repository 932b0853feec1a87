//! The room that batches may occupy between the start of their reading and their commit: in bytes, which bounds the memory, and in ticks,
//! so that no more files are read ahead than the next few flushes need.
//!
//! A batch reserves what was announced before it is read, first come, first served. Once it is decoded its real size is known; what goes
//! beyond the reservation is taken at once, as a debt if need be: the ticks are in memory already, and waiting with them in hand could leave
//! every call waiting for another. Released room pays the debt first, so reading resumes only below the limit.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::Semaphore;

/// Bytes are reserved in units of so many: keeps numbers within the semaphore's.
const BYTES_PER_UNIT: u64 = 1024;

/// Room for a number of bytes or ticks.
#[derive(Debug)]
pub(super) struct Room {
    units: Semaphore,
    units_max: u32,
    per_unit: u64,
    debt: Mutex<u64>,
    waiting: AtomicUsize,
}

/// Reserved room; released when dropped.
#[derive(Debug)]
pub(super) struct Reserved<'a> {
    room: &'a Room,
    units: u32,
}

impl Room {
    pub(super) fn for_bytes(bytes_max: u64) -> Self {
        Room::new(bytes_max, BYTES_PER_UNIT)
    }

    pub(super) fn for_ticks(ticks_max: u64) -> Self {
        Room::new(ticks_max, 1)
    }

    fn new(max: u64, per_unit: u64) -> Self {
        let units_max = u32::try_from(max / per_unit).unwrap_or(u32::MAX).max(1);
        Room {
            units: Semaphore::new(usize::try_from(units_max).expect("32 bits fit")),
            units_max,
            per_unit,
            debt: Mutex::new(0),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Waits for room; `awaited` is called if there is none at once. A batch that is larger than all of it gets all of it.
    pub(super) async fn reserve(&self, amount: u64, awaited: impl FnOnce()) -> Reserved<'_> {
        let units = self.units_of(amount);
        let permit = match self.units.try_acquire_many(units) {
            Ok(permit) => permit,
            Err(_) => {
                // Ends also if the wait is dropped.
                let _waiting = Waiting::new(&self.waiting);
                awaited();
                self.units.acquire_many(units).await.expect("never closed")
            }
        };
        permit.forget();
        Reserved { room: self, units }
    }

    /// Whether a batch waits for room.
    pub(super) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    fn units_of(&self, amount: u64) -> u32 {
        u32::try_from(amount.div_ceil(self.per_unit)).unwrap_or(u32::MAX).clamp(1, self.units_max)
    }
}

impl Reserved<'_> {
    /// Corrects the reservation to the size that is known now.
    pub(super) fn grow_to(&mut self, amount: u64) {
        let units = self.room.units_of(amount);
        let Some(more) = units.checked_sub(self.units) else { return };
        let mut debt = self.room.debt.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = self.room.units.forget_permits(usize::try_from(more).expect("32 bits fit"));
        *debt += u64::from(more) - taken as u64;
        self.units = units;
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut debt = self.room.debt.lock().unwrap_or_else(PoisonError::into_inner);
        let paid = u64::from(self.units).min(*debt);
        *debt -= paid;
        let free = u64::from(self.units) - paid;
        self.room.units.add_permits(usize::try_from(free).expect("32 bits fit"));
    }
}

struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn free(room: &Room) -> usize {
        room.units.available_permits()
    }

    #[test]
    fn reservations_wait_for_room_in_order() {
        let room = Room::for_bytes(10 * 1024);
        let first = room.reserve(8 * 1024, || unreachable!("there is room")).now_or_never().expect("free");
        let mut large = Box::pin(room.reserve(5 * 1024, || {}));
        assert!(large.as_mut().now_or_never().is_none());
        assert!(room.is_awaited());
        assert!(room.reserve(1, || {}).now_or_never().is_none(), "a small one does not overtake");
        drop(first);
        let large = large.now_or_never().expect("free again");
        assert_eq!(free(&room), 5);
        assert!(!room.is_awaited());
        drop(large);
        assert_eq!(free(&room), 10);
    }

    #[test]
    fn larger_than_all_of_it_gets_all_of_it() {
        let room = Room::for_bytes(4 * 1024);
        let all = room.reserve(u64::MAX, || {}).now_or_never().expect("free");
        assert!(room.reserve(1, || {}).now_or_never().is_none());
        drop(all);
        assert!(room.reserve(1, || {}).now_or_never().is_some());
    }

    #[test]
    fn what_was_larger_than_expected_is_paid_before_others_get_room() {
        let room = Room::for_bytes(10 * 1024);
        let mut one = room.reserve(1024, || {}).now_or_never().expect("free");
        let mut two = room.reserve(8 * 1024, || {}).now_or_never().expect("free");
        one.grow_to(7 * 1024);
        two.grow_to(2 * 1024);
        drop(two);
        assert_eq!(free(&room), 3, "8 released, 5 of them owed");
        drop(one);
        assert_eq!(free(&room), 10);
    }
}
