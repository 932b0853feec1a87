-- Views: the tables in readable form, for plain SQL. Every program whose text differs replaces all of them: edit in place.

CREATE VIEW headwater_topics AS
SELECT topic.topic_id, topic.name AS topic, topic.semantics, topic.tracking, topic.settings ->> 'ordering' AS ordering,
    topic.settings ->> 'lanes' AS lanes, topic.first_offset AS "first", topic.last_offset AS head,
    (SELECT count(*) FROM headwater_subscription AS subscription
        WHERE subscription.topic_id = topic.topic_id AND subscription.state <> 'cancelled') AS subscriptions,
    topic.scheduled,
    topic.message_retention_ms, topic.max_retention_ms, topic.zero_subscription_retention_ms,
    topic.block_writes AS block_writes_on_zero_subscriptions, topic.zombie_subscription_ttl_ms,
    topic.lease_ms, topic.max_attempts, topic.settings ->> 'backoff_initial_ms' AS backoff_initial_ms,
    topic.settings ->> 'backoff_max_ms' AS backoff_max_ms, topic.settings ->> 'storage' AS storage,
    topic.payload_bytes_max, topic.dedup_window_ms,
    topic.heartbeat_interval_ms, topic.heartbeat_timeout_ms, topic.ack_log, topic.removed,
    strftime('%Y-%m-%dT%H:%M:%fZ', topic.created_at_ms / 1000.0, 'unixepoch') AS created_at
FROM headwater_topic AS topic;

