-- Purpose:    Moves the deadlines of leases and the times of waiting ranges by a step of the clock. Those that had passed
--             before the step stay.
-- Parameters: ?1 step_ms, ?2 now_ms, or the time before a step forward
-- Index:      none: a scan, because clocks step rarely
UPDATE headwater_range
SET due_at_ms = due_at_ms + ?1
WHERE due_at_ms > ?2 AND due_at_ms < 9223372036854775807
