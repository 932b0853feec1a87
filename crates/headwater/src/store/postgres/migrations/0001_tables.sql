-- The tables of a namespace. {schema} is the quoted schema, {name} its bare name.
--
-- Message rows are written once and never updated or deleted on the hot path. What changes per batch are one small row
-- in "cursor" and one in "outstanding"; both have room in their pages for new versions and are vacuumed early.

CREATE TABLE {schema}.topic (
    topic_id           integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name               text COLLATE "C" NOT NULL UNIQUE,
    semantics          text NOT NULL CHECK (semantics IN ('queue', 'pub_sub')),
    lease_ms           bigint NOT NULL CHECK (lease_ms >= 0),
    max_attempts       integer NOT NULL CHECK (max_attempts > 0),
    backoff_initial_ms bigint NOT NULL CHECK (backoff_initial_ms >= 0),
    backoff_max_ms     bigint NOT NULL CHECK (backoff_max_ms >= 0),
    ordering           text NOT NULL CHECK (ordering IN ('none', 'key')),
    lanes              integer NOT NULL CHECK (lanes > 0),
    payload_bytes_max  integer NOT NULL CHECK (payload_bytes_max > 0),
    dedup_window_ms    bigint NOT NULL CHECK (dedup_window_ms >= 0),
    gap_patience_ms    bigint NOT NULL CHECK (gap_patience_ms >= 0),
    -- Where the topic's offsets come from. CACHE 1, so that offsets rise with time across sessions.
    offsets            regclass,
    created_at         timestamptz NOT NULL
);

-- "head" and "cursor" have one row for each topic and lane, of which claims make thousands of versions. While an old snapshot or
-- an open transaction keeps all of them, a look by the key alone visits every one. So "era" is part of the key: it falls by one
-- every 64 versions, and the entries of the newest version come first in the index. Frequent statements ask for
-- era <= (SELECT era ... ORDER BY era LIMIT 1): the look stops at the first version it sees, and the bound leaves only the entries of
-- that era, and of later ones if the row is changed meanwhile. Between two eras updates are heap-only. Uniqueness without
-- the era holds because only create_topic and begin_subscription insert, once each.

