-- Topics with retention, subscriptions that live, die and come back, and the records of reference counting. One writer at a
-- time: whatever a command looks at stays as it is until it commits.

ALTER TABLE headwater_topic ADD COLUMN tracking TEXT NOT NULL DEFAULT 'offset_watermark'
    CHECK (tracking IN ('offset_watermark', 'reference_counting'));
-- NULL keeps for ever.
ALTER TABLE headwater_topic ADD COLUMN message_retention_ms INTEGER DEFAULT 86400000;
ALTER TABLE headwater_topic ADD COLUMN max_retention_ms INTEGER;
ALTER TABLE headwater_topic ADD COLUMN zero_subscription_retention_ms INTEGER NOT NULL DEFAULT 86400000;
ALTER TABLE headwater_topic ADD COLUMN block_writes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE headwater_topic ADD COLUMN zombie_subscription_ttl_ms INTEGER NOT NULL DEFAULT 604800000;
ALTER TABLE headwater_topic ADD COLUMN heartbeat_interval_ms INTEGER NOT NULL DEFAULT 60000;
ALTER TABLE headwater_topic ADD COLUMN heartbeat_timeout_ms INTEGER NOT NULL DEFAULT 300000;
ALTER TABLE headwater_topic ADD COLUMN storage TEXT NOT NULL DEFAULT 'shared';
ALTER TABLE headwater_topic ADD COLUMN partition TEXT NOT NULL DEFAULT 'none';
ALTER TABLE headwater_topic ADD COLUMN partition_rows INTEGER;
ALTER TABLE headwater_topic ADD COLUMN ack_log INTEGER NOT NULL DEFAULT 0;
-- Everything below was removed.
ALTER TABLE headwater_topic ADD COLUMN first_offset INTEGER NOT NULL DEFAULT 1;
-- Everything at or below was published while no subscription counted, or before that; NULL while none counts.
ALTER TABLE headwater_topic ADD COLUMN zero_until INTEGER;
-- While none counts (zero_until is NULL): everything from it on was published since.
ALTER TABLE headwater_topic ADD COLUMN zero_from INTEGER NOT NULL DEFAULT 1;
-- Reference counting: everything at or below has its record.
ALTER TABLE headwater_topic ADD COLUMN tracked_until INTEGER NOT NULL DEFAULT 0;
-- Where tracking has to get to after a change of mode; NULL when no change is under way.
ALTER TABLE headwater_topic ADD COLUMN change_until INTEGER;
ALTER TABLE headwater_topic ADD COLUMN removed INTEGER NOT NULL DEFAULT 0;
UPDATE headwater_topic SET max_retention_ms = 2592000000 WHERE semantics = 'pub_sub';
UPDATE headwater_topic SET zero_until = 0
WHERE EXISTS (SELECT 1 FROM headwater_subscription AS s WHERE s.topic_id = headwater_topic.topic_id);

