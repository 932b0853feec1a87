-- name: activity
-- Purpose:    The sum of the activity of a subscription. Of silent owners only the counts are included, not the rates.
-- Parameters: ?1 subscription_id, ?2 since when a process is not silent
-- Index:      the primary key
SELECT coalesce(sum(processed), 0), coalesce(sum(failed), 0), coalesce(sum(filtered), 0),
    coalesce(sum(CASE WHEN living THEN rate END), 0.0),
    coalesce(
        sum(CASE WHEN living THEN rate * handling_mean_us END) / sum(CASE WHEN living THEN rate END),
        avg(CASE WHEN living THEN handling_mean_us END),
        0.0
    ),
    coalesce(max(CASE WHEN living THEN handling_p95_us END), 0),
    coalesce(sum(living), 0)
FROM (
    SELECT processed, failed, filtered, rate, handling_mean_us, handling_p95_us,
        owner <> '' AND seen_at_ms >= ?2 AS living
    FROM headwater_activity_seen
    WHERE subscription_id = ?1
)

-- name: cursor
-- Purpose:    Creates a cursor: one per subscription, or one per lane.
-- Parameters: ?1 subscription_id, ?2 lane, ?3 next_offset
-- Index:      the primary key
INSERT INTO headwater_cursor (subscription_id, lane, next_offset)
VALUES (?1, ?2, ?3)

-- name: find
-- Purpose:    The subscriptions of a selection over all topics, by topic and group; of one group the newest first, which is the one that is not
--             cancelled.
-- Parameters: ?1 topic, ?2 group, ?3 state, ?4 part of the topic or group (each NULL for any), ?5 after this topic, ?6 group and
--             ?7 subscription_id (NULL for the first ones), ?8 at most
-- Index:      the primary key of topics; the subscriptions are scanned and sorted, for operators only
SELECT subscription.subscription_id, topic.name
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE (?1 IS NULL OR topic.name = ?1)
    AND (?2 IS NULL OR subscription.group_name = ?2)
    AND (?3 IS NULL OR subscription.state = ?3)
    AND (?4 IS NULL OR instr(lower(topic.name), lower(?4)) > 0 OR instr(lower(subscription.group_name), lower(?4)) > 0)
    AND (?5 IS NULL OR (topic.name, subscription.group_name, -subscription.subscription_id) > (?5, ?6, -?7))
ORDER BY topic.name, subscription.group_name, subscription.subscription_id DESC
LIMIT ?8

-- name: group
-- Purpose:    The subscription of a group: the one that is not cancelled, else the youngest cancelled one.
-- Parameters: ?1 topic_id, ?2 group
-- Index:      headwater_subscription_group, headwater_subscription_cancelled; what they give is sorted
SELECT subscription_id, lanes, state, missed, missed_first, missed_last, 0 AS cancelled
FROM headwater_subscription
WHERE topic_id = ?1 AND group_name = ?2 AND state <> 'cancelled'
UNION ALL
SELECT subscription_id, lanes, state, missed, missed_first, missed_last, 1 AS cancelled
FROM headwater_subscription
WHERE topic_id = ?1 AND group_name = ?2 AND state = 'cancelled'
ORDER BY cancelled, subscription_id DESC
LIMIT 1

-- name: held
-- Purpose:    The outstanding ranges of a subscription in numbers: lowest offset, offsets, ranges leased and waiting, offsets
--             in flight and to be retried. Waiting ranges are not counted here: triggers maintain their numbers.
-- Parameters: ?1 subscription_id, ?2 now_ms
-- Index:      the primary key; headwater_outstanding_leased, over what is in flight; headwater_outstanding_place, its first entry
SELECT min(coalesce(leased.lowest, 9223372036854775807), coalesce((
        SELECT min(waiting.first_offset) FROM headwater_outstanding AS waiting INDEXED BY headwater_outstanding_place
        WHERE waiting.subscription_id = ?1 AND waiting.owner IS NULL
    ), 9223372036854775807)),
    leased.offsets + subscription.waiting_offsets, leased.live, leased.expired + subscription.waiting,
    leased.in_flight, subscription.retrying_offsets
FROM headwater_subscription AS subscription
JOIN (
    SELECT min(first_offset) AS lowest, coalesce(sum(last_offset - first_offset + 1), 0) AS offsets,
        coalesce(sum(due_at_ms > ?2), 0) AS live, coalesce(sum(due_at_ms <= ?2), 0) AS expired,
        coalesce(sum(iif(due_at_ms > ?2, last_offset - first_offset + 1, 0)), 0) AS in_flight
    FROM headwater_outstanding INDEXED BY headwater_outstanding_leased
    WHERE subscription_id = ?1 AND owner IS NOT NULL
) AS leased
WHERE subscription.subscription_id = ?1

-- name: insert
-- Purpose:    Creates a subscription.
-- Parameters: ?1 topic_id, ?2 group, ?3 lanes, ?4 start_offset, ?5 now_ms
-- Index:      headwater_subscription_group
INSERT INTO headwater_subscription (
    topic_id, group_name, lanes, start_offset, required_from, created_at_ms, state_at_ms
)
VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?5)

-- name: lanes_full
-- Purpose:    How many lanes of a subscription are full, by the rule of the claim.
-- Parameters: ?1 subscription_id, ?2 rows that make a lane full
-- Index:      headwater_outstanding_lane, without the table
SELECT count(*)
FROM (
    SELECT lane FROM headwater_outstanding
    WHERE subscription_id = ?1 AND lane IS NOT NULL
    GROUP BY lane HAVING count(*) >= ?2
)

