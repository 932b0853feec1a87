-- name: forget
-- Purpose:    Deletes inbox entries past their retention, a bounded number at a time.
-- Parameters: ?1 processed at or before, ?2 at most
-- Index:      headwater_inbox_processed
DELETE FROM headwater_inbox
WHERE (handler, message_id) IN (
    SELECT handler, message_id FROM headwater_inbox
    WHERE processed_at_ms <= ?1
    ORDER BY processed_at_ms
    LIMIT ?2
)

-- name: insert
-- Purpose:    Adds the inbox entry of a message and handler; no row is returned if it exists. Not OR IGNORE, which would also swallow the
--             violation of another constraint.
-- Parameters: $1 message_id, $2 handler, $3 now_ms
-- Index:      the primary key
INSERT INTO headwater_inbox (message_id, handler, processed_at_ms)
VALUES ($1, $2, $3)
ON CONFLICT (message_id, handler) DO NOTHING
RETURNING 1 AS inserted
