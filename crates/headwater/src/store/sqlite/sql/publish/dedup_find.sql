-- Purpose:    The first message of a dedup key, while its window lasts.
-- Parameters: ?1 topic_id, ?2 dedup_key, ?3 now_ms
-- Index:      the primary key
SELECT message_id, message_offset
FROM headwater_dedup
WHERE topic_id = ?1 AND dedup_key = ?2 AND expires_at_ms > ?3
