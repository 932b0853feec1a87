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

-- An entry of the outbox that becomes PARKED gets its dead letter in the same statement: FAILED if its claimer marked it, TIMED_OUT if
-- a sweep found its claim timed out, which sets the time of the claim. The id is a random UUID (version 4): 122 random bits.
CREATE TRIGGER headwater_outbox_park AFTER UPDATE OF status ON headwater_outbox_entry
WHEN NEW.status = 'PARKED' AND OLD.status <> 'PARKED'
BEGIN
    INSERT INTO headwater_dead_letter (
        dead_letter_id, source, outbox_id, command_id, topic, key, type, headers, created_at_ms, failed_status, error, attempts,
        parked_by, buried_at_ms, payload
    )
    SELECT CAST(randomblob(6) || substr(x'404142434445464748494a4b4c4d4e4f', 1 + (random() & 15), 1) || randomblob(1)
            || substr(CAST(x'808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f'
                || x'a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf' AS BLOB), 1 + (random() & 63), 1)
            || randomblob(7) AS BLOB),
        'outbox', NEW.id,
        -- The header has no limit of its own; a dead letter that cannot be stored would keep the entry from ending.
        iif(length(CAST(NEW.headers ->> 'commandId' AS BLOB)) BETWEEN 1 AND 255, NEW.headers ->> 'commandId', NEW.id),
        NEW.topic, NEW.key, NEW.type, NEW.headers, NEW.created_at_ms, iif(NEW.claimed_at_ms = OLD.claimed_at_ms, 'FAILED', 'TIMED_OUT'),
        NEW.last_error, NEW.attempts, NEW.claimed_by, NEW.parked_at_ms, NEW.payload;
END;
CREATE TRIGGER headwater_outbox_unpark AFTER UPDATE OF status ON headwater_outbox_entry
WHEN OLD.status = 'PARKED' AND NEW.status <> 'PARKED'
BEGIN
    DELETE FROM headwater_dead_letter WHERE outbox_id = NEW.id;
END;
