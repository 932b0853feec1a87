//! A bounded queue from async callers to a thread that owns an SQLite connection.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Semaphore;

/// What a taker got.
#[derive(Debug)]
pub(super) enum Taken<T> {
    /// At least one item, in order of arrival.
    Items(Vec<T>),
    /// Nothing came within the time, or somebody nudged.
    Nothing,
    /// Closed, and nothing is left.
    Closed,
}

/// Many callers, one or a few takers.
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
    /// One permit per free place: callers wait here, asynchronously, while the queue is full.
    places: Semaphore,
}

struct State<T> {
    items: VecDeque<T>,
    /// Takers asleep: a push wakes one only if there is one, which saves a system call under load.
    asleep: usize,
    /// Items that hold no place, and so free none.
    unplaced: usize,
    nudged: bool,
    closed: bool,
}

impl<T> Queue<T> {
    /// A queue of so many places.
    pub(super) fn new(places: usize) -> Self {
        let state = State { items: VecDeque::new(), asleep: 0, unplaced: 0, nudged: false, closed: false };
        Queue { state: Mutex::new(state), ready: Condvar::new(), places: Semaphore::new(places) }
    }

    /// Appends an item once there is a place; gives it back if the queue is closed.
    pub(super) async fn push(&self, item: T) -> Result<(), T> {
        let Ok(permit) = self.places.acquire().await else {
            return Err(item);
        };
        permit.forget();
        self.append(item, true)
    }

    /// Appends without waiting for a place: for the few follow-ups a taker itself makes.
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
        let wake = state.asleep > 0;
        drop(state);
        if wake {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// Takes up to `at_most` items; sleeps while there are none, for `timeout` if given.
    pub(super) fn take(&self, at_most: usize, timeout: Option<Duration>) -> Taken<T> {
        let mut state = self.lock();
        if state.items.is_empty() && !state.closed && !state.nudged {
            state.asleep += 1;
            state = match timeout {
                Some(timeout) => {
                    let waiting =
                        |state: &mut State<T>| state.items.is_empty() && !state.closed && !state.nudged;
                    self.ready.wait_timeout_while(state, timeout, waiting).expect("no panic while held").0
                }
                None => self
                    .ready
                    .wait_while(state, |state| state.items.is_empty() && !state.closed && !state.nudged)
                    .expect("no panic while held"),
            };
            state.asleep -= 1;
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

    /// Makes a sleeping taker look around.
    pub(super) fn nudge(&self) {
        let mut state = self.lock();
        state.nudged = true;
        drop(state);
        self.ready.notify_one();
    }

    /// Refuses further items; takers still get what is waiting.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.places.close();
        self.ready.notify_all();
    }

    /// Refuses further items and lets go of what waits: the taker is gone.
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
        assert!(!third.is_finished(), "there was no place");
        assert!(matches!(queue.take(1, None), Taken::Items(items) if items == [1]));
        third.await.unwrap().unwrap();
        assert!(matches!(queue.take(9, None), Taken::Items(items) if items == [2, 3]));
    }

    #[tokio::test]
    async fn a_closed_queue_is_drained_and_refuses_more() {
        let queue = Queue::new(2);
        queue.push(1).await.unwrap();
        queue.close();
        assert_eq!(queue.push(2).await, Err(2));
        assert!(matches!(queue.take(9, None), Taken::Items(items) if items == [1]));
        assert!(matches!(queue.take(9, None), Taken::Closed));
    }
}
