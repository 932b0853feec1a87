//! The SQL of every verb, with the namespace put in once when the store is opened.
//!
//! A call of a function of the schema is written here, beside its name, and so is a query of a few lines that is its verb's only
//! one. Every other statement is in `sql/<verb>.sql`. A name begins with the statement's verb, and SQLite has the same verbs
//! (`cargo xtask tidy`).

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

/// `name: "…"` is a call, `name: (…)` one whose text is put together, `name: verb.section` a section of `sql/verb.sql`, and
/// `verb: verb` the section of the file's own name.
macro_rules! statements {
    (@text $call:literal) => { $call };
    (@text ($call:expr)) => { $call };
    (@text $verb:ident $(. $section:ident)?) => { sql!($verb $(. $section)?) };
    ($($name:ident: $($text:tt).+,)*) => {
        /// The text of each statement. Prepared once per connection, by this text.
        #[derive(Debug)]
        pub(super) struct Statements { $(pub(super) $name: String,)* }

        impl Statements {
            pub(super) fn of(namespace: &Namespace) -> Self {
                Statements { $($name: in_namespace(statements!(@text $($text).+), namespace),)* }
            }
        }
    };
}

/// An entry of the outbox: the columns of each statement that returns some.
macro_rules! entries_of {
    ($from:literal) => {
        concat!(
            "SELECT e.id, e.category, e.topic, e.key, e.type, e.payload, e.headers::text AS headers, e.status, e.attempts,
                (extract(epoch FROM e.next_at) * 1000000)::bigint AS next_at_us, e.claimed_by,
                (extract(epoch FROM e.claimed_at) * 1000000)::bigint AS claimed_at_us,
                (extract(epoch FROM e.created_at) * 1000000)::bigint AS created_at_us,
                (extract(epoch FROM e.published_at) * 1000000)::bigint AS published_at_us, e.last_error FROM ",
            $from
        )
    };
}

/// A process, likewise.
macro_rules! processes_of {
    ($from:literal) => {
        concat!(
            "SELECT process_id, process_type, business_key, status, paused_in, current_step, data, retries, version,
                (extract(epoch FROM created_at) * 1000000)::bigint AS created_at_us,
                (extract(epoch FROM updated_at) * 1000000)::bigint AS updated_at_us FROM ",
            $from
        )
    };
}

/// A process and the events of its log.
macro_rules! loaded_processes_of {
    ($from:literal) => {
        concat!(
            "SELECT (l.process).process_id, (l.process).process_type, (l.process).business_key, (l.process).status,
                (l.process).paused_in, (l.process).current_step, (l.process).data, (l.process).retries, (l.process).version,
                (extract(epoch FROM (l.process).created_at) * 1000000)::bigint AS created_at_us,
                (extract(epoch FROM (l.process).updated_at) * 1000000)::bigint AS updated_at_us, l.events FROM ",
            $from
        )
    };
}

/// Publishes a batch, all or nothing, in whatever transaction is open.
///
/// Topic, message ids, payloads, keys, types, content types, headers as JSON text, correlation ids, dedup keys, delivery times
/// (an array that is null stands for a column of nulls), injected time, whether the transaction is publish's own and so is
/// never prepared, expected time, delays in ms.
pub(super) const PUBLISH: &str = "SELECT topic_id, offsets, duplicate_of
    FROM {schema}.publish_batch($1, $2, $3, $4, $5, $6, $7::text[]::jsonb[], $8, $9, $10::timestamptz[], $11::timestamptz, $12, $13::timestamptz, $14)";

