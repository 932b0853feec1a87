//! The consumer: describes how a group is served, and wires claim, handle and settle together.
//!
//! `feed` claims and reads for all groups of a topic, `group` routes messages to members and queues them, `worker` runs
//! handlers, `settler` settles, `keeper` extends leases, `heart` beats. `pull` is for programs that drive themselves.

use std::sync::Arc;
use std::time::Duration;

use crate::Headwater;
use crate::backfill::{BackfillPace, drive};
use crate::codec::Decode;
use crate::error::{Error, Result};
use crate::handler::{Context, Filter, Handler, HandlerResult, Handling, Identity};
use crate::lease_thread::LeaseThread;
use crate::limits::{CLAIM_MESSAGES_MAX, DELAY_MAX};
use crate::message::Message;
use crate::name::{GroupName, Owner, TopicName, check_name};
use crate::store::Store;
use crate::subscription::{Start, Subscription};
use crate::topic::Tracking;

mod batch;
mod catch_up;
mod feed;
mod group;
mod heart;
mod idle;
mod keeper;
mod leases;
mod ledger;
mod listed;
mod member;
mod pace;
mod pages;
mod pull;
mod queue;
mod routing;
mod running;
pub(crate) mod runtime;
mod settings;
mod settler;
mod standing;
pub(crate) mod step;
#[cfg(all(test, feature = "sqlite"))]
pub(crate) mod tests;
mod transaction;
mod work;
mod worker;

pub use crate::lease::{GroupLimits, RateLimit};
pub use batch::Batch;
use group::Group;
use member::{Member, Members};
pub use pull::Consumer;
pub use running::{Running, Stopped};
use runtime::Runtime;
use settings::GroupSettings;
pub use standing::EndReason;
pub(crate) use standing::Standing;
use step::Stepper;

/// Messages buffered and in hand, in bytes, unless told otherwise.
const BUFFER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A consumer about to be run or opened.
pub struct ConsumerBuilder {
    headwater: Headwater,
    topic: String,
    group: String,
    start: Start,
    batch: u32,
    concurrency: usize,
    lease: Option<Duration>,
    owner: Option<Owner>,
    timeout: Option<Duration>,
    limits: GroupLimits,
    catch_up_pace: Option<BackfillPace>,
    buffer_bytes_max: usize,
    filter: Option<Filter>,
    inbox_name: Option<String>,
    members: Vec<(String, Handling)>,
}

impl std::fmt::Debug for ConsumerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ConsumerBuilder({} on {})", self.group, self.topic)
    }
}

impl ConsumerBuilder {
    pub(crate) fn new(headwater: Headwater, topic: &str, group: &str) -> Self {
        ConsumerBuilder {
            headwater,
            topic: topic.to_owned(),
            group: group.to_owned(),
            start: Start::default(),
            batch: 100,
            concurrency: 16,
            lease: None,
            owner: None,
            timeout: None,
            limits: GroupLimits::default(),
            catch_up_pace: None,
            buffer_bytes_max: BUFFER_BYTES_MAX,
            filter: None,
            inbox_name: None,
            members: Vec::new(),
        }
    }

