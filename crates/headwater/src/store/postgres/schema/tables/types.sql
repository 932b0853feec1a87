-- Types of the functions' parameters and results. They are migrated as tables are.

-- What only the owner may choose: parameters of these types are in functions that others may call. The check runs where the
-- argument is made, before the function is entered, and so with the caller's own rights, also under SET ROLE or inside
-- another SECURITY DEFINER function. Tests inject the time as the owner; every other caller passes null, and the server's clock counts.
CREATE DOMAIN {schema}.injected_time AS timestamptz
    CONSTRAINT only_the_owner_sets_the_time CHECK (VALUE IS NULL OR has_table_privilege('{schema}.message', 'INSERT'));

-- Ages from which on maintenance removes entries of the inbox, and subscriptions that are dead or cancelled.
CREATE DOMAIN {schema}.inbox_age_ms AS bigint
    CONSTRAINT only_the_owner_forgets_sooner CHECK (VALUE >= 604800000 OR has_table_privilege('{schema}.message', 'INSERT'));

CREATE DOMAIN {schema}.subscription_age_ms AS bigint
    CONSTRAINT only_the_owner_removes_sooner CHECK (VALUE >= 2592000000 OR has_table_privilege('{schema}.message', 'INSERT'));

-- What a claim returns. kind: lease; recheck (recheck_ms until claiming again may find something though nobody publishes); inactive
-- (detail is the state); and for the client's log, with the names of topic and group: expired (detail is the owner of the range that
-- ran out), buried and used_up (detail is the last error).
CREATE TYPE {schema}.claimed AS (
    kind text, subscription_id integer, topic_id integer, token bigint, first_offset bigint, last_offset bigint,
    attempt integer, deadline timestamptz, suspect boolean, lane integer, blocked_keys text[], recheck_ms bigint, names text[],
    detail text
);

-- What a want needs to know before it takes anything. The second half is about limits of the group, and null without
-- them: what they are, and what they leave now (see functions/limits.sql).
CREATE TYPE {schema}.want AS (
    subscription_id integer, messages_max bigint, lease_ms bigint, topic_id integer, lanes integer, max_attempts integer,
    -- Whether something is due; from when on to look for it; and where nothing is, what to note in the cursor.
    has_due boolean, due_since timestamptz, due_from timestamptz, quarantined boolean,
    in_flight_max bigint, rate double precision, burst bigint,
    room bigint, free bigint, tokens double precision, filled_at timestamptz, turned_back boolean
);

-- Where a subscription is, read in one snapshot.
CREATE TYPE {schema}.place AS (
    subscription_id integer, group_name text, status text, bit smallint, required_from bigint, start_offset bigint,
    next_offset bigint,
    -- Below the next offset and not done.
    held int8multirange,
    -- All that is not done, without end.
    pending int8multirange,
    applied int8multirange,
    -- Whether messages wait for it.
    counts boolean
);

-- How far back retention reaches, as seen in one snapshot after the lock. What every subscription has read goes by the clock;
-- what some has not, or none could, by its age in elapsed time only.
CREATE TYPE {schema}.reach AS (
    now timestamptz, head bigint, watermark bigint, gaps int8multirange,
    -- Those that are not cancelled.
    places {schema}.place[],
    -- What those that hold retention have not done: all that count, or all that are left if none does.
    pending int8multirange,
    -- Everything at or below was done for message_retention; 0 if nothing may go for being done.
    done_until bigint,
    -- Created at or before it: older than message_retention, zero_subscription_retention, max_retention (null for never).
    kept_since timestamptz, zero_since timestamptz, aged_since timestamptz,
    -- Read by every subscription there is.
    read int8multirange,
    -- What may go for being done: read, or old enough.
    fit int8multirange,
    -- What goes whoever has not read it: older than max_retention, or published while none counted, and none does.
    aged int8multirange
);

-- What a subscription had not done of what goes.
CREATE TYPE {schema}.miss AS (subscription_id integer, messages bigint, first_offset bigint, last_offset bigint);