statements! {
    publish: (PUBLISH),
    // Job, first tick of a new job.
    cron_last: "SELECT {schema}.cron_last($1, $2) AS last_tick",
    // Job, expression, time zone, topic, injected time.
    cron_describe: "SELECT {schema}.cron_describe($1, $2, $3, $4, $5::timestamptz)",
    cron_list: "SELECT job, expression, time_zone, topic, started_at, last_tick FROM {schema}.cron ORDER BY job",
    // Job, tick, topic, message id, payload, key, type, content type, headers as JSON text, correlation id, dedup key, delivery time,
    // injected time. No row if the tick is not ahead of the job.
    cron_fire: "SELECT topic_id, offsets, duplicate_of
        FROM {schema}.cron_fire($1, $2, $3, $4, $5, $6, $7, $8, $9::text::jsonb, $10, $11, $12, $13::timestamptz)",

    // Owner, subscription ids, messages at most (each), lease in ms (each, null for the topic's), in flight at most, messages per
    // second and burst (each; an array that is null stands for no limits), durable, promote at most, rows at most per advance, gaps
    // at most, parked at most per lane, injected time, expected time, by how much deadlines were moved before. The epoch is that of
    // the server that handed out: null after a crash, until one is begun.
    claim: "SELECT kind, subscription_id, topic_id, token, first_offset, last_offset, attempt, nullif(deadline, 'infinity') AS deadline,
            suspect, lane, blocked_keys, recheck_ms, names, detail, (SELECT e.epoch FROM {schema}.epoch e WHERE e.made_by = e.xmin) AS epoch
        FROM {schema}.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13::timestamptz, $14, $15)",
    epoch: "SELECT epoch, cause FROM {schema}.begin_epoch()",
    // Subscription ids, injected time: those for which a claim may find something.
    arm_claimable: "SELECT subscription_id FROM {schema}.claimable($1, $2::timestamptz)",
    // Topic ids, waiter id, for how many ms.
    arm_raise_flag: "SELECT {schema}.raise_flag($1, $2, $3)",
    arm_new_messages: arm.new_messages,
    log_fetch: log.fetch,
    // Topic id, rows at most, gaps at most: the head after an advance. Null for an unknown topic.
    log_advanced_head: "SELECT head, taken, skipped, gap_firsts, gap_lasts FROM {schema}.advanced_head($1, $2, $3)",
    log_head: log.head,
    log_held_keys: log.held_keys,
    log_sizes: log.sizes,
    log_payload: log.payload,
    log_headers: log.headers,
    log_stuck: log.stuck,

    // Tokens, subscription ids, owners, durable, injected time: acks whole leases. The tokens that were held.
    settle_all: "SELECT token, freed_topic_id FROM {schema}.settle_all($1, $2, $3, $4, $5::timestamptz)",
    // Token, subscription id, owner, first offsets, last offsets, outcomes, delays in ms, errors, keys, durable, injected time, expected
    // time. Null if the lease is lost.
    settle_parts: "SELECT {schema}.settle_parts($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::timestamptz, $12) AS topic_id",
    // Topic ids: wakes other processes, because a lane became free.
    settle_wake: "SELECT {schema}.wake(t, true, false) FROM unnest($1::integer[]) t",
    // Tokens, subscription ids, owners, lease in ms (0: never reassigned), durable, injected time, expected time. The tokens that were held.
    settle_extend: "SELECT extend_leases AS token FROM {schema}.extend_leases($1, $2, $3, $4, $5, $6::timestamptz, $7)",
    // Token, actor, injected time. Null if no lease has the token.
    settle_release: "SELECT {schema}.release_lease($1, $2, $3::timestamptz) AS topic_id",
    // The mark of a transaction just begun, for as long as it lasts. Its commit waits for the disk and for a synchronous standby.
    transaction_begin: "SELECT set_config('headwater.transaction', $1, true),
            CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
                 THEN set_config('synchronous_commit', 'on', true) END",
    // Handler, message id, injected time. False if the handler's inbox has the message.
    transaction_enter: "SELECT {schema}.insert_if_absent($2, $1, $3::timestamptz) = 1 AS entered",
    // Handler, message ids, injected time. The ids that the handler's inbox did not have.
    transaction_enter_all: "SELECT message_id FROM {schema}.insert_all_if_absent($2, $1, $3::timestamptz)",
    // The transaction's mark, token, subscription id, owner, first offsets (null: ack all), last offsets, outcomes, delays in ms,
    // errors, keys, injected time. Null if the lease is lost.
    transaction_settle: "SELECT {schema}.settle_inside($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::timestamptz) AS topic_id",

    // Owner, for how many ms an owner may be silent (null: it neither judges nor is judged), subscription ids, messages processed,
    // failed and filtered, rates, mean and 95th percentile of handling in microseconds (each an array), injected time. A row per
    // subscription in their order, with its state (null: unknown); and one per silent owner.
    heartbeat: "SELECT i, topic_id, state, resurrected, missed, missed_first, missed_last, silent_owner, seen_at
        FROM {schema}.heartbeat($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::timestamptz)",
    // Silent owner, when it was last seen alive, how long owners may be silent in ms, injected time. No row if it was seen since.
    heartbeat_end_silent: "SELECT leases, topic_ids FROM {schema}.end_silent($1, $2, $3, $4::timestamptz)",
    heartbeat_depart: "SELECT {schema}.depart($1)",
    take_over_prove: take_over.prove,
    take_over_watch: take_over.watch,
    // Owner, key of its proof, when it was last seen alive, injected time. No row if it was seen since.
    take_over_end: "SELECT leases, topic_ids FROM {schema}.take_over($1, $2, $3, $4::timestamptz)",
    take_over_withdraw: "SELECT {schema}.withdraw($1)",
    clock_read: "SELECT now, latest_at, steady_at, moved_ms FROM {schema}.read_clock($1::timestamptz)",
    // By how much deadlines were moved before, the step in ms (0: none), the time that was read, whether the process is steady,
    // injected time. False if another process moved the deadlines meanwhile.
    clock_move: "SELECT {schema}.move_clock($1, $2, $3, $4, $5::timestamptz) AS moved",

    // Name, settings as JSON, injected time.
    topic_create: "SELECT {schema}.store_topic($1, $2::jsonb, $3::timestamptz) AS topic_id",
    // Name, settings as JSON, actor, injected time.
    topic_alter: "SELECT {schema}.alter_topic($1, $2::jsonb, $3, $4::timestamptz) AS topic_id",
    // Name, injected time.
    topic_contents: "SELECT messages, scheduled, groups, leases, dead_letters, served, processes
        FROM {schema}.topic_contents($1, $2::timestamptz)",
    // Name, whether it is forced, actor, injected time. Not deleted if processes serve it.
    topic_delete: "SELECT topic_id, deleted AS removed, messages, scheduled, groups, leases, dead_letters, served, processes
        FROM {schema}.delete_topic($1, $2, $3, $4::timestamptz)",
    // Rows at most (0 only finds the topic), and from which topic on. Null if no deleted topic has rows left.
    topic_empty_deleted: "SELECT {schema}.empty_deleted_topic($1, $2) AS topic_id",
    // Name, whether it is forced, actor, injected time. Not purged if processes serve it.
    topic_purge: "SELECT topic_id, purged AS removed, messages, scheduled, groups, leases, dead_letters, served, processes, first_offset,
            offsets::text AS offsets
        FROM {schema}.purge_topic($1, $2, $3, $4::timestamptz)",
    // Topic id, offsets as text, from which on, messages at most. Null at the end.
    topic_remove_purged: "SELECT {schema}.remove_purged($1, $2::text::int8multirange, $3, $4) AS next_offset",
    topic_get: topic.get,
    topic_list: topic.list,
    // Topic, group, start (beginning, now, offset, timestamp, bounded), its number, its time, how far back restarts count in ms,
    // injected time, what a new group has of its own as JSON.
    subscribe: "SELECT subscription_id, topic_id, lanes, lease_ms, max_attempts, backoff_initial_ms, backoff_max_ms,
            heartbeat_interval_ms, heartbeat_timeout_ms, resurrected, missed
        FROM {schema}.subscribe($1, $2, $3, $4, $5, $6, $7::timestamptz, $8::jsonb)",
    subscribe_lanes: subscribe.lanes,
    subscribe_get: subscribe.get,
    subscribe_list: subscribe.list,
    outstanding: outstanding,
    // Topic, group, act, the states it may start from, the state it leads to, actor, injected time.
    state_set: "SELECT topic_id, state, changed FROM {schema}.set_state($1, $2, $3, $4, $5, $6, NULL, $7::timestamptz)",
    // Topic, group, actor, reason, injected time.
    state_pause: "SELECT topic_id, state, changed FROM {schema}.pause($1, $2, $3, $4, $5::timestamptz)",
    // Topic, group, how many dead letters the steps before deleted, actor, injected time.
    state_remove: "SELECT state, removed FROM {schema}.remove_subscription($1, $2, $3, $4, $5::timestamptz)",
    // Topic, group, at most, and the last dead letter of the step before: subscription id, time of burial, offset.
    state_remove_dead_letters: "SELECT subscription_id, buried_at, message_offset, dead_letters
        FROM {schema}.empty_cancelled($1, $2, $3, $4, $5::timestamptz, $6)",
    // Topic, group, messages behind the head at most (null for any), actor, injected time.
    resurrect: "SELECT topic_id, state, resurrected, next_offset, missed, missed_first, missed_last
        FROM {schema}.resurrect($1, $2, $3, $4, $5::timestamptz)",
    // Topic, group, start (as for subscribe), its number, its time, whether it is a dry run, actor, injected time.
    seek: "SELECT topic_id, from_offset, to_offset, replayed, skipped, leases_lost FROM {schema}.seek($1, $2, $3, $4, $5, $6, $7, $8::timestamptz)",
    message_groups: message.groups,
    message_states: message.states,
    // Topic, group, offset, lane (null if not ordered), act, the states it may start from, reason, actor, injected time.
    message_act: "SELECT topic_id, state, changed FROM {schema}.act_on_message($1, $2, $3, $4, $5, $6, $7, $8, $9::timestamptz)",
    // Topic, group, policy as JSON (null for the topic's), actor, injected time.
    policy_set: "SELECT {schema}.set_policy($1, $2, $3::jsonb, $4, $5::timestamptz) AS state",
    policy_get: policy.get,
    policy_settings: policy.settings,
    schedule_list: schedule.list,
    // Topic, message id, actor, injected time. False if there is none.
    schedule_cancel: "SELECT {schema}.cancel_scheduled($1, $2, $3, $4::timestamptz) AS cancelled",
    // Topic, message id, time, delay in ms (one of the two), actor, injected time. Null if there is none.
    schedule_move: "SELECT {schema}.move_scheduled($1, $2, $3, $4, $5, $6::timestamptz) AS topic_id",

    // Of processes: the injected time is in ms.
    // Process id, process type, business key, current step, data, retries, event, injected time. No row if the id is known.
    process_insert: "SELECT (extract(epoch FROM a.at) * 1000000)::bigint AS created_at_us
        FROM {schema}.process_add($1, $2, $3, $4, $5, $6, $7, timestamptz 'epoch' + $8::bigint * interval '1 millisecond') AS a (at)
        WHERE a.at IS NOT NULL",
    // Process id, version, status, current step, whether data change, data, retries, entries of the log as a JSON array, injected
    // time. No row if it has another version.
    process_change: "SELECT version, (extract(epoch FROM created_at) * 1000000)::bigint AS created_at_us,
            (extract(epoch FROM updated_at) * 1000000)::bigint AS updated_at_us
        FROM {schema}.process_change($1, $2, $3, $4, $5, $6, $7, $8, timestamptz 'epoch' + $9::bigint * interval '1 millisecond')",
    // The changes as a JSON array, injected time.
    process_change_all: "SELECT {schema}.process_change_all($1, timestamptz 'epoch' + $2::bigint * interval '1 millisecond') AS changed",
    // Process id: with its events, locked until the transaction ends.
    process_load: (loaded_processes_of!("{schema}.process_load($1) AS l WHERE (l.process).process_id IS NOT NULL")),
    // Process ids as a JSON array, bytes of data at most: the same. No row if their data are larger.
    process_load_all: (loaded_processes_of!(
        "{schema}.process_load_all(ARRAY(SELECT i::uuid FROM json_array_elements_text($1::json) i), $2) AS l")),
    process_find: process.find,
    process_find_by_id: (processes_of!("{schema}.process_find_by_id($1)")),
    // Status, at most: the newest.
    process_find_by_status: (processes_of!("{schema}.process_find_by_status($1, $2)")),
    // Process type, status, at most: the newest.
    process_find_by_type_and_status: (processes_of!("{schema}.process_find_by_type_and_status($1, $2, $3)")),
    // Process type, business key: the newest.
    process_find_by_business_key: (processes_of!("{schema}.process_find_by_business_key($1, $2)")),
    // At most: the newest whose compensation failed.
    process_find_parked: (processes_of!("{schema}.process_find_parked($1)")),
    // Process id, at most: the newest entries of its log.
    process_log: "SELECT process_id, sequence, (extract(epoch FROM logged_at) * 1000000)::bigint AS at_us, event_type, event, status,
            current_step, data, retries
        FROM {schema}.process_log($1, $2)",
    // Process id, message id, payload, injected time. No row if there is no such process.
    process_signal: "SELECT s.topic_id
        FROM {schema}.process_signal($1, $2, $3, timestamptz 'epoch' + $4::bigint * interval '1 millisecond') AS s (topic_id)
        WHERE s.topic_id IS NOT NULL",
    // Topic, message id.
    process_cancel_timer: "SELECT 1 AS cancelled FROM {schema}.process_cancel_timer($1, $2) AS c (cancelled) WHERE c.cancelled",
    // Topic, message ids as a JSON array.
    process_cancel_timers: "SELECT {schema}.process_cancel_timers($1, ARRAY(SELECT i::uuid FROM json_array_elements_text($2::json) i)) AS cancelled",
    // Message id, handler, injected time. No row if the handler's inbox has the message.
    process_enter: "SELECT 1 AS inserted
        FROM {schema}.insert_if_absent($1, $2, timestamptz 'epoch' + $3::bigint * interval '1 millisecond') AS e (inserted)
        WHERE e.inserted = 1",
    // Retention in ms, at most, injected time.
    process_forget: "SELECT {schema}.process_forget($1::bigint, $2, $3::timestamptz) AS forgotten",

    audit_list: audit.list,
    // Actor, act, topic, group, detail as JSON, injected time.
    audit_note: "SELECT {schema}.note_act($1, $2, $3, $4, $5, $6::timestamptz)",
    audit_acks: audit.acks,

    dead_letter_count: dead_letter.count,
    dead_letter_list: dead_letter.list,
    dead_letter_page: dead_letter.page,
    // Subscription id, dead letters, their lanes (null where not ordered), how many the steps before redrove, how many have lost
    // their message, whether this is the last step, actor, injected time.
    dead_letter_redrive: "SELECT redriven, topic_id FROM {schema}.redrive($1, $2, $3, $4, $5, $6, $7, $8::timestamptz)",
    // Subscription id, dead letters, how many the steps before purged, whether this is the last step, actor, injected time.
    dead_letter_purge: "SELECT {schema}.purge($1, $2, $3, $4, $5, $6::timestamptz) AS purged",

    // Subscription id, dead letter, whether other groups may get the copy, the copy (id, payload, key, type, content type, headers as
    // JSON text, correlation id), actor, injected time. No offsets if it was refused: the dead letter is missing, or there are others.
    dead_letter_replace: "SELECT topic_id, topic, offsets, duplicate_of, others
        FROM {schema}.replace_dead_letter($1, $2, $3, $4, $5, $6, $7, $8, $9::text::jsonb, $10, $11, $12::timestamptz)",

    // The repositories: parameters as store/repository.rs describes them, and the injected time as text.
    outbox_insert: "SELECT {schema}.insert_returning_id($1, $2, $3, $4, $5, $6, $7, $8::text::timestamptz, true) AS id",
    outbox_claim: (entries_of!("{schema}.claim_if_new($1, $2, $3::text::timestamptz) e")),
    outbox_sweep: (entries_of!("{schema}.sweep_outbox($1, $2, $3, $4, $5, $6::text::timestamptz) e")),
    outbox_published: "SELECT id, outcome
        FROM {schema}.mark_published(ARRAY(SELECT i::bigint FROM jsonb_array_elements_text($1::jsonb) i), $2, $3::text::timestamptz)",
    outbox_failed: "SELECT id, outcome FROM {schema}.fail_outbox($1::jsonb, $2, $3, $4::text::timestamptz)",
    outbox_reschedule: "SELECT id, outcome
        FROM {schema}.reschedule(ARRAY(SELECT i::bigint FROM jsonb_array_elements_text($1::jsonb) i), $2, $3, $4, $5::text::timestamptz)",
    outbox_recover: "SELECT {schema}.recover_stuck($1, $2::text::timestamptz) AS recovered",
    outbox_requeue: "SELECT r.id
        FROM {schema}.requeue(ARRAY(SELECT i::bigint FROM jsonb_array_elements_text($1::jsonb) i), $2, $3::text::timestamptz) AS r (id)",
    outbox_known: outbox.known,
    outbox_show: (entries_of!("{schema}.outbox_entry e WHERE e.id = $1")),
    outbox_list: outbox.list,
    // Retention in ms, at most, injected time.
    outbox_forget: "SELECT forgotten, more FROM {schema}.forget_published($1::bigint, $2, $3::timestamptz)",
    inbox_insert: "SELECT {schema}.insert_if_absent($1, $2, $3::text::timestamptz) AS inserted",
    // Retention in ms, at most, injected time.
    inbox_forget: "SELECT {schema}.forget_inbox($1::bigint, $2, $3::timestamptz) AS forgotten",
    bridge_advance: "SELECT {schema}.advance_bridge($1, $2, $3, $4, $5::text::timestamptz) AS advanced",
    bridge_list: "SELECT p.bridge, p.source, p.position, (extract(epoch FROM p.updated_at) * 1000000)::bigint AS updated_at_us
        FROM {schema}.bridge_position p WHERE $1::text IS NULL OR p.bridge = $1 ORDER BY p.bridge, p.source",
    dead_letter_park: "SELECT {schema}.park($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::timestamptz)::text AS dead_letter_id",
    dead_letter_all: dead_letter.all,
    dead_letter_known: dead_letter.known,
    dead_letter_redrive_parked: "SELECT r.id::text AS dead_letter_id
        FROM {schema}.redrive_parked(ARRAY(SELECT i::uuid FROM jsonb_array_elements_text($1::jsonb) i), $2, $3::text::timestamptz) AS r (id)",
    dead_letter_delete: "SELECT r.id::text AS dead_letter_id
        FROM {schema}.delete_dead_letters(ARRAY(SELECT i::uuid FROM jsonb_array_elements_text($1::jsonb) i), $2, $3::text::timestamptz) AS r (id)",

    relay_add: "SELECT {schema}.add_relay($1, $2, $3, $4, $5, $6::text::timestamptz) AS added",
    relay_list: "SELECT r.name, r.source, r.target, r.settings, (extract(epoch FROM r.created_at) * 1000000)::bigint AS created_at_us
        FROM {schema}.relay r ORDER BY r.name",
    relay_remove: "SELECT {schema}.remove_relay($1, $2, $3::text::timestamptz) AS removed",

    token_create: "SELECT {schema}.create_token($1, $2, $3::text::jsonb, $4::text::jsonb, $5, $6, $7, $8::text::timestamptz) AS created",
    token_list: token.list,
    token_any: "SELECT {schema}.any_token() AS tokens",
    token_find: token.find,
    token_rotate: "SELECT {schema}.rotate_token($1, $2, $3, $4, $5::text::timestamptz) AS rotated",
    token_revoke: "SELECT {schema}.revoke_token($1, $2, $3::text::timestamptz) AS revoked",
    token_session_start: "SELECT {schema}.start_session($1, $2, $3, $4, $5, $6::text::timestamptz) AS started",
    token_session_end: "SELECT {schema}.end_session($1, $2::text::timestamptz) AS ended",

    doctor_delivery: doctor.delivery,
    doctor_maintenance: doctor.maintenance,
    doctor_durability: doctor.durability,
    doctor_rights: doctor.rights,
    doctor_attention: doctor.attention,

    // Worker, term in ms, injected time.
    maintenance_elect: "SELECT {schema}.elect($1, $2, $3::timestamptz) AS elected",
    maintenance_resign: "SELECT {schema}.resign($1)",
    maintenance_jobs: "SELECT job, runs, failures, rows, backlog, last_run_at, duration_us, last_error FROM {schema}.jobs()",
    // Job, duration in us, rows, backlog, error, injected time.
    // By job: two processes that record several runs lock the rows in one order. Detection of dead groups first: its row is locked
    // while it runs (detect_dead), and a session that waits for it holds no row of another job then.
    maintenance_jobs_ran: "
        SELECT {schema}.job_ran(r.job, r.duration_us, r.rows, r.backlog, r.error, $6::timestamptz)
        FROM (SELECT u.* FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[])
                                  AS u (job, duration_us, rows, backlog, error)
              ORDER BY u.job <> 'dead_detection', u.job OFFSET 0) r",
    maintenance_probe: maintenance.probe,
    topic_survey: topic.survey,
    maintenance_advance: maintenance.advance,
    maintenance_behind: maintenance.new_messages,
    // Messages to promote at most, injected time.
    maintenance_round: "SELECT promoted, dedup_forgotten, more FROM {schema}.maintain($1, $2::timestamptz)",
    detect: "SELECT kind, topic, group_name FROM {schema}.detect_dead($1::timestamptz)",
    clean_clock: "SELECT {schema}.elapse($1::timestamptz) AS elapsed_ms",
    // Topic id, messages at most, injected time.
    clean_messages: "SELECT topic, removed, missed_groups, missed, missed_first, missed_last, more
        FROM {schema}.clean($1, $2, $3::timestamptz)",
    // Topic id, how long to wait for a lock in ms, injected time.
    clean_partitions: "SELECT topic, created, dropped, removed, ahead, locked, missed_groups, missed, missed_first, missed_last
        FROM {schema}.keep_partitions($1, $2, $3::timestamptz)",
    // Above this subscription id, older than in ms, injected time.
    clean_subscriptions: "SELECT subscription_id, topic, group_name, moved, deleted
        FROM {schema}.clean_subscription($1, $2::bigint, $3::timestamptz)",
    // Rows of each kind at most, injected time.
    clean_forget: "SELECT {schema}.forget_old($1, $2::timestamptz) AS forgotten",
    // Topic, age in ms, whether it is a dry run, actor, injected time. A row per group that gave up messages.
    clean_force_complete: "SELECT group_name, messages, until FROM {schema}.force_complete($1, $2, $3, $4, $5::timestamptz)",
    // Tables, dead rows: those with more, and with more than a tenth of the living.
    clean_needs_vacuum: "SELECT t.name AS table_name
        FROM (SELECT n AS name, to_regclass('{schema}.' || n) AS id FROM unnest($1::text[]) n) t
        WHERE pg_stat_get_dead_tuples(t.id) > $2 AND pg_stat_get_dead_tuples(t.id) > pg_stat_get_live_tuples(t.id) / 10",

    // Topic id, offsets at most, injected time.
    tracking_step: "SELECT recorded, changed, completed, released, removed, more FROM {schema}.track($1, $2, $3::timestamptz)",
    // Topic, first offset, last offset, records at most, injected time.
    tracking_records: "SELECT message_offset, required, completed, completed_at
        FROM {schema}.records($1, $2, $3, $4, $5::timestamptz)",
    // Subscription id, or null for all.
    tracking_backfill_list: "SELECT topic, group_name, state, first_offset, last_offset, checkpoint, created_at, progressed_at, ran_ms,
            rate_max, batch_max, target_latency_ms, error, left_out
        FROM {schema}.backfills($1)",
    // Topic, group, messages at most, messages a second at most, messages of a batch at most, target latency in ms, actor, injected
    // time.
    tracking_backfill_start: "SELECT {schema}.start_backfill($1, $2, $3, $4, $5, $6, $7, $8::timestamptz) AS subscription_id",
    // Topic, group, whether to resume (otherwise cancel), actor, injected time.
    tracking_backfill_turn: "SELECT {schema}.turn_backfill($1, $2, $3, $4, $5::timestamptz) AS subscription_id",
    // Worker, for how long in ms, injected time. A backfill that has work and no other worker.
    tracking_backfill_take: "SELECT {schema}.take_backfill($1, $2, $3::timestamptz) AS subscription_id",
    // Subscription id, worker, offsets at most, for how long the worker keeps it in ms, injected time.
    tracking_backfill_step: "SELECT processed, changed FROM {schema}.step_backfill($1, $2, $3, $4, $5::timestamptz)",
    // Subscription id, worker, error.
    tracking_backfill_fail: "SELECT {schema}.fail_backfill($1, $2, $3)",
}

/// Puts the namespace into a statement: `{schema}` quoted as an identifier, `{name}` bare inside literals. The rule for
/// namespaces leaves only `a-z`, `0-9` and `_`, so neither can end what it stands in. Header comments stay behind.
pub(super) fn in_namespace(sql: &str, namespace: &Namespace) -> String {
    let body: Vec<&str> = sql.lines().skip_while(|line| line.starts_with("--") || line.is_empty()).collect();
    body.join("\n").replace("{schema}", &namespace.quoted()).replace("{name}", namespace.as_str())
}
