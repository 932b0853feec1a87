-- Purpose:    Forgets everything a subscription has outstanding: its tokens are lost.
-- Parameters: ?1 subscription_id
-- Index:      a scan of the outstanding ranges: an operator does it, and an index by subscription alone would cost
--             every claim
DELETE FROM headwater_range
WHERE subscription_id = ?1
