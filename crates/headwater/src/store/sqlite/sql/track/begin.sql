-- Purpose:    A subscription takes its place in the records.
-- Parameters: ?1 subscription_id, ?2 bit, ?3 required_from
-- Index:      the primary key
UPDATE headwater_subscription
SET bit = ?2, required_from = ?3, released_until = NULL
WHERE subscription_id = ?1
