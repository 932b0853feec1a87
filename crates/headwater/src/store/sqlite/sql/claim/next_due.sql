-- Purpose:    When the next lease ends, and the next waiting range comes due.
-- Parameters: ?1 subscription_id, ?2 now_ms
-- Index:      headwater_range_leased and headwater_range_waiting, one entry each
SELECT
    (
        SELECT leased.due_at_ms FROM headwater_range AS leased INDEXED BY headwater_range_leased
        WHERE leased.subscription_id = ?1 AND leased.owner IS NOT NULL AND leased.due_at_ms > ?2
        ORDER BY leased.due_at_ms
        LIMIT 1
    ),
    (
        SELECT waiting.due_at_ms FROM headwater_range AS waiting INDEXED BY headwater_range_waiting
        WHERE waiting.subscription_id = ?1 AND waiting.owner IS NULL AND waiting.due_at_ms > ?2
        ORDER BY waiting.due_at_ms
        LIMIT 1
    )
