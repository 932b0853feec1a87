//! The SQL of every verb, with the namespace put in once when the store is opened.

use crate::namespace::Namespace;

/// The statement of a section of `sql/<verb>.sql`.
macro_rules! sql {
    ($verb:ident) => {
        crate::store::postgres::statements::sql!($verb.$verb)
    };
    ($verb:ident.$name:ident) => {
        crate::store::sql::from_file!("postgres", $verb, $name)
    };
}
pub(super) use sql;

macro_rules! statements {
    ($($name:ident: $verb:ident $(. $section:ident)?,)*) => {
        /// The text of each statement. Prepared once per connection, by this text.
        #[derive(Debug)]
        pub(super) struct Statements { $(pub(super) $name: String,)* }

        impl Statements {
            pub(super) fn of(namespace: &Namespace) -> Self {
                Statements { $($name: in_namespace(sql!($verb $(. $section)?), namespace),)* }
            }
        }
    };
}

statements! {
    publish: publish,
    claim: claim,
    claimable: arm.claimable,
    epoch: epoch,
    fetch: log.fetch,
    fetch_sizes: log.sizes,
    fetch_payload: log.payload,
    fetch_headers: log.headers,
    settle_all: settle.all,
    settle_parts: settle.parts,
    settle_wake: settle.wake,
    extend: extend,
    heartbeat: heartbeat,
    depart: depart,
    prove: take_over.prove,
    watch: take_over.watch,
    take_over: take_over.end,
    withdraw: take_over.withdraw,
    read_clock: clock.read,
    move_clock: clock.move,
    subscribe: subscribe.create,
    subscribe_lanes: subscribe.lanes,
    subscription_list: subscription_list,
    outstanding: outstanding,
    topic_create: topic_create,
    topic_get: topic_get,
    topic_list: topic_list,
    alter_topic: alter_topic,
    set_state: state,
    remove: remove,
    remove_dead_letters: remove.dead_letters,
    resurrect: resurrect,
    seek: seek,
    policy_set: policy.set,
    policy_get: policy.get,
    policy_settings: policy.settings,
    release_lease: release_lease,
    force_complete: force_complete,
    stuck: log.stuck,
    audit: audit,
    acks: acks,
    maintain: maintain.round,
    forget_inbox: maintain.forget_inbox,
    transaction_begin: transaction.begin,
    transaction_enter: transaction.enter,
    transaction_settle: transaction.settle,
    advance: maintain.advance,
    heads_with_news: maintain.news,
    dead_letters: dead_letters,
    redrive_page: redrive.page,
    redrive: redrive.letters,
    purge: purge,
    cron_last: cron.last,
    cron_fire: cron.fire,
    raise_flag: arm.raise_flag,
    news: arm.news,
    clean_worn: clean.worn,
    doctor_delivery: doctor.delivery,
    doctor_upkeep: doctor.upkeep,
    doctor_durability: doctor.durability,
    doctor_rights: doctor.rights,
    elect: election.elect,
    resign: election.resign,
    detect: detect,
    track: tracking.step,
    records: tracking.records,
    clean: clean.messages,
    clean_clock: clean.clock,
    clean_partitions: clean.partitions,
    clean_subscriptions: clean.subscriptions,
    clean_forget: clean.forget,
    jobs: jobs.list,
    job_ran: jobs.ran,
    probe: jobs.probe,
    backfill_list: tracking.backfill_list,
    backfill_start: tracking.backfill_start,
    backfill_turn: tracking.backfill_turn,
    backfill_take: tracking.backfill_take,
    backfill_step: tracking.backfill_step,
    backfill_fail: tracking.backfill_fail,
}

/// Puts the namespace into a statement: `{schema}` quoted as an identifier, `{name}` bare inside literals. The rule for
/// namespaces leaves only `a-z`, `0-9` and `_`, so neither can end what it stands in. Header comments stay behind.
pub(super) fn in_namespace(sql: &str, namespace: &Namespace) -> String {
    let body: Vec<&str> = sql.lines().skip_while(|line| line.starts_with("--") || line.is_empty()).collect();
    body.join("\n").replace("{schema}", &namespace.quoted()).replace("{name}", namespace.as_str())
}
