-- Triggers that keep the tables consistent. Every program whose text differs replaces all of them: edit in place.

-- The columns of headwater_topic that are copies of settings. A setting that SQL does not read has no column.
CREATE TRIGGER headwater_topic_new AFTER INSERT ON headwater_topic
BEGIN
    UPDATE headwater_topic SET settings = settings WHERE topic_id = NEW.topic_id;
END;
CREATE TRIGGER headwater_topic_copy AFTER UPDATE OF settings ON headwater_topic
BEGIN
    UPDATE headwater_topic
    SET semantics = settings ->> 'semantics', tracking = settings ->> 'tracking', lease_ms = settings ->> 'lease_ms',
        max_attempts = settings ->> 'max_attempts', payload_bytes_max = settings ->> 'payload_bytes_max',
        dedup_window_ms = settings ->> 'dedup_window_ms', message_retention_ms = settings ->> 'message_retention_ms',
        max_retention_ms = settings ->> 'max_retention_ms',
        zero_subscription_retention_ms = settings ->> 'zero_subscription_retention_ms',
        block_writes = settings ->> 'block_writes_on_zero_subscriptions',
        zombie_subscription_ttl_ms = settings ->> 'zombie_subscription_ttl_ms',
        heartbeat_interval_ms = settings ->> 'heartbeat_interval_ms',
        heartbeat_timeout_ms = settings ->> 'heartbeat_timeout_ms', ack_log = settings ->> 'ack_log'
    WHERE topic_id = NEW.topic_id;
END;

-- headwater_topic.scheduled.
CREATE TRIGGER headwater_schedule_add AFTER INSERT ON headwater_schedule
BEGIN
    UPDATE headwater_topic SET scheduled = scheduled + 1 WHERE topic_id = NEW.topic_id;
END;
CREATE TRIGGER headwater_schedule_take AFTER DELETE ON headwater_schedule
BEGIN
    UPDATE headwater_topic SET scheduled = scheduled - 1 WHERE topic_id = OLD.topic_id;
END;

-- The counts of waiting ranges in headwater_subscription. Only waiting ranges cost this: a plain lease and its ack do not.
CREATE TRIGGER headwater_outstanding_waits AFTER INSERT ON headwater_outstanding WHEN NEW.owner IS NULL
BEGIN
    UPDATE headwater_subscription
    SET waiting = waiting + 1, waiting_offsets = waiting_offsets + NEW.last_offset - NEW.first_offset + 1,
        retrying_offsets = retrying_offsets
            + iif(NEW.parked = 0 AND NEW.attempts > 0, NEW.last_offset - NEW.first_offset + 1, 0)
    WHERE subscription_id = NEW.subscription_id;
    INSERT INTO headwater_touched (subscription_id, first_offset, token, last_offset)
    SELECT subscription_id, NEW.first_offset, 0, NEW.last_offset
    FROM headwater_subscription
    WHERE subscription_id = NEW.subscription_id AND bit IS NOT NULL
    ON CONFLICT DO UPDATE SET last_offset = max(last_offset, excluded.last_offset);
END;
CREATE TRIGGER headwater_outstanding_waited AFTER DELETE ON headwater_outstanding WHEN OLD.owner IS NULL
BEGIN
    UPDATE headwater_subscription
    SET waiting = waiting - 1, waiting_offsets = waiting_offsets - (OLD.last_offset - OLD.first_offset + 1),
        retrying_offsets = retrying_offsets
            - iif(OLD.parked = 0 AND OLD.attempts > 0, OLD.last_offset - OLD.first_offset + 1, 0)
    WHERE subscription_id = OLD.subscription_id;
    INSERT INTO headwater_touched (subscription_id, first_offset, token, last_offset)
    SELECT subscription_id, OLD.first_offset, 0, OLD.last_offset
    FROM headwater_subscription
    WHERE subscription_id = OLD.subscription_id AND bit IS NOT NULL
    ON CONFLICT DO UPDATE SET last_offset = max(last_offset, excluded.last_offset);
END;
CREATE TRIGGER headwater_outstanding_cut AFTER UPDATE OF first_offset ON headwater_outstanding WHEN NEW.owner IS NULL
BEGIN
    UPDATE headwater_subscription
    SET waiting_offsets = waiting_offsets - (NEW.first_offset - OLD.first_offset),
        retrying_offsets = retrying_offsets
            - iif(NEW.parked = 0 AND NEW.attempts > 0, NEW.first_offset - OLD.first_offset, 0)
    WHERE subscription_id = NEW.subscription_id;
    INSERT INTO headwater_touched (subscription_id, first_offset, token, last_offset)
    SELECT subscription_id, OLD.first_offset, 0, OLD.last_offset
    FROM headwater_subscription
    WHERE subscription_id = NEW.subscription_id AND bit IS NOT NULL
    ON CONFLICT DO UPDATE SET last_offset = max(last_offset, excluded.last_offset);
END;

-- The audit is append-only.
CREATE TRIGGER headwater_audit_update BEFORE UPDATE ON headwater_audit
BEGIN
    SELECT RAISE(ABORT, 'invalid change: the audit is append-only');
END;
CREATE TRIGGER headwater_audit_delete BEFORE DELETE ON headwater_audit
BEGIN
    SELECT RAISE(ABORT, 'invalid change: the audit is append-only');
END;
