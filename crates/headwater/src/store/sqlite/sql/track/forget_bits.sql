-- Purpose:    Takes the bits back from the subscriptions of a topic that has no records any more.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the store, few
UPDATE headwater_subscription
SET bit = NULL, released_until = NULL, applied_until = 0
WHERE topic_id = ?1
