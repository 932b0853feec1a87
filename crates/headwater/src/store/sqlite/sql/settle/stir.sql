-- Purpose:    Tells waiters of other processes that something may be claimable.
-- Parameters: ?1 topic_id
-- Index:      the primary key
UPDATE headwater_topic
SET stirred = stirred + 1
WHERE topic_id = ?1
