-- Outbox and inbox in plain SQL, inside the caller's own transaction. Each operation is an INSERT into a view of its name:
--   INSERT INTO headwater_outbox (category, topic, type, payload) VALUES ('event', 'orders', 'OrderCreated', '{"id":17}');
--   INSERT INTO headwater_inbox_entries (message_id, handler) VALUES ('payment-9', 'ledger');
--   INSERT INTO headwater_sweep_batch (max, claimer) VALUES (100, 'relay-1');
-- They do what the statements in store/sqlite/sql/outbox.sql do, whose comments give the reasons. Every program whose text differs
-- replaces all of it: edit in place.

-- Not for callers: the time. The same for all of one statement.
CREATE VIEW headwater_now AS
SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) AS now_ms;

-- Not for callers: refuses text that is not UTF-8, which reads back as something else. Only for UTF-8 does decoding and encoding each
-- character give the same bytes. SQLite decodes U+FFFE and U+FFFF as something else, so they are replaced first. In pieces of at most
-- 80 bytes: finding a character of a text takes as long as all before it, and data of a process may be large. A piece ends before its
-- window's last character, which may be cut, unless it is the only one.
CREATE VIEW headwater_check_text (value) AS SELECT NULL WHERE 0;
CREATE TRIGGER headwater_check_text_insert INSTEAD OF INSERT ON headwater_check_text
WHEN NEW.value GLOB '*[^' || char(1) || '-' || char(127) || ']*'
BEGIN
    SELECT RAISE(ABORT, 'invalid text: must be UTF-8')
    WHERE instr(CAST(NEW.value AS BLOB), x'00') > 0;
    SELECT RAISE(ABORT, 'invalid text: must be UTF-8')
    FROM (
        WITH RECURSIVE windows (position, text) AS (
            SELECT 1, CAST(substr(CAST(NEW.value AS BLOB), 1, 80) AS TEXT)
            UNION ALL
            SELECT position + length(CAST(substr(text, 1, max(length(text) - 1, 1)) AS BLOB)),
                CAST(substr(CAST(NEW.value AS BLOB),
                    position + length(CAST(substr(text, 1, max(length(text) - 1, 1)) AS BLOB)), 80) AS TEXT)
            FROM windows WHERE position + 80 <= length(CAST(NEW.value AS BLOB))
        )
        SELECT replace(replace(text, CAST(x'efbfbe' AS TEXT), '-'), CAST(x'efbfbf' AS TEXT), '-') AS value
        FROM (
            SELECT iif(position + 80 <= length(CAST(NEW.value AS BLOB)), substr(text, 1, max(length(text) - 1, 1)), text) AS text
            FROM windows
        )
        WHERE text GLOB '*[^' || char(1) || '-' || char(127) || ']*'
    )
    WHERE CAST(value AS BLOB) <> (
        WITH RECURSIVE decoded (position, text) AS (
            SELECT 0, ''
            UNION ALL
            SELECT position + 1, text || char(unicode(substr(value, position + 1, 1)))
            FROM decoded WHERE position < length(value)
        )
        SELECT CAST(text AS BLOB) FROM decoded ORDER BY position DESC LIMIT 1
    );
END;

