-- Purpose:    Leases and waits that end later than any may: a clock was wrong when they were made.
-- Parameters: ?1 the latest due_at_ms that is right
-- Index:      a scan of the outstanding ranges
SELECT subscription_id, token, first_offset, last_offset, due_at_ms
FROM headwater_range
WHERE due_at_ms > ?1 AND due_at_ms < 9223372036854775807
