-- Purpose:    Ends the leases of an owner that is dead: as long past their deadline as can be, so that no clock makes
--             their tokens valid again.
-- Parameters: ?1 owner, ?2 now_ms
-- Index:      headwater_range_leased, over the leases of everybody: owners die rarely, and an index by owner would cost
--             every claim and settlement
UPDATE headwater_range INDEXED BY headwater_range_leased
SET due_at_ms = 0
WHERE owner IS NOT NULL AND owner = ?1 AND due_at_ms > ?2
RETURNING token, (SELECT topic_id FROM headwater_subscription AS s WHERE s.subscription_id = headwater_range.subscription_id)