    /// Adds a member that handles one message at a time. `T` says how payloads are decoded: [`Json`](crate::Json),
    /// `Protobuf`, [`Bytes`](bytes::Bytes) or the whole [`Message`].
    #[must_use]
    pub fn member<T, H, F>(self, name: &str, handler: H) -> Self
    where
        T: Decode + Send + 'static,
        H: Fn(T, Context) -> F + Send + Sync + 'static,
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        self.handling(name, Handling::one(handler))
    }

    /// Adds a member of any kind, see [`Handling`].
    #[must_use]
    pub fn handling(mut self, name: &str, handling: Handling) -> Self {
        self.members.push((name.to_owned(), handling));
        self
    }

    /// Only messages for which this is true are handled by the group; the others are done unseen. Asked before the
    /// members' own filters.
    #[must_use]
    pub fn filter(mut self, filter: impl Fn(&Message) -> bool + Send + Sync + 'static) -> Self {
        self.filter = Some(Arc::new(filter));
        self
    }

    /// Where a new group starts; a group that exists keeps its place.
    #[must_use]
    pub fn start_from(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// How many messages a batch holds at most: of a batch handler, of a transaction, of a lane's turn.
    #[must_use]
    pub fn batch(mut self, messages: u32) -> Self {
        self.batch = messages;
        self
    }

    /// How many handlers run at once in this consumer.
    #[must_use]
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.concurrency = handlers;
        self
    }

    /// How long a hand-out lasts, if not as the topic says.
    ///
    /// While the process lives and reaches the database, no lease of a running consumer ends by itself: leases are extended,
    /// and heartbeats sent, by a thread of the process's own. Handlers may block their threads, all of them at once: that
    /// delays other messages of this program, and hands none of them to another process. A lease ends early if the process is
    /// stopped (SIGSTOP, a machine that sleeps) or cut off for longer than 15 s, and a handler may ask
    /// [`Context::is_lost`] about that. A member inside SQLite's transactions runs on the thread that writes, and must be
    /// shorter than that.
    ///
    /// An opened [`Consumer`] extends what it has not handed out yet, and what [`Batch::handle`](crate::Batch::handle) works
    /// on. A batch that the program settles by itself is the program's to [`extend`](crate::Batch::extend).
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// How long a handler may take before it has failed. It is dropped then; a member inside SQLite's transactions cannot be, and
    /// its writes are undone once it returns.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How many messages of the group may be in hand at once, over all processes.
    #[must_use]
    pub fn max_in_flight(mut self, messages: u32) -> Self {
        self.limits.in_flight_max = Some(messages);
        self
    }

    /// How many messages a second the group takes, over all processes; after a rest up to `burst` at once.
    ///
    /// It also paces a group that has a long backlog to catch up with: a replay at a known rate never starves the rest. See
    /// [`catch_up_pace`](Self::catch_up_pace) for one that finds the rate itself.
    #[must_use]
    pub fn rate_limit(mut self, per_second: f64, burst: u32) -> Self {
        self.limits.rate = Some(RateLimit { per_second, burst });
        self
    }

    /// Lets the group give way to applications while it has a backlog: before each claim it sees how long a small piece of
    /// work takes in the database, and claims less and rests longer while that is over the pace's target (10 ms for
    /// [`BackfillPace::Standard`]). Once it has caught up, messages are handed out as they come. Without it the group
    /// catches up as fast as its handlers go.
    #[must_use]
    pub fn catch_up_pace(mut self, pace: BackfillPace) -> Self {
        self.catch_up_pace = Some(pace);
        self
    }

    /// Bytes of messages that are buffered or being handled at most, 64 MiB by default; a batch of a consumer that is driven by
    /// hand is no larger. A message is handled whatever it weighs, and claims are made while half of the limit is free, so
    /// up to half of it and one message may be in hand where messages are larger than that.
    ///
    /// Each consumer of a process has its own limit. Memory of messages is freed in pages of up to 4 MiB, once no message of the
    /// page is being handled.
    #[must_use]
    pub fn buffer_bytes_max(mut self, bytes: usize) -> Self {
        self.buffer_bytes_max = bytes;
        self
    }

    /// The name under which transactional members remember what they handled, if not `topic/group`. Keep it when the group is
    /// renamed, and effects stay single.
    #[must_use]
    pub fn inbox_name(mut self, name: &str) -> Self {
        self.inbox_name = Some(name.to_owned());
        self
    }

    /// Who holds the leases of an opened [`Consumer`], for people who look; unique per instance.
    #[must_use]
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Subscribes the group if it is new, and opens a consumer to be driven by hand.
    pub async fn open(self) -> Result<Consumer> {
        let subscription = self.subscribe().await?;
        let owner = self.owner.clone().map_or_else(Runtime::new_owner, Ok)?;
        let (store, batch) = (Arc::clone(self.headwater.store()), self.batch);
        let metrics = self.headwater.metrics().group_apart(&subscription.topic.name, &subscription.group);
        let settings = GroupSettings { pulled: true, ..self.settings(&subscription) };
        let thread = LeaseThread::shared()?;
        Ok(Consumer::new(thread, store, owner, subscription, batch, settings, metrics))
    }

    /// Subscribes the group if it is new, and serves it from now on: claims, heartbeats, retries and acks are its own.
    pub async fn run(self) -> Result<Running> {
        let (running, group) = self.build().await?;
        running.feed.join(Arc::clone(&group));
        running.runtime.serve(group);
        Ok(running)
    }

    /// Subscribes the group if it is new, and returns a consumer that moves only when told to: for tests.
    pub async fn stepwise(self) -> Result<Stepper> {
        let (running, _) = self.build().await?;
        Ok(Stepper::new(running))
    }

    async fn build(mut self) -> Result<(Running, Arc<Group>)> {
        self.check()?;
        let subscription = self.subscribe().await?;
        let runtime = self.headwater.runtime()?;
        let mut members = Members::default();
        for (name, handling) in std::mem::take(&mut self.members) {
            members.0.push(Arc::new(member_of(&subscription, &name, handling)?));
        }
        check_lane_members(&subscription, &members.0)?;
        let feed = runtime.feed(subscription.topic.topic_id);
        let changed = Arc::clone(&feed.changed);
        let metrics = self.headwater.metrics().group(&subscription.topic.name, &subscription.group);
        let settings = self.settings(&subscription);
        let settler = runtime.settler.clone();
        let group = Arc::new(Group::new(subscription, settings, members, settler, changed, metrics));
        Ok((Running { runtime, feed, group: Arc::clone(&group) }, group))
    }

    fn settings(self, subscription: &Subscription) -> GroupSettings {
        let default_name = || format!("{}/{}", subscription.topic.name, subscription.group);
        GroupSettings {
            concurrency: self.concurrency,
            batch: self.batch as usize,
            lease: self.lease,
            timeout: self.timeout,
            limits: self.limits,
            catch_up_pace: self.catch_up_pace,
            buffer_bytes_max: self.buffer_bytes_max,
            filter: self.filter,
            inbox_name: self.inbox_name.unwrap_or_else(default_name),
            pulled: false,
        }
    }

    async fn subscribe(&self) -> Result<Subscription> {
        let (topic, group) = (TopicName::new(&self.topic)?, GroupName::new(&self.group)?);
        let store = self.headwater.store();
        let subscription = store.subscribe(&topic, &group, self.start).await?;
        if subscription.topic.settings.tracking == Tracking::ReferenceCounting
            && let Err(error) = drive::at_once(&**store, &topic, &group).await
        {
            // Maintenance does it: what the group is handed does not depend on it.
            tracing::warn!(%topic, %group, %error, "the group's backfill is left to maintenance");
        }
        Ok(subscription)
    }

    fn check(&self) -> Result<()> {
        if self.members.is_empty() {
            return Err(Error::invalid(
                "member",
                format!(
                    "group {} on topic {} has none and could handle nothing; add one with `.member(name, handler)`",
                    self.group, self.topic
                ),
            ));
        }
        self.limits.validate()?;
        for (at, (name, handling)) in self.members.iter().enumerate() {
            check_name("member", name)?;
            check_handler(self.headwater.store(), &handling.handler)?;
            if self.members[..at].iter().any(|(other, _)| other == name) {
                return Err(Error::invalid(
                    "member",
                    format!("{name} is named twice; names are unique in a group"),
                ));
            }
        }
        if self.lease.is_some_and(|lease| lease > DELAY_MAX) {
            return Err(Error::invalid(
                "lease",
                "longer than 366 days; use zero for one that never ends by itself",
            ));
        }
        if self.concurrency == 0 {
            return Err(Error::invalid("concurrency", "0 handlers could handle nothing; use 1 or more"));
        }
        if self.batch == 0 || self.batch > CLAIM_MESSAGES_MAX {
            return Err(Error::invalid("batch", format!("must be from 1 to {CLAIM_MESSAGES_MAX} messages")));
        }
        if let Some(name) = &self.inbox_name {
            check_name("inbox_name", name)?;
        }
        Ok(())
    }
}

