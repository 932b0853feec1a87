-- Topics with retention, subscriptions that live, die and come back, and the records of reference counting.
--
-- One row per topic in "extent" is the lock of upkeep: whoever removes messages, makes records or moves a subscription's
-- place against the log (subscribe, resurrect, seek, redrive, cancel) holds it FOR UPDATE in its transaction and looks
-- only after it has it. Claims, settlements and publishing never touch it.
--
-- The order of locks, of everything that waits for them:
--
--   extent (by topic), head (by topic), claims_N (by number), group_rate, subscription, cursor (each by subscription, lane),
--   outstanding (by subscription, lane, first_offset), activity (by subscription, owner), dead_letter (by id)
--
-- The order of ranges is not that of tokens: a range gets a new one when it is handed out again, and a session that waited for it then has
-- a place in the order that is not the one it asked for.
--
-- What is only taken if it is free (SKIP LOCKED, NOWAIT) waits for nothing and may be taken at any point. Where several rows of a
-- table are changed they are locked first, in the order above: an UPDATE or DELETE alone takes them as its plan finds them.
--
-- A claim departs from it in one place: it has a range (free), and then a cursor, when it counts an expiry in the subscription.
-- Nothing that has a subscription waits for a cursor or a range of it beside such a claim:
--
--   1. The short way of a claim (one statement) takes the head if it is free, locks the cursor and reads it again, in its newest
--      version, once it has it. Therefore a state is also on the cursor (cursor.active), and a change of it waits for claims that hold the
--      cursor: afterwards none is under way that saw it active, and none begins.
--   2. The long way holds claims_N, shared, from before it reads the state until its end. Operators hold it alone before they
--      lock anything of the subscription: no claim of that kind is under way then. It costs a claim no write and no xid,
--      because it is the lock of a table: of 16 that are always empty one by subscription_id, as a claim that serves a
--      thousand subscriptions must not fill the server's lock table. It is no advisory lock: every role that connects may
--      take those, and stop all claims. The lock of a table needs rights on it, which no role is granted, and these functions
--      run with their owner's. Vacuum and pg_dump conflict with no claim.
--
--      The short way may have locked the cursor and then found that it is not active. A claim that has locked anything
--      does not wait for an operator who may want just that: it comes back a little later.
--
-- Cleanup and the detector are operators in this: they write the subscription and then its cursors. Tables are locked all at
-- once, in order, because a claim that serves many waits for them in that order.

ALTER TABLE {schema}.topic
    ADD COLUMN tracking text NOT NULL DEFAULT 'offset_watermark' CHECK (tracking IN ('offset_watermark', 'reference_counting')),
    -- Null keeps for ever.
    ADD COLUMN message_retention_ms bigint DEFAULT 86400000 CHECK (message_retention_ms >= 0),
    ADD COLUMN max_retention_ms bigint CHECK (max_retention_ms > 0),
    ADD COLUMN zero_subscription_retention_ms bigint NOT NULL DEFAULT 86400000 CHECK (zero_subscription_retention_ms >= 0),
    ADD COLUMN block_writes boolean NOT NULL DEFAULT false,
    ADD COLUMN zombie_subscription_ttl_ms bigint NOT NULL DEFAULT 604800000 CHECK (zombie_subscription_ttl_ms >= 0),
    ADD COLUMN heartbeat_interval_ms bigint NOT NULL DEFAULT 60000 CHECK (heartbeat_interval_ms > 0),
    ADD COLUMN heartbeat_timeout_ms bigint NOT NULL DEFAULT 300000 CHECK (heartbeat_timeout_ms > 0),
    ADD COLUMN storage text NOT NULL DEFAULT 'shared' CHECK (storage IN ('shared', 'dedicated')),
    ADD COLUMN partition text NOT NULL DEFAULT 'none' CHECK (partition IN ('none', 'rows', 'hour', 'day', 'month')),
    ADD COLUMN partition_rows bigint CHECK (partition_rows > 0),
    ADD COLUMN ack_log boolean NOT NULL DEFAULT false;
