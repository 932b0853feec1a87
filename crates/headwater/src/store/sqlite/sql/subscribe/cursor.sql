-- Purpose:    Creates a claim pointer: one per subscription, or one per lane.
-- Parameters: ?1 subscription_id, ?2 lane, ?3 next_offset
-- Index:      the primary key
INSERT INTO headwater_cursor (subscription_id, lane, next_offset)
VALUES (?1, ?2, ?3)
