-- Purpose:    Stores the token bucket of a subscription.
-- Parameters: ?1 subscription_id, ?2 tokens, ?3 filled_at_ms
-- Index:      the primary key
INSERT INTO headwater_group_rate (subscription_id, tokens, filled_at_ms)
VALUES (?1, ?2, ?3)
ON CONFLICT (subscription_id) DO UPDATE SET tokens = excluded.tokens, filled_at_ms = excluded.filled_at_ms
