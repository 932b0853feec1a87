-- Purpose:    Ends the dedup keys of a topic by its shorter window. One that ends beyond the longer window was stored by a
--             clock that was ahead, and stays over.
-- Parameters: ?1 topic_id, ?2 the end of the shorter window, ?3 the end of the longer one
-- Index:      the primary key, by its first column
UPDATE headwater_dedup
SET expires_at_ms = ?2
WHERE topic_id = ?1 AND expires_at_ms > ?2 AND expires_at_ms <= ?3
