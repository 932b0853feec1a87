-- Purpose:    Forgets what an owner told, once it is added to what is kept.
-- Parameters: ?1 owner
-- Index:      a scan of the activities: owners leave rarely
DELETE FROM headwater_activity
WHERE owner = ?1