-- Everything at or below "head" is final: present, known never to come, or noted in "gap".
CREATE TABLE {schema}.head (
    topic_id        integer NOT NULL REFERENCES {schema}.topic ON DELETE CASCADE,
    head            bigint NOT NULL DEFAULT 0,
    -- The first missing offset the head waits at; since when; how far offsets had been taken then; and the bound
    -- below which every transaction that could own them has its xid.
    stuck_at        bigint,
    stuck_since     timestamptz,
    stuck_top       bigint,
    stuck_bound     xid8,
    -- The highest offset in any noted gap, 0 without gaps: claims above it need not look.
    gaps_until      bigint NOT NULL DEFAULT 0,
    gaps_checked_at timestamptz,
    -- The snapshot as of which every row in a gap is handed out, and a bound that no gap's exceeds; null if a gap has none.
    gaps_seen       pg_snapshot,
    gaps_bound      xid8,
    -- Up to which offsets above the head no row was visible as of a snapshot, and the bounds of their owners: pieces, both
    -- arrays rising. See 0004_head.
    empty_until     bigint[] NOT NULL DEFAULT '{}',
    empty_bound     xid8[] NOT NULL DEFAULT '{}',
    empty_seen      pg_snapshot,
    -- When pg_locks was last asked who may still fill them: that is not cheap.
    horizon_at      timestamptz,
    -- The highest offset in any hole, 0 without holes.
    holes_until     bigint NOT NULL DEFAULT 0,
    moves           bigint NOT NULL DEFAULT 0,
    era             bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (topic_id, era)
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Offsets the head stepped over although their owner may still commit.
CREATE TABLE {schema}.gap (
    topic_id     integer NOT NULL,
    first_offset bigint NOT NULL,
    last_offset  bigint NOT NULL,
    bound        xid8,
    noted_at     timestamptz NOT NULL,
    PRIMARY KEY (topic_id, first_offset),
    CHECK (first_offset <= last_offset)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Wide ranges of offsets that no message ever gets, so that claims pass them in one step: after a failover offsets continue
-- well above the last one known.
CREATE TABLE {schema}.hole (
    topic_id     integer NOT NULL,
    first_offset bigint NOT NULL,
    last_offset  bigint NOT NULL,
    PRIMARY KEY (topic_id, first_offset),
    CHECK (first_offset <= last_offset)
);

-- The log. Small topics share one partition, so that adding a topic creates no table.
CREATE TABLE {schema}.message (
    message_offset bigint NOT NULL,
    created_at     timestamptz NOT NULL,
    topic_id       integer NOT NULL,
    message_id     uuid NOT NULL,
    key            text,
    message_type   text,
    payload        bytea NOT NULL,
    content_type   text,
    headers        jsonb,
    correlation_id text,
    PRIMARY KEY (topic_id, message_offset),
    -- What clients can hold: a time beyond that could be stored, and no consumer would get past it.
    CONSTRAINT message_created_at_readable
        CHECK (created_at >= '0001-01-01 00:00:00Z' AND created_at < '9999-12-30 00:00:00Z')
) PARTITION BY LIST (topic_id);

CREATE TABLE {schema}.message_shared PARTITION OF {schema}.message DEFAULT;

CREATE TABLE {schema}.subscription (
    subscription_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id        integer NOT NULL REFERENCES {schema}.topic ON DELETE CASCADE,
    group_name      text COLLATE "C" NOT NULL,
    -- 0 unless ordered by key; fixed for the life of the subscription.
    lanes           integer NOT NULL CHECK (lanes >= 0),
    -- Late rows below it are not this subscription's.
    start_offset    bigint NOT NULL,
    reassigned      bigint NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL,
    UNIQUE (topic_id, group_name)
);

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
    -- A claim found nothing due in "outstanding" before this time: see due_since in 0005_claim.
    due_from        timestamptz NOT NULL DEFAULT '-infinity',
    moves           bigint NOT NULL DEFAULT 0,
    era             bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (subscription_id, lane, era)
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE INDEX cursor_topic ON {schema}.cursor (topic_id);

-- Counts hand-outs.
CREATE SEQUENCE {schema}.lease_token AS bigint CACHE 1;

-- A fencing token that was never issued before: the count of hand-outs above 31 random bits. The count alone repeats where
-- history is lost: claims commit asynchronously, so a crash undoes the last of them and the sequence with them, and a
-- failover or a restored copy goes back further. The random bits alone could repeat within one history. Together a lost
-- token meets a later one only if both agree. Tokens rise until the count passes 32 bits, and so share pages of the index.
CREATE FUNCTION {schema}.new_token() RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT ((nextval('{schema}.lease_token') & 4294967295) << 31) | floor(random() * 2147483648)::bigint
$$;

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

-- Messages whose time has not come.
CREATE TABLE {schema}.schedule (
    schedule_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id       integer NOT NULL REFERENCES {schema}.topic ON DELETE CASCADE,
    deliver_at     timestamptz NOT NULL,
    message_id     uuid NOT NULL,
    key            text,
    message_type   text,
    payload        bytea NOT NULL,
    content_type   text,
    headers        jsonb,
    correlation_id text,
    dedup_key      text
);

CREATE INDEX schedule_due ON {schema}.schedule (topic_id, deliver_at, schedule_id);

-- Dedup keys in their window. message_offset is null while the first one is still scheduled.
CREATE TABLE {schema}.dedup (
    topic_id       integer NOT NULL REFERENCES {schema}.topic ON DELETE CASCADE,
    dedup_key      text COLLATE "C" NOT NULL,
    message_id     uuid NOT NULL,
    message_offset bigint,
    expires_at     timestamptz NOT NULL,
    PRIMARY KEY (topic_id, dedup_key)
);

CREATE INDEX dedup_expiry ON {schema}.dedup (expires_at);

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

-- The epoch: which history of the namespace this is. The table is not logged, so a crash, a promoted standby and a restored
-- base backup all find it empty: exactly those may have taken back what clients have seen. A dump carries its row, but
-- not the transaction that wrote it: "made_by" is the row's own xmin, and a row whose xmin is another was copied.
CREATE UNLOGGED TABLE {schema}.epoch (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch   bigint NOT NULL,
    made_by xid
);

-- Every epoch there was, and why it began: created, crash (nothing acknowledged is lost), failover (a new timeline:
-- messages that the standby never had are gone), restore (a dump: messages published after it are gone).
CREATE TABLE {schema}.epoch_history (
    epoch    bigint PRIMARY KEY,
    began_at timestamptz NOT NULL,
    cause    text NOT NULL CHECK (cause IN ('created', 'crash', 'failover', 'restore')),
    timeline text NOT NULL
);

-- Its value is the timeline of the server's log on which offsets continue: see "pass_lost_offsets".
CREATE SEQUENCE {schema}.offsets_timeline;

-- Processes that wait for a topic: publishers notify only while there is one. Lost in a crash, and raised again.
CREATE UNLOGGED TABLE {schema}.waiter (
    topic_id  integer NOT NULL,
    waiter_id uuid NOT NULL,
    until     timestamptz NOT NULL,
    PRIMARY KEY (topic_id, waiter_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The database's clock as processes saw it: the latest time, the latest time a process saw that had been there for a while, and
-- by how much deadlines were moved because the clock stepped. See clock/guard.rs.
CREATE TABLE {schema}.clock (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    latest_at timestamptz,
    steady_at timestamptz,
    moved_ms  bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

INSERT INTO {schema}.clock DEFAULT VALUES;

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

-- How old a stamp is. One from the future, of a clock that was ahead, is as old as can be: what waits for its age must not
-- wait until the clock shows that time again. A second is the time between two processes that read the clock.
CREATE FUNCTION {schema}.stamp_age_ms(p_at timestamptz, p_now timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_at - p_now > interval '1 second' THEN 1000000000000000
                WHEN p_at > p_now THEN 0
                ELSE (extract(epoch FROM p_now - p_at) * 1000)::bigint END
$$;

-- Refuses (HW009) to judge deadlines by a clock that stepped. Callers compare first, because a call costs more than that:
-- a process says which time it expects, and looks into it when it is refused.
CREATE FUNCTION {schema}.refuse_step(p_now timestamptz, p_expected timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'HW009', MESSAGE = format('clock stepped: %s where %s is expected', p_now, p_expected);
END $$;
