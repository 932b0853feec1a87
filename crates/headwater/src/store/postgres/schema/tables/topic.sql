-- Topics and their settings.
--
-- {schema} is the quoted schema of a namespace, {name} its bare name.

CREATE TABLE {schema}.topic (
    topic_id                       integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name                           text COLLATE "C" NOT NULL UNIQUE,
    -- All settings. A setting that SQL reads has a column generated from this one.
    settings                       jsonb NOT NULL,
    semantics                      text GENERATED ALWAYS AS (settings ->> 'semantics') STORED
                                   NOT NULL CHECK (semantics IN ('queue', 'pub_sub')),
    tracking                       text GENERATED ALWAYS AS (settings ->> 'tracking') STORED
                                   NOT NULL CHECK (tracking IN ('offset_watermark', 'reference_counting')),
    -- Null means for ever.
    message_retention_ms           bigint GENERATED ALWAYS AS ((settings ->> 'message_retention_ms')::bigint) STORED
                                   CHECK (message_retention_ms >= 0),
    max_retention_ms               bigint GENERATED ALWAYS AS ((settings ->> 'max_retention_ms')::bigint) STORED
                                   CHECK (max_retention_ms > 0),
    zero_subscription_retention_ms bigint GENERATED ALWAYS AS ((settings ->> 'zero_subscription_retention_ms')::bigint) STORED
                                   NOT NULL CHECK (zero_subscription_retention_ms >= 0),
    block_writes                   boolean GENERATED ALWAYS AS ((settings ->> 'block_writes_on_zero_subscriptions')::boolean) STORED
                                   NOT NULL,
    zombie_subscription_ttl_ms     bigint GENERATED ALWAYS AS ((settings ->> 'zombie_subscription_ttl_ms')::bigint) STORED
                                   NOT NULL CHECK (zombie_subscription_ttl_ms >= 0),
    lease_ms                       bigint GENERATED ALWAYS AS ((settings ->> 'lease_ms')::bigint) STORED
                                   NOT NULL CHECK (lease_ms >= 0),
    max_attempts                   integer GENERATED ALWAYS AS ((settings ->> 'max_attempts')::integer) STORED
                                   NOT NULL CHECK (max_attempts > 0),
    ordering                       text GENERATED ALWAYS AS (settings ->> 'ordering') STORED
                                   NOT NULL CHECK (ordering IN ('none', 'key')),
    lanes                          integer GENERATED ALWAYS AS ((settings ->> 'lanes')::integer) STORED
                                   NOT NULL CHECK (lanes > 0),
    payload_bytes_max              integer GENERATED ALWAYS AS ((settings ->> 'payload_bytes_max')::integer) STORED
                                   NOT NULL CHECK (payload_bytes_max > 0),
    dedup_window_ms                bigint GENERATED ALWAYS AS ((settings ->> 'dedup_window_ms')::bigint) STORED
                                   NOT NULL CHECK (dedup_window_ms >= 0),
    heartbeat_interval_ms          bigint GENERATED ALWAYS AS ((settings ->> 'heartbeat_interval_ms')::bigint) STORED
                                   NOT NULL CHECK (heartbeat_interval_ms > 0),
    heartbeat_timeout_ms           bigint GENERATED ALWAYS AS ((settings ->> 'heartbeat_timeout_ms')::bigint) STORED
                                   NOT NULL CHECK (heartbeat_timeout_ms > 0),
    ack_log                        boolean GENERATED ALWAYS AS ((settings ->> 'ack_log')::boolean) STORED NOT NULL,
    gap_patience_ms                bigint GENERATED ALWAYS AS ((settings ->> 'gap_patience_ms')::bigint) STORED
                                   NOT NULL CHECK (gap_patience_ms >= 0),
    -- The parts of `dedicated by rows:1000`: before "by", after it, and the number.
    storage                        text GENERATED ALWAYS AS (split_part(settings ->> 'storage', ' by ', 1)) STORED
                                   NOT NULL CHECK (storage IN ('shared', 'dedicated')),
    partition                      text GENERATED ALWAYS AS (
        coalesce(nullif(split_part(split_part(settings ->> 'storage', ' by ', 2), ':', 1), ''), 'none')) STORED
                                   NOT NULL CHECK (partition IN ('none', 'rows', 'hour', 'day', 'month')),
    partition_rows                 bigint GENERATED ALWAYS AS (
        nullif(split_part(settings ->> 'storage', ':', 2), '')::bigint) STORED
                                   CHECK (partition_rows > 0),
    -- Where the topic's offsets come from. CACHE 1, so that offsets rise with time across sessions.
    offsets                        regclass,
    created_at                     timestamptz NOT NULL
);

-- Small or empty: every ack checks whether any topic keeps an ack log.
CREATE INDEX topic_ack_log ON {schema}.topic (topic_id) WHERE ack_log;

-- Topics that were deleted and whose rows are still being removed: messages, scheduled messages, dedup keys, completion records,
-- gaps and ack log by topic_id, dead letters by subscription; and the sequence of its offsets. See functions/topic_delete.sql.
CREATE TABLE {schema}.deleted_topic (
    topic_id         integer PRIMARY KEY,
    subscription_ids integer[] NOT NULL,
    offsets          regclass NOT NULL,
    deleted_at       timestamptz NOT NULL
);

-- The ids of topics that are created with dedicated tables. Before a table is attached the server searches the default partition
-- for rows that would belong to it, under a lock that excludes everything else, unless a constraint proves that there are none.
-- So these ids begin at a thousand million, and the shared table refuses such ids. A topic that gets dedicated tables later,
-- while it is empty, has a low id, and the shared table is searched: a constraint for that id would refuse its publishers
-- meanwhile, and for ever if the change were interrupted.
CREATE SEQUENCE {schema}.dedicated_topic_id AS integer MINVALUE 1000000000 CACHE 1;
