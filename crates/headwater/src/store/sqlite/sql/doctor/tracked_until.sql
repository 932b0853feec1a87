-- Purpose:    Topics recorded beyond their end, or with marks beyond it.
-- Parameters: none
-- Index:      the topics of the store; the marks of each
SELECT topic.topic_id, topic.tracked_until, topic.last_offset,
    (SELECT max(mark.watermark) FROM headwater_mark AS mark WHERE mark.topic_id = topic.topic_id) AS marked
FROM headwater_topic AS topic
WHERE topic.tracked_until > topic.last_offset OR marked > topic.last_offset
