-- Purpose:    Removes one promoted message from the schedule.
-- Parameters: ?1 schedule_id
-- Index:      the primary key
DELETE FROM headwater_schedule
WHERE schedule_id = ?1
