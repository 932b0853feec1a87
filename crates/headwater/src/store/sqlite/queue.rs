//! A bounded queue from async callers to a thread that owns an SQLite connection.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::notice::{Notices, WakeSignal};

/// The result of taking from the queue.
#[derive(Debug)]
pub(super) enum Taken<T> {
    /// At least one item, in order of arrival.
    Items(Vec<T>),
    /// Nothing came within the time, or the taker was nudged.
    Nothing,
    /// Closed, and nothing is left.
    Closed,
}

/// How a taker sleeps while the queue is empty.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sleep<'n> {
    /// Until an item comes.
    ForGood,
    /// No longer than this.
    AtMost(Duration),
    /// No longer than this, and only until a notice comes. For a queue with one taker.
    UntilNotice(&'n Notices, Duration),
}

/// Many callers, one or a few takers.
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
    /// One permit per free slot: callers wait here, asynchronously, while the queue is full.
    places: Semaphore,
}

struct State<T> {
    items: VecDeque<T>,
    /// Takers asleep: a push signals only if there is one, which saves a system call under load.
    asleep: usize,
    /// Wakes the taker that sleeps until a notice comes: it does not wait on `ready`.
    wake_signal: Option<Arc<WakeSignal>>,
    /// Items that hold no slot, and so free none.
    unplaced: usize,
    nudged: bool,
    closed: bool,
}

impl<T> State<T> {
    fn is_quiet(&self) -> bool {
        self.items.is_empty() && !self.closed && !self.nudged
    }
}

impl<T> Queue<T> {
    /// A queue with this number of slots.
    pub(super) fn new(places: usize) -> Self {
        let state = State {
            items: VecDeque::new(),
            asleep: 0,
            wake_signal: None,
            unplaced: 0,
            nudged: false,
            closed: false,
        };
        Queue { state: Mutex::new(state), ready: Condvar::new(), places: Semaphore::new(places) }
    }

    /// Appends an item once a slot is free; returns the item if the queue is closed.
    pub(super) async fn push(&self, item: T) -> Result<(), T> {
        let Ok(permit) = self.places.acquire().await else {
            return Err(item);
        };
        permit.forget();
        self.append(item, true)
    }

    /// Appends without waiting for a slot: for the few follow-ups that a taker itself makes.
    pub(super) fn push_now(&self, item: T) -> Result<(), T> {
        self.append(item, false)
    }

    fn append(&self, item: T, placed: bool) -> Result<(), T> {
        let mut state = self.lock();
        if state.closed {
            return Err(item);
        }
        state.items.push_back(item);
        state.unplaced += usize::from(!placed);
        self.wake_one(state);
        Ok(())
    }

    /// Wakes a taker after releasing the lock, because the taker acquires the lock first. One signal is enough, so
    /// `wake_signal` is removed.
    fn wake_one(&self, mut state: MutexGuard<'_, State<T>>) {
        let (asleep, wake_signal) = (state.asleep > 0, state.wake_signal.take());
        drop(state);
        match wake_signal {
            Some(wake_signal) => wake_signal.send(),
            None if asleep => self.ready.notify_one(),
            None => {}
        }
    }

    /// Takes up to `at_most` items; sleeps while there are none.
    pub(super) fn take(&self, at_most: usize, sleep: Sleep<'_>) -> Taken<T> {
        let mut state = self.lock();
        if state.is_quiet() {
            state = self.sleep(state, sleep);
        }
        state.nudged = false;
        if state.items.is_empty() {
            return if state.closed { Taken::Closed } else { Taken::Nothing };
        }
        let count = state.items.len().min(at_most);
        let items: Vec<T> = state.items.drain(..count).collect();
        let unplaced = state.unplaced.min(count);
        state.unplaced -= unplaced;
        drop(state);
        self.places.add_permits(count - unplaced);
        Taken::Items(items)
    }

