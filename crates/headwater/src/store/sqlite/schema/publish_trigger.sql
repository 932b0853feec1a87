-- Publishing in plain SQL, inside the caller's own transaction:
--   INSERT INTO headwater_publish (topic, key, payload) VALUES ('orders', 'o-1', '{"n":1}');
-- Two steps. headwater_publish checks the form of the caller's values and converts them; headwater_append checks the result
-- against the topic and stores it. A trigger has no variables: the columns of headwater_append are used instead.
-- Every program whose text differs replaces all of it: edit in place.

CREATE VIEW headwater_publish (
    topic, key, payload, type, content_type, headers, correlation_id, message_id, dedup_key, deliver_at
) AS SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL WHERE 0;

CREATE TRIGGER headwater_publish_insert INSTEAD OF INSERT ON headwater_publish
BEGIN
    -- The rules of the library, with the same texts. RAISE takes literals only, so they have no sizes.
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
    -- Only for UTF-8 does decoding and encoding each character give the same bytes. SQLite decodes U+FFFE and U+FFFF as
    -- something else, so they are replaced first.
    SELECT CASE field
        WHEN 'topic' THEN RAISE(ABORT, 'invalid topic: must be UTF-8')
        WHEN 'key' THEN RAISE(ABORT, 'invalid key: must be UTF-8')
        WHEN 'type' THEN RAISE(ABORT, 'invalid type: must be UTF-8')
        WHEN 'content_type' THEN RAISE(ABORT, 'invalid content_type: must be UTF-8')
        WHEN 'correlation_id' THEN RAISE(ABORT, 'invalid correlation_id: must be UTF-8')
        ELSE RAISE(ABORT, 'invalid dedup_key: must be UTF-8')
    END
    FROM (
        SELECT field, replace(replace(value, CAST(x'efbfbe' AS TEXT), '-'), CAST(x'efbfbf' AS TEXT), '-') AS value
        FROM (
            SELECT 'topic' AS field, NEW.topic AS value
            UNION ALL SELECT 'key', NEW.key
            UNION ALL SELECT 'type', NEW.type
            UNION ALL SELECT 'content_type', NEW.content_type
            UNION ALL SELECT 'correlation_id', NEW.correlation_id
            UNION ALL SELECT 'dedup_key', NEW.dedup_key
        )
        WHERE value GLOB '*[^ -~]*'
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
    WHERE CASE typeof(NEW.deliver_at)
        WHEN 'text' THEN strftime('%s', NEW.deliver_at) IS NULL
        ELSE typeof(NEW.deliver_at) NOT IN ('null', 'integer')
    END;

    INSERT INTO headwater_append (
        topic, now_ms, deliver_at_ms, message_id, key, type, content_type, headers, correlation_id, dedup_key, payload
    )
    SELECT NEW.topic, now_ms,
        CASE typeof(NEW.deliver_at)
            WHEN 'text' THEN CAST(strftime('%s', NEW.deliver_at) AS INTEGER) * 1000
                + CAST(substr(strftime('%f', NEW.deliver_at), 4) AS INTEGER)
            ELSE NEW.deliver_at
        END,
        CASE typeof(NEW.message_id)
            WHEN 'blob' THEN NEW.message_id
            -- Two hexadecimal digits are one byte: unhex() needs SQLite 3.41.
            WHEN 'text' THEN (
                WITH RECURSIVE decoded (position, id) AS (
                    SELECT 1, ''
                    UNION ALL
                    SELECT position + 2, id || substr(bytes, 16 * (instr('0123456789abcdef', substr(digits, position, 1)) - 1)
                        + instr('0123456789abcdef', substr(digits, position + 1, 1)), 1)
                    FROM decoded WHERE position < 32
                )
                SELECT CAST(id AS BLOB) FROM decoded WHERE position = 33
            )
            -- A UUIDv7: 48 bits of time, the version, 12 random bits, the variant, 62 random bits.
            ELSE CAST(substr(bytes, ((now_ms >> 40) & 255) + 1, 1) || substr(bytes, ((now_ms >> 32) & 255) + 1, 1)
                || substr(bytes, ((now_ms >> 24) & 255) + 1, 1) || substr(bytes, ((now_ms >> 16) & 255) + 1, 1)
                || substr(bytes, ((now_ms >> 8) & 255) + 1, 1) || substr(bytes, (now_ms & 255) + 1, 1)
                || substr(bytes, 113 + (random() & 15), 1) || randomblob(1)
                || substr(bytes, 129 + (random() & 63), 1) || randomblob(7) AS BLOB)
        END,
        NEW.key, NEW.type,
        -- As on PostgreSQL, where publish() takes JSON and publish_bytes() anything.
        coalesce(NEW.content_type,
            CASE WHEN typeof(NEW.payload) = 'text' AND json_valid(NEW.payload) THEN 'application/json' END),
        json(NEW.headers), NEW.correlation_id, NEW.dedup_key, CAST(NEW.payload AS BLOB)
    FROM (
        SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) AS now_ms,
            lower(replace(NEW.message_id, '-', '')) AS digits,
            -- The 256 bytes in order: no SQL function returns a single byte.
            CAST(x'000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f'
                || x'202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f'
                || x'404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f'
                || x'606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f'
                || x'808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f'
                || x'a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf'
                || x'c0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedf'
                || x'e0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff' AS BLOB) AS bytes
    );
