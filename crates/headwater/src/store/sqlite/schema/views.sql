-- Views: the tables in readable form, for plain SQL; docs/sql.md describes them. PostgreSQL has the same ones with the same columns, without
-- the prefix (store/postgres/schema/operator_views.sql). Every program whose text differs replaces all of them: edit in place.

CREATE VIEW headwater_topics AS
SELECT topic.topic_id, topic.name AS topic, topic.semantics, topic.tracking, topic.settings ->> 'ordering' AS ordering,
    topic.settings ->> 'lanes' AS lanes, topic.first_offset, topic.last_offset AS head,
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
SELECT topic.name AS topic, message.row_key & 8796093022207 AS message_offset,
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
    max(activity.served_at_ms, iif(activity.serving, coalesce(owner.seen_at_ms, 0), 0)) AS seen_at_ms
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

-- The cursor, the floor and the leases of each subscription, for the views below.
CREATE VIEW headwater_progress AS
SELECT cursors.subscription_id, cursors.next_offset,
    min(cursors.next_offset, coalesce((
        SELECT min(waiting.first_offset) FROM headwater_outstanding AS waiting
        WHERE waiting.subscription_id = cursors.subscription_id AND waiting.owner IS NULL
    ), cursors.next_offset), coalesce((
        SELECT min(leased.first_offset) FROM headwater_outstanding AS leased
        WHERE leased.subscription_id = cursors.subscription_id AND leased.owner IS NOT NULL
    ), cursors.next_offset)) - 1 AS floor,
    (SELECT count(*) FROM headwater_outstanding AS leased
        WHERE leased.subscription_id = cursors.subscription_id AND leased.owner IS NOT NULL) AS leased,
    (SELECT coalesce(sum(leased.last_offset - leased.first_offset + 1), 0) FROM headwater_outstanding AS leased
        WHERE leased.subscription_id = cursors.subscription_id AND leased.owner IS NOT NULL) AS leased_offsets
FROM (
    SELECT subscription.subscription_id, (
            SELECT min(cursor.next_offset) FROM headwater_cursor AS cursor
            WHERE cursor.subscription_id = subscription.subscription_id
        ) AS next_offset
    FROM headwater_subscription AS subscription
) AS cursors;

-- Groups with their progress. "lag" is how many offsets are not done, of an ordered group those above its floor.
CREATE VIEW headwater_subscriptions AS
SELECT subscription.subscription_id, topic.name AS topic, subscription.group_name, subscription.state,
    strftime('%Y-%m-%dT%H:%M:%fZ', subscription.state_at_ms / 1000.0, 'unixepoch') AS state_at,
    subscription.state_reason,
    strftime('%Y-%m-%dT%H:%M:%fZ', heard.heard_at_ms / 1000.0, 'unixepoch') AS heartbeat_at,
    subscription.lanes, progress.next_offset, topic.last_offset AS head, progress.floor,
    CASE WHEN subscription.state = 'cancelled' THEN 0
        WHEN subscription.lanes > 0 THEN max(topic.last_offset - progress.floor, 0)
        ELSE max(topic.last_offset - progress.next_offset + 1, 0) + subscription.waiting_offsets + progress.leased_offsets
    END AS lag,
    progress.leased, subscription.waiting,
    (SELECT count(*) FROM headwater_dead_letter AS dead
        WHERE dead.subscription_id = subscription.subscription_id) AS dead_letters,
    subscription.reassigned, subscription.missed, subscription.missed_first, subscription.missed_last,
    coalesce(subscription.lease_ms, topic.lease_ms) AS lease_ms,
    coalesce(subscription.max_attempts, topic.max_attempts) AS max_attempts,
    coalesce(subscription.backoff_initial_ms, topic.settings ->> 'backoff_initial_ms') AS backoff_initial_ms,
    coalesce(subscription.backoff_max_ms, topic.settings ->> 'backoff_max_ms') AS backoff_max_ms,
    coalesce(subscription.heartbeat_timeout_ms, topic.heartbeat_timeout_ms) AS heartbeat_timeout_ms,
    strftime('%Y-%m-%dT%H:%M:%fZ', subscription.created_at_ms / 1000.0, 'unixepoch') AS created_at
FROM headwater_subscription AS subscription
JOIN headwater_progress AS progress ON progress.subscription_id = subscription.subscription_id
JOIN headwater_heard AS heard ON heard.subscription_id = subscription.subscription_id
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id;

