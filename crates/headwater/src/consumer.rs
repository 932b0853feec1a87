//! The consumer: describes how a group is served, and connects claim, handle and settle.
//!
//! `feed` claims and reads for all groups of a topic, `group` routes messages to members and queues them, `worker` runs
//! handlers, `settler` settles, `keeper` extends leases, `heartbeat` sends heartbeats. `pull` is for programs with their
//! own loop.

use std::sync::Arc;
use std::time::Duration;

use crate::Headwater;
use crate::backfill::BackfillPace;
use crate::error::{Error, Result};
use crate::handler::{Filter, Handler, HandlerFn, HandlerResult, Handling, Identity, Layer, Layers, States};
use crate::lease_thread::LeaseThread;
use crate::limits::{CLAIM_MESSAGES_MAX, DELAY_MAX};
use crate::message::Message;
use crate::name::{Owner, check_name};
use crate::publish::replies::Replier;
use crate::store::Store;
use crate::subscription::{Start, Subscription};

mod batch;
mod catch_up;
mod claims;
mod declare;
mod feed;
mod group;
mod heartbeat;
mod idle;
mod keeper;
mod leases;
mod listed;
mod member;
mod own_pause;
mod pace;
mod pages;
mod pull;
mod queue;
mod reported;
mod routing;
mod running;
pub(crate) mod runtime;
mod serve_state;
mod settings;
mod settler;
pub(crate) mod step;
#[cfg(all(test, feature = "sqlite"))]
pub(crate) mod tests;
mod transaction;
mod work;
mod worker;

pub use crate::handler::Undecodable;
pub use crate::lease::{GroupLimits, RateLimit};
pub use crate::subscription::{GroupOrder, NewSubscription};
pub use batch::Batch;
pub use claims::{ClaimOptions, ClaimedMessage, Claims, Holder, Settled, Ticket};
use group::Group;
use member::{Member, Members};
pub use pull::Consumer;
pub(crate) use running::{FLUSH, end};
pub use running::{Running, ShutdownReport, Stopped};
use runtime::Runtime;
pub use serve_state::EndReason;
pub(crate) use serve_state::ServeState;
use settings::GroupSettings;
use step::Stepper;

