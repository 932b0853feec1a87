//! A running consumer: members can change, health can be read, and it shuts down gracefully.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::feed::Feed;
use super::group::Group;
use super::member::Member;
use super::runtime::Runtime;
use super::serve_state::EndReason;
use super::{check_handler, check_lane_members, member_of};
use crate::error::{Error, Result};
use crate::handler::Handling;
use crate::limits::DELAY_MAX;
use crate::observe::health::{Health, HealthState};
use crate::subscription::Subscription;

/// How long a shutdown waits beyond the grace time for settlements to reach the database.
const FLUSH: Duration = Duration::from_secs(10);

/// A running consumer. Dropping it stops it: nothing more is claimed, and running handlers continue to their end.
/// [`Running::shutdown`] waits for them, and for their outcomes to be stored.
#[derive(Debug)]
pub struct Running {
    pub(super) runtime: Arc<Runtime>,
    pub(super) feed: Arc<Feed>,
    pub(super) group: Arc<Group>,
}

/// The result of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Whether every handler that had started finished within the grace time.
    pub in_time: bool,
    /// Leases of which messages were released: other processes can claim them at once.
    pub given_back: usize,
}

impl Running {
    /// The subscription it serves.
    pub fn subscription(&self) -> &Subscription {
        &self.group.subscription
    }

    /// Its health.
    pub fn health(&self) -> Health {
        let serve_state = &self.group.serve_state;
        let (state, reason) = match serve_state.ended() {
            Some(reason) => (HealthState::Stopped, Some(reason.to_string())),
            None if serve_state.is_stopping() => (HealthState::Stopping, None),
            None if serve_state.is_suspended() => {
                let why = "heartbeats fail: nothing is handed out until one succeeds";
                (HealthState::Failing, Some(why.to_owned()))
            }
            None if serve_state.is_paused() => {
                (HealthState::Paused, Some("the subscription is paused".to_owned()))
            }
            None => (HealthState::Running, None),
        };
        Health { reason, ..self.group.metrics.health("consumer", state) }
    }

    /// Why it ended by itself, if it did: its subscription was cancelled or removed, or claiming for it panicked
    /// repeatedly. A pause does not end it.
    pub fn ended(&self) -> Option<EndReason> {
        self.group.serve_state.ended()
    }

    /// Waits until it ends by itself, and returns why. A shutdown does not count.
    pub async fn until_ended(&self) -> EndReason {
        loop {
            let ending = self.group.serve_state.ending.notified();
            tokio::pin!(ending);
            // Registered first: an end between the check and the wait is not missed.
            ending.as_mut().enable();
            if let Some(reason) = self.ended() {
                return reason;
            }
            ending.await;
        }
    }

    /// How many messages of the topic this process has read, and how many it has handed to its groups: with several
    /// groups each message is read once.
    pub fn read_and_handed(&self) -> (u64, u64) {
        self.feed.counts()
    }

    /// Adds a member. It gets its share of the messages claimed from now on.
    pub fn join(&self, name: &str, handling: Handling) -> Result<()> {
        check_handler(&self.runtime.store, &handling.handler)?;
        let member = member_of(&self.group.subscription, name, handling)?;
        self.group.change_members(|members: &mut Vec<Arc<Member>>| {
            if members.iter().any(|other| other.identity.member == name) {
                return Err(Error::invalid(
                    "member",
                    format!("{name} exists already; names are unique in a group"),
                ));
            }
            members.push(Arc::new(member));
            check_lane_members(&self.group.subscription, members).inspect_err(|_| drop(members.pop()))
        })
    }

    /// Removes a member. It finishes the messages it has. The last member cannot leave, because the group's messages
    /// would not be handled: shut the consumer down, or pause the group, instead.
    pub fn leave(&self, name: &str) -> Result<()> {
        self.group.change_members(|members: &mut Vec<Arc<Member>>| {
            let Some(at) = members.iter().position(|member| member.identity.member == name) else {
                return Err(Error::invalid("member", format!("this consumer has no member {name}")));
            };
            if members.len() == 1 {
                let rule =
                    format!("{name} is the last one; shut the consumer down instead, or pause the group");
                return Err(Error::invalid("member", rule));
            }
            members.remove(at);
            Ok(())
        })
    }

    /// Shuts down gracefully: claims nothing more, releases messages that were not started, waits up to `grace` for
    /// handlers, then stops them and releases their messages too, and returns once all outcomes are stored. Other
    /// processes can claim the released messages at once.
    pub async fn shutdown(self, grace: Duration) -> Result<Stopped> {
        let deadline = Instant::now() + grace.min(DELAY_MAX);
        self.group.stop();
        // A claim under way may take longer than the grace time; what it still brings is released.
        let _ = tokio::time::timeout_at(deadline, self.feed.leave(&self.group)).await;
        let in_time = self.group.workers_ended(deadline).await;
        let back = self.group.in_hand();
        let given_back = back.iter().filter(|work| self.runtime.settler.give_back(work)).count();
        let settled = tokio::time::timeout(FLUSH, self.runtime.settler.flush()).await;
        // An owner that could not release something does not depart: once it is found silent, its leases are taken
        // over.
        let clean = settled.is_ok() && back.iter().all(|work| !work.unsettled.load(Ordering::Relaxed));
        self.runtime.dismiss(&self.group, clean).await;
        settled.map_err(|_| {
            Error::new(
                crate::ErrorKind::Unavailable,
                "the last settlements did not reach the database; their messages are redelivered",
            )
        })?;
        Ok(Stopped { in_time, given_back })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.group.stop();
        self.feed.strike_off(&self.group);
        self.runtime.strike_off(&self.group);
    }
}