-- A cancelled subscription stays until it is removed and does not stand in the way of a new one of its name. The table is
-- made anew, because its unique constraint cannot be dropped, and under its own name: a rename would check the views, which
-- name it while it is not there.
CREATE TABLE headwater_moving AS
SELECT subscription_id, topic_id, group_name, lanes, start_offset, reassigned, created_at_ms FROM headwater_subscription;
CREATE TABLE headwater_moving_sequence AS SELECT seq FROM sqlite_sequence WHERE name = 'headwater_subscription';
DROP TABLE headwater_subscription;
CREATE TABLE headwater_subscription (
    subscription_id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic_id INTEGER NOT NULL,
    group_name TEXT NOT NULL,
    lanes INTEGER NOT NULL,
    start_offset INTEGER NOT NULL,
    reassigned INTEGER NOT NULL DEFAULT 0,
    created_at_ms INTEGER NOT NULL,
    status TEXT NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'paused', 'dead', 'cancelled')),
    status_at_ms INTEGER NOT NULL,
    -- The elapsed time (headwater_elapsed) when it died last.
    died_elapsed_ms INTEGER NOT NULL DEFAULT 0,
    -- Its own delivery policy; NULL takes the topic's.
    lease_ms INTEGER,
    max_attempts INTEGER,
    backoff_initial_ms INTEGER,
    backoff_max_ms INTEGER,
    -- NULL until a process of it beats.
    heartbeat_at_ms INTEGER,
    -- Past its timeout at a look before which nobody had been watching.
    suspected_at_ms INTEGER,
    -- Registrations since, with the floor where it was then.
    restarts INTEGER NOT NULL DEFAULT 0,
    restarts_since_ms INTEGER,
    restarts_floor INTEGER,
    missed INTEGER NOT NULL DEFAULT 0,
    missed_first INTEGER,
    missed_last INTEGER,
    -- Reference counting. Its bit in the records; NULL in offset watermark.
    bit INTEGER CHECK (bit BETWEEN 0 AND 63),
    -- Messages that get their record from now on require it from this offset on.
    required_from INTEGER NOT NULL DEFAULT 1,
    -- It does not count any more: up to here pending records have let go of it. NULL when nothing is to be released.
    released_until INTEGER,
    -- Everything at or below is in headwater_applied exactly if it is done, but for what is in headwater_touched.
    applied_until INTEGER NOT NULL DEFAULT 0,
    -- Outstanding ranges that wait, the offsets in them, and the offsets in those that are to be retried: kept by triggers.
    waiting INTEGER NOT NULL DEFAULT 0,
    waiting_offsets INTEGER NOT NULL DEFAULT 0,
    retrying_offsets INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO headwater_subscription (
    subscription_id, topic_id, group_name, lanes, start_offset, reassigned, created_at_ms, status_at_ms
)
SELECT subscription_id, topic_id, group_name, lanes, start_offset, reassigned, created_at_ms, created_at_ms
FROM headwater_moving;
-- AUTOINCREMENT goes on where it was, so that no number is used twice.
DELETE FROM sqlite_sequence WHERE name = 'headwater_subscription';
INSERT INTO sqlite_sequence (name, seq) SELECT 'headwater_subscription', seq FROM headwater_moving_sequence;
UPDATE headwater_subscription
SET (waiting, waiting_offsets, retrying_offsets) = (
    SELECT count(*), coalesce(sum(last_offset - first_offset + 1), 0),
        coalesce(sum(iif(parked = 0 AND attempts > 0, last_offset - first_offset + 1, 0)), 0)
    FROM headwater_range AS waiting
    WHERE waiting.subscription_id = headwater_subscription.subscription_id AND waiting.owner IS NULL
);
DROP TABLE headwater_moving;
DROP TABLE headwater_moving_sequence;
CREATE UNIQUE INDEX headwater_subscription_group ON headwater_subscription (topic_id, group_name)
WHERE status <> 'cancelled';
CREATE INDEX headwater_subscription_cancelled ON headwater_subscription (topic_id, group_name)
WHERE status = 'cancelled';
-- A settlement asks whether any topic keeps an ack log; none does, mostly, and then this is empty.
CREATE INDEX headwater_topic_ack_log ON headwater_topic (topic_id) WHERE ack_log = 1;

-- Plain SQL is refused as the library is. Beside the trigger that publishes: whichever runs first, both are undone.
CREATE TRIGGER headwater_publish_blocked INSTEAD OF INSERT ON headwater_publish
BEGIN
    SELECT RAISE(ABORT, 'no subscriptions: this topic blocks writes while no group subscribes; subscribe a group, or change block_writes_on_zero_subscriptions')
    FROM headwater_topic AS topic
    WHERE topic.name = NEW.topic AND topic.block_writes = 1 AND topic.semantics = 'pub_sub'
        AND NOT EXISTS (
            SELECT 1 FROM headwater_subscription AS subscription
            WHERE subscription.topic_id = topic.topic_id AND subscription.status <> 'cancelled'
                AND subscription.status IN ('active', 'paused')
        );
END;

-- The views for people, with what topics and subscriptions have become.
DROP VIEW headwater_topics;
CREATE VIEW headwater_topics AS
SELECT topic.topic_id, topic.name AS topic, topic.semantics, topic.tracking, topic.ordering, topic.lanes,
    topic.first_offset AS "first", topic.last_offset AS head,
    (SELECT count(*) FROM headwater_subscription AS subscription
        WHERE subscription.topic_id = topic.topic_id AND subscription.status <> 'cancelled') AS subscriptions,
    topic.scheduled,
    topic.message_retention_ms, topic.max_retention_ms, topic.zero_subscription_retention_ms,
    topic.block_writes AS block_writes_on_zero_subscriptions, topic.zombie_subscription_ttl_ms,
    topic.lease_ms, topic.max_attempts, topic.backoff_initial_ms, topic.backoff_max_ms,
    topic.storage, topic.partition, topic.partition_rows, topic.payload_bytes_max, topic.dedup_window_ms,
    topic.heartbeat_interval_ms, topic.heartbeat_timeout_ms, topic.ack_log, topic.removed,
    strftime('%Y-%m-%dT%H:%M:%fZ', topic.created_at_ms / 1000.0, 'unixepoch') AS created_at
