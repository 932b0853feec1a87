-- Purpose:    Notes a lease that tracking met: it is met again once its row is gone.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 token, ?4 last_offset
-- Index:      the primary key
INSERT INTO headwater_touched (subscription_id, first_offset, token, last_offset)
VALUES (?1, ?2, ?3, ?4)
ON CONFLICT DO UPDATE SET last_offset = max(last_offset, excluded.last_offset)
