//! A gate that work of one kind passes: it closes once, and then its owner waits until everything inside has left.
//!
//! No work is missed: an entry is counted first and then finds the gate open or closed, and closing and counting change
//! one atomic. So work that found it open was counted before the gate closed, and is waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The bit of the state that means closed; the others count what is inside.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// A gate.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: AtomicUsize,
    closing: Notify,
    left: Notify,
}

/// Work inside a gate, until it is dropped.
#[derive(Debug)]
pub(crate) struct Inside(Arc<Gate>);

impl Gate {
    /// Enters; `None` if it is closed.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Inside> {
        let before = self.state.fetch_add(1, Ordering::SeqCst);
        // Counted from here on, and counted out when it is dropped.
        let inside = Inside(Arc::clone(self));
        (before & CLOSED == 0).then_some(inside)
    }

    /// Lets nothing more in.
    pub(crate) fn close(&self) {
        self.state.fetch_or(CLOSED, Ordering::SeqCst);
        self.closing.notify_waiters();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(Ordering::SeqCst) & CLOSED != 0
    }

    /// How much is inside.
    pub(crate) fn inside(&self) -> usize {
        self.state.load(Ordering::SeqCst) & !CLOSED
    }

    /// Returns once nothing is inside.
    pub(crate) async fn emptied(&self) {
        until(&self.left, || self.inside() == 0).await;
    }
}

impl Inside {
    /// Returns once the gate is closed: the work has to end.
    pub(crate) async fn closing(&self) {
        until(&self.0.closing, || self.0.is_closed()).await;
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.state.fetch_sub(1, Ordering::SeqCst);
        self.0.left.notify_waiters();
    }
}

async fn until(changed: &Notify, holds: impl Fn() -> bool) {
    loop {
        let change = changed.notified();
        tokio::pin!(change);
        // Registered first: a change between the check and the wait is not missed.
        change.as_mut().enable();
        if holds() {
            return;
        }
        change.await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_closed_gate_lets_nothing_in_and_waits_for_what_is_inside() {
        let gate = Arc::new(Gate::default());
        let (one, two) = (gate.enter().unwrap(), gate.enter().unwrap());
        assert!(one.closing().now_or_never().is_none());
        gate.close();
        assert!(gate.enter().is_none());
        assert!(gate.is_closed());
        one.closing().await;
        drop(one);
        assert_eq!(gate.inside(), 1);
        assert!(gate.emptied().now_or_never().is_none());
        let emptied = gate.emptied();
        tokio::pin!(emptied);
        assert!(emptied.as_mut().now_or_never().is_none());
        drop(two);
        emptied.await;
    }
}
