-- Purpose:    Removes one outstanding range.
-- Parameters: ?1 token, ?2 first_offset
-- Index:      the primary key
DELETE FROM headwater_range
WHERE token = ?1 AND first_offset = ?2
