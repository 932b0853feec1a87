-- Purpose:    Removes waiting ranges of a subscription of which no message is left. Leased ones stay with their holder.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 last_offset of what was removed, ?4 topic_id
-- Index:      headwater_range_waiting; the primary key of the log
DELETE FROM headwater_range
WHERE (token, first_offset) IN (
    SELECT waiting.token, waiting.first_offset FROM headwater_range AS waiting
    WHERE waiting.subscription_id = ?1 AND waiting.owner IS NULL
        AND waiting.first_offset <= ?3 AND waiting.last_offset >= ?2
        AND NOT EXISTS (
            SELECT 1 FROM headwater_message AS message
            WHERE message.row_key BETWEEN (?4 << 43) | waiting.first_offset AND (?4 << 43) | waiting.last_offset
        )
)