FROM headwater_topic AS topic;

DROP VIEW headwater_subscriptions;
CREATE VIEW headwater_subscriptions AS
SELECT subscription.subscription_id, topic.name AS topic, subscription.group_name AS "group", subscription.status,
    strftime('%Y-%m-%dT%H:%M:%fZ', subscription.status_at_ms / 1000.0, 'unixepoch') AS status_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', subscription.heartbeat_at_ms / 1000.0, 'unixepoch') AS heartbeat_at,
    subscription.lanes,
    (SELECT min(next_offset) FROM headwater_cursor AS cursor
        WHERE cursor.subscription_id = subscription.subscription_id) AS "next",
    topic.last_offset AS head,
    (SELECT count(*) FROM headwater_range AS leased
        WHERE leased.subscription_id = subscription.subscription_id AND leased.owner IS NOT NULL) AS leased,
    subscription.waiting,
    (SELECT count(*) FROM headwater_dead_letter AS dead
        WHERE dead.subscription_id = subscription.subscription_id) AS dead_letters,
    subscription.reassigned, subscription.missed, subscription.missed_first, subscription.missed_last,
    coalesce(subscription.lease_ms, topic.lease_ms) AS lease_ms,
    coalesce(subscription.max_attempts, topic.max_attempts) AS max_attempts,
    coalesce(subscription.backoff_initial_ms, topic.backoff_initial_ms) AS backoff_initial_ms,
    coalesce(subscription.backoff_max_ms, topic.backoff_max_ms) AS backoff_max_ms,
    strftime('%Y-%m-%dT%H:%M:%fZ', subscription.created_at_ms / 1000.0, 'unixepoch') AS created_at
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id;

-- Reference counting: the offsets of a subscription whose completion is set in the records, as ranges.
CREATE TABLE headwater_applied (
    subscription_id INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    PRIMARY KEY (subscription_id, first_offset)
) STRICT, WITHOUT ROWID;

-- Reference counting: offsets at or below applied_until that may be done, or not done any more, since tracking last met them.
-- A lease that tracking met (token above 0) is due once its row is gone; what waited or waits is due at once (token 0).
CREATE TABLE headwater_touched (
    subscription_id INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    token INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    PRIMARY KEY (subscription_id, first_offset, token)
) STRICT, WITHOUT ROWID;
-- Only ranges that wait pay for this: a plain lease and its ack do not.
CREATE TRIGGER headwater_range_waits AFTER INSERT ON headwater_range WHEN NEW.owner IS NULL
BEGIN
    UPDATE headwater_subscription
    SET waiting = waiting + 1, waiting_offsets = waiting_offsets + NEW.last_offset - NEW.first_offset + 1,
        retrying_offsets = retrying_offsets
            + iif(NEW.parked = 0 AND NEW.attempts > 0, NEW.last_offset - NEW.first_offset + 1, 0)
    WHERE subscription_id = NEW.subscription_id;
    INSERT INTO headwater_touched (subscription_id, first_offset, token, last_offset)
    SELECT subscription_id, NEW.first_offset, 0, NEW.last_offset
    FROM headwater_subscription
    WHERE subscription_id = NEW.subscription_id AND bit IS NOT NULL
    ON CONFLICT DO UPDATE SET last_offset = max(last_offset, excluded.last_offset);
END;
CREATE TRIGGER headwater_range_waited AFTER DELETE ON headwater_range WHEN OLD.owner IS NULL
BEGIN
    UPDATE headwater_subscription
    SET waiting = waiting - 1, waiting_offsets = waiting_offsets - (OLD.last_offset - OLD.first_offset + 1),
        retrying_offsets = retrying_offsets
            - iif(OLD.parked = 0 AND OLD.attempts > 0, OLD.last_offset - OLD.first_offset + 1, 0)
    WHERE subscription_id = OLD.subscription_id;
    INSERT INTO headwater_touched (subscription_id, first_offset, token, last_offset)
    SELECT subscription_id, OLD.first_offset, 0, OLD.last_offset
    FROM headwater_subscription
    WHERE subscription_id = OLD.subscription_id AND bit IS NOT NULL
    ON CONFLICT DO UPDATE SET last_offset = max(last_offset, excluded.last_offset);
