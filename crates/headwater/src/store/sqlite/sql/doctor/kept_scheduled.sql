-- Purpose:    Topics whose kept number of delayed messages is not what is there.
-- Parameters: none
-- Index:      headwater_schedule_due for each topic
SELECT topic.topic_id, topic.scheduled, count(schedule.schedule_id)
FROM headwater_topic AS topic
LEFT JOIN headwater_schedule AS schedule ON schedule.topic_id = topic.topic_id
GROUP BY topic.topic_id
HAVING topic.scheduled <> count(schedule.schedule_id)
