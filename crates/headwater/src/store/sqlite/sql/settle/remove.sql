-- Purpose:    Removes the ranges of a token before what is left of them is stored anew.
-- Parameters: ?1 token
-- Index:      the primary key
DELETE FROM headwater_range
WHERE token = ?1
