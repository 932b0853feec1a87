-- Topics: their settings and their state. The defaults are those of a queue that a publish creates.

CREATE TABLE headwater_topic (
    topic_id INTEGER PRIMARY KEY AUTOINCREMENT CHECK (topic_id BETWEEN 1 AND 1048575),
    name TEXT NOT NULL UNIQUE,
    created_at_ms INTEGER NOT NULL,

    -- The head: one transaction writes at a time, so everything at or below it is final. It only rises.
    last_offset INTEGER NOT NULL DEFAULT 0 CHECK (last_offset BETWEEN 0 AND 8796093022207),
    -- Everything below was removed.
    first_offset INTEGER NOT NULL DEFAULT 1,
    removed INTEGER NOT NULL DEFAULT 0,
    -- Rises when something other than a publish may have made a message claimable, for waiters of other processes.
    stirred INTEGER NOT NULL DEFAULT 0,
    -- How many messages are delayed: kept by triggers, so that it is never counted.
    scheduled INTEGER NOT NULL DEFAULT 0,
    -- Everything at or below was published while no subscription counted, or before that; NULL while none counts.
    zero_until INTEGER,
    -- While none counts (zero_until is NULL): everything from it on was published since.
    zero_from INTEGER NOT NULL DEFAULT 1,

    -- Settings.
    semantics TEXT NOT NULL DEFAULT 'queue' CHECK (semantics IN ('queue', 'pub_sub')),
    tracking TEXT NOT NULL DEFAULT 'offset_watermark'
        CHECK (tracking IN ('offset_watermark', 'reference_counting')),
    ordering TEXT NOT NULL DEFAULT 'none' CHECK (ordering IN ('none', 'key')),
    lanes INTEGER NOT NULL DEFAULT 16,
    lease_ms INTEGER NOT NULL DEFAULT 300000,
    max_attempts INTEGER NOT NULL DEFAULT 10,
    backoff_initial_ms INTEGER NOT NULL DEFAULT 1000,
    backoff_max_ms INTEGER NOT NULL DEFAULT 300000,
    payload_bytes_max INTEGER NOT NULL DEFAULT 1048576,
    dedup_window_ms INTEGER NOT NULL DEFAULT 600000,
    gap_patience_ms INTEGER NOT NULL DEFAULT 50,
    -- NULL keeps for ever.
    message_retention_ms INTEGER DEFAULT 86400000,
    max_retention_ms INTEGER,
    zero_subscription_retention_ms INTEGER NOT NULL DEFAULT 86400000,
    block_writes INTEGER NOT NULL DEFAULT 0,
    zombie_subscription_ttl_ms INTEGER NOT NULL DEFAULT 604800000,
    heartbeat_interval_ms INTEGER NOT NULL DEFAULT 60000,
    heartbeat_timeout_ms INTEGER NOT NULL DEFAULT 300000,
    storage TEXT NOT NULL DEFAULT 'shared',
    partition TEXT NOT NULL DEFAULT 'none',
    partition_rows INTEGER,
    ack_log INTEGER NOT NULL DEFAULT 0,

    -- Reference counting: everything at or below has its record.
    tracked_until INTEGER NOT NULL DEFAULT 0,
    -- Where tracking has to get to after a change of mode; NULL when no change is under way.
    change_until INTEGER,
    -- Which bits the topic has given out since it was last without records: one that was never used is free, without a search
    -- through the records.
    bits_used INTEGER NOT NULL DEFAULT 0
) STRICT;
-- A settlement asks whether any topic keeps an ack log; none does, mostly, and then this is empty.
CREATE INDEX headwater_topic_ack_log ON headwater_topic (topic_id) WHERE ack_log = 1;
