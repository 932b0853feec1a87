//! A consumer that runs: its members may change, its health can be asked for, and it ends in order.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::feed::Feed;
use super::group::Group;
use super::member::Member;
use super::runtime::Runtime;
use super::standing::EndReason;
use super::{check_handler, check_lane_members, member_of};
use crate::error::{Error, Result};
use crate::handler::Handling;
use crate::limits::DELAY_MAX;
use crate::observe::health::{Health, HealthState};
use crate::subscription::Subscription;

/// How long shutting down waits beyond the grace time for settlements to reach the database.
const FLUSH: Duration = Duration::from_secs(10);

/// A running consumer. Dropping it stops it: nothing more is claimed, and handlers that run go on to their end.
/// [`Running::shutdown`] waits for them, and for the database to know.
#[derive(Debug)]
pub struct Running {
    pub(super) runtime: Arc<Runtime>,
    pub(super) feed: Arc<Feed>,
    pub(super) group: Arc<Group>,
}

/// How a shutdown went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Whether every handler that had started came to its end within the grace time.
    pub in_time: bool,
    /// Leases of which something was given back: others have it at once.
    pub given_back: usize,
}

impl Running {
    /// The subscription it serves.
    pub fn subscription(&self) -> &Subscription {
        &self.group.subscription
    }

    /// How it is doing.
    pub fn health(&self) -> Health {
        let standing = &self.group.standing;
        let (state, reason) = match standing.ended() {
            Some(reason) => (HealthState::Stopped, Some(reason.to_string())),
            None if standing.is_stopping() => (HealthState::Stopping, None),
            None if standing.is_suspended() => {
                let why = "heartbeats fail: nothing is handed out until one succeeds";
                (HealthState::Failing, Some(why.to_owned()))
            }
            None if standing.is_paused() => {
                (HealthState::Paused, Some("the subscription is paused".to_owned()))
            }
            None => (HealthState::Running, None),
        };
        Health { reason, ..self.group.metrics.health("consumer", state) }
    }

    /// Why it has ended by itself, if it has: its subscription was cancelled or removed, or claiming for it panicked again and
    /// again. A pause does not end it.
    pub fn ended(&self) -> Option<EndReason> {
        self.group.standing.ended()
    }

    /// Waits until it ends by itself, and says why. Shutting it down is not that.
    pub async fn until_ended(&self) -> EndReason {
        loop {
            let ending = self.group.standing.ending.notified();
            tokio::pin!(ending);
            // Listening first: an end between the look and the wait is not missed.
            ending.as_mut().enable();
            if let Some(reason) = self.ended() {
                return reason;
            }
            ending.await;
        }
    }

    /// How many messages this process has read of the topic, and how many it has handed to its groups: with several groups
    /// each message is read once.
    pub fn read_and_handed(&self) -> (u64, u64) {
        self.feed.counts()
    }

    /// Adds a member. Messages handed out from now on are shared with it.
    pub fn join(&self, name: &str, handling: Handling) -> Result<()> {
        check_handler(&self.runtime.store, &handling.handler)?;
        let member = member_of(&self.group.subscription, name, handling)?;
        self.group.change_members(|members: &mut Vec<Arc<Member>>| {
            if members.iter().any(|other| other.identity.member == name) {
                return Err(Error::invalid(
                    "member",
                    format!("{name} is there already; names are unique in a group"),
                ));
            }
            members.push(Arc::new(member));
            check_lane_members(&self.group.subscription, members).inspect_err(|_| drop(members.pop()))
        })
    }

    /// Takes a member out. What it has in hand it finishes. The last one cannot leave: a group that is served needs somebody
    /// to handle its messages; shut the consumer down, or pause the group, instead.
    pub fn leave(&self, name: &str) -> Result<()> {
        self.group.change_members(|members: &mut Vec<Arc<Member>>| {
            let Some(at) = members.iter().position(|member| member.identity.member == name) else {
                return Err(Error::invalid("member", format!("there is no member {name} in this consumer")));
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

    /// Stops in order: claims nothing more, gives back what was not started, lets handlers finish for `grace`, then
    /// ends them and gives back theirs too, and returns once the database knows. Others have all of it at once.
    pub async fn shutdown(self, grace: Duration) -> Result<Stopped> {
        let deadline = Instant::now() + grace.min(DELAY_MAX);
        self.group.stop();
        // A claim under way may take longer than the grace time; whatever it still brings is given back.
        let _ = tokio::time::timeout_at(deadline, self.feed.leave(&self.group)).await;
        let in_time = self.group.workers_ended(deadline).await;
        let back = self.group.in_hand();
        let given_back = back.iter().filter(|work| self.runtime.settler.give_back(work)).count();
        let settled = tokio::time::timeout(FLUSH, self.runtime.settler.flush()).await;
        // Whoever could not give something back does not take its leave: found silent, it has it taken.
        let clean = settled.is_ok() && back.iter().all(|work| !work.unsettled.load(Ordering::Relaxed));
        self.runtime.dismiss(&self.group, clean).await;
        settled.map_err(|_| {
            Error::new(
                crate::ErrorKind::Unavailable,
                "the last settlements did not reach the database; their messages are delivered again",
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
