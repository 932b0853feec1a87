-- The first schema of the embedded store. Every object is named headwater_*: the file may be an application's own.
-- Nothing here is newer than SQLite 3.38, because people open the file with whatever sqlite3 they have.
-- Times are integer milliseconds since 1970, identities 16-byte blobs, headers a JSON object of strings.

-- What this file is: schema_version, auto_create (1 or 0), created_at_ms; and epoch_changed_at_ms, once an older copy was
-- restored into it while it was open.
CREATE TABLE headwater_meta (
    key TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO headwater_meta (key, value) VALUES ('auto_create', '1');

-- The defaults are those of a queue created on the fly by a publish.
-- last_offset is the head: one transaction writes at a time, so everything at or below it is final. It only rises.
-- stirred rises when something other than a publish may have made a message claimable, for waiters of other processes.
CREATE TABLE headwater_topic (
    topic_id INTEGER PRIMARY KEY AUTOINCREMENT CHECK (topic_id BETWEEN 1 AND 1048575),
    name TEXT NOT NULL UNIQUE,
    last_offset INTEGER NOT NULL DEFAULT 0 CHECK (last_offset BETWEEN 0 AND 8796093022207),
    stirred INTEGER NOT NULL DEFAULT 0,
    semantics TEXT NOT NULL DEFAULT 'queue' CHECK (semantics IN ('queue', 'pub_sub')),
    lease_ms INTEGER NOT NULL DEFAULT 300000,
    max_attempts INTEGER NOT NULL DEFAULT 10,
    backoff_initial_ms INTEGER NOT NULL DEFAULT 1000,
    backoff_max_ms INTEGER NOT NULL DEFAULT 300000,
    ordering TEXT NOT NULL DEFAULT 'none' CHECK (ordering IN ('none', 'key')),
    lanes INTEGER NOT NULL DEFAULT 16,
    payload_bytes_max INTEGER NOT NULL DEFAULT 1048576,
    dedup_window_ms INTEGER NOT NULL DEFAULT 600000,
    gap_patience_ms INTEGER NOT NULL DEFAULT 50,
    created_at_ms INTEGER NOT NULL,
    -- How many messages are delayed: kept by triggers, so that it is never counted.
    scheduled INTEGER NOT NULL DEFAULT 0
) STRICT;

-- The log. row_key is (topic_id << 43) | offset: one integer key keeps a true B+tree, clustered by topic and offset,
-- where large payloads go to overflow pages and never widen the inner nodes.
CREATE TABLE headwater_message (
    row_key INTEGER PRIMARY KEY,
    created_at_ms INTEGER NOT NULL,
    message_id BLOB NOT NULL,
    key TEXT,
    type TEXT,
    content_type TEXT,
    headers TEXT,
    correlation_id TEXT,
    payload BLOB NOT NULL
) STRICT;

-- Delayed messages; promoted into the log by (deliver_at_ms, schedule_id).
CREATE TABLE headwater_schedule (
    schedule_id INTEGER PRIMARY KEY,
    topic_id INTEGER NOT NULL,
    deliver_at_ms INTEGER NOT NULL,
    message_id BLOB NOT NULL,
    key TEXT,
    type TEXT,
    content_type TEXT,
    headers TEXT,
    correlation_id TEXT,
    dedup_key TEXT,
    payload BLOB NOT NULL
) STRICT;
CREATE INDEX headwater_schedule_due ON headwater_schedule (topic_id, deliver_at_ms);
CREATE TRIGGER headwater_schedule_add AFTER INSERT ON headwater_schedule
BEGIN
    UPDATE headwater_topic SET scheduled = scheduled + 1 WHERE topic_id = NEW.topic_id;
END;
CREATE TRIGGER headwater_schedule_take AFTER DELETE ON headwater_schedule
BEGIN
    UPDATE headwater_topic SET scheduled = scheduled - 1 WHERE topic_id = OLD.topic_id;
END;

-- Dedup keys within their window. message_offset is NULL while the message waits in the schedule.
CREATE TABLE headwater_dedup (
    topic_id INTEGER NOT NULL,
    dedup_key TEXT NOT NULL,
    message_id BLOB NOT NULL,
    message_offset INTEGER,
    expires_at_ms INTEGER NOT NULL,
    PRIMARY KEY (topic_id, dedup_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX headwater_dedup_expiry ON headwater_dedup (expires_at_ms);

-- The clock as processes saw it: the latest time, and by how much deadlines were moved because it stepped.
CREATE TABLE headwater_clock (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    latest_ms INTEGER,
    moved_ms INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO headwater_clock (one) VALUES (1);

-- start_offset is where the group began.
CREATE TABLE headwater_subscription (
    subscription_id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic_id INTEGER NOT NULL,
    group_name TEXT NOT NULL,
    lanes INTEGER NOT NULL,
    start_offset INTEGER NOT NULL,
    reassigned INTEGER NOT NULL DEFAULT 0,
    created_at_ms INTEGER NOT NULL,
    UNIQUE (topic_id, group_name)
) STRICT;

-- Claim pointers: one row per subscription, or one per lane of an ordered one; turn is the count of the last hand-out.
-- Row (0, 0) counts hand-outs, in next_offset: every claim writes this page anyway.
CREATE TABLE headwater_cursor (
    subscription_id INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    turn INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (subscription_id, lane)
) STRICT, WITHOUT ROWID;
INSERT INTO headwater_cursor (subscription_id, lane, next_offset) VALUES (0, 0, 0);

-- Outstanding ranges: leased (owner set; due_at_ms is the deadline) or waiting (due_at_ms is when it may be claimed).
-- 0 is due at once, 9223372036854775807 never. A lease is all rows of one token.
CREATE TABLE headwater_range (
    token INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    subscription_id INTEGER NOT NULL,
    lane INTEGER,
    owner TEXT,
    due_at_ms INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    suspect INTEGER NOT NULL,
    parked INTEGER NOT NULL,
    key TEXT,
    last_error TEXT,
    PRIMARY KEY (token, first_offset)
) STRICT, WITHOUT ROWID;
-- Every row is in exactly one of the first two: a plain lease costs one index entry.
CREATE INDEX headwater_range_leased ON headwater_range (subscription_id, due_at_ms, owner) WHERE owner IS NOT NULL;
CREATE INDEX headwater_range_waiting ON headwater_range (subscription_id, due_at_ms, first_offset) WHERE owner IS NULL;
-- By place: what touches some offsets, and the lowest, however many wait.
CREATE INDEX headwater_range_place ON headwater_range (subscription_id, first_offset, last_offset) WHERE owner IS NULL;
CREATE INDEX headwater_range_suspect ON headwater_range (subscription_id, first_offset) WHERE suspect = 1;
CREATE INDEX headwater_range_lane ON headwater_range (subscription_id, lane, first_offset) WHERE lane IS NOT NULL;

CREATE TABLE headwater_dead_letter (
    dead_letter_key INTEGER PRIMARY KEY AUTOINCREMENT,
    dead_letter_id BLOB NOT NULL UNIQUE,
    subscription_id INTEGER NOT NULL,
    message_offset INTEGER NOT NULL,
    message_id BLOB NOT NULL,
    key TEXT,
    type TEXT,
    content_type TEXT,
    headers TEXT,
    correlation_id TEXT,
    created_at_ms INTEGER NOT NULL,
    error TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    buried_at_ms INTEGER NOT NULL,
    payload BLOB NOT NULL
) STRICT;
CREATE INDEX headwater_dead_letter_of ON headwater_dead_letter (subscription_id, dead_letter_key);

-- Publishing in plain SQL, inside the caller's own transaction:
--   INSERT INTO headwater_publish (topic, key, payload) VALUES ('orders', 'o-1', '{"n":1}');
CREATE VIEW headwater_publish (
    topic, key, payload, type, content_type, headers, correlation_id, message_id, dedup_key, deliver_at
) AS SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL WHERE 0;

CREATE TRIGGER headwater_publish_insert INSTEAD OF INSERT ON headwater_publish
BEGIN
    -- The rules of the library, with the same words. RAISE takes literals only, hence no sizes in them.
    SELECT RAISE(ABORT, 'invalid topic: must not be null') WHERE NEW.topic IS NULL;
    SELECT RAISE(ABORT, 'invalid payload: must not be null; an empty one is x''''') WHERE NEW.payload IS NULL;
    SELECT CASE field
        WHEN 'topic' THEN RAISE(ABORT, 'invalid topic: must be text of 1 to 255 bytes without control characters')
        WHEN 'key' THEN RAISE(ABORT, 'invalid key: must be text of 1 to 255 bytes without control characters')
        WHEN 'type' THEN RAISE(ABORT, 'invalid type: must be text of 1 to 255 bytes without control characters')
        WHEN 'content_type'
            THEN RAISE(ABORT, 'invalid content_type: must be text of 1 to 255 bytes without control characters')
        WHEN 'correlation_id'
            THEN RAISE(ABORT, 'invalid correlation_id: must be text of 1 to 255 bytes without control characters')
        ELSE RAISE(ABORT, 'invalid dedup_key: must be text of 1 to 255 bytes without control characters')
    END
    FROM (
        SELECT 'topic' AS field, NEW.topic AS value
        UNION ALL SELECT 'key', NEW.key
        UNION ALL SELECT 'type', NEW.type
        UNION ALL SELECT 'content_type', NEW.content_type
        UNION ALL SELECT 'correlation_id', NEW.correlation_id
        UNION ALL SELECT 'dedup_key', NEW.dedup_key
    )
    WHERE value IS NOT NULL
        AND (typeof(value) = 'blob'
            OR length(CAST(value AS BLOB)) NOT BETWEEN 1 AND 255
            OR instr(CAST(value AS BLOB), x'00') > 0
            OR value GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*');
    SELECT RAISE(ABORT, 'invalid message_id: must be a UUID as text or as a blob of 16 bytes')
    WHERE NEW.message_id IS NOT NULL
        AND CASE typeof(NEW.message_id)
            WHEN 'blob' THEN length(NEW.message_id) <> 16
            WHEN 'text' THEN length(replace(NEW.message_id, '-', '')) <> 32
                OR lower(replace(NEW.message_id, '-', '')) GLOB '*[^0-9a-f]*'
            ELSE 1
        END;
    SELECT RAISE(ABORT, 'invalid headers: must be a JSON object')
    WHERE NEW.headers IS NOT NULL AND (typeof(NEW.headers) <> 'text' OR NOT json_valid(NEW.headers));
    SELECT RAISE(ABORT, 'invalid headers: must be a JSON object')
    WHERE NEW.headers IS NOT NULL AND json_type(NEW.headers) <> 'object';
    SELECT RAISE(ABORT, 'invalid headers: at most 128 are allowed')
    WHERE NEW.headers IS NOT NULL AND (SELECT count(*) FROM json_each(NEW.headers)) > 128;
    SELECT RAISE(ABORT, 'invalid header name: must be text of 1 to 255 bytes without control characters')
    WHERE NEW.headers IS NOT NULL AND EXISTS (
        SELECT 1 FROM json_each(NEW.headers) AS header
        WHERE length(CAST(header.key AS BLOB)) NOT BETWEEN 1 AND 255
            OR instr(CAST(header.key AS BLOB), x'00') > 0
            OR header.key GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*');
    SELECT RAISE(ABORT, 'invalid header value: must be a string of at most 16384 bytes without NUL')
    WHERE NEW.headers IS NOT NULL AND EXISTS (
        SELECT 1 FROM json_each(NEW.headers) AS header
        WHERE header.type <> 'text'
            OR length(CAST(header.value AS BLOB)) > 16384
            OR instr(CAST(header.value AS BLOB), x'00') > 0);
    SELECT RAISE(ABORT, 'invalid headers: an escaped NUL is not allowed')
    WHERE NEW.headers LIKE '%\u0000%';
    SELECT RAISE(ABORT, 'invalid deliver_at: must be ISO 8601 text or integer milliseconds since 1970')
    WHERE NEW.deliver_at IS NOT NULL
        AND (typeof(NEW.deliver_at) NOT IN ('text', 'integer') OR (CASE typeof(NEW.deliver_at)
        WHEN 'text' THEN CAST(strftime('%s', NEW.deliver_at) AS INTEGER) * 1000
            + CAST(substr(strftime('%f', NEW.deliver_at), 4) AS INTEGER)
        ELSE NEW.deliver_at END) IS NULL);
    SELECT RAISE(ABORT, 'invalid deliver_at: more than 366 days ahead')
    WHERE (CASE typeof(NEW.deliver_at)
        WHEN 'text' THEN CAST(strftime('%s', NEW.deliver_at) AS INTEGER) * 1000
            + CAST(substr(strftime('%f', NEW.deliver_at), 4) AS INTEGER)
        ELSE NEW.deliver_at END) > CAST(strftime('%s', 'now') AS INTEGER) * 1000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) + 31622400000;

    INSERT INTO headwater_topic (name, created_at_ms)
    SELECT NEW.topic, CAST(strftime('%s', 'now') AS INTEGER) * 1000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER)
    WHERE NOT EXISTS (SELECT 1 FROM headwater_topic WHERE name = NEW.topic)
        AND (SELECT value FROM headwater_meta WHERE key = 'auto_create') = '1';
    SELECT RAISE(ABORT, 'no such topic; create it with `headwater topic create`, or allow auto_create')
    WHERE NOT EXISTS (SELECT 1 FROM headwater_topic WHERE name = NEW.topic);
    SELECT RAISE(ABORT, 'payload too large for this topic; raise its payload_bytes_max or store the payload elsewhere')
    WHERE length(CAST(NEW.payload AS BLOB)) > (SELECT payload_bytes_max FROM headwater_topic WHERE name = NEW.topic);

    DELETE FROM headwater_dedup
    WHERE topic_id = (SELECT topic_id FROM headwater_topic WHERE name = NEW.topic)
        AND dedup_key = NEW.dedup_key
        AND (
            expires_at_ms <= CAST(strftime('%s', 'now') AS INTEGER) * 1000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER)
            -- Beyond the window: a clock that was ahead stored it.
            OR expires_at_ms > max(CAST(strftime('%s', 'now') AS INTEGER) * 1000,
                                   coalesce((SELECT latest_ms FROM headwater_clock), 0)) + 10000
                + (SELECT dedup_window_ms FROM headwater_topic WHERE name = NEW.topic)
        );

    INSERT INTO headwater_message (
        row_key, created_at_ms, message_id, key, type, content_type, headers, correlation_id, payload
    )
    SELECT (topic.topic_id << 43) | (topic.last_offset + 1),
        CAST(strftime('%s', 'now') AS INTEGER) * 1000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER),
        CASE typeof(NEW.message_id)
            WHEN 'blob' THEN NEW.message_id
            WHEN 'text' THEN (SELECT CAST(substr(b, (instr('0123456789abcdef', substr(h, 1, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 2, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 3, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 4, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 5, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 6, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 7, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 8, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 9, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 10, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 11, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 12, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 13, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 14, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 15, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 16, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 17, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 18, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 19, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 20, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 21, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 22, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 23, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 24, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 25, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 26, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 27, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 28, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 29, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 30, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 31, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 32, 1)), 1) AS BLOB)
                FROM (SELECT lower(replace(NEW.message_id, '-', '')) AS h,
                    x'000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff' AS b))
            ELSE (SELECT CAST(substr(b, ((ms >> 40) & 255) + 1, 1) || substr(b, ((ms >> 32) & 255) + 1, 1)
                || substr(b, ((ms >> 24) & 255) + 1, 1) || substr(b, ((ms >> 16) & 255) + 1, 1)
                || substr(b, ((ms >> 8) & 255) + 1, 1) || substr(b, (ms & 255) + 1, 1)
                || substr(b, 113 + (random() & 15), 1) || randomblob(1)
                || substr(b, 129 + (random() & 63), 1) || randomblob(7) AS BLOB)
                FROM (SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) AS ms,
                    x'000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff' AS b))
        END,
        NEW.key, NEW.type, NEW.content_type, json(NEW.headers), NEW.correlation_id, CAST(NEW.payload AS BLOB)
    FROM headwater_topic AS topic
    WHERE topic.name = NEW.topic
        AND NOT EXISTS (SELECT 1 FROM headwater_dedup AS dedup
            WHERE dedup.topic_id = topic.topic_id AND dedup.dedup_key = NEW.dedup_key)
        AND (NEW.deliver_at IS NULL OR (CASE typeof(NEW.deliver_at)
        WHEN 'text' THEN CAST(strftime('%s', NEW.deliver_at) AS INTEGER) * 1000
            + CAST(substr(strftime('%f', NEW.deliver_at), 4) AS INTEGER)
        ELSE NEW.deliver_at END) <= CAST(strftime('%s', 'now') AS INTEGER) * 1000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER));

    INSERT INTO headwater_schedule (
        topic_id, deliver_at_ms, message_id, key, type, content_type, headers, correlation_id, dedup_key, payload
    )
    SELECT topic.topic_id,
        CASE typeof(NEW.deliver_at)
        WHEN 'text' THEN CAST(strftime('%s', NEW.deliver_at) AS INTEGER) * 1000
            + CAST(substr(strftime('%f', NEW.deliver_at), 4) AS INTEGER)
        ELSE NEW.deliver_at END,
        CASE typeof(NEW.message_id)
            WHEN 'blob' THEN NEW.message_id
            WHEN 'text' THEN (SELECT CAST(substr(b, (instr('0123456789abcdef', substr(h, 1, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 2, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 3, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 4, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 5, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 6, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 7, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 8, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 9, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 10, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 11, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 12, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 13, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 14, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 15, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 16, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 17, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 18, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 19, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 20, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 21, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 22, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 23, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 24, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 25, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 26, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 27, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 28, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 29, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 30, 1)), 1)
                || substr(b, (instr('0123456789abcdef', substr(h, 31, 1)) - 1) * 16 + instr('0123456789abcdef', substr(h, 32, 1)), 1) AS BLOB)
                FROM (SELECT lower(replace(NEW.message_id, '-', '')) AS h,
                    x'000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff' AS b))
            ELSE (SELECT CAST(substr(b, ((ms >> 40) & 255) + 1, 1) || substr(b, ((ms >> 32) & 255) + 1, 1)
                || substr(b, ((ms >> 24) & 255) + 1, 1) || substr(b, ((ms >> 16) & 255) + 1, 1)
                || substr(b, ((ms >> 8) & 255) + 1, 1) || substr(b, (ms & 255) + 1, 1)
                || substr(b, 113 + (random() & 15), 1) || randomblob(1)
                || substr(b, 129 + (random() & 63), 1) || randomblob(7) AS BLOB)
                FROM (SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) AS ms,
                    x'000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff' AS b))
        END,
        NEW.key, NEW.type, NEW.content_type, json(NEW.headers), NEW.correlation_id, NEW.dedup_key,
        CAST(NEW.payload AS BLOB)
    FROM headwater_topic AS topic
    WHERE topic.name = NEW.topic
        AND NOT EXISTS (SELECT 1 FROM headwater_dedup AS dedup
            WHERE dedup.topic_id = topic.topic_id AND dedup.dedup_key = NEW.dedup_key)
        AND (CASE typeof(NEW.deliver_at)
        WHEN 'text' THEN CAST(strftime('%s', NEW.deliver_at) AS INTEGER) * 1000
            + CAST(substr(strftime('%f', NEW.deliver_at), 4) AS INTEGER)
        ELSE NEW.deliver_at END) > CAST(strftime('%s', 'now') AS INTEGER) * 1000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER);

    -- The message just written is the one beyond last_offset, or else the newest of the schedule.
    INSERT OR IGNORE INTO headwater_dedup (topic_id, dedup_key, message_id, message_offset, expires_at_ms)
    SELECT topic.topic_id, NEW.dedup_key,
        coalesce(message.message_id,
            (SELECT message_id FROM headwater_schedule ORDER BY schedule_id DESC LIMIT 1)),
        CASE WHEN message.row_key IS NULL THEN NULL ELSE topic.last_offset + 1 END,
        CAST(strftime('%s', 'now') AS INTEGER) * 1000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) + topic.dedup_window_ms
    FROM headwater_topic AS topic
    LEFT JOIN headwater_message AS message
        ON message.row_key = (topic.topic_id << 43) | (topic.last_offset + 1)
    WHERE topic.name = NEW.topic AND NEW.dedup_key IS NOT NULL;

    UPDATE headwater_topic SET last_offset = last_offset + 1
    WHERE name = NEW.topic
        AND EXISTS (SELECT 1 FROM headwater_message WHERE row_key = (topic_id << 43) | (last_offset + 1));
    UPDATE headwater_topic SET stirred = stirred + 1
    WHERE name = NEW.topic AND (CASE typeof(NEW.deliver_at)
        WHEN 'text' THEN CAST(strftime('%s', NEW.deliver_at) AS INTEGER) * 1000
            + CAST(substr(strftime('%f', NEW.deliver_at), 4) AS INTEGER)
        ELSE NEW.deliver_at END) > CAST(strftime('%s', 'now') AS INTEGER) * 1000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER);
END;

-- Views for people.
CREATE VIEW headwater_topics AS
SELECT topic.topic_id, topic.name AS topic, topic.semantics, topic.ordering, topic.last_offset AS head,
    (SELECT count(*) FROM headwater_subscription AS subscription
        WHERE subscription.topic_id = topic.topic_id) AS subscriptions,
    (SELECT count(*) FROM headwater_schedule AS schedule WHERE schedule.topic_id = topic.topic_id) AS scheduled,
    topic.lease_ms, topic.max_attempts, topic.payload_bytes_max, topic.dedup_window_ms,
    strftime('%Y-%m-%dT%H:%M:%fZ', topic.created_at_ms / 1000.0, 'unixepoch') AS created_at
FROM headwater_topic AS topic;

CREATE VIEW headwater_messages AS
SELECT topic.name AS topic, message.row_key & 8796093022207 AS "offset",
    lower(substr(hex(message.message_id), 1, 8) || '-' || substr(hex(message.message_id), 9, 4) || '-' || substr(hex(message.message_id), 13, 4)
        || '-' || substr(hex(message.message_id), 17, 4) || '-' || substr(hex(message.message_id), 21)) AS message_id,
    message.key, message.type, message.content_type, message.headers, message.correlation_id,
    strftime('%Y-%m-%dT%H:%M:%fZ', message.created_at_ms / 1000.0, 'unixepoch') AS created_at,
    CASE WHEN instr(message.payload, x'00') = 0
        AND CAST(message.payload AS TEXT) NOT GLOB '*[' || char(1) || '-' || char(8) || char(14) || '-' || char(31)
            || char(127) || '-' || char(159) || char(65533) || ']*'
        THEN CAST(message.payload AS TEXT) ELSE 'x''' || hex(message.payload) || '''' END AS payload
FROM headwater_topic AS topic
JOIN headwater_message AS message
    ON message.row_key BETWEEN topic.topic_id << 43 AND (topic.topic_id << 43) | 8796093022207;

CREATE VIEW headwater_subscriptions AS
SELECT subscription.subscription_id, topic.name AS topic, subscription.group_name AS "group", subscription.lanes,
    (SELECT min(next_offset) FROM headwater_cursor AS cursor
        WHERE cursor.subscription_id = subscription.subscription_id) AS "next",
    topic.last_offset AS head,
    (SELECT count(*) FROM headwater_range AS leased
        WHERE leased.subscription_id = subscription.subscription_id AND leased.owner IS NOT NULL) AS leased,
    (SELECT count(*) FROM headwater_range AS waiting
        WHERE waiting.subscription_id = subscription.subscription_id AND waiting.owner IS NULL) AS waiting,
    (SELECT count(*) FROM headwater_dead_letter AS dead
        WHERE dead.subscription_id = subscription.subscription_id) AS dead_letters,
    subscription.reassigned,
    strftime('%Y-%m-%dT%H:%M:%fZ', subscription.created_at_ms / 1000.0, 'unixepoch') AS created_at
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id;

CREATE VIEW headwater_outstanding AS
SELECT topic.name AS topic, subscription.group_name AS "group", part.token, part.first_offset, part.last_offset,
    part.lane, part.owner,
    CASE part.due_at_ms WHEN 0 THEN 'now' WHEN 9223372036854775807 THEN 'never'
        ELSE strftime('%Y-%m-%dT%H:%M:%fZ', part.due_at_ms / 1000.0, 'unixepoch') END AS due_at,
    part.attempts, part.suspect, part.parked, part.key, part.last_error
FROM headwater_range AS part
JOIN headwater_subscription AS subscription ON subscription.subscription_id = part.subscription_id
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id;

CREATE VIEW headwater_dead_letters AS
SELECT lower(substr(hex(dead.dead_letter_id), 1, 8) || '-' || substr(hex(dead.dead_letter_id), 9, 4) || '-' || substr(hex(dead.dead_letter_id), 13, 4)
        || '-' || substr(hex(dead.dead_letter_id), 17, 4) || '-' || substr(hex(dead.dead_letter_id), 21)) AS dead_letter_id,
    topic.name AS topic, subscription.group_name AS "group", dead.message_offset AS "offset",
    lower(substr(hex(dead.message_id), 1, 8) || '-' || substr(hex(dead.message_id), 9, 4) || '-' || substr(hex(dead.message_id), 13, 4)
        || '-' || substr(hex(dead.message_id), 17, 4) || '-' || substr(hex(dead.message_id), 21)) AS message_id,
    dead.key, dead.type, dead.content_type, dead.headers, dead.correlation_id, dead.error, dead.attempts,
    strftime('%Y-%m-%dT%H:%M:%fZ', dead.created_at_ms / 1000.0, 'unixepoch') AS created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', dead.buried_at_ms / 1000.0, 'unixepoch') AS buried_at,
    CASE WHEN instr(dead.payload, x'00') = 0
        AND CAST(dead.payload AS TEXT) NOT GLOB '*[' || char(1) || '-' || char(8) || char(14) || '-' || char(31)
            || char(127) || '-' || char(159) || char(65533) || ']*'
        THEN CAST(dead.payload AS TEXT) ELSE 'x''' || hex(dead.payload) || '''' END AS payload
FROM headwater_dead_letter AS dead
JOIN headwater_subscription AS subscription ON subscription.subscription_id = dead.subscription_id
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id;
