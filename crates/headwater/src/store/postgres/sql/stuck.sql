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
WHERE s.topic_id = $1 AND (s.status IN ('active', 'paused') OR s.status = 'dead' AND t.semantics = 'queue')
  AND m.created_at < coalesce($3::timestamptz, clock_timestamp()) - make_interval(secs => $2::bigint / 1000.0)
GROUP BY s.subscription_id, s.group_name
ORDER BY s.group_name