    fn sleep<'q>(
        &'q self,
        mut state: MutexGuard<'q, State<T>>,
        sleep: Sleep<'_>,
    ) -> MutexGuard<'q, State<T>> {
        if let Sleep::UntilNotice(notices, at_most) = sleep {
            // The signal stays set until the wait consumes it: a caller may send it before the wait begins.
            state.wake_signal = Some(notices.wake_signal());
            drop(state);
            notices.wait(at_most);
            state = self.lock();
            state.wake_signal = None;
            return state;
        }
        state.asleep += 1;
        let quiet = |state: &mut State<T>| state.is_quiet();
        state = match sleep {
            Sleep::AtMost(at_most) => {
                self.ready.wait_timeout_while(state, at_most, quiet).expect("no panic while held").0
            }
            _ => self.ready.wait_while(state, quiet).expect("no panic while held"),
        };
        state.asleep -= 1;
        state
    }

    /// Puts items that were taken back at the front, in their order. Returns them if the queue is closed.
    pub(super) fn put_back(&self, items: Vec<T>) -> Result<(), Vec<T>> {
        let mut state = self.lock();
        if state.closed {
            return Err(items);
        }
        state.unplaced += items.len();
        items.into_iter().rev().for_each(|item| state.items.push_front(item));
        Ok(())
    }

    /// Ends the sleep of a taker.
    pub(super) fn nudge(&self) {
        let mut state = self.lock();
        state.nudged = true;
        self.wake_one(state);
    }

    /// Refuses further items; takers still get the queued ones.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.places.close();
        self.ready.notify_all();
        self.wake_one(state);
    }

    /// Refuses further items and drops the queued ones: the taker has ended.
    pub(super) fn abandon(&self) {
        self.close();
        let left: VecDeque<T> = std::mem::take(&mut self.lock().items);
        drop(left);
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect("no panic while held")
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Queue").field("items", &state.items.len()).field("closed", &state.closed).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_queue_holds_callers_back_and_loses_nothing() {
        let queue = std::sync::Arc::new(Queue::new(2));
        queue.push(1).await.unwrap();
        queue.push(2).await.unwrap();
        let third = tokio::spawn({
            let queue = std::sync::Arc::clone(&queue);
            async move { queue.push(3).await }
        });
        tokio::task::yield_now().await;
        assert!(!third.is_finished(), "no slot was free");
        assert!(matches!(queue.take(1, Sleep::ForGood), Taken::Items(items) if items == [1]));
        third.await.unwrap().unwrap();
        assert!(matches!(queue.take(9, Sleep::ForGood), Taken::Items(items) if items == [2, 3]));
    }

    #[tokio::test]
    async fn a_closed_queue_is_drained_and_refuses_more() {
        let queue = Queue::new(2);
        queue.push(1).await.unwrap();
        queue.close();
        assert_eq!(queue.push(2).await, Err(2));
        assert!(matches!(queue.take(9, Sleep::ForGood), Taken::Items(items) if items == [1]));
        assert!(matches!(queue.take(9, Sleep::ForGood), Taken::Closed));
    }

    #[tokio::test]
    async fn what_is_put_back_comes_first_in_its_order() {
        let queue = Queue::new(4);
        for item in 1..=3 {
            queue.push(item).await.unwrap();
        }
        assert!(matches!(queue.take(2, Sleep::ForGood), Taken::Items(items) if items == [1, 2]));
        queue.put_back(vec![1, 2]).unwrap();
        assert!(matches!(queue.take(9, Sleep::ForGood), Taken::Items(items) if items == [1, 2, 3]));
        queue.close();
        assert_eq!(queue.put_back(vec![3]), Err(vec![3]));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_writer_that_sleeps_until_a_notice_is_woken_by_callers_too() {
        let queue = Arc::new(Queue::new(2));
        let taker = std::thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                let notices = Notices::of_nothing().unwrap();
                let mut taken = Vec::new();
                loop {
                    match queue.take(1, Sleep::UntilNotice(&notices, Duration::from_secs(60))) {
                        Taken::Items(items) => taken.extend(items),
                        Taken::Nothing => {}
                        Taken::Closed => return taken,
                    }
                }
            }
        });
        let started = std::time::Instant::now();
        for n in 0..100 {
            queue.push(n).await.unwrap();
        }
        queue.nudge();
        queue.close();
        assert_eq!(taker.join().unwrap(), (0..100).collect::<Vec<_>>());
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    }
}
