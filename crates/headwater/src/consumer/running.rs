//! A running consumer: members can change, health can be read, and it shuts down gracefully.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join;
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
use crate::name::{GroupName, TopicName};
use crate::observe::health::{Health, HealthState};
use crate::publish::replies::Replier;
use crate::subscription::Subscription;

/// How long a shutdown waits beyond the grace time for a claim under way, and for settlements to reach the database.
pub(crate) const FLUSH: Duration = Duration::from_secs(10);

/// A running consumer. Dropping it stops it: nothing more is claimed, and running handlers continue to their end.
/// [`Running::shutdown`] waits for them, and for their outcomes to be stored;
/// [`Headwater::shutdown`](crate::Headwater::shutdown) does that for all consumers of a handle.
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # async fn start(headwater: headwater::Headwater) -> headwater::Result<()> {
/// // Refused: the consumer would stop at once.
/// headwater.consumer("orders", "email").member("mailer", |_: headwater::Message, _| async { Ok(()) }).run().await?;
/// # Ok(()) }
/// ```
#[must_use = "the consumer stops when this is dropped; keep it until the program ends"]
#[derive(Debug)]
pub struct Running {
    /// Whether it is served by tasks of the process; a stepper is not.
    pub(super) is_served: bool,
    pub(super) runtime: Arc<Runtime>,
    pub(super) feed: Arc<Feed>,
    pub(super) group: Arc<Group>,
    pub(super) replier: Replier,
}

/// The result of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Whether every handler that had started finished within the grace time.
    pub in_time: bool,
    /// Leases of which messages were released: other processes can claim them at once.
    pub given_back: usize,
}

/// What a shutdown of a whole handle left unfinished.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Leases of which messages were released: other processes can claim them at once.
    pub given_back: usize,
    /// The groups whose handlers were stopped because the grace time was over; their messages are redelivered.
    pub groups: Vec<(TopicName, GroupName)>,
    /// Calls and batches of opened consumers that had not ended; the messages are redelivered when their leases expire.
    pub batches: usize,
    /// Sends without an answer: it is not known whether their messages were stored.
    pub sends: usize,
    /// Cron jobs with a publish under way; another process or the next start publishes the tick, once.
    pub cron_jobs: usize,
}

impl ShutdownReport {
    /// Whether everything that had started was finished in time.
    pub fn is_clean(&self) -> bool {
        self.groups.is_empty() && self.batches + self.sends + self.cron_jobs == 0
    }
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
            None if self.runtime.store.is_closed() => {
                (HealthState::Stopped, Some("the store is closed".to_owned()))
            }
            None if serve_state.is_stopping() => (HealthState::Stopping, None),
            None if serve_state.is_suspended() => {
                let why = "heartbeats fail: nothing is handed out until one succeeds";
                (HealthState::Failing, Some(why.to_owned()))
            }
            None if serve_state.is_paused() => {
                let own =
                    serve_state.own_pause.reason().map(|reason| format!("the group paused itself: {reason}"));
                (HealthState::Paused, Some(own.unwrap_or_else(|| "the subscription is paused".to_owned())))
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
        let settings = &self.group.settings;
        let (states, layers) = (&settings.states, &settings.layers);
        let (subscription, replier, inbox) = (&self.group.subscription, &self.replier, &settings.inbox_name);
        let member = member_of(subscription, name, handling, states, layers, replier, inbox)?;
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
        end(&self.runtime, &self.group, Instant::now() + grace.min(DELAY_MAX)).await
    }
}

/// Ends a running group. Handlers may run until the deadline.
pub(crate) async fn end(runtime: &Runtime, group: &Arc<Group>, deadline: Instant) -> Result<Stopped> {
    group.stop();
    // A claim under way may take longer than the grace time, and may be handed what is released here. It is awaited all the same:
    // what it brings is in the hands of this owner, which departs below, and would stay leased until its deadline.
    let feed = runtime.feed(group.subscription.topic.topic_id);
    let left = tokio::time::timeout_at(deadline + FLUSH, feed.leave(group));
    let (left, in_time) = join(left, group.workers_ended(deadline)).await;
    let back = group.in_hand();
    let given_back = back.iter().filter(|work| runtime.settler.give_back(work)).count();
    let settled = tokio::time::timeout(FLUSH, runtime.settler.flush()).await;
    // An owner that could not release something does not depart: once it is found silent, its leases are taken over.
    let clean =
        left.is_ok() && settled.is_ok() && back.iter().all(|work| !work.unsettled.load(Ordering::Relaxed));
    runtime.dismiss(group, clean).await;
    settled.map_err(|_| {
        Error::new(
            crate::ErrorKind::Unavailable,
            "the last settlements did not reach the database; their messages are redelivered",
        )
    })?;
    Ok(Stopped { in_time, given_back })
}

impl Drop for Running {
    fn drop(&mut self) {
        let serves = self.is_served && !self.group.serve_state.is_stopping();
        if serves && !self.runtime.store.is_closed() {
            let subscription = &self.group.subscription;
            tracing::warn!(
                topic = %subscription.topic.name, group = %subscription.group,
                "consumer dropped without shutdown: it handles nothing more; keep it, and end it with `shutdown`"
            );
        }
        self.group.stop();
        self.feed.remove_group(&self.group);
        self.runtime.remove_group(&self.group);
    }
}
