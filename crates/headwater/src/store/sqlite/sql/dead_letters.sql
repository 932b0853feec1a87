-- name: dead_letters
-- Purpose:    The dead letters of a selection, oldest first.
-- Parameters: ?1 subscription_id, ?2 ids as a JSON array of hex, ?3 key, ?4 type, ?5 part of the error, ?6 buried from, ?7 buried
--             before (each NULL for any), ?8 at most
-- Index:      headwater_dead_letter_of
SELECT dead_letter_id, subscription_id, message_offset, message_id, key, type, payload, content_type, headers, error,
    attempts, buried_at_ms, correlation_id, created_at_ms
FROM headwater_dead_letter
WHERE subscription_id = ?1
    AND (?2 IS NULL OR lower(hex(dead_letter_id)) IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR key = ?3)
    AND (?4 IS NULL OR type = ?4)
    AND (?5 IS NULL OR instr(error, ?5) > 0)
    AND (?6 IS NULL OR buried_at_ms >= ?6)
    AND (?7 IS NULL OR buried_at_ms < ?7)
ORDER BY dead_letter_key
LIMIT ?8