UPDATE {schema}.topic SET max_retention_ms = 2592000000 WHERE semantics = 'pub_sub';

ALTER TABLE {schema}.subscription
    ADD COLUMN status text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'paused', 'dead', 'cancelled')),
    ADD COLUMN status_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The elapsed time (clock) when it died last.
    ADD COLUMN died_elapsed_ms bigint NOT NULL DEFAULT 0,
    -- Its own delivery policy; null takes the topic's.
    ADD COLUMN lease_ms bigint CHECK (lease_ms >= 0),
    ADD COLUMN max_attempts integer CHECK (max_attempts > 0),
    ADD COLUMN backoff_initial_ms bigint CHECK (backoff_initial_ms >= 0),
    ADD COLUMN backoff_max_ms bigint CHECK (backoff_max_ms >= 0),
    -- Null until a process of it beats.
    ADD COLUMN heartbeat_at timestamptz,
    -- Past its timeout at a look before which nobody had been watching.
    ADD COLUMN suspected_at timestamptz,
    -- Registrations since, with the floor where it was then.
    ADD COLUMN restarts integer NOT NULL DEFAULT 0,
    ADD COLUMN restarts_since timestamptz,
    ADD COLUMN restarts_floor bigint,
    ADD COLUMN missed bigint NOT NULL DEFAULT 0,
    ADD COLUMN missed_first bigint,
    ADD COLUMN missed_last bigint,
    -- Reference counting. Its bit in the records; null in offset watermark.
    ADD COLUMN bit smallint CHECK (bit BETWEEN 0 AND 63),
    -- Messages that get their record from now on require it from this offset on.
    ADD COLUMN required_from bigint NOT NULL DEFAULT 1,
    -- The offsets whose completion is set in the records.
    ADD COLUMN applied int8multirange NOT NULL DEFAULT '{}',
    -- It does not count any more: up to here pending records have let go of it. Null when nothing is to be released.
    ADD COLUMN released_until bigint;

ALTER TABLE {schema}.subscription DROP CONSTRAINT subscription_topic_id_group_name_key;
-- A cancelled one stays until it is removed, and does not stand in the way of a new one.
CREATE UNIQUE INDEX subscription_group ON {schema}.subscription (topic_id, group_name) WHERE status <> 'cancelled';
CREATE INDEX subscription_cancelled ON {schema}.subscription (topic_id, group_name) WHERE status = 'cancelled';

-- Whether the subscription is active, where claims lock anyway, and its own lease, which spares them a look: see
-- 0015_life_cycle.
ALTER TABLE {schema}.cursor ADD COLUMN active boolean NOT NULL DEFAULT true, ADD COLUMN lease_ms bigint;

CREATE TABLE {schema}.extent (
    topic_id      integer PRIMARY KEY REFERENCES {schema}.topic ON DELETE CASCADE,
    -- Everything below was removed.
    first_offset  bigint NOT NULL DEFAULT 1,
    -- Everything at or below was published while no subscription counted, or before that; null while none counts.
    zero_until    bigint,
    -- While none counts (zero_until is null): everything from it on was published since.
    zero_from     bigint NOT NULL DEFAULT 1,
    -- Reference counting: everything at or below has its record, noted gaps apart.
    tracked_until bigint NOT NULL DEFAULT 0,
    -- Where tracking has to get to after a change of mode; null when no change is under way.
    change_until  bigint,
    removed       bigint NOT NULL DEFAULT 0
);
INSERT INTO {schema}.extent (topic_id, zero_until)
SELECT t.topic_id, CASE WHEN EXISTS (SELECT FROM {schema}.subscription s WHERE s.topic_id = t.topic_id) THEN 0 END
FROM {schema}.topic t;

