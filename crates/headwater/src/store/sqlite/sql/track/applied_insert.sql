-- Purpose:    Stores a range of offsets whose completion is set in the records.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 last_offset
-- Index:      the primary key
INSERT INTO headwater_applied (subscription_id, first_offset, last_offset)
VALUES (?1, ?2, ?3)
