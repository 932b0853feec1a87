-- Purpose:    Forgets dedup keys whose window is over, a bounded number at a time.
-- Parameters: ?1 now_ms, ?2 at most
-- Index:      headwater_dedup_expiry
DELETE FROM headwater_dedup
WHERE (topic_id, dedup_key) IN (
    SELECT topic_id, dedup_key FROM headwater_dedup
    WHERE expires_at_ms <= ?1
    ORDER BY expires_at_ms
    LIMIT ?2
)