CREATE VIEW headwater_messages AS
SELECT topic.name AS topic, message.row_key & 8796093022207 AS "offset",
    lower(substr(hex(message.message_id), 1, 8) || '-' || substr(hex(message.message_id), 9, 4) || '-' || substr(hex(message.message_id), 13, 4)
        || '-' || substr(hex(message.message_id), 17, 4) || '-' || substr(hex(message.message_id), 21)) AS message_id,
    message.key, message.type, message.content_type, message.headers, message.correlation_id,
    strftime('%Y-%m-%dT%H:%M:%fZ', message.created_at_ms / 1000.0, 'unixepoch') AS created_at,
    CASE WHEN instr(message.payload, x'00') = 0
        AND CAST(message.payload AS TEXT) NOT GLOB '*[' || char(1) || '-' || char(8) || char(14) || '-' || char(31)
            || char(127) || '-' || char(159) || char(65533) || ']*'
        THEN CAST(message.payload AS TEXT) ELSE 'x''' || hex(message.payload) || '''' END AS payload
FROM headwater_topic AS topic
JOIN headwater_message AS message
    ON message.row_key BETWEEN topic.topic_id << 43 AND (topic.topic_id << 43) | 8796093022207;

-- The activity that owners reported, and when each was last seen serving the subscription.
CREATE VIEW headwater_activity_seen AS
SELECT activity.subscription_id, activity.owner, activity.processed, activity.failed, activity.filtered, activity.rate,
    activity.handling_mean_us, activity.handling_p95_us,
    max(activity.told_at_ms, iif(activity.serving, coalesce(owner.seen_at_ms, 0), 0)) AS seen_at_ms
FROM headwater_activity AS activity
LEFT JOIN headwater_owner AS owner ON owner.owner = activity.owner;

-- The last heartbeat of each subscription: a group is alive while an owner that serves it is. NULL if there was none.
CREATE VIEW headwater_heard AS
SELECT subscription.subscription_id, (
        SELECT max(heard.at_ms)
        FROM (
            SELECT subscription.heartbeat_at_ms AS at_ms
            UNION ALL
            SELECT seen.seen_at_ms FROM headwater_activity_seen AS seen
            WHERE seen.subscription_id = subscription.subscription_id
        ) AS heard
    ) AS heard_at_ms
FROM headwater_subscription AS subscription;

CREATE VIEW headwater_subscriptions AS
SELECT subscription.subscription_id, topic.name AS topic, subscription.group_name AS "group", subscription.state,
    strftime('%Y-%m-%dT%H:%M:%fZ', subscription.state_at_ms / 1000.0, 'unixepoch') AS state_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', heard.heard_at_ms / 1000.0, 'unixepoch') AS heartbeat_at,
    subscription.lanes,
    (SELECT min(next_offset) FROM headwater_cursor AS cursor
        WHERE cursor.subscription_id = subscription.subscription_id) AS "next",
    topic.last_offset AS head,
    (SELECT count(*) FROM headwater_outstanding AS leased
        WHERE leased.subscription_id = subscription.subscription_id AND leased.owner IS NOT NULL) AS leased,
    subscription.waiting,
    (SELECT count(*) FROM headwater_dead_letter AS dead
        WHERE dead.subscription_id = subscription.subscription_id) AS dead_letters,
    subscription.reassigned, subscription.missed, subscription.missed_first, subscription.missed_last,
    coalesce(subscription.lease_ms, topic.lease_ms) AS lease_ms,
    coalesce(subscription.max_attempts, topic.max_attempts) AS max_attempts,
    coalesce(subscription.backoff_initial_ms, topic.settings ->> 'backoff_initial_ms') AS backoff_initial_ms,
    coalesce(subscription.backoff_max_ms, topic.settings ->> 'backoff_max_ms') AS backoff_max_ms,
    strftime('%Y-%m-%dT%H:%M:%fZ', subscription.created_at_ms / 1000.0, 'unixepoch') AS created_at
FROM headwater_subscription AS subscription
JOIN headwater_heard AS heard ON heard.subscription_id = subscription.subscription_id
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id;

CREATE VIEW headwater_outstanding_ranges AS
SELECT topic.name AS topic, subscription.group_name AS "group", part.token, part.first_offset, part.last_offset,
    part.lane, part.owner,
    CASE part.due_at_ms WHEN 0 THEN 'now' WHEN 9223372036854775807 THEN 'never'
        ELSE strftime('%Y-%m-%dT%H:%M:%fZ', part.due_at_ms / 1000.0, 'unixepoch') END AS due_at,
    part.attempts, part.suspect, part.parked, part.key, part.last_error
FROM headwater_outstanding AS part
JOIN headwater_subscription AS subscription ON subscription.subscription_id = part.subscription_id
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id;

CREATE VIEW headwater_dead_letters AS
SELECT lower(substr(hex(dead.dead_letter_id), 1, 8) || '-' || substr(hex(dead.dead_letter_id), 9, 4) || '-' || substr(hex(dead.dead_letter_id), 13, 4)
        || '-' || substr(hex(dead.dead_letter_id), 17, 4) || '-' || substr(hex(dead.dead_letter_id), 21)) AS dead_letter_id,
    topic.name AS topic, subscription.group_name AS "group", dead.message_offset AS "offset",
    lower(substr(hex(dead.message_id), 1, 8) || '-' || substr(hex(dead.message_id), 9, 4) || '-' || substr(hex(dead.message_id), 13, 4)
        || '-' || substr(hex(dead.message_id), 17, 4) || '-' || substr(hex(dead.message_id), 21)) AS message_id,
    dead.key, dead.type, dead.content_type, dead.headers, dead.correlation_id, dead.error, dead.attempts,
    strftime('%Y-%m-%dT%H:%M:%fZ', dead.created_at_ms / 1000.0, 'unixepoch') AS created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', dead.buried_at_ms / 1000.0, 'unixepoch') AS buried_at,
    CASE WHEN instr(dead.payload, x'00') = 0
        AND CAST(dead.payload AS TEXT) NOT GLOB '*[' || char(1) || '-' || char(8) || char(14) || '-' || char(31)
            || char(127) || '-' || char(159) || char(65533) || ']*'
        THEN CAST(dead.payload AS TEXT) ELSE 'x''' || hex(dead.payload) || '''' END AS payload
FROM headwater_dead_letter AS dead
JOIN headwater_subscription AS subscription ON subscription.subscription_id = dead.subscription_id
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id;

-- Reference counting: the groups that must do each message, those that have done it, and those that have not, as JSON arrays
-- of group names. Messages without a completion record are shown as their record will be, without completed_at.
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
        AND (subscription.state IN ('active', 'paused') OR subscription.state = 'dead' AND topic.semantics = 'queue')
),
coming (row_key, topic_id, message_offset, bit, required_from, done) AS (
    SELECT message.row_key, topic.topic_id, message.row_key & 8796093022207, reached.bit, reached.required_from,
        message.row_key & 8796093022207 < reached.next_offset
            AND NOT EXISTS (
                SELECT 1 FROM headwater_outstanding AS leased
                WHERE leased.subscription_id = reached.subscription_id AND leased.owner IS NOT NULL
                    AND message.row_key & 8796093022207 BETWEEN leased.first_offset AND leased.last_offset
            )
            AND NOT EXISTS (
                SELECT 1 FROM headwater_outstanding AS waiting
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
    JOIN headwater_completion_record AS record
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
