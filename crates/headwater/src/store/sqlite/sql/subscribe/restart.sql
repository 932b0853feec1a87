-- Purpose:    Counts a registration. A floor that moved, or a window that is over, begins anew; where nothing is to be done
--             nothing is counted.
-- Parameters: ?1 subscription_id, ?2 now_ms, ?3 the floor, ?4 since when a window is not over, ?5 the head
-- Index:      the primary key
UPDATE headwater_subscription
SET restarts = CASE
        WHEN ?3 >= ?5 THEN 0
        WHEN restarts_since_ms >= ?4 AND restarts_floor >= ?3 THEN restarts + 1
        ELSE 1
    END,
    restarts_since_ms = CASE WHEN restarts_since_ms >= ?4 AND restarts_floor >= ?3 THEN restarts_since_ms ELSE ?2 END,
    restarts_floor = CASE WHEN restarts_since_ms >= ?4 AND restarts_floor >= ?3 THEN restarts_floor ELSE ?3 END
WHERE subscription_id = ?1