END;
CREATE TRIGGER headwater_range_cut AFTER UPDATE OF first_offset ON headwater_range WHEN NEW.owner IS NULL
BEGIN
    UPDATE headwater_subscription
    SET waiting_offsets = waiting_offsets - (NEW.first_offset - OLD.first_offset),
        retrying_offsets = retrying_offsets
            - iif(NEW.parked = 0 AND NEW.attempts > 0, NEW.first_offset - OLD.first_offset, 0)
    WHERE subscription_id = NEW.subscription_id;
    INSERT INTO headwater_touched (subscription_id, first_offset, token, last_offset)
    SELECT subscription_id, OLD.first_offset, 0, OLD.last_offset
    FROM headwater_subscription
    WHERE subscription_id = NEW.subscription_id AND bit IS NOT NULL
    ON CONFLICT DO UPDATE SET last_offset = max(last_offset, excluded.last_offset);
END;

-- The watermark as it was: message retention is reckoned from when messages were done.
CREATE TABLE headwater_mark (
    topic_id INTEGER NOT NULL,
    marked_at_ms INTEGER NOT NULL,
    watermark INTEGER NOT NULL,
    PRIMARY KEY (topic_id, marked_at_ms)
) STRICT, WITHOUT ROWID;

-- Elapsed time as maintenance saw it pass; at most one row. Unread messages are removed by it alone, never by one reading of
-- the clock: a step of the clock counts as the longest distance that two readings are expected to have.
CREATE TABLE headwater_elapsed (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    read_at_ms INTEGER NOT NULL,
    elapsed_ms INTEGER NOT NULL
) STRICT;

-- The last offset as it was: everything at or below last_offset was published by that elapsed time.
CREATE TABLE headwater_age (
    topic_id INTEGER NOT NULL,
    elapsed_ms INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    PRIMARY KEY (topic_id, elapsed_ms)
) STRICT, WITHOUT ROWID;

-- Reference counting: for each message (row_key as in headwater_message) the groups it is for and those that are done, one
-- bit each (headwater_subscription.bit).
CREATE TABLE headwater_record (
    row_key INTEGER PRIMARY KEY,
    required INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    completed_at_ms INTEGER
) STRICT;
CREATE INDEX headwater_record_pending ON headwater_record (row_key) WHERE completed_at_ms IS NULL;

CREATE TABLE headwater_backfill (
    subscription_id INTEGER PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('not_started', 'in_progress', 'completed', 'cancelled', 'failed')),
    first_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    checkpoint INTEGER NOT NULL,
    rate_max INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL,
    progressed_at_ms INTEGER,
    -- Time spent on it, for the rate: it may have been cancelled and resumed.
    ran_ms INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    -- The worker that has it, and until when.
    worker TEXT,
    worker_until_ms INTEGER
) STRICT;

-- What each process of a group told of itself.
CREATE TABLE headwater_activity (
    subscription_id INTEGER NOT NULL,
    owner TEXT NOT NULL,
    processed INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    filtered INTEGER NOT NULL,
    rate REAL NOT NULL,
    handling_mean_us INTEGER NOT NULL,
    handling_p95_us INTEGER NOT NULL,
    told_at_ms INTEGER NOT NULL,
    PRIMARY KEY (subscription_id, owner)
) STRICT, WITHOUT ROWID;

