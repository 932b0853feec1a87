-- Purpose:    Removes waiting ranges of a subscription of which no message is left. Leased ones stay with their holder.
-- Parameters: ?1 subscription_id, ?2 token, ?3 first_offset, ?4 topic_id
-- Index:      the primary keys
DELETE FROM headwater_range
WHERE token = ?2 AND first_offset = ?3 AND +subscription_id = ?1 AND owner IS NULL
    AND NOT EXISTS (
        SELECT 1 FROM headwater_message AS message
        WHERE message.row_key BETWEEN (?4 << 43) | headwater_range.first_offset AND (?4 << 43) | headwater_range.last_offset
    )
