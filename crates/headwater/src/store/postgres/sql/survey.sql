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
