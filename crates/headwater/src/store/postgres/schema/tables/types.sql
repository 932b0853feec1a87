-- Types of parameters and results of the functions. They are migrated as tables are.

-- Values that only the owner of the schema may choose, in parameters of functions that other roles may call. The check runs when
-- the argument is evaluated, before the function is entered, and so with the caller's own rights, also under SET ROLE or inside
-- another SECURITY DEFINER function. Tests inject the time as the owner; every other caller passes null, which means the server's
-- clock.
CREATE DOMAIN {schema}.injected_time AS timestamptz
    CONSTRAINT only_the_owner_sets_the_time CHECK (VALUE IS NULL OR has_table_privilege('{schema}.message', 'INSERT'));

-- The ages at which maintenance removes inbox entries, published entries of the outbox, subscriptions that are dead or cancelled, and
-- processes that ended.
CREATE DOMAIN {schema}.inbox_age_ms AS bigint
    CONSTRAINT only_the_owner_forgets_sooner CHECK (VALUE >= 2592000000 OR has_table_privilege('{schema}.message', 'INSERT'));

CREATE DOMAIN {schema}.outbox_age_ms AS bigint
    CONSTRAINT only_the_owner_removes_published_sooner CHECK (VALUE >= 604800000 OR has_table_privilege('{schema}.message', 'INSERT'));

CREATE DOMAIN {schema}.subscription_age_ms AS bigint
    CONSTRAINT only_the_owner_removes_sooner CHECK (VALUE >= 2592000000 OR has_table_privilege('{schema}.message', 'INSERT'));

CREATE DOMAIN {schema}.process_age_ms AS bigint
    CONSTRAINT only_the_owner_removes_processes_sooner
    CHECK (VALUE >= 7776000000 OR has_table_privilege('{schema}.message', 'INSERT'));

-- What a claim returns. kind: lease; recheck (after recheck_ms another claim may find something without a new publish); inactive
-- (detail is the state); and for the client's log, with the names of topic and group: expired (detail is the owner of the expired
-- lease), buried and used_up (detail is the last error).
CREATE TYPE {schema}.claimed AS (
    kind text, subscription_id integer, topic_id integer, token bigint, first_offset bigint, last_offset bigint,
    attempt integer, deadline timestamptz, suspect boolean, lane integer, blocked_keys text[], recheck_ms bigint, names text[],
    detail text
);

-- A want of a claim, with what is read before anything is taken. The second half is about limits of the group, and null without
-- them: the limits, and what they allow now (see functions/limits.sql).
CREATE TYPE {schema}.want AS (
    subscription_id integer, messages_max bigint, lease_ms bigint, topic_id integer, lanes integer, max_attempts integer,
    -- Whether a range is due; the due time from which to search; and if none is due, the value for cursor.due_from.
    has_due boolean, due_since timestamptz, due_from timestamptz, quarantined boolean,
    in_flight_max bigint, rate double precision, burst bigint,
    room bigint, free bigint, tokens double precision, filled_at timestamptz, turned_back boolean
);

-- The progress of a subscription, read in one snapshot.
CREATE TYPE {schema}.progress AS (
    subscription_id integer, group_name text, state text, bit smallint, required_from bigint, start_offset bigint,
    next_offset bigint,
    -- Outstanding: below the next offset and not done.
    held int8multirange,
    -- All offsets that are not done, without an upper end.
    pending int8multirange,
    applied int8multirange,
    -- Whether messages are kept for it.
    counts boolean
);

-- The retention cutoff, read in one snapshot after the lock. Messages that every subscription has read are removed by the clock;
-- messages that some subscription has not read, or none could, only by their age in elapsed time.
CREATE TYPE {schema}.retention_cutoffs AS (
    now timestamptz, head bigint, watermark bigint, gaps int8multirange,
    -- The progress of all subscriptions that are not cancelled.
    progress {schema}.progress[],
    -- Not done by the subscriptions that hold retention: those that count, or all if none counts.
    pending int8multirange,
    -- Everything at or below has been done for as long as message_retention; 0 if nothing may be removed for being done.
    done_until bigint,
    -- Messages created at or before are older than message_retention, zero_subscription_retention, max_retention (null: never).
    kept_since timestamptz, zero_since timestamptz, aged_since timestamptz,
    -- Read by every subscription.
    read int8multirange,
    -- May be removed for being done: read, or old enough.
    fit int8multirange,
    -- Removed even if unread: older than max_retention, or published while no subscription counted, and none counts now.
    aged int8multirange
);

-- The removed messages that a subscription had not done.
CREATE TYPE {schema}.miss AS (subscription_id integer, messages bigint, first_offset bigint, last_offset bigint);
