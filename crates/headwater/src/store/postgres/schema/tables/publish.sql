-- What publishing needs besides the log: scheduled messages, dedup keys, cron ticks, and waiting processes.

-- Scheduled messages. No foreign key: the rows of a deleted topic are removed in steps. A publish locks its topic instead: see
-- publish_each.
CREATE TABLE {schema}.schedule (
    schedule_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id       integer NOT NULL,
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
CREATE INDEX schedule_message ON {schema}.schedule (topic_id, message_id);

-- Dedup keys within their window. message_offset is null while the first message is still scheduled. No foreign key, as above.
CREATE TABLE {schema}.dedup (
    topic_id       integer NOT NULL,
    dedup_key      text COLLATE "C" NOT NULL,
    message_id     uuid NOT NULL,
    message_offset bigint,
    expires_at     timestamptz NOT NULL,
    PRIMARY KEY (topic_id, dedup_key)
);

CREATE INDEX dedup_expiry ON {schema}.dedup (expires_at);

-- Ticks of cron jobs: each is fired once, by the first process.
CREATE TABLE {schema}.cron (
    job       text COLLATE "C" PRIMARY KEY,
    -- The last tick fired, or the time from which ticks count.
    last_tick timestamptz NOT NULL,
    -- For operators: what the process that started it last gave, and when that was; null if none did.
    expression text,
    time_zone  text,
    topic      text,
    started_at timestamptz,
    -- The range of clients: see table "message".
    CONSTRAINT cron_last_tick_readable CHECK (last_tick >= '0001-01-01 00:00:00Z' AND last_tick < '9999-12-30 00:00:00Z')
) WITH (fillfactor = 50);

-- Processes that wait for messages of a topic: publishers notify only while there is a row. Lost in a crash, and inserted again.
CREATE UNLOGGED TABLE {schema}.waiter (
    topic_id  integer NOT NULL,
    waiter_id uuid NOT NULL,
    until     timestamptz NOT NULL,
    PRIMARY KEY (topic_id, waiter_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