END;

-- Not for callers: it expects valid values. A message is scheduled if deliver_at_ms is in the future.
CREATE VIEW headwater_append (
    topic, now_ms, deliver_at_ms, message_id, key, type, content_type, headers, correlation_id, dedup_key, payload
) AS SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL WHERE 0;

CREATE TRIGGER headwater_append_insert INSTEAD OF INSERT ON headwater_append
BEGIN
    SELECT RAISE(ABORT, 'invalid deliver_at: more than 366 days ahead')
    WHERE NEW.deliver_at_ms > NEW.now_ms + 31622400000;

    -- The library puts its defaults in (topic/settings.rs).
    INSERT INTO headwater_topic (name, created_at_ms, settings)
    SELECT NEW.topic, NEW.now_ms, '{queue_settings}'
    WHERE NOT EXISTS (SELECT 1 FROM headwater_topic WHERE name = NEW.topic)
        AND (SELECT value FROM headwater_meta WHERE key = 'auto_create') = '1';
    SELECT RAISE(ABORT, 'no such topic; create it with `headwater topic create`, or allow auto_create')
    WHERE NOT EXISTS (SELECT 1 FROM headwater_topic WHERE name = NEW.topic);
    SELECT RAISE(ABORT, 'no subscriptions: this topic blocks writes while no group subscribes; subscribe a group, or change block_writes_on_zero_subscriptions')
    FROM headwater_topic AS topic
    WHERE topic.name = NEW.topic AND topic.block_writes = 1 AND topic.semantics = 'pub_sub'
        AND NOT EXISTS (
            SELECT 1 FROM headwater_subscription AS subscription
            WHERE subscription.topic_id = topic.topic_id AND subscription.state <> 'cancelled'
                AND subscription.state IN ('active', 'paused')
        );
    SELECT RAISE(ABORT, 'payload too large for this topic; raise its payload_bytes_max or store the payload elsewhere')
    WHERE length(NEW.payload) > (SELECT payload_bytes_max FROM headwater_topic WHERE name = NEW.topic);

    DELETE FROM headwater_dedup
    WHERE topic_id = (SELECT topic_id FROM headwater_topic WHERE name = NEW.topic)
        AND dedup_key = NEW.dedup_key
        AND (
            expires_at_ms <= NEW.now_ms
            -- Beyond the window: stored while the clock was ahead.
            OR expires_at_ms > max(NEW.now_ms, coalesce((SELECT latest_ms FROM headwater_clock), 0)) + 10000
                + (SELECT dedup_window_ms FROM headwater_topic WHERE name = NEW.topic)
        );

    UPDATE headwater_last_published SET duplicate = EXISTS (
        SELECT 1 FROM headwater_dedup AS dedup
        WHERE dedup.topic_id = (SELECT topic_id FROM headwater_topic WHERE name = NEW.topic) AND dedup.dedup_key = NEW.dedup_key
    );
    -- A known key is excluded by the condition and not by OR IGNORE: the caller's own INSERT OR REPLACE would override that.
    INSERT INTO headwater_message (
        row_key, created_at_ms, message_id, key, type, content_type, headers, correlation_id, payload
    )
    SELECT (topic.topic_id << 43) | (topic.last_offset + 1), NEW.now_ms, NEW.message_id, NEW.key, NEW.type,
        NEW.content_type, NEW.headers, NEW.correlation_id, NEW.payload
    FROM headwater_topic AS topic
    WHERE topic.name = NEW.topic AND coalesce(NEW.deliver_at_ms <= NEW.now_ms, 1)
        AND NOT EXISTS (SELECT 1 FROM headwater_dedup AS dedup
            WHERE dedup.topic_id = topic.topic_id AND dedup.dedup_key = NEW.dedup_key);
    INSERT INTO headwater_schedule (
        topic_id, deliver_at_ms, message_id, key, type, content_type, headers, correlation_id, dedup_key, payload
    )
    SELECT topic.topic_id, NEW.deliver_at_ms, NEW.message_id, NEW.key, NEW.type, NEW.content_type, NEW.headers,
        NEW.correlation_id, NEW.dedup_key, NEW.payload
    FROM headwater_topic AS topic
    WHERE topic.name = NEW.topic AND NEW.deliver_at_ms > NEW.now_ms
        AND NOT EXISTS (SELECT 1 FROM headwater_dedup AS dedup
            WHERE dedup.topic_id = topic.topic_id AND dedup.dedup_key = NEW.dedup_key);
    INSERT INTO headwater_dedup (topic_id, dedup_key, message_id, message_offset, expires_at_ms)
    SELECT topic.topic_id, NEW.dedup_key, NEW.message_id,
        CASE WHEN coalesce(NEW.deliver_at_ms <= NEW.now_ms, 1) THEN topic.last_offset + 1 END,
        NEW.now_ms + topic.dedup_window_ms
    FROM headwater_topic AS topic
    WHERE topic.name = NEW.topic AND NEW.dedup_key IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM headwater_dedup AS dedup
            WHERE dedup.topic_id = topic.topic_id AND dedup.dedup_key = NEW.dedup_key);

    UPDATE headwater_topic SET last_offset = last_offset + 1
    WHERE name = NEW.topic
        AND EXISTS (SELECT 1 FROM headwater_message WHERE row_key = (topic_id << 43) | (last_offset + 1));
    UPDATE headwater_topic SET wakes = wakes + 1
    WHERE name = NEW.topic AND NEW.deliver_at_ms > NEW.now_ms;

    UPDATE headwater_last_published
    SET topic = NEW.topic,
        message_id = CASE WHEN duplicate THEN (SELECT first.message_id FROM headwater_dedup AS first
            WHERE first.topic_id = topic.topic_id AND first.dedup_key = NEW.dedup_key) ELSE NEW.message_id END,
        message_offset = CASE WHEN duplicate THEN (SELECT first.message_offset FROM headwater_dedup AS first
                WHERE first.topic_id = topic.topic_id AND first.dedup_key = NEW.dedup_key)
            WHEN coalesce(NEW.deliver_at_ms <= NEW.now_ms, 1) THEN topic.last_offset END
    FROM headwater_topic AS topic
    WHERE topic.name = NEW.topic;
END;

-- What the last INSERT INTO headwater_publish did: where the message is (NULL while it is scheduled), its id, and whether it was a
-- duplicate, which stores nothing: offset and id are then those of the first. Read it in the transaction of the INSERT: after that
-- another process may have published.
CREATE VIEW headwater_published AS
SELECT topic, message_offset,
    lower(substr(hex(message_id), 1, 8) || '-' || substr(hex(message_id), 9, 4) || '-' || substr(hex(message_id), 13, 4)
        || '-' || substr(hex(message_id), 17, 4) || '-' || substr(hex(message_id), 21)) AS message_id,
    duplicate
FROM headwater_last_published
WHERE topic IS NOT NULL;
