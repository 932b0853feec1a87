-- Purpose:    Creates a subscription.
-- Parameters: ?1 topic_id, ?2 group, ?3 lanes, ?4 start_offset, ?5 now_ms
-- Index:      the unique index on (topic_id, group_name)
INSERT INTO headwater_subscription (topic_id, group_name, lanes, start_offset, created_at_ms, status_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?5)
