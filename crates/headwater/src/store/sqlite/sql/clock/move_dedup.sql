-- Purpose:    Moves the ends of dedup windows by a step of the clock. None ends later than a window that begins now.
-- Parameters: ?1 step_ms, ?2 now_ms, or the time before a step forward, ?3 now_ms
-- Index:      headwater_dedup_expiry
UPDATE headwater_dedup
SET expires_at_ms = min(
    expires_at_ms + ?1,
    ?3 + (SELECT dedup_window_ms FROM headwater_topic AS topic WHERE topic.topic_id = headwater_dedup.topic_id)
)
WHERE expires_at_ms > ?2
