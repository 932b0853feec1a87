-- Topics: their settings and their state.

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
    wakes INTEGER NOT NULL DEFAULT 0,
    -- The number of scheduled messages: maintained by triggers, so that it is never counted.
    scheduled INTEGER NOT NULL DEFAULT 0,
    -- Everything at or below was published while no subscription counted, or before that; NULL while none counts.
    zero_until INTEGER,
    -- While none counts (zero_until is NULL): the first offset published since then.
    zero_from INTEGER NOT NULL DEFAULT 1,

    -- Copies of the settings that SQL reads, written only by the trigger headwater_topic_copy. Generated columns would be
    -- computed at every UPDATE of the row, so by every publish: that took 13 us instead of 2. The defaults apply until the
    -- trigger has run, in the same statement.
    semantics TEXT NOT NULL DEFAULT 'queue' CHECK (semantics IN ('queue', 'pub_sub')),
    tracking TEXT NOT NULL DEFAULT 'offset_watermark'
        CHECK (tracking IN ('offset_watermark', 'reference_counting')),
    lease_ms INTEGER NOT NULL DEFAULT 0 CHECK (lease_ms >= 0),
    max_attempts INTEGER NOT NULL DEFAULT 1 CHECK (max_attempts > 0),
    payload_bytes_max INTEGER NOT NULL DEFAULT 1 CHECK (payload_bytes_max > 0),
    dedup_window_ms INTEGER NOT NULL DEFAULT 0 CHECK (dedup_window_ms >= 0),
    -- NULL means for ever.
    message_retention_ms INTEGER CHECK (message_retention_ms >= 0),
    max_retention_ms INTEGER CHECK (max_retention_ms > 0),
    zero_subscription_retention_ms INTEGER NOT NULL DEFAULT 0 CHECK (zero_subscription_retention_ms >= 0),
    block_writes INTEGER NOT NULL DEFAULT 0 CHECK (block_writes IN (0, 1)),
    zombie_subscription_ttl_ms INTEGER NOT NULL DEFAULT 0 CHECK (zombie_subscription_ttl_ms >= 0),
    heartbeat_interval_ms INTEGER NOT NULL DEFAULT 1 CHECK (heartbeat_interval_ms > 0),
    heartbeat_timeout_ms INTEGER NOT NULL DEFAULT 1 CHECK (heartbeat_timeout_ms > 0),
    ack_log INTEGER NOT NULL DEFAULT 0 CHECK (ack_log IN (0, 1)),

    -- Reference counting: everything at or below has its completion record.
    tracked_until INTEGER NOT NULL DEFAULT 0,
    -- Up to where tracking has to work after a change of mode; NULL if no change is in progress.
    change_until INTEGER,
    -- The bits assigned to any group since the topic last had no records: an unused bit is free, without a search of the
    -- records.
    bits_used INTEGER NOT NULL DEFAULT 0,

    -- All settings, as a JSON object.
    settings TEXT NOT NULL
) STRICT;
-- Topics that were deleted and whose rows are still being removed: messages, completion records, scheduled messages, dedup keys,
-- ack log and histories by topic_id, and the dead letters of its subscriptions, whose ids are a JSON array.
CREATE TABLE headwater_deleted_topic (
    topic_id INTEGER PRIMARY KEY,
    subscription_ids TEXT NOT NULL
) STRICT;
-- A settlement checks whether any topic keeps an ack log; usually none does, and then this index is empty.
CREATE INDEX headwater_topic_ack_log ON headwater_topic (topic_id) WHERE ack_log = 1;
