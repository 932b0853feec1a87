-- Purpose:    Creates a subscription.
-- Parameters: ?1 topic_id, ?2 group, ?3 lanes, ?4 start_offset, ?5 now_ms
-- Index:      headwater_subscription_group
INSERT INTO headwater_subscription (
    topic_id, group_name, lanes, start_offset, required_from, created_at_ms, status_at_ms
)
VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?5)