-- What was handed out and is not done. "due_at" is the deadline of a lease (owner is set), or when a waiting range is handed out: 1970 is
-- at once, NULL is never.
CREATE VIEW headwater_outstanding_ranges AS
SELECT topic.name AS topic, subscription.group_name, part.token, part.first_offset, part.last_offset,
    part.lane, part.owner,
    CASE WHEN part.due_at_ms < 9223372036854775807
        THEN strftime('%Y-%m-%dT%H:%M:%fZ', part.due_at_ms / 1000.0, 'unixepoch') END AS due_at,
    part.attempts, part.suspect, part.parked, part.key, part.last_error
FROM headwater_outstanding AS part
JOIN headwater_subscription AS subscription ON subscription.subscription_id = part.subscription_id
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id;

-- Of every source: source is topic/group, outbox or command; message_id is that of the message or command.
CREATE VIEW headwater_dead_letters AS
SELECT lower(substr(hex(dead.dead_letter_id), 1, 8) || '-' || substr(hex(dead.dead_letter_id), 9, 4) || '-' || substr(hex(dead.dead_letter_id), 13, 4)
        || '-' || substr(hex(dead.dead_letter_id), 17, 4) || '-' || substr(hex(dead.dead_letter_id), 21)) AS dead_letter_id,
    coalesce(dead.source, topic.name || '/' || subscription.group_name) AS source, coalesce(dead.topic, topic.name) AS topic,
    subscription.group_name, dead.message_offset,
    coalesce(dead.command_id, lower(substr(hex(dead.message_id), 1, 8) || '-' || substr(hex(dead.message_id), 9, 4) || '-' || substr(hex(dead.message_id), 13, 4)
        || '-' || substr(hex(dead.message_id), 17, 4) || '-' || substr(hex(dead.message_id), 21))) AS message_id,
    dead.key, dead.type, dead.content_type, dead.headers, dead.correlation_id,
    iif(dead.source IS NULL, 'FAILED', dead.failed_status) AS failed_status, dead.error_class, dead.error, dead.attempts, dead.parked_by,
    strftime('%Y-%m-%dT%H:%M:%fZ', dead.created_at_ms / 1000.0, 'unixepoch') AS created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', dead.buried_at_ms / 1000.0, 'unixepoch') AS buried_at,
    CASE WHEN instr(dead.payload, x'00') = 0
        AND CAST(dead.payload AS TEXT) NOT GLOB '*[' || char(1) || '-' || char(8) || char(14) || '-' || char(31)
            || char(127) || '-' || char(159) || char(65533) || ']*'
        THEN CAST(dead.payload AS TEXT) ELSE 'x''' || hex(dead.payload) || '''' END AS payload
FROM headwater_dead_letter AS dead
LEFT JOIN headwater_subscription AS subscription ON subscription.subscription_id = dead.subscription_id
LEFT JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE dead.source IS NOT NULL OR topic.topic_id IS NOT NULL;

-- An INSERT adds an entry: see outbox_trigger.sql.
CREATE VIEW headwater_outbox AS
SELECT entry.id, entry.category, entry.topic, entry.key, entry.type, entry.headers, entry.status, entry.attempts,
    strftime('%Y-%m-%dT%H:%M:%fZ', entry.next_at_ms / 1000.0, 'unixepoch') AS next_at, entry.claimed_by,
    strftime('%Y-%m-%dT%H:%M:%fZ', entry.claimed_at_ms / 1000.0, 'unixepoch') AS claimed_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', entry.created_at_ms / 1000.0, 'unixepoch') AS created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', entry.published_at_ms / 1000.0, 'unixepoch') AS published_at, entry.last_error,
    CASE WHEN instr(entry.payload, x'00') = 0
        AND CAST(entry.payload AS TEXT) NOT GLOB '*[' || char(1) || '-' || char(8) || char(14) || '-' || char(31)
            || char(127) || '-' || char(159) || char(65533) || ']*'
        THEN CAST(entry.payload AS TEXT) ELSE 'x''' || hex(entry.payload) || '''' END AS payload
FROM headwater_outbox_entry AS entry;

-- An INSERT enters a message for a handler: see outbox_trigger.sql.
CREATE VIEW headwater_inbox_entries AS
SELECT entry.message_id, entry.handler, strftime('%Y-%m-%dT%H:%M:%fZ', entry.processed_at_ms / 1000.0, 'unixepoch') AS processed_at
FROM headwater_inbox AS entry;

CREATE VIEW headwater_scheduled AS
SELECT topic.name AS topic, strftime('%Y-%m-%dT%H:%M:%fZ', scheduled.deliver_at_ms / 1000.0, 'unixepoch') AS deliver_at,
    lower(substr(hex(scheduled.message_id), 1, 8) || '-' || substr(hex(scheduled.message_id), 9, 4) || '-' || substr(hex(scheduled.message_id), 13, 4)
        || '-' || substr(hex(scheduled.message_id), 17, 4) || '-' || substr(hex(scheduled.message_id), 21)) AS message_id,
    scheduled.key, scheduled.type, scheduled.content_type, scheduled.headers, scheduled.correlation_id, scheduled.dedup_key,
    CASE WHEN instr(scheduled.payload, x'00') = 0
        AND CAST(scheduled.payload AS TEXT) NOT GLOB '*[' || char(1) || '-' || char(8) || char(14) || '-' || char(31)
            || char(127) || '-' || char(159) || char(65533) || ']*'
        THEN CAST(scheduled.payload AS TEXT) ELSE 'x''' || hex(scheduled.payload) || '''' END AS payload
FROM headwater_schedule AS scheduled
JOIN headwater_topic AS topic ON topic.topic_id = scheduled.topic_id;

-- Active groups of which no process sent a heartbeat for four fifths of their timeout or longer.
CREATE VIEW headwater_near_timeout AS
SELECT group_of.topic, group_of.group_name, group_of.heartbeat_at,
    CAST(strftime('%s', 'now') AS INTEGER) - CAST(strftime('%s', group_of.heartbeat_at) AS INTEGER) AS silent_s,
    group_of.heartbeat_timeout_ms / 1000 AS timeout_s
FROM headwater_subscriptions AS group_of
WHERE group_of.state = 'active'
    AND CAST(strftime('%s', 'now') AS INTEGER) - CAST(strftime('%s', group_of.heartbeat_at) AS INTEGER)
        >= group_of.heartbeat_timeout_ms * 0.8 / 1000;

-- Groups whose oldest message that is not done was published over an hour ago.
CREATE VIEW headwater_stuck AS
SELECT group_of.topic, group_of.group_name, group_of.state, group_of.lag, message.row_key & 8796093022207 AS message_offset,
    strftime('%Y-%m-%dT%H:%M:%fZ', message.created_at_ms / 1000.0, 'unixepoch') AS oldest_at,
    CAST(strftime('%s', 'now') AS INTEGER) - message.created_at_ms / 1000 AS oldest_s
FROM headwater_subscriptions AS group_of
JOIN headwater_topic AS topic ON topic.name = group_of.topic
JOIN headwater_message AS message ON message.row_key = (
        SELECT min(oldest.row_key) FROM headwater_message AS oldest
        WHERE oldest.row_key BETWEEN (topic.topic_id << 43) | (group_of.floor + 1) AND (topic.topic_id << 43) | 8796093022207
    )
WHERE group_of.state <> 'cancelled' AND group_of.lag > 0
    AND message.created_at_ms / 1000 < CAST(strftime('%s', 'now') AS INTEGER) - 3600;

-- Groups that no process serves: none ever did, or none sent a heartbeat within the timeout. "holds_messages": messages are kept for
-- them.
CREATE VIEW headwater_orphaned_groups AS
SELECT group_of.topic, group_of.group_name, group_of.state, group_of.heartbeat_at, group_of.lag,
    group_of.state IN ('active', 'paused') OR topic.semantics = 'queue' AS holds_messages
FROM headwater_subscriptions AS group_of
JOIN headwater_topic AS topic ON topic.name = group_of.topic
WHERE group_of.state <> 'cancelled'
    AND coalesce(CAST(strftime('%s', 'now') AS INTEGER) - CAST(strftime('%s', group_of.heartbeat_at) AS INTEGER)
        > group_of.heartbeat_timeout_ms / 1000.0, 1);

-- Backfills: offsets processed and in all, how many a second while it ran, and when the rest is done at that rate. In the mode offset
-- watermark there is nothing to do: the backfill shows the progress of the group.
CREATE VIEW headwater_backfill_progress AS
SELECT topic, group_name, state, processed, total, CASE WHEN total > 0 THEN round(100.0 * processed / total, 1) ELSE 100 END AS percent,
    round(rate, 1) AS per_second,
    CASE WHEN state IN ('not_started', 'in_progress') AND rate > 0
        THEN CAST((total - processed) / rate + 0.999999 AS INTEGER) END AS eta_s,
    created_at, progressed_at, error
FROM (
    SELECT topic, group_name, state, checkpoint - first_offset + 1 AS processed, last_offset - first_offset + 1 AS total,
        (checkpoint - first_offset + 1) * 1000.0 / nullif(ran_ms, 0) AS rate, created_at, progressed_at, error
    FROM (
        SELECT topic.name AS topic, subscription.group_name,
            CASE WHEN topic.tracking <> 'offset_watermark' OR backfill.state IN ('cancelled', 'failed') THEN backfill.state
                WHEN progress.floor >= backfill.last_offset THEN 'completed' ELSE 'in_progress' END AS state,
            CASE WHEN topic.tracking <> 'offset_watermark' THEN backfill.checkpoint
                ELSE max(min(progress.floor, backfill.last_offset), backfill.checkpoint) END AS checkpoint,
            backfill.first_offset, backfill.last_offset, backfill.ran_ms, backfill.error,
            strftime('%Y-%m-%dT%H:%M:%fZ', backfill.created_at_ms / 1000.0, 'unixepoch') AS created_at,
            strftime('%Y-%m-%dT%H:%M:%fZ', backfill.progressed_at_ms / 1000.0, 'unixepoch') AS progressed_at
        FROM headwater_backfill AS backfill
        JOIN headwater_subscription AS subscription ON subscription.subscription_id = backfill.subscription_id
        JOIN headwater_progress AS progress ON progress.subscription_id = backfill.subscription_id
        JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
    )
);

-- The watermark of each topic: everything at or below it is done for every subscription that counts. Without one it stays: messages
-- published since are above it, and so are those that dead groups have not done.
CREATE VIEW headwater_watermark AS
SELECT topic.topic_id, min(topic.last_offset, (
        SELECT coalesce(
            min(place.floor) FILTER (WHERE place.state <> 'dead' OR topic.semantics = 'queue'),
            min(coalesce(min(place.floor), 9223372036854775807), topic.zero_from - 1)
        )
        FROM (
            SELECT subscription.state, min(
            (
                SELECT min(cursor.next_offset) FROM headwater_cursor AS cursor
                WHERE cursor.subscription_id = subscription.subscription_id
            ),
            coalesce(
                (
                    SELECT min(leased.first_offset) FROM headwater_outstanding AS leased INDEXED BY headwater_outstanding_leased
                    WHERE leased.subscription_id = subscription.subscription_id AND leased.owner IS NOT NULL
                ),
                9223372036854775807
            ),
            coalesce(
                (
                    SELECT min(waiting.first_offset) FROM headwater_outstanding AS waiting INDEXED BY headwater_outstanding_place
                    WHERE waiting.subscription_id = subscription.subscription_id AND waiting.owner IS NULL
                ),
                9223372036854775807
            )
            ) - 1 AS floor
            FROM headwater_subscription AS subscription
            WHERE subscription.topic_id = topic.topic_id AND subscription.state <> 'cancelled'
        ) AS place
    )) AS watermark
FROM headwater_topic AS topic;

-- The health of cleanup: how many offsets that every counting group has done are still stored, and the last run of the job. Those
-- younger than message_retention stay by intention.
CREATE VIEW headwater_cleanup AS
SELECT topic.name AS topic, topic.first_offset, topic.last_offset AS head, reached.watermark,
    max(reached.watermark - topic.first_offset + 1, 0) AS done_and_stored, topic.message_retention_ms, topic.removed,
    strftime('%Y-%m-%dT%H:%M:%fZ', job.last_run_at_ms / 1000.0, 'unixepoch') AS last_run_at,
    CAST(strftime('%s', 'now') AS INTEGER) - job.last_run_at_ms / 1000 AS last_run_s,
    job.duration_us / 1000 AS duration_ms, job.backlog, job.failures, job.last_error
FROM headwater_topic AS topic
JOIN headwater_watermark AS reached ON reached.topic_id = topic.topic_id
LEFT JOIN headwater_job AS job ON job.job = 'message_cleanup';

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
