//! The SQL of every verb, with the namespace put in once when the store is opened.

use crate::namespace::Namespace;

macro_rules! statements {
    ($($name:ident: $file:literal,)*) => {
        /// The text of each statement. Prepared once per connection, by this text.
        #[derive(Debug)]
        pub(super) struct Statements { $(pub(super) $name: String,)* }

        impl Statements {
            pub(super) fn of(namespace: &Namespace) -> Self {
                Statements { $($name: in_namespace(include_str!(concat!("sql/", $file)), namespace),)* }
            }
        }
    };
}

statements! {
    publish: "publish.sql",
    claim: "claim.sql",
    claimable: "arm/claimable.sql",
    epoch: "epoch.sql",
    fetch: "fetch.sql",
    fetch_sizes: "fetch/sizes.sql",
    fetch_payload: "fetch/payload.sql",
    fetch_headers: "fetch/headers.sql",
    settle_all: "settle/all.sql",
    settle_parts: "settle/parts.sql",
    settle_wake: "settle/wake.sql",
    extend: "extend.sql",
    heartbeat: "heartbeat.sql",
    depart: "depart.sql",
    prove: "take_over/prove.sql",
    watch: "take_over/watch.sql",
    take_over: "take_over/end.sql",
    withdraw: "take_over/withdraw.sql",
    read_clock: "clock/read.sql",
    move_clock: "clock/move.sql",
    subscribe: "subscribe/create.sql",
    subscribe_lanes: "subscribe/lanes.sql",
    subscription_list: "subscription_list.sql",
    outstanding: "outstanding.sql",
    topic_create: "topic_create.sql",
    topic_get: "topic_get.sql",
    topic_list: "topic_list.sql",
    alter_topic: "alter_topic.sql",
    set_state: "state.sql",
    remove: "remove.sql",
    remove_dead_letters: "remove/dead_letters.sql",
    resurrect: "resurrect.sql",
    beat: "beat.sql",
    seek: "seek.sql",
    policy_set: "policy/set.sql",
    policy_get: "policy/get.sql",
    policy_settings: "policy/settings.sql",
    release_lease: "release_lease.sql",
    force_complete: "force_complete.sql",
    stuck: "stuck.sql",
    audit: "audit.sql",
    acks: "acks.sql",
    maintain: "maintain/round.sql",
    forget_inbox: "maintain/forget_inbox.sql",
    transaction_begin: "transaction/begin.sql",
    transaction_enter: "transaction/enter.sql",
    transaction_settle: "transaction/settle.sql",
    advance: "maintain/advance.sql",
    heads_with_news: "maintain/news.sql",
    dead_letters: "dead_letters.sql",
    redrive_page: "redrive/page.sql",
    redrive: "redrive/letters.sql",
    purge: "purge.sql",
    cron_last: "cron/last.sql",
    cron_fire: "cron/fire.sql",
    raise_flag: "arm/raise_flag.sql",
    news: "arm/news.sql",
    clean_worn: "clean/worn.sql",
    doctor_delivery: "doctor/delivery.sql",
    doctor_upkeep: "doctor/upkeep.sql",
    doctor_durability: "doctor/durability.sql",
    doctor_rights: "doctor/rights.sql",
    elect: "election/elect.sql",
    resign: "election/resign.sql",
    detect: "detect.sql",
    track: "track/step.sql",
    records: "track/records.sql",
    clean: "clean/messages.sql",
    clean_clock: "clean/clock.sql",
    clean_partitions: "clean/partitions.sql",
    clean_subscriptions: "clean/subscriptions.sql",
    clean_forget: "clean/forget.sql",
    jobs: "jobs/list.sql",
    job_ran: "jobs/ran.sql",
    probe: "jobs/probe.sql",
    backfill_list: "backfill/list.sql",
    backfill_start: "backfill/start.sql",
    backfill_turn: "backfill/turn.sql",
    backfill_take: "backfill/take.sql",
    backfill_step: "backfill/step.sql",
    backfill_fail: "backfill/fail.sql",
}

/// Puts the namespace into a statement: `{schema}` quoted as an identifier, `{name}` bare inside literals. The rule for
/// namespaces leaves only `a-z`, `0-9` and `_`, so neither can end what it stands in. Header comments stay behind.
pub(super) fn in_namespace(sql: &str, namespace: &Namespace) -> String {
    let body: Vec<&str> = sql.lines().skip_while(|line| line.starts_with("--") || line.is_empty()).collect();
    body.join("\n").replace("{schema}", &namespace.quoted()).replace("{name}", namespace.as_str())
}
