-- Subscriptions: where each is, what it has outstanding, what it buried.

CREATE TABLE {schema}.subscription (
    subscription_id    integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id           integer NOT NULL REFERENCES {schema}.topic ON DELETE CASCADE,
    group_name         text COLLATE "C" NOT NULL,
    -- 0 unless ordered by key; fixed for the life of the subscription.
    lanes              integer NOT NULL CHECK (lanes >= 0),
    -- Late rows below it are not this subscription's.
    start_offset       bigint NOT NULL,
    reassigned         bigint NOT NULL DEFAULT 0,
    created_at         timestamptz NOT NULL,
    status             text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'paused', 'dead', 'cancelled')),
    status_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The elapsed time (table "elapsed") when it died last.
    died_elapsed_ms    bigint NOT NULL DEFAULT 0,
    -- Its own delivery policy; null takes the topic's.
    lease_ms           bigint CHECK (lease_ms >= 0),
    max_attempts       integer CHECK (max_attempts > 0),
    backoff_initial_ms bigint CHECK (backoff_initial_ms >= 0),
    backoff_max_ms     bigint CHECK (backoff_max_ms >= 0),
    -- When it was resumed or brought back: counts as a heartbeat. See the view "heard" for those of owners that serve it.
    heartbeat_at       timestamptz,
    -- Past its timeout when the detector ran for the first time after a pause of its own.
    suspected_at       timestamptz,
    -- Registrations since, with the floor where it was then.
    restarts           integer NOT NULL DEFAULT 0,
    restarts_since     timestamptz,
    restarts_floor     bigint,
    missed             bigint NOT NULL DEFAULT 0,
    missed_first       bigint,
    missed_last        bigint,
    -- Reference counting. Its bit in the records; null in offset watermark.
    bit                smallint CHECK (bit BETWEEN 0 AND 63),
    -- Messages that get their record from now on require it from this offset on.
    required_from      bigint NOT NULL DEFAULT 1,
    -- The offsets whose completion is set in the records.
    applied            int8multirange NOT NULL DEFAULT '{}',
    -- It does not count any more: up to here pending records have let go of it. Null when nothing is to be released.
    released_until     bigint
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- A cancelled one stays until it is removed, and does not stand in the way of a new one.
CREATE UNIQUE INDEX subscription_group ON {schema}.subscription (topic_id, group_name) WHERE status <> 'cancelled';
CREATE INDEX subscription_cancelled ON {schema}.subscription (topic_id, group_name) WHERE status = 'cancelled';

-- The claim pointer: one row per subscription, or one per lane of an ordered one (lane 0 when there are no lanes).
CREATE TABLE {schema}.cursor (
    subscription_id integer NOT NULL REFERENCES {schema}.subscription ON DELETE CASCADE,
    lane            integer NOT NULL,
    topic_id        integer NOT NULL,
    next_offset     bigint NOT NULL,
    -- Whether it is a lane of an ordered subscription.
    ordered         boolean NOT NULL,
    -- The count of hand-outs when the lane was last given out: the least recent goes first.
    turn            bigint NOT NULL DEFAULT 0,
    -- A claim found nothing due in "outstanding" before this time: see due_since in functions/claim.sql.
    due_from        timestamptz NOT NULL DEFAULT '-infinity',
    moves           bigint NOT NULL DEFAULT 0,
    era             bigint NOT NULL DEFAULT 0,
    -- Whether the subscription is active, where claims lock anyway, and its own lease, which spares them a read: see
    -- follow_subscription in functions/state.sql.
    active          boolean NOT NULL DEFAULT true,
    lease_ms        bigint,
    PRIMARY KEY (subscription_id, lane, era)
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE INDEX cursor_topic ON {schema}.cursor (topic_id);

-- Counts hand-outs.
CREATE SEQUENCE {schema}.lease_token AS bigint CACHE 1;

-- Ranges below next_offset that are not done. Leased: owner set, due_at is the deadline. Waiting: no owner, due_at is
-- when it may be handed out. A lease is all rows of one token.
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
-- What lanes hold, by key and oldest first; empty without ordered subscriptions.
CREATE INDEX outstanding_lane ON {schema}.outstanding (subscription_id, lane, key, first_offset) WHERE lane IS NOT NULL;
CREATE INDEX outstanding_suspect ON {schema}.outstanding (subscription_id, owner) WHERE suspect;

CREATE TABLE {schema}.dead_letter (
    dead_letter_id  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    subscription_id integer NOT NULL,
    topic_id        integer NOT NULL,
    message_offset  bigint NOT NULL,
    message_id      uuid NOT NULL,
    key             text,
    message_type    text,
    payload         bytea NOT NULL,
    content_type    text,
    headers         jsonb,
    correlation_id  text,
    created_at      timestamptz NOT NULL,
    error           text NOT NULL,
    attempts        integer NOT NULL,
    buried_at       timestamptz NOT NULL
);

CREATE INDEX dead_letter_subscription ON {schema}.dead_letter (subscription_id, buried_at, message_offset);

-- The limits of groups: a row for each group that ever had some; the token bucket is null until it is first used.
CREATE TABLE {schema}.group_rate (
    subscription_id integer PRIMARY KEY REFERENCES {schema}.subscription ON DELETE CASCADE,
    tokens          double precision,
    filled_at       timestamptz
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Which owner serves which subscription, and what it reported of itself. The row without an owner is the sum of those that left.
CREATE TABLE {schema}.activity (
    subscription_id  integer NOT NULL REFERENCES {schema}.subscription ON DELETE CASCADE,
    owner            text COLLATE "C" NOT NULL,
    processed        bigint NOT NULL,
    failed           bigint NOT NULL,
    filtered         bigint NOT NULL,
    rate             double precision NOT NULL,
    handling_mean_us bigint NOT NULL,
    handling_p95_us  bigint NOT NULL,
    -- Each heartbeat of the owner is one for the subscription, as long as its row is in "owner".
    serving          boolean NOT NULL,
    -- A time when it was served: this row is not written by every heartbeat.
    told_at          timestamptz NOT NULL,
    PRIMARY KEY (subscription_id, owner)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE INDEX activity_owner ON {schema}.activity (owner);

-- The inbox: which handler has handled which message, written in the same transaction as the handler's own effects and
-- the ack. "message_id" is the publisher's identity of a message, so a second publish of the same id is known as well.
CREATE TABLE {schema}.inbox (
    handler    text COLLATE "C" NOT NULL,
    message_id uuid NOT NULL,
    handled_at timestamptz NOT NULL,
    PRIMARY KEY (handler, message_id)
);

CREATE INDEX inbox_handled ON {schema}.inbox (handled_at);

-- Tables that are always empty: their locks hold claims and operators apart. See functions/locks.sql.
DO $$
BEGIN
    FOR i IN 0..15 LOOP
        EXECUTE format('CREATE TABLE {schema}.%I ()', 'claims_' || i);
    END LOOP;
END $$;
