-- name: get
-- Purpose: one topic by name.
-- Parameters: name.
-- Index: topic_name_key.
SELECT t.topic_id, t.name, t.settings FROM {schema}.topic t WHERE t.name = $1

-- name: list
-- Purpose: topics by name with figures of their logs.
-- Parameters: name, part of the name, after this name (each null for any), at most (null: all).
-- Index: topic_name_key, head_pkey, topic_range_pkey, gap_pkey, schedule_due, cursor_pkey, outstanding_due; completion_record_pkey while a
-- change of mode is under way.
SELECT t.topic_id, t.name, t.settings,
       h.head, e.first_offset, {schema}.watermark_of(t.topic_id) AS watermark,
       (SELECT count(*) FROM {schema}.gap g WHERE g.topic_id = t.topic_id) AS gaps,
       (SELECT count(*) FROM {schema}.schedule d WHERE d.topic_id = t.topic_id) AS scheduled,
       w.subscriptions, w.counting, least(t.heartbeat_timeout_ms, w.heartbeat_timeout_ms) AS heartbeat_timeout_ms,
       -- Records are made from below up to change_until, or removed from below up to it.
       CASE WHEN e.change_until IS NOT NULL THEN greatest(e.change_until - e.first_offset + 1, 0) END AS change_total,
       CASE WHEN e.change_until IS NULL THEN NULL
            WHEN t.tracking = 'reference_counting' THEN greatest(e.tracked_until - e.first_offset + 1, 0)
            ELSE greatest(coalesce((SELECT min(r.message_offset) FROM {schema}.completion_record r WHERE r.topic_id = t.topic_id),
                                   e.change_until + 1) - e.first_offset, 0) END AS change_done
FROM (
    SELECT x.* FROM {schema}.topic x
    WHERE ($1::text IS NULL OR x.name = $1) AND ($2::text IS NULL OR strpos(lower(x.name), lower($2)) > 0)
      AND ($3::text IS NULL OR x.name > $3)
    ORDER BY x.name LIMIT $4::bigint
) t
JOIN {schema}.head h ON h.topic_id = t.topic_id
JOIN {schema}.topic_range e ON e.topic_id = t.topic_id
CROSS JOIN LATERAL (
    SELECT count(*) AS subscriptions, count(*) FILTER (WHERE s.state <> 'dead' OR t.semantics = 'queue') AS counting,
           min(s.heartbeat_timeout_ms) AS heartbeat_timeout_ms
    FROM {schema}.subscription s WHERE s.topic_id = t.topic_id AND s.state <> 'cancelled'
) w
ORDER BY t.name

-- name: survey
-- Purpose: the time, the number of groups, and figures of each topic: what cleanup may remove, and contradictory completion records. One row
-- without a topic if there is none.
-- Parameters: injected time, completion records to examine in each topic.
-- Index: topic_name_key, topic_range_pkey, watermark_history_pkey, completion_record_pkey from the first pending one on.
SELECT now.at AS now, (SELECT count(*) FROM {schema}.subscription s WHERE s.state <> 'cancelled') AS groups, t.name AS topic,
       CASE WHEN t.message_retention_ms IS NULL THEN 0 ELSE greatest(coalesce((
           SELECT m.watermark FROM {schema}.watermark_history m
           WHERE m.topic_id = t.topic_id AND m.noted_at <= now.at - make_interval(secs => t.message_retention_ms / 1000.0)
           ORDER BY m.noted_at DESC LIMIT 1), 0) - e.first_offset + 1, 0) END AS cleanable,
       CASE WHEN t.tracking <> 'reference_counting' THEN 0 ELSE (
           SELECT count(*) FROM (
               SELECT x.required, x.completed, x.completed_at FROM {schema}.completion_record x
               WHERE x.topic_id = t.topic_id AND x.message_offset >= e.pending_from
               ORDER BY x.message_offset LIMIT $2::bigint) r
           WHERE (r.completed_at IS NULL) = (r.required & ~r.completed = 0)) END AS inconsistent
FROM (SELECT coalesce($1::timestamptz, clock_timestamp()) AS at) now
LEFT JOIN ({schema}.topic t JOIN {schema}.topic_range e ON e.topic_id = t.topic_id) ON true
ORDER BY t.name