CREATE TRIGGER headwater_outbox_insert INSTEAD OF INSERT ON headwater_outbox
BEGIN
    SELECT RAISE(ABORT, 'invalid category: must be command, event or reply')
    WHERE NEW.category IS NULL OR NEW.category NOT IN ('command', 'event', 'reply');
    SELECT RAISE(ABORT, 'invalid entry: topic, type and payload must not be null; an empty payload is x''''')
    WHERE NEW.topic IS NULL OR NEW.type IS NULL OR NEW.payload IS NULL;
    SELECT CASE field
        WHEN 'topic' THEN RAISE(ABORT, 'invalid topic: must be text of 1 to 255 bytes without control characters')
        WHEN 'key' THEN RAISE(ABORT, 'invalid key: must be text of 1 to 255 bytes without control characters')
        ELSE RAISE(ABORT, 'invalid type: must be text of 1 to 255 bytes without control characters')
    END
    FROM (
        SELECT 'topic' AS field, NEW.topic AS value
        UNION ALL SELECT 'key', NEW.key
        UNION ALL SELECT 'type', NEW.type
    )
    WHERE value IS NOT NULL
        AND (typeof(value) = 'blob'
            OR length(CAST(value AS BLOB)) NOT BETWEEN 1 AND 255
            OR instr(CAST(value AS BLOB), x'00') > 0
            OR value GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*');
    SELECT RAISE(ABORT, 'payload too large: an entry of plain SQL has at most 1048576 bytes; store the payload elsewhere')
    WHERE length(CAST(NEW.payload AS BLOB)) > 1048576;
    SELECT RAISE(ABORT, 'invalid headers: must be a JSON object of strings')
    WHERE NEW.headers IS NOT NULL AND (typeof(NEW.headers) <> 'text' OR NOT json_valid(NEW.headers));
    SELECT RAISE(ABORT, 'invalid headers: must be a JSON object of strings')
    WHERE NEW.headers IS NOT NULL AND (json_type(NEW.headers) <> 'object' OR NEW.headers LIKE '%\u0000%'
        OR (SELECT count(*) FROM json_each(NEW.headers)) > 128
        OR EXISTS (
            SELECT 1 FROM json_each(NEW.headers) AS header
            WHERE header.type <> 'text' OR length(CAST(header.value AS BLOB)) > 16384
                OR length(CAST(header.key AS BLOB)) NOT BETWEEN 1 AND 255));
    INSERT INTO headwater_check_text (value) VALUES (NEW.topic), (NEW.key), (NEW.type), (NEW.headers);
    INSERT INTO headwater_outbox_entry (category, topic, key, type, payload, headers, created_at_ms)
    SELECT NEW.category, NEW.topic, NEW.key, NEW.type, CAST(NEW.payload AS BLOB), coalesce(json(NEW.headers), '{}'), now_ms
    FROM headwater_now;
    -- Ids only rise.
    UPDATE headwater_last_inserted SET id = (SELECT max(id) FROM headwater_outbox_entry), inserted = 1;
END;

CREATE TRIGGER headwater_inbox_insert INSTEAD OF INSERT ON headwater_inbox_entries
BEGIN
    SELECT RAISE(ABORT, 'invalid inbox entry: message_id and handler must be text of 1 to 255 bytes without NUL')
    WHERE typeof(NEW.message_id) <> 'text' OR typeof(NEW.handler) <> 'text'
        OR length(CAST(NEW.message_id AS BLOB)) NOT BETWEEN 1 AND 255 OR length(CAST(NEW.handler AS BLOB)) NOT BETWEEN 1 AND 255
        OR instr(CAST(NEW.message_id AS BLOB), x'00') > 0 OR instr(CAST(NEW.handler AS BLOB), x'00') > 0;
    INSERT INTO headwater_check_text (value) VALUES (NEW.message_id), (NEW.handler);
    UPDATE headwater_last_inserted SET id = NULL, inserted = NOT EXISTS (
        SELECT 1 FROM headwater_inbox AS entry WHERE entry.message_id = NEW.message_id AND entry.handler = NEW.handler);
    -- Excluded by the condition and not by a conflict clause: the caller's own would override that.
    INSERT INTO headwater_inbox (message_id, handler, processed_at_ms)
    SELECT NEW.message_id, NEW.handler, now_ms FROM headwater_now
    WHERE NOT EXISTS (SELECT 1 FROM headwater_inbox AS entry WHERE entry.message_id = NEW.message_id AND entry.handler = NEW.handler);
END;

-- What the last INSERT INTO headwater_outbox or headwater_inbox_entries did: the id of the entry, and whether something was inserted.
-- Read it in the transaction of the INSERT: after that another process may have inserted.
CREATE VIEW headwater_inserted AS
SELECT id, inserted FROM headwater_last_inserted;

-- Not for callers: refuses what is no claimer.
CREATE VIEW headwater_check_claimer (claimer) AS SELECT NULL WHERE 0;
CREATE TRIGGER headwater_check_claimer_insert INSTEAD OF INSERT ON headwater_check_claimer
BEGIN
    SELECT RAISE(ABORT, 'invalid claimer: must be text of 1 to 255 bytes without control characters')
    WHERE NEW.claimer IS NULL OR typeof(NEW.claimer) = 'blob' OR length(CAST(NEW.claimer AS BLOB)) NOT BETWEEN 1 AND 255
        OR instr(CAST(NEW.claimer AS BLOB), x'00') > 0
        OR NEW.claimer GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*';
    INSERT INTO headwater_check_text (value) VALUES (NEW.claimer);
END;

CREATE VIEW headwater_claim_if_new (id, claimer) AS SELECT NULL, NULL WHERE 0;
CREATE TRIGGER headwater_claim_if_new_insert INSTEAD OF INSERT ON headwater_claim_if_new
BEGIN
    INSERT INTO headwater_check_claimer (claimer) VALUES (NEW.claimer);
    UPDATE headwater_outbox_entry
    SET status = 'CLAIMED', claimed_by = NEW.claimer, claimed_at_ms = (SELECT now_ms FROM headwater_now), next_at_ms = NULL
    WHERE id = NEW.id AND status = 'NEW';
END;

-- Afterwards headwater_outbox has what the claimer holds: status is CLAIMED, claimed_by is the claimer.
CREATE VIEW headwater_sweep_batch (max, claimer, claim_timeout_s, max_attempts) AS SELECT NULL, NULL, NULL, NULL WHERE 0;
CREATE TRIGGER headwater_sweep_batch_insert INSTEAD OF INSERT ON headwater_sweep_batch
BEGIN
    INSERT INTO headwater_check_claimer (claimer) VALUES (NEW.claimer);
    SELECT RAISE(ABORT, 'invalid max: must be from 1 to 10000')
    WHERE typeof(NEW.max) <> 'integer' OR NEW.max NOT BETWEEN 1 AND 10000;
    UPDATE headwater_outbox_entry
    SET status = iif(status = 'CLAIMED' AND next_at_ms IS NULL AND attempts + 1 >= coalesce(NEW.max_attempts, 10), 'PARKED', 'CLAIMED'),
        attempts = attempts + (status = 'CLAIMED' AND next_at_ms IS NULL),
        last_error = iif(status = 'CLAIMED' AND next_at_ms IS NULL, 'claim by ' || claimed_by || ' timed out', last_error),
        parked_at_ms = iif(status = 'CLAIMED' AND next_at_ms IS NULL AND attempts + 1 >= coalesce(NEW.max_attempts, 10),
            (SELECT now_ms FROM headwater_now), NULL),
        next_at_ms = NULL, claimed_by = NEW.claimer, claimed_at_ms = (SELECT now_ms FROM headwater_now)
    WHERE id IN (
        SELECT due.id FROM (
            SELECT id, created_at_ms FROM (
                SELECT entry.id, entry.created_at_ms FROM headwater_outbox_entry AS entry
                WHERE entry.status = 'NEW' AND entry.next_at_ms IS NULL
                ORDER BY entry.created_at_ms, entry.id
                LIMIT NEW.max
            )
            UNION ALL
            SELECT entry.id, entry.created_at_ms FROM headwater_outbox_entry AS entry
            WHERE entry.next_at_ms IS NOT NULL AND entry.next_at_ms <= (SELECT now_ms FROM headwater_now)
            UNION ALL
            SELECT entry.id, entry.created_at_ms FROM headwater_outbox_entry AS entry
            WHERE entry.status = 'CLAIMED' AND entry.next_at_ms IS NULL
                AND entry.claimed_at_ms <= (SELECT now_ms FROM headwater_now) - coalesce(NEW.claim_timeout_s, 300) * 1000
        ) AS due
        ORDER BY due.created_at_ms, due.id
        LIMIT NEW.max
    );
END;

CREATE VIEW headwater_mark_published (id, claimer) AS SELECT NULL, NULL WHERE 0;
CREATE TRIGGER headwater_mark_published_insert INSTEAD OF INSERT ON headwater_mark_published
BEGIN
    INSERT INTO headwater_check_claimer (claimer) VALUES (NEW.claimer);
    UPDATE headwater_outbox_entry
    SET status = 'PUBLISHED', published_at_ms = (SELECT now_ms FROM headwater_now), next_at_ms = NULL
    WHERE id = NEW.id AND status IN ('CLAIMED', 'FAILED') AND claimed_by = NEW.claimer;
END;

-- Due again after delay_s, 10 seconds by default.
CREATE VIEW headwater_mark_failed (id, claimer, error, delay_s, max_attempts) AS SELECT NULL, NULL, NULL, NULL, NULL WHERE 0;
CREATE TRIGGER headwater_mark_failed_insert INSTEAD OF INSERT ON headwater_mark_failed
BEGIN
    INSERT INTO headwater_check_claimer (claimer) VALUES (NEW.claimer);
    INSERT INTO headwater_check_text (value) VALUES (NEW.error);
    UPDATE headwater_outbox_entry
    SET status = iif(attempts + 1 >= coalesce(NEW.max_attempts, 10), 'PARKED', 'FAILED'),
        attempts = attempts + 1,
        last_error = iif(length(CAST(NEW.error AS BLOB)) <= 65536, NEW.error, substr(NEW.error, 1, 16380) || ' … (cut)'),
        next_at_ms = iif(attempts + 1 >= coalesce(NEW.max_attempts, 10), NULL,
            (SELECT now_ms FROM headwater_now) + CAST(coalesce(NEW.delay_s, 10) * 1000 AS INTEGER)),
        parked_at_ms = iif(attempts + 1 >= coalesce(NEW.max_attempts, 10), (SELECT now_ms FROM headwater_now), NULL)
    WHERE id = NEW.id AND status IN ('CLAIMED', 'FAILED') AND claimed_by = NEW.claimer;
END;

CREATE VIEW headwater_reschedule (id, claimer, backoff_ms, error) AS SELECT NULL, NULL, NULL, NULL WHERE 0;
CREATE TRIGGER headwater_reschedule_insert INSTEAD OF INSERT ON headwater_reschedule
BEGIN
    INSERT INTO headwater_check_claimer (claimer) VALUES (NEW.claimer);
    INSERT INTO headwater_check_text (value) VALUES (NEW.error);
    UPDATE headwater_outbox_entry
    SET next_at_ms = (SELECT now_ms FROM headwater_now) + CAST(coalesce(NEW.backoff_ms, 0) AS INTEGER),
        last_error = coalesce(iif(length(CAST(NEW.error AS BLOB)) <= 65536, NEW.error, substr(NEW.error, 1, 16380) || ' … (cut)'), last_error)
    WHERE id = NEW.id AND status IN ('CLAIMED', 'FAILED') AND claimed_by = NEW.claimer;
END;

CREATE VIEW headwater_recover_stuck (older_than_ms) AS SELECT NULL WHERE 0;
CREATE TRIGGER headwater_recover_stuck_insert INSTEAD OF INSERT ON headwater_recover_stuck
BEGIN
    SELECT RAISE(ABORT, 'invalid older_than_ms: must be a number') WHERE typeof(NEW.older_than_ms) <> 'integer';
    UPDATE headwater_outbox_entry
    SET status = 'NEW', next_at_ms = NULL, claimed_by = NULL, claimed_at_ms = NULL
    WHERE id IN (
        SELECT entry.id FROM headwater_outbox_entry AS entry
        WHERE entry.status = 'CLAIMED' AND entry.next_at_ms IS NULL
            AND entry.claimed_at_ms <= (SELECT now_ms FROM headwater_now) - NEW.older_than_ms
        UNION ALL
        SELECT entry.id FROM headwater_outbox_entry AS entry
        WHERE entry.next_at_ms IS NOT NULL AND entry.status = 'CLAIMED'
            AND entry.claimed_at_ms <= (SELECT now_ms FROM headwater_now) - NEW.older_than_ms
    );
END;
