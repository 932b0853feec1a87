-- Purpose:    The first message of a dedup key, while its window lasts. One that ends beyond the window was stored by a clock
--             that was ahead, and is over.
-- Parameters: ?1 topic_id, ?2 dedup_key, ?3 now_ms, ?4 the end of the longest window
-- Index:      the primary key
SELECT message_id, message_offset
FROM headwater_dedup
WHERE topic_id = ?1 AND dedup_key = ?2 AND expires_at_ms > ?3 AND expires_at_ms <= ?4
