-- Purpose:    Forgets inbox entries past their retention, a bounded number at a time.
-- Parameters: ?1 handled at or before, ?2 at most
-- Index:      headwater_inbox_handled
DELETE FROM headwater_inbox
WHERE (handler, message_id) IN (
    SELECT handler, message_id FROM headwater_inbox
    WHERE handled_at_ms <= ?1
    ORDER BY handled_at_ms
    LIMIT ?2
)
