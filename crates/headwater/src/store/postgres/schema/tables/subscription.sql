-- Subscriptions: their cursors, outstanding ranges and activity.

CREATE TABLE {schema}.subscription (
    subscription_id    integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id           integer NOT NULL REFERENCES {schema}.topic ON DELETE CASCADE,
    group_name         text COLLATE "C" NOT NULL,
    -- 0 unless ordered by key; fixed for the life of the subscription.
    lanes              integer NOT NULL CHECK (lanes BETWEEN 0 AND 256),
    -- Late messages below it are not delivered to this subscription.
    start_offset       bigint NOT NULL,
    reassigned         bigint NOT NULL DEFAULT 0,
    created_at         timestamptz NOT NULL,
    state             text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'dead', 'cancelled')),
    state_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Why it is paused, if a reason was given; null in every other state.
    state_reason      text,
    -- The elapsed time (table "elapsed") when it died last.
    died_elapsed_ms    bigint NOT NULL DEFAULT 0,
    -- Its own delivery policy; null means the topic's setting.
    lease_ms           bigint CHECK (lease_ms >= 0),
    max_attempts       integer CHECK (max_attempts > 0),
    backoff_initial_ms bigint CHECK (backoff_initial_ms >= 0),
    backoff_max_ms     bigint CHECK (backoff_max_ms >= 0),
    heartbeat_interval_ms bigint CHECK (heartbeat_interval_ms > 0),
    heartbeat_timeout_ms  bigint CHECK (heartbeat_timeout_ms > 0),
    -- When it was resumed or resurrected, which counts as a heartbeat. See the view "heard" for heartbeats of its owners.
    heartbeat_at       timestamptz,
    -- Set if it was past its timeout when the detector ran for the first time after an interruption of detection.
    suspected_at       timestamptz,
    -- Registrations since a time, and the floor at that time.
    restarts           integer NOT NULL DEFAULT 0,
    restarts_since     timestamptz,
    restarts_floor     bigint,
    missed             bigint NOT NULL DEFAULT 0,
    missed_first       bigint,
    missed_last        bigint,
    -- Reference counting: its bit in the completion records; null in the mode offset watermark.
    bit                smallint CHECK (bit BETWEEN 0 AND 63),
    -- New completion records require this subscription from this offset on.
    required_from      bigint NOT NULL DEFAULT 1,
    -- The offsets for which the records have its completion bit.
    applied            int8multirange NOT NULL DEFAULT '{}',
    -- It no longer counts: pending records up to this offset do not require it any more. Null if there is nothing to release.
    released_until     bigint
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- A cancelled subscription stays until it is removed, and does not block a new one of the same name.
CREATE UNIQUE INDEX subscription_group ON {schema}.subscription (topic_id, group_name) WHERE state <> 'cancelled';
CREATE INDEX subscription_cancelled ON {schema}.subscription (topic_id, group_name) WHERE state = 'cancelled';

-- Cursors: one row per subscription, or one per lane of an ordered one (lane 0 if there are no lanes).
CREATE TABLE {schema}.cursor (
    subscription_id integer NOT NULL REFERENCES {schema}.subscription ON DELETE CASCADE,
    lane            integer NOT NULL,
    topic_id        integer NOT NULL,
    next_offset     bigint NOT NULL,
    -- Whether it is a lane of an ordered subscription.
    ordered         boolean NOT NULL,
    -- The value of lease_token when the lane was last handed out: the least recent lane goes first.
    turn            bigint NOT NULL DEFAULT 0,
    -- A claim found no range in "outstanding" due before this time: see due_since in functions/claim_unordered.sql.
    due_from        timestamptz NOT NULL DEFAULT '-infinity',
    moves           bigint NOT NULL DEFAULT 0,
    era             bigint NOT NULL DEFAULT 0,
    -- Whether the subscription is active, and its own lease duration: copies in a row that claims lock anyway, which save a read.
    -- See follow_subscription in functions/state.sql.
    active          boolean NOT NULL DEFAULT true,
    lease_ms        bigint,
    PRIMARY KEY (subscription_id, lane, era)
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE INDEX cursor_topic ON {schema}.cursor (topic_id);

-- Counts hand-outs, for the tokens of leases: see new_token in functions/lease.sql.
CREATE SEQUENCE {schema}.lease_token AS bigint CACHE 1;

-- Outstanding ranges: below next_offset and not done. Leased: owner is set, due_at is the deadline. Waiting: no owner, due_at is
-- when the range may be handed out. A lease is all rows of one token.
CREATE TABLE {schema}.outstanding (
    token           bigint NOT NULL,
    first_offset    bigint NOT NULL,
    last_offset     bigint NOT NULL,
    due_at          timestamptz NOT NULL,
    subscription_id integer NOT NULL,
    attempts        integer NOT NULL DEFAULT 0,
    lane            integer,
    suspect         boolean NOT NULL DEFAULT false,
    parked          boolean NOT NULL DEFAULT false,
    owner           text,
    key             text,
    last_error      text,
    PRIMARY KEY (token, first_offset),
    CHECK (first_offset <= last_offset)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE INDEX outstanding_due ON {schema}.outstanding (subscription_id, due_at, first_offset);
-- Ranges of lanes, by key and oldest first; empty without ordered subscriptions.
CREATE INDEX outstanding_lane ON {schema}.outstanding (subscription_id, lane, key, first_offset) WHERE lane IS NOT NULL;
CREATE INDEX outstanding_suspect ON {schema}.outstanding (subscription_id, owner) WHERE suspect;

-- The limits of groups: a row for each group that ever had limits; the token bucket is null until it is first used.
CREATE TABLE {schema}.group_rate (
    subscription_id integer PRIMARY KEY REFERENCES {schema}.subscription ON DELETE CASCADE,
    tokens          double precision,
    filled_at       timestamptz
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Which owner serves which subscription, and the activity it reported. The row with an empty owner is the sum of owners that left.
CREATE TABLE {schema}.activity (
    subscription_id  integer NOT NULL REFERENCES {schema}.subscription ON DELETE CASCADE,
    owner            text COLLATE "C" NOT NULL,
    processed        bigint NOT NULL,
    failed           bigint NOT NULL,
    filtered         bigint NOT NULL,
    rate             double precision NOT NULL,
    handling_mean_us bigint NOT NULL,
    handling_p95_us  bigint NOT NULL,
    -- Each heartbeat of the owner counts for the subscription, as long as the owner has a row in "owner".
    serving          boolean NOT NULL,
    -- A time at which it was served; not every heartbeat writes this row.
    served_at          timestamptz NOT NULL,
    PRIMARY KEY (subscription_id, owner)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE INDEX activity_owner ON {schema}.activity (owner);

-- Tables that are always empty: their locks exclude claims and operators from each other. See functions/locks.sql.
DO $$
BEGIN
    FOR i IN 0..15 LOOP
        EXECUTE format('CREATE TABLE {schema}.%I ()', 'claims_' || i);
    END LOOP;
END $$;