-- name: list
-- Purpose:    Subscriptions by their ids, in the order of these.
-- Parameters: ?1 ids as a JSON array, ?2 since when burials are recent, ?3 dead letters counted at most (-1: all)
-- Index:      the primary key; headwater_dead_letter_of and headwater_dead_letter_buried for the counts; the primary keys of activities and
--             owners
SELECT subscription_id, group_name, lanes, state, state_at_ms,
    (SELECT heard_at_ms FROM headwater_heard AS heard WHERE heard.subscription_id = headwater_subscription.subscription_id),
    reassigned, missed, missed_first,
    missed_last, restarts, restarts_since_ms, restarts_floor,
    (
        SELECT count(*) FROM (
            SELECT 1 FROM headwater_dead_letter AS dead
            WHERE dead.subscription_id = headwater_subscription.subscription_id
            LIMIT ?3
        )
    ),
    (
        SELECT count(*) FROM (
            SELECT 1 FROM headwater_dead_letter AS dead INDEXED BY headwater_dead_letter_buried
            WHERE dead.subscription_id = headwater_subscription.subscription_id AND dead.buried_at_ms > ?2
            LIMIT ?3
        )
    ),
    state_reason, heartbeat_timeout_ms
FROM json_each(?1) AS listed
CROSS JOIN headwater_subscription ON headwater_subscription.subscription_id = listed.value
ORDER BY listed.key

-- name: next
-- Purpose:    The first offset never handed out, of the slowest lane.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
SELECT min(next_offset)
FROM headwater_cursor
WHERE subscription_id = ?1

-- name: of_topic
-- Purpose:    The subscriptions of a topic, by group; cancelled ones last within a group.
-- Parameters: ?1 topic_id
-- Index:      headwater_subscription_group, headwater_subscription_cancelled; what they give is sorted, for operators only
SELECT subscription_id, group_name, 0 AS cancelled
FROM headwater_subscription
WHERE topic_id = ?1 AND state <> 'cancelled'
UNION ALL
SELECT subscription_id, group_name, 1 AS cancelled
FROM headwater_subscription
WHERE topic_id = ?1 AND state = 'cancelled'
ORDER BY group_name, cancelled, subscription_id DESC

-- name: others
-- Purpose:    The groups of a topic that are not cancelled, by name: a queue takes only one.
-- Parameters: ?1 topic_id
-- Index:      headwater_subscription_group
SELECT group_name
FROM headwater_subscription
WHERE topic_id = ?1 AND state <> 'cancelled'
ORDER BY group_name

-- name: restart
-- Purpose:    Counts a registration. The count starts again if the floor moved or the window is over; nothing is counted if the
--             group has done all messages.
-- Parameters: ?1 subscription_id, ?2 now_ms, ?3 the floor, ?4 since when a window is not over, ?5 the head
-- Index:      the primary key
UPDATE headwater_subscription
SET restarts = CASE
        WHEN ?3 >= ?5 THEN 0
        WHEN restarts_since_ms >= ?4 AND restarts_floor >= ?3 THEN restarts + 1
        ELSE 1
    END,
    restarts_since_ms = CASE WHEN restarts_since_ms >= ?4 AND restarts_floor >= ?3 THEN restarts_since_ms ELSE ?2 END,
    restarts_floor = CASE WHEN restarts_since_ms >= ?4 AND restarts_floor >= ?3 THEN restarts_floor ELSE ?3 END
WHERE subscription_id = ?1

-- name: pending_older
-- Purpose:    Offsets up to a last one in the outstanding ranges of a subscription; of waiting ranges only the first are read.
-- Parameters: ?1 subscription_id, ?2 last_offset, ?3 waiting ranges at most
-- Index:      headwater_outstanding_leased, over what is in flight; headwater_outstanding_place, its first entries
SELECT coalesce(sum(min(last_offset, ?2) - first_offset + 1), 0)
FROM (
    SELECT first_offset, last_offset
    FROM headwater_outstanding INDEXED BY headwater_outstanding_leased
    WHERE subscription_id = ?1 AND owner IS NOT NULL AND first_offset <= ?2
    UNION ALL
    SELECT first_offset, last_offset
    FROM (
        SELECT first_offset, last_offset
        FROM headwater_outstanding INDEXED BY headwater_outstanding_place
        WHERE subscription_id = ?1 AND owner IS NULL AND first_offset <= ?2
        ORDER BY first_offset
        LIMIT ?3
    )
)

-- name: progress
-- Purpose:    One subscription whatever its state, its slowest cursor and its topic.
-- Parameters: ?1 subscription_id
-- Index:      the primary keys
SELECT subscription.subscription_id, subscription.group_name, subscription.state, subscription.start_offset,
    subscription.bit, subscription.required_from, subscription.lanes, subscription.applied_until,
    coalesce((
        SELECT min(cursor.next_offset) FROM headwater_cursor AS cursor
        WHERE cursor.subscription_id = subscription.subscription_id
    ), subscription.start_offset),
    topic.semantics, subscription.topic_id
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE subscription.subscription_id = ?1

-- name: all_progress
-- Purpose:    The subscriptions of a topic that are not cancelled, and the slowest cursor of each.
-- Parameters: ?1 topic_id
-- Index:      headwater_subscription_group; the primary key of the cursors
SELECT subscription.subscription_id, subscription.group_name, subscription.state, subscription.start_offset,
    subscription.bit, subscription.required_from, subscription.lanes, subscription.applied_until,
    coalesce((
        SELECT min(cursor.next_offset) FROM headwater_cursor AS cursor
        WHERE cursor.subscription_id = subscription.subscription_id
    ), subscription.start_offset),
    topic.semantics
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE subscription.topic_id = ?1 AND subscription.state <> 'cancelled'
ORDER BY subscription.group_name