/// Default limit of burials in a row.
const BURIALS_MAX: u32 = 100;
/// Default limit of messages buffered or being handled, in bytes.
const BUFFER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A consumer to be run or opened.
pub struct ConsumerBuilder {
    headwater: Headwater,
    topic: String,
    group: String,
    new: NewSubscription,
    ensure_policy: bool,
    batch: u32,
    concurrency: usize,
    lease: Option<Duration>,
    owner: Option<Owner>,
    timeout: Option<Duration>,
    undecodable: Undecodable,
    pause_after_burials: Option<u32>,
    limits: GroupLimits,
    catch_up_pace: Option<BackfillPace>,
    buffer_bytes_max: usize,
    filter: Option<Filter>,
    inbox_name: Option<String>,
    states: States,
    layers: Layers,
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
            new: NewSubscription::default(),
            ensure_policy: false,
            batch: 100,
            concurrency: 16,
            lease: None,
            owner: None,
            timeout: None,
            undecodable: Undecodable::default(),
            pause_after_burials: Some(BURIALS_MAX),
            limits: GroupLimits::default(),
            catch_up_pace: None,
            buffer_bytes_max: BUFFER_BYTES_MAX,
            filter: None,
            inbox_name: None,
            states: States::default(),
            layers: Layers::default(),
            members: Vec::new(),
        }
    }

    /// Adds a member that handles one message at a time: a closure or function of the payload, with or without
    /// a [`Context`](crate::Context), see [`HandlerFn`]. The type of the payload determines how it is decoded:
    /// [`Json`](crate::Json), `Protobuf`, [`Bytes`](bytes::Bytes) or the whole [`Message`].
    #[must_use]
    pub fn member<Arguments, H>(self, name: &str, handler: H) -> Self
    where
        H: HandlerFn<Arguments, HandlerResult>,
    {
        self.handling(name, Handling::one(handler))
    }

    /// Adds a member of any kind, see [`Handling`].
    #[must_use]
    pub fn handling(mut self, name: &str, handling: Handling) -> Self {
        self.members.push((name.to_owned(), handling));
        self
    }

    /// Gives all members of this consumer something they share: a pool, a client, a configuration. A handler of any kind
    /// and a layer read it by [`Context::state`](crate::Context::state), without a clone. One value per type; a second
    /// one of the same type replaces the first.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// use headwater::{Context, Headwater, Json};
    ///
    /// struct Mailer { from: String }
    ///
    /// let headwater = Headwater::in_memory().await?;
    /// let mut consumer = headwater
    ///     .consumer("orders", "email")
    ///     .state(Mailer { from: "shop".into() })
    ///     .member("mailer", |Json(id): Json<u64>, context: Context| async move {
    ///         let mailer: &Mailer = context.state();
    ///         println!("{} writes about order {id}", mailer.from);
    ///         Ok(())
    ///     })
    ///     .stepwise()
    ///     .await?;
    /// # headwater.producer("orders").send(&7).await?;
    /// # assert_eq!(consumer.drain().await?, 1);
    /// # assert_eq!(consumer.running().health().totals.acked, 1);
    /// # headwater.close().await }
    /// ```
    #[must_use]
    pub fn state<S: Send + Sync + 'static>(mut self, state: S) -> Self {
        self.states.add(state);
        self
    }

    /// Runs a [`Layer`] around every call of a handler of this consumer, inside the layers added before.
    #[must_use]
    pub fn layer(mut self, layer: impl Layer) -> Self {
        self.layers.add(layer);
        self
    }

    /// Only messages for which `filter` returns true are handled by the group; the others are done without being
    /// handled. Applied before the members' own filters.
    #[must_use]
    pub fn filter(mut self, filter: impl Fn(&Message) -> bool + Send + Sync + 'static) -> Self {
        self.filter = Some(Arc::new(filter));
        self
    }

    /// Where a new group starts; an existing group keeps its position.
    #[must_use]
    pub fn start_from(mut self, start: Start) -> Self {
        self.new.start = start;
        self
    }

    /// How many messages a batch has at most: for a batch handler, for a transaction, and for a claim of a lane.
    #[must_use]
    pub fn batch(mut self, messages: u32) -> Self {
        self.batch = messages;
        self
    }

    /// How many handlers run concurrently in this consumer.
    #[must_use]
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.concurrency = handlers;
        self
    }

    /// How long a lease lasts, if it differs from the topic's.
    ///
    /// While the process runs and reaches the database, no lease of a running consumer expires: a dedicated thread of
    /// the process extends leases and sends heartbeats. Handlers may block their threads, even all of them: that delays
    /// other messages of this program, and hands none of them to another process. A lease ends early if the process is
    /// stopped (SIGSTOP, a suspended machine) or disconnected for longer than 15 s; a handler can check
    /// [`Context::is_lost`](crate::Context::is_lost). A member inside SQLite's transactions runs on the writer thread,
    /// and must take less time than that.
    ///
    /// An opened [`Consumer`] extends the leases it has not handed out yet, and those that
    /// [`Batch::handle`](crate::Batch::handle) works on. A batch that the program settles itself has to be
    /// [extended](crate::Batch::extend) by the program.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// How long a handler may take before it counts as failed. It is dropped then; a member inside SQLite's
    /// transactions cannot be interrupted, and its writes are rolled back once it returns.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// What happens to a message whose payload cannot be decoded as its member's type; buried by default. Batch handlers
    /// and opened consumers get messages as they are stored, and decode them themselves.
    #[must_use]
    pub fn undecodable(mut self, undecodable: Undecodable) -> Self {
        self.undecodable = undecodable;
        self
    }

    /// After how many burials in a row the group pauses itself, 100 by default; `None` for never. A message that is done
    /// starts the count again. So a wrong deploy does not empty a backlog into the dead letters: once the cause is
    /// corrected, resume the group and redrive them.
    ///
    /// Each process counts for itself. The pause stops the group in every process, is logged as WARN, and has its reason
    /// in the status of the group. Verdicts of [`Batch::settle_each`](crate::Batch::settle_each) are not counted.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// # let headwater = headwater::Headwater::in_memory().await?;
    /// use headwater::consumer::Undecodable;
    /// use headwater::{Json, SubscriptionState};
    ///
    /// let mut consumer = headwater
    ///     .consumer("orders", "email")
    ///     .member("mailer", |Json(_): Json<u64>, _| async { Ok(()) })
    ///     .undecodable(Undecodable::Bury)
    ///     .pause_after_burials(3)
    ///     .stepwise()
    ///     .await?;
    /// for n in 0..10 {
    ///     headwater.producer("orders").send(&format!("order {n}")).await?; // no number
    /// }
    /// consumer.drain().await?;
    /// let status = headwater.groups("orders").get("email").await?.status;
    /// assert_eq!((status.state, status.dead_letters, status.lag), (SubscriptionState::Paused, 3, 7));
    /// assert!(status.state_reason.is_some_and(|reason| reason.starts_with("3 messages in a row became dead letters")));
    /// # headwater.close().await }
    /// ```
    #[must_use]
    pub fn pause_after_burials(mut self, burials: impl Into<Option<u32>>) -> Self {
        self.pause_after_burials = burials.into();
        self
    }

    /// How many messages of the group may be in flight at once, across all processes.
    #[must_use]
    pub fn max_in_flight(mut self, messages: u32) -> Self {
        self.limits.in_flight_max = Some(messages);
        self
    }

    /// How many messages per second the group gets, across all processes; after a pause up to `burst` at once.
    ///
    /// It also limits a group with a long backlog: a replay at a known rate never starves other work.
    /// [`catch_up_pace`](Self::catch_up_pace) determines the rate by itself.
    #[must_use]
    pub fn rate_limit(mut self, per_second: f64, burst: u32) -> Self {
        self.limits.rate = Some(RateLimit { per_second, burst });
        self
    }

    /// Makes the group yield to applications while it has a backlog: before each claim it measures how long a small
    /// piece of work takes in the database, and claims less and pauses longer while that is over the pace's target (10
    /// ms for [`BackfillPace::Standard`]). Once it has caught up, messages are handed out as they come. Without it the
    /// group catches up as fast as its handlers allow.
    #[must_use]
    pub fn catch_up_pace(mut self, pace: BackfillPace) -> Self {
        self.catch_up_pace = Some(pace);
        self
    }

    /// Bytes of messages that are buffered or being handled at most, 64 MiB by default; a batch of an opened
    /// [`Consumer`] is no larger. A message is handled whatever its size, and claims are made while half of the limit
    /// is free, so up to half of it plus one message may be held where messages are larger than that.
    ///
    /// Each consumer of a process has its own limit. Memory of messages is freed in pages of up to 4 MiB, once no
    /// message of the page is being handled.
    #[must_use]
    pub fn buffer_bytes_max(mut self, bytes: usize) -> Self {
        self.buffer_bytes_max = bytes;
        self
    }

    /// The handler name in the inbox entries of transactional members, `topic/group` by default. Keep it when the group
    /// is renamed, so that effects stay exactly once.
    #[must_use]
    pub fn inbox_name(mut self, name: &str) -> Self {
        self.inbox_name = Some(name.to_owned());
        self
    }

    /// The owner name of an opened [`Consumer`], shown to operators; unique per instance.
    #[must_use]
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Subscribes the group if it is new, and opens a consumer from which the program takes batches.
    pub async fn open(self) -> Result<Consumer> {
        let subscription = self.subscribe().await?;
        let owner = self.owner.clone().map_or_else(Runtime::new_owner, Ok)?;
        let (store, batch) = (Arc::clone(self.headwater.store()), self.batch);
        let gate = Arc::clone(self.headwater.opened());
        let metrics = self.headwater.metrics().group_apart(&subscription.topic.name, &subscription.group);
        let settings = GroupSettings { pulled: true, ..self.settings(&subscription) };
        let thread = LeaseThread::shared()?;
        Ok(Consumer::new(thread, store, owner, subscription, batch, settings, metrics).inside(gate))
    }

    /// Subscribes the group if it is new, and serves it from now on: with claims, heartbeats, retries and acks.
    pub async fn run(self) -> Result<Running> {
        let (mut running, group) = self.build().await?;
        running.runtime.serve(Arc::clone(&group));
        running.runtime.introduced().await;
        running.feed.join(group);
        running.is_served = true;
        Ok(running)
    }

    /// Subscribes the group if it is new, and returns a consumer that runs only when stepped: for tests.
    pub async fn stepwise(self) -> Result<Stepper> {
        let (running, _) = self.build().await?;
        Ok(Stepper::new(running))
    }

    async fn build(mut self) -> Result<(Running, Arc<Group>)> {
        self.check()?;
        let subscription = self.subscribe().await?;
        let runtime = self.headwater.runtime()?;
        let (mut members, replier) = (Members::default(), self.headwater.replier());
        let inbox = self.inbox_name.clone().unwrap_or_else(|| subscription.inbox_name());
        for (name, handling) in std::mem::take(&mut self.members) {
            let (states, layers) = (&self.states, &self.layers);
            let member = member_of(&subscription, &name, handling, states, layers, &replier, &inbox)?;
            members.0.push(Arc::new(member));
        }
        check_lane_members(&subscription, &members.0)?;
        let feed = runtime.feed(subscription.topic.topic_id);
        let changed = Arc::clone(&feed.changed);
        let metrics = self.headwater.metrics().group(&subscription.topic.name, &subscription.group);
        let settings = self.settings(&subscription);
        let settler = runtime.settler.clone();
        let group = Arc::new(Group::new(subscription, settings, members, settler, changed, metrics));
        let running = Running { is_served: false, runtime, feed, group: Arc::clone(&group), replier };
        Ok((running, group))
    }

    fn settings(self, subscription: &Subscription) -> GroupSettings {
        GroupSettings {
            concurrency: self.concurrency,
            batch: self.batch as usize,
            lease: self.lease,
            timeout: self.timeout,
            undecodable: self.undecodable,
            pause_after_burials: self.pause_after_burials,
            limits: self.limits,
            catch_up_pace: self.catch_up_pace,
            buffer_bytes_max: self.buffer_bytes_max,
            filter: self.filter,
            states: self.states,
            layers: self.layers,
            inbox_name: self.inbox_name.unwrap_or_else(|| subscription.inbox_name()),
            pulled: false,
        }
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
                "longer than 366 days; use zero for a lease that never expires",
            ));
        }
        if self.pause_after_burials == Some(0) {
            let rule = "0 would pause a group before its first burial; use 1 or more, or None for no limit";
            return Err(Error::invalid("pause_after_burials", rule));
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

fn member_of(
    subscription: &Subscription,
    name: &str,
    handling: Handling,
    states: &States,
    layers: &Layers,
    replier: &Replier,
    inbox_name: &str,
) -> Result<Member> {
    check_name("member", name)?;
    let identity = Identity {
        topic: subscription.topic.name.to_string(),
        group: subscription.group.to_string(),
        member: name.to_owned(),
        inbox_name: inbox_name.to_owned(),
        replier: replier.clone(),
        states: states.clone(),
    };
    let handler = layers.around(handling.handler);
    Ok(Member { identity: Arc::new(identity), handler, filter: handling.filter })
}

/// In strict order one worker hands messages to members in turn, and members cannot share a transaction.
fn check_lane_members(subscription: &Subscription, members: &[Arc<Member>]) -> Result<()> {
    let transactional = |member: &Arc<Member>| member.handler.is_transactional();
    if subscription.lanes > 0 && members.len() > 1 && members.iter().any(transactional) {
        let rule = "a transactional member of a group that is ordered by key must be its only one";
        return Err(Error::invalid("member", rule));
    }
    Ok(())
}

/// A handler inside transactions of one engine cannot serve a store of the other.
fn check_handler(store: &Arc<dyn Store>, handler: &Handler) -> Result<()> {
    let fits = match handler {
        Handler::One(_) | Handler::Batch(_) | Handler::Transactional(..) => true,
        #[cfg(feature = "postgres")]
        Handler::Postgres(_) => store.as_postgres().is_some(),
        #[cfg(feature = "sqlite")]
        Handler::Sqlite(..) => store.as_sqlite().is_some(),
    };
    let engine = store.engine();
    if fits {
        return Ok(());
    }
    let rule =
        format!("it handles {handler:?}, and this store is {engine}; use the handling of that database");
    Err(Error::invalid("member", rule))
}
