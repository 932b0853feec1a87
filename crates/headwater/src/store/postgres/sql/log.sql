-- name: fetch
-- Purpose: the messages of a closed range, by offset. A payload above a size is null and headers above it are '', and nothing of them
-- is sent: what is large is read separately (sizes). A column for its size would cost every fetch a fifth, and
-- most messages are small and have no headers: so those call no function over headers, either. Reads only.
-- Parameters: topic id, first offset, last offset, largest payload and largest headers that come along, most rows.
-- Index: message primary key (topic_id, message_offset).
SELECT message_offset, message_id, key, message_type, CASE WHEN octet_length(payload) <= $4 THEN payload END, content_type,
       CASE WHEN headers IS NULL THEN NULL
            WHEN CASE WHEN pg_column_compression(headers) IS NULL THEN pg_column_size(headers) ELSE octet_length(headers::text) END <= $4
            THEN headers::text ELSE '' END,
       correlation_id, created_at
FROM {schema}.message
WHERE topic_id = $1 AND message_offset BETWEEN $2 AND $3
ORDER BY message_offset
LIMIT $5

-- name: head
-- Purpose: how far a topic can be read where its head cannot be advanced: to the highest message that is visible. Reads only.
-- Parameters: topic id.
-- Index: head_pkey, message primary key, gap_pkey.
SELECT greatest(h.head, (SELECT m.message_offset FROM {schema}.message m WHERE m.topic_id = $1 ORDER BY m.message_offset DESC LIMIT 1)) AS head,
       false AS taken, false AS skipped,
       ARRAY(SELECT g.first_offset FROM {schema}.gap g WHERE g.topic_id = $1 ORDER BY g.first_offset) AS gap_firsts,
       ARRAY(SELECT g.last_offset FROM {schema}.gap g WHERE g.topic_id = $1 ORDER BY g.first_offset) AS gap_lasts
FROM {schema}.head h
WHERE h.topic_id = $1

-- name: headers
-- Purpose: the headers of several messages. Reads only.
-- Parameters: topic id, offsets.
-- Index: message primary key (topic_id, message_offset).
SELECT message_offset, headers::text
FROM {schema}.message
WHERE topic_id = $1 AND message_offset = ANY ($2)

-- name: held_keys
-- Purpose: offsets and keys of the messages with a key that a lease holds, from an offset on. The deadline is not compared: deadlines may
-- be moved before the lease is settled, which compares it. IS TRUE: see schema/functions/lease.sql. Reads no payload.
-- Parameters: topic id, token, subscription id, owner, first offset.
-- Index: outstanding_pkey, message primary key (topic_id, message_offset).
SELECT m.message_offset, m.key
FROM {schema}.outstanding o
CROSS JOIN LATERAL (
    SELECT x.message_offset, x.key FROM {schema}.message x
    WHERE x.topic_id = $1 AND x.message_offset BETWEEN greatest(o.first_offset, $5) AND o.last_offset AND x.key IS NOT NULL OFFSET 0
) m
WHERE o.token = $2 AND (o.subscription_id = $3 AND o.owner = $4) IS TRUE
ORDER BY m.message_offset

-- name: payload
-- Purpose: a piece of the payload of each of several messages. Reads only.
-- Parameters: topic id, offsets, first byte from 1, how many bytes.
-- Index: message primary key (topic_id, message_offset).
SELECT message_offset, substring(payload FROM $3 FOR $4)
FROM {schema}.message
WHERE topic_id = $1 AND message_offset = ANY ($2)

-- name: sizes
-- Purpose: how large the payloads and headers of several messages are. Reads no payload.
-- Parameters: topic id, offsets.
-- Index: message primary key (topic_id, message_offset).
SELECT message_offset, octet_length(payload),
       (SELECT sum(octet_length(h.key) + octet_length(h.value) + 64) FROM jsonb_each_text(headers) h)
FROM {schema}.message
WHERE topic_id = $1 AND message_offset = ANY ($2)

-- name: stuck
-- Purpose: how many old messages each counting group has not done.
-- Parameters: topic id, age in ms, injected time.
-- Index: subscription_group, cursor_pkey, outstanding_due, message primary key from each floor on.
SELECT s.group_name, count(*) AS messages, min(m.created_at) AS oldest
FROM {schema}.subscription s
JOIN {schema}.topic t ON t.topic_id = s.topic_id
CROSS JOIN LATERAL (
    SELECT int8range(min(c.next_offset), NULL) AS offsets FROM {schema}.cursor c WHERE c.subscription_id = s.subscription_id
) n
CROSS JOIN LATERAL (
    -- As one set: the lanes of an ordered subscription have overlapping ranges.
    SELECT int8multirange(n.offsets) + coalesce(range_agg(int8range(o.first_offset, o.last_offset, '[]')), '{}') AS pending
    FROM {schema}.outstanding o WHERE o.subscription_id = s.subscription_id
) p
CROSS JOIN LATERAL unnest(p.pending) r
CROSS JOIN LATERAL (
    SELECT x.created_at FROM {schema}.message x
    WHERE x.topic_id = s.topic_id AND x.message_offset >= lower(r) AND (upper_inf(r) OR x.message_offset < upper(r)) OFFSET 0
) m
WHERE s.topic_id = $1 AND (s.state IN ('active', 'paused') OR s.state = 'dead' AND t.semantics = 'queue')
  AND m.created_at < coalesce($3::timestamptz, clock_timestamp()) - make_interval(secs => $2::bigint / 1000.0)
GROUP BY s.subscription_id, s.group_name
ORDER BY s.group_name