CREATE TABLE headwater_ack_log (
    ack_key INTEGER PRIMARY KEY,
    topic_id INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    -- In an ordered subscription only the lane's own messages among them, of so many lanes.
    lane INTEGER,
    lanes INTEGER NOT NULL,
    group_name TEXT NOT NULL,
    owner TEXT NOT NULL,
    acked_at_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX headwater_ack_log_offsets ON headwater_ack_log (topic_id, last_offset);

CREATE TABLE headwater_audit (
    audit_key INTEGER PRIMARY KEY AUTOINCREMENT,
    acted_at_ms INTEGER NOT NULL,
    actor TEXT NOT NULL,
    act TEXT NOT NULL,
    topic TEXT,
    group_name TEXT,
    detail TEXT NOT NULL DEFAULT '{}'
) STRICT;
CREATE TRIGGER headwater_audit_update BEFORE UPDATE ON headwater_audit
BEGIN
    SELECT RAISE(ABORT, 'invalid change: the audit is append-only');
END;
CREATE TRIGGER headwater_audit_delete BEFORE DELETE ON headwater_audit
BEGIN
    SELECT RAISE(ABORT, 'invalid change: the audit is append-only');
END;

CREATE TABLE headwater_job (
    job TEXT PRIMARY KEY NOT NULL,
    runs INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    rows INTEGER NOT NULL DEFAULT 0,
    backlog INTEGER NOT NULL DEFAULT 0,
    last_run_at_ms INTEGER NOT NULL,
    duration_us INTEGER NOT NULL DEFAULT 0,
    last_error TEXT
) STRICT, WITHOUT ROWID;

-- The elected worker; at most one row.
CREATE TABLE headwater_election (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    worker TEXT NOT NULL,
    until_ms INTEGER NOT NULL
) STRICT;

-- Reference counting for people with plain SQL: whom each message is for, who is done, and whom it still waits for, as JSON
-- arrays of group names. Messages whose record is not made yet are shown as they will be, without completed_at.
--   SELECT * FROM headwater_message_status WHERE topic = 'orders' AND status = 'PENDING';
CREATE VIEW headwater_message_status (
    topic, message_offset, status, required_groups, completed_groups, waiting_for, completed_at
) AS
WITH reached (topic_id, subscription_id, bit, required_from, next_offset) AS (
    SELECT subscription.topic_id, subscription.subscription_id, subscription.bit, subscription.required_from,
        (
            SELECT min(cursor.next_offset) FROM headwater_cursor AS cursor
            WHERE cursor.subscription_id = subscription.subscription_id
        )
    FROM headwater_subscription AS subscription
    JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
    WHERE subscription.bit IS NOT NULL
        AND (subscription.status IN ('active', 'paused') OR subscription.status = 'dead' AND topic.semantics = 'queue')
),
coming (row_key, topic_id, message_offset, bit, required_from, done) AS (
    SELECT message.row_key, topic.topic_id, message.row_key & 8796093022207, reached.bit, reached.required_from,
        message.row_key & 8796093022207 < reached.next_offset
            AND NOT EXISTS (
                SELECT 1 FROM headwater_range AS leased
                WHERE leased.subscription_id = reached.subscription_id AND leased.owner IS NOT NULL
                    AND message.row_key & 8796093022207 BETWEEN leased.first_offset AND leased.last_offset
            )
            AND NOT EXISTS (
                SELECT 1 FROM headwater_range AS waiting
                WHERE waiting.subscription_id = reached.subscription_id AND waiting.owner IS NULL
                    AND message.row_key & 8796093022207 BETWEEN waiting.first_offset AND waiting.last_offset
            )
    FROM headwater_topic AS topic
    JOIN headwater_message AS message
        ON message.row_key BETWEEN (topic.topic_id << 43) | (topic.tracked_until + 1)
            AND (topic.topic_id << 43) | 8796093022207
    LEFT JOIN reached ON reached.topic_id = topic.topic_id
    WHERE topic.tracking = 'reference_counting'
),
state (topic_id, message_offset, required, completed, completed_at_ms) AS (
    SELECT topic.topic_id, record.row_key & 8796093022207, record.required, record.completed, record.completed_at_ms
    FROM headwater_topic AS topic
    JOIN headwater_record AS record
        ON record.row_key BETWEEN topic.topic_id << 43 AND (topic.topic_id << 43) | 8796093022207
    WHERE topic.tracking = 'reference_counting'
    UNION ALL
    SELECT topic_id, message_offset,
        coalesce(sum(CASE WHEN NOT done OR required_from <= message_offset THEN 1 << bit END), 0),
        coalesce(sum(CASE WHEN done AND required_from <= message_offset THEN 1 << bit END), 0),
        NULL
    FROM coming
    GROUP BY row_key
)
SELECT topic.name, state.message_offset,
    CASE WHEN state.required & ~state.completed = 0 THEN 'COMPLETED' ELSE 'PENDING' END,
    (
        SELECT json_group_array(named.group_name) FROM (
            SELECT subscription.group_name FROM headwater_subscription AS subscription
            WHERE subscription.topic_id = state.topic_id AND (state.required >> subscription.bit) & 1
            ORDER BY subscription.group_name
        ) AS named
    ),
    (
        SELECT json_group_array(named.group_name) FROM (
            SELECT subscription.group_name FROM headwater_subscription AS subscription
            WHERE subscription.topic_id = state.topic_id AND (state.completed >> subscription.bit) & 1
            ORDER BY subscription.group_name
        ) AS named
    ),
    (
        SELECT json_group_array(named.group_name) FROM (
            SELECT subscription.group_name FROM headwater_subscription AS subscription
            WHERE subscription.topic_id = state.topic_id
                AND ((state.required & ~state.completed) >> subscription.bit) & 1
            ORDER BY subscription.group_name
        ) AS named
    ),
    strftime('%Y-%m-%dT%H:%M:%fZ', state.completed_at_ms / 1000.0, 'unixepoch')
FROM state
JOIN headwater_topic AS topic ON topic.topic_id = state.topic_id;
