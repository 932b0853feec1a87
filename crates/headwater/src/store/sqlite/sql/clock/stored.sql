-- Purpose:    What is known of the clock.
-- Parameters: none
-- Index:      one row
SELECT latest_ms, moved_ms
FROM headwater_clock
