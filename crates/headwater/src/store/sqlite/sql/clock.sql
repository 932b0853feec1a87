-- name: move_dedup
-- Purpose:    Moves the ends of dedup windows by a step of the clock. None ends later than a window that begins now.
-- Parameters: ?1 step_ms, ?2 now_ms, or the time before a step forward, ?3 now_ms
-- Index:      headwater_dedup_expiry
UPDATE headwater_dedup
SET expires_at_ms = min(
    expires_at_ms + ?1,
    ?3 + (SELECT dedup_window_ms FROM headwater_topic AS topic WHERE topic.topic_id = headwater_dedup.topic_id)
)
WHERE expires_at_ms > ?2

-- name: move_outbox
-- Purpose:    Moves the times of claims and back-offs of the outbox by a step of the clock, as those of leases; afterwards no claim lies in
--             the future.
-- Parameters: ?1 step_ms, ?2 now_ms, or the time before a step forward, ?3 now_ms
-- Index:      headwater_outbox_next, headwater_outbox_claimed
UPDATE headwater_outbox_entry
SET claimed_at_ms = iif(status = 'CLAIMED', min(claimed_at_ms + ?1, ?3), claimed_at_ms),
    next_at_ms = iif(next_at_ms > ?2, next_at_ms + ?1, next_at_ms)
WHERE id IN (
    SELECT id FROM headwater_outbox_entry WHERE next_at_ms IS NOT NULL
    UNION ALL
    SELECT id FROM headwater_outbox_entry WHERE status = 'CLAIMED' AND next_at_ms IS NULL
)

-- name: move_owners
-- Purpose:    Moves the times of owners by a step of the clock; afterwards none lies in the future.
-- Parameters: ?1 step_ms, ?2 now_ms
-- Index:      none: one row for each process
UPDATE headwater_owner
SET seen_at_ms = min(seen_at_ms + ?1, ?2)

-- name: move_ranges
-- Purpose:    Moves the deadlines of leases and the times of waiting ranges by a step of the clock. Those that had passed
--             before the step stay.
-- Parameters: ?1 step_ms, ?2 now_ms, or the time before a step forward
-- Index:      none: a scan, because clocks step rarely
UPDATE headwater_outstanding
SET due_at_ms = due_at_ms + ?1
WHERE due_at_ms > ?2 AND due_at_ms < 9223372036854775807

-- name: stamp
-- Purpose:    Stores the time just read, and by how much deadlines were moved so far.
-- Parameters: ?1 now_ms, ?2 moved_ms
-- Index:      one row
UPDATE headwater_clock
SET latest_ms = ?1, moved_ms = ?2

-- name: stored
-- Purpose:    The stored state of the clock.
-- Parameters: none
-- Index:      one row
SELECT latest_ms, moved_ms
FROM headwater_clock