fn member_of(subscription: &Subscription, name: &str, handling: Handling) -> Result<Member> {
    check_name("member", name)?;
    let identity = Identity {
        topic: subscription.topic.name.to_string(),
        group: subscription.group.to_string(),
        member: name.to_owned(),
    };
    Ok(Member { identity: Arc::new(identity), handler: handling.handler, filter: handling.filter })
}

/// In strict order one worker hands messages to members in turn, and a transaction cannot be shared between them.
fn check_lane_members(subscription: &Subscription, members: &[Arc<Member>]) -> Result<()> {
    let transactional = |member: &Arc<Member>| !matches!(member.handler, Handler::One(_) | Handler::Batch(_));
    if subscription.lanes > 0 && members.len() > 1 && members.iter().any(transactional) {
        let rule =
            "a transactional one must be alone in a group that is ordered by key; give it a group of its own";
        return Err(Error::invalid("member", rule));
    }
    Ok(())
}

/// A handler inside one database's transactions cannot serve a store on the other.
fn check_handler(store: &Arc<dyn Store>, handler: &Handler) -> Result<()> {
    let fits = match handler {
        Handler::One(_) | Handler::Batch(_) => true,
        #[cfg(feature = "postgres")]
        Handler::Postgres(_) => store.as_postgres().is_some(),
        #[cfg(feature = "sqlite")]
        Handler::Sqlite(_) => store.as_sqlite().is_some(),
    };
    if fits {
        return Ok(());
    }
    let engine = store.engine();
    Err(Error::invalid(
        "member",
        format!("it handles {handler:?}, and this store is {engine}; use the handling of that database"),
    ))
}
