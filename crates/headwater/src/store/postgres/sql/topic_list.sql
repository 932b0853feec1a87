-- Purpose: all topics with what can be seen of their logs.
-- Parameters: none.
-- Index: topic_name_key, head_pkey, gap_pkey, schedule_due.
SELECT t.topic_id, t.name, t.semantics, t.lease_ms, t.max_attempts, t.backoff_initial_ms, t.backoff_max_ms, t.ordering,
       t.lanes, t.payload_bytes_max, t.dedup_window_ms, t.gap_patience_ms, h.head,
       (SELECT count(*) FROM {schema}.gap g WHERE g.topic_id = t.topic_id) AS gaps,
       (SELECT count(*) FROM {schema}.schedule d WHERE d.topic_id = t.topic_id) AS scheduled,
       (SELECT count(*) FROM {schema}.subscription s WHERE s.topic_id = t.topic_id) AS subscriptions
FROM {schema}.topic t JOIN {schema}.head h ON h.topic_id = t.topic_id
ORDER BY t.name