-- The watermark as it was: message retention is reckoned from when messages were done.
CREATE TABLE {schema}.mark (
    topic_id  integer NOT NULL REFERENCES {schema}.topic ON DELETE CASCADE,
    marked_at timestamptz NOT NULL,
    watermark bigint NOT NULL,
    PRIMARY KEY (topic_id, marked_at)
);

-- Elapsed time as maintenance saw it pass; at most one row. Unread messages are removed by it alone, never by one reading of
-- the clock: see 0017_retention.
CREATE TABLE {schema}.elapsed (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    read_at    timestamptz NOT NULL,
    elapsed_ms bigint NOT NULL
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The head as it was: everything at or below was published by that elapsed time.
CREATE TABLE {schema}.age (
    topic_id   integer NOT NULL REFERENCES {schema}.topic ON DELETE CASCADE,
    elapsed_ms bigint NOT NULL,
    head       bigint NOT NULL,
    PRIMARY KEY (topic_id, elapsed_ms)
);

-- Reference counting: for each message the groups it is for and those that are done, one bit each (subscription.bit).
-- Apart from the log: a changed bit must not copy the payload, and the log stays append-only.
CREATE TABLE {schema}.record (
    topic_id       integer NOT NULL,
    message_offset bigint NOT NULL,
    required       bigint NOT NULL,
    completed      bigint NOT NULL,
    completed_at   timestamptz,
    PRIMARY KEY (topic_id, message_offset)
) WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
-- No index but the key, and room in the page for a second version of every row: whatever changes in a record, completed_at
-- included, is then a heap-only update that the next visitor of the page prunes. A partial index on what is pending
-- would make each completion write the key's index too; extent.pending_from says where to begin instead.

CREATE TABLE {schema}.backfill (
    subscription_id integer PRIMARY KEY REFERENCES {schema}.subscription ON DELETE CASCADE,
    state           text NOT NULL CHECK (state IN ('not_started', 'in_progress', 'completed', 'cancelled', 'failed')),
    first_offset    bigint NOT NULL,
    last_offset     bigint NOT NULL,
    checkpoint      bigint NOT NULL,
    rate_max        integer NOT NULL CHECK (rate_max > 0),
    created_at      timestamptz NOT NULL,
    progressed_at   timestamptz,
    -- Time spent on it, for the rate: it may have been cancelled and resumed.
    ran_ms          bigint NOT NULL DEFAULT 0,
    error           text,
    -- The worker that has it, and until when.
    worker          text,
    worker_until    timestamptz
);

-- What each process of a group told of itself.
CREATE TABLE {schema}.activity (
    subscription_id  integer NOT NULL REFERENCES {schema}.subscription ON DELETE CASCADE,
    owner            text COLLATE "C" NOT NULL,
    processed        bigint NOT NULL,
    failed           bigint NOT NULL,
    filtered         bigint NOT NULL,
    rate             double precision NOT NULL,
    handling_mean_us bigint NOT NULL,
    handling_p95_us  bigint NOT NULL,
    told_at          timestamptz NOT NULL,
    PRIMARY KEY (subscription_id, owner)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE TABLE {schema}.ack_log (
    topic_id     integer NOT NULL,
    first_offset bigint NOT NULL,
    last_offset  bigint NOT NULL,
    group_name   text NOT NULL,
    owner        text NOT NULL,
    acked_at     timestamptz NOT NULL,
    -- Of an ordered subscription: the ranges of its lanes overlap, and only the lane's own messages are acked by it.
    lane         integer,
    lanes        integer NOT NULL
);
CREATE INDEX ack_log_offsets ON {schema}.ack_log (topic_id, last_offset);

CREATE TABLE {schema}.audit (
    audit_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    acted_at   timestamptz NOT NULL,
    actor      text NOT NULL,
    act        text NOT NULL,
    topic      text,
    group_name text,
    detail     jsonb NOT NULL DEFAULT '{}'
);
-- Append-only, also for the owner of the schema.
CREATE FUNCTION {schema}.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid change: the audit is append-only';
END $$;
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {schema}.audit
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse_change();

CREATE TABLE {schema}.job (
    job         text PRIMARY KEY,
    runs        bigint NOT NULL DEFAULT 0,
    failures    bigint NOT NULL DEFAULT 0,
    rows        bigint NOT NULL DEFAULT 0,
    backlog     bigint NOT NULL DEFAULT 0,
    last_run_at timestamptz NOT NULL,
    duration_us bigint NOT NULL DEFAULT 0,
    last_error  text
);

-- The elected worker; at most one row.
CREATE TABLE {schema}.election (
    one    boolean PRIMARY KEY DEFAULT true CHECK (one),
    worker text NOT NULL,
    until  timestamptz NOT NULL
);

-- Dedicated storage: the tables of a topic, by the offsets they take.
CREATE TABLE {schema}.partition (
    topic_id     integer NOT NULL REFERENCES {schema}.topic ON DELETE CASCADE,
    first_offset bigint NOT NULL,
    last_offset  bigint NOT NULL,
    table_name   text NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (topic_id, first_offset)
);

-- Whether messages wait for a subscription. That of a queue counts until it is cancelled: its work waits for its workers.
CREATE FUNCTION {schema}.counts(p_status text, p_semantics text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_status IN ('active', 'paused') OR p_status = 'dead' AND p_semantics = 'queue'
$$;

-- A line in the audit, in the transaction of what it tells.
CREATE FUNCTION {schema}.note_act(
    p_actor text, p_act text, p_topic text, p_group text, p_detail jsonb, p_now timestamptz
) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO {schema}.audit (acted_at, actor, act, topic, group_name, detail)
    VALUES (coalesce(p_now, clock_timestamp()), p_actor, p_act, p_topic, p_group, p_detail)
$$;

DO $$
BEGIN
    FOR i IN 0..15 LOOP
        EXECUTE format('CREATE TABLE {schema}.%I ()', 'claims_' || i);
    END LOOP;
END $$;

-- Keeps operators (p_alone) or long claims away from subscriptions until the transaction ends. In one order. False if this is
-- a claim that must not wait and would have to.
CREATE FUNCTION {schema}.hold_claims(p_subscription_ids integer[], p_alone boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_tables text;
BEGIN
    SELECT string_agg('{schema}.claims_' || b.n, ', ' ORDER BY b.n) INTO v_tables
    FROM (SELECT DISTINCT u % 16 AS n FROM unnest(p_subscription_ids) u) b;
    IF v_tables IS NULL THEN
        RETURN true;
    END IF;
    IF p_alone THEN
        EXECUTE 'LOCK TABLE ' || v_tables || ' IN EXCLUSIVE MODE';
    ELSIF pg_current_xact_id_if_assigned() IS NULL THEN
        EXECUTE 'LOCK TABLE ' || v_tables || ' IN ROW SHARE MODE';
    ELSE
        -- A transaction that has locked a row has an xid.
        BEGIN
            EXECUTE 'LOCK TABLE ' || v_tables || ' IN ROW SHARE MODE NOWAIT';
        EXCEPTION
            WHEN lock_not_available THEN RETURN false;
        END;
    END IF;
    RETURN true;
END $$;

-- Takes the lock of upkeep on a topic.
CREATE FUNCTION {schema}.lock_extent(p_topic_id integer) RETURNS {schema}.extent
LANGUAGE sql AS $$ SELECT e.* FROM {schema}.extent e WHERE e.topic_id = p_topic_id FOR UPDATE $$;

-- Refuses to move a cancelled subscription: it has no place any more.
CREATE FUNCTION {schema}.refuse_cancelled(s {schema}.subscription, p_topic text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF s.status = 'cancelled' THEN
        RAISE EXCEPTION USING ERRCODE = 'HW007', MESSAGE = format(
            'invalid transition: topic %s, group %s is cancelled; seek needs active or paused or dead; nothing was changed',
            p_topic, s.group_name);
    END IF;
END $$;
