-- name: purge
-- Purpose:    Removes one dead letter.
-- Parameters: ?1 dead_letter_key
-- Index:      the primary key
DELETE FROM headwater_dead_letter
WHERE dead_letter_key = ?1
