-- Processes in plain SQL: the rule for their status, views to read them, and views to write them in the caller's own transaction:
--   INSERT INTO headwater_process_insert (process_id, process_type, business_key, data) VALUES (?, 'order', 'o-17', '{"total":250}');
--   INSERT INTO headwater_process_update (process_id, version, status, current_step, event_type, event)
--   VALUES (?, 1, 'RUNNING', 'reserve', 'StepStarted', '{"step":"reserve","command_id":"c-1"}');
-- A process_id is a blob of 16 bytes. Every program whose text differs replaces all of it: edit in place.

-- The legal transitions, as ProcessStatus::may_become of the library has them.
CREATE TRIGGER headwater_process_transition BEFORE UPDATE ON headwater_process
WHEN NOT CASE OLD.status
    WHEN 'NEW' THEN NEW.status IN ('NEW', 'RUNNING', 'PAUSED')
    WHEN 'RUNNING' THEN NEW.status IN ('RUNNING', 'SUCCEEDED', 'FAILED', 'COMPENSATING', 'PAUSED')
    WHEN 'COMPENSATING' THEN NEW.status IN ('COMPENSATING', 'COMPENSATED', 'FAILED', 'PAUSED')
    WHEN 'PAUSED' THEN NEW.status IN ('PAUSED', iif(OLD.paused_in = 'NEW', 'RUNNING', OLD.paused_in))
    ELSE 0
END
BEGIN
    SELECT RAISE(ABORT, 'invalid transition: the status of the process does not allow it; nothing was written');
END;

CREATE VIEW headwater_processes AS
SELECT lower(substr(hex(process_id), 1, 8) || '-' || substr(hex(process_id), 9, 4) || '-' || substr(hex(process_id), 13, 4)
        || '-' || substr(hex(process_id), 17, 4) || '-' || substr(hex(process_id), 21)) AS process_id,
    process_type, business_key, status, paused_in, current_step, data, retries, version,
    strftime('%Y-%m-%dT%H:%M:%fZ', created_at_ms / 1000.0, 'unixepoch') AS created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', updated_at_ms / 1000.0, 'unixepoch') AS updated_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', ended_at_ms / 1000.0, 'unixepoch') AS ended_at
FROM headwater_process;

CREATE VIEW headwater_process_events AS
SELECT lower(substr(hex(process_id), 1, 8) || '-' || substr(hex(process_id), 9, 4) || '-' || substr(hex(process_id), 13, 4)
        || '-' || substr(hex(process_id), 17, 4) || '-' || substr(hex(process_id), 21)) AS process_id,
    sequence, strftime('%Y-%m-%dT%H:%M:%fZ', logged_at_ms / 1000.0, 'unixepoch') AS logged_at, event_type, event, status,
    current_step, data, retries
FROM headwater_process_event;

CREATE VIEW headwater_process_insert (process_id, process_type, business_key, current_step, data) AS
SELECT NULL, NULL, NULL, NULL, NULL WHERE 0;

-- The caller's own INSERT OR IGNORE would apply to the inserts here, and so nothing that they refuse is left to them.
CREATE TRIGGER headwater_process_insert_insert INSTEAD OF INSERT ON headwater_process_insert
BEGIN
    SELECT RAISE(ABORT, 'invalid process_id: must be a blob of 16 bytes')
    WHERE typeof(NEW.process_id) <> 'blob' OR length(NEW.process_id) <> 16;
    SELECT CASE field
        WHEN 'process_type'
            THEN RAISE(ABORT, 'invalid process_type: must be text of 1 to 255 bytes without control characters')
        WHEN 'business_key'
            THEN RAISE(ABORT, 'invalid business_key: must be text of 1 to 255 bytes without control characters')
        ELSE RAISE(ABORT, 'invalid current_step: must be text of 1 to 255 bytes without control characters')
    END
    FROM (
        SELECT 'process_type' AS field, coalesce(NEW.process_type, '') AS value
        UNION ALL SELECT 'business_key', NEW.business_key
        UNION ALL SELECT 'current_step', NEW.current_step
    )
    WHERE value IS NOT NULL
        AND (typeof(value) <> 'text'
            OR length(CAST(value AS BLOB)) NOT BETWEEN 1 AND 255
            OR instr(CAST(value AS BLOB), x'00') > 0
            OR value GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*');
    SELECT RAISE(ABORT, 'invalid data: must be a JSON object as text')
    WHERE NEW.data IS NOT NULL AND (typeof(NEW.data) <> 'text' OR instr(CAST(NEW.data AS BLOB), x'00') > 0
        OR NOT json_valid(NEW.data) OR json_type(NEW.data) <> 'object');
    INSERT INTO headwater_check_text (value) VALUES (NEW.process_type), (NEW.business_key), (NEW.current_step), (NEW.data);
    SELECT RAISE(ABORT, 'conflict: a process of this id exists already; nothing was written')
    WHERE EXISTS (SELECT 1 FROM headwater_process AS process WHERE process.process_id = NEW.process_id);
    INSERT INTO headwater_process (
        process_id, process_type, business_key, status, current_step, data, created_at_ms, updated_at_ms
    )
    SELECT NEW.process_id, NEW.process_type, NEW.business_key, 'NEW', NEW.current_step, NEW.data, now_ms, now_ms
    FROM (SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) AS now_ms);
    INSERT INTO headwater_process_event (
        process_id, sequence, logged_at_ms, event_type, event, status, current_step, data, retries
    )
    SELECT process.process_id, 1, process.created_at_ms, 'ProcessStarted',
        json_object('process_type', process.process_type, 'business_key', process.business_key, 'initial_data', json(process.data)),
        'NEW', process.current_step, process.data, 0
    FROM headwater_process AS process
    WHERE process.process_id = NEW.process_id;
END;

CREATE VIEW headwater_process_update (
    process_id, version, status, current_step, data, retries, event_type, event
) AS SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL WHERE 0;

-- The entry is written first: it holds what differs from the row as it is before the update.
CREATE TRIGGER headwater_process_update_insert INSTEAD OF INSERT ON headwater_process_update
BEGIN
    SELECT RAISE(ABORT, 'no such process; nothing was written')
    WHERE NOT EXISTS (SELECT 1 FROM headwater_process AS process WHERE process.process_id = NEW.process_id);
    SELECT RAISE(ABORT, 'conflict: the process was changed meanwhile, the version is stale; nothing was written: read it again')
    WHERE NOT EXISTS (
        SELECT 1 FROM headwater_process AS process
        WHERE process.process_id = NEW.process_id AND process.version = NEW.version
    );
    SELECT RAISE(ABORT, 'invalid current_step: must be text of 1 to 255 bytes without control characters')
    WHERE NEW.current_step IS NOT NULL
        AND (typeof(NEW.current_step) <> 'text'
            OR length(CAST(NEW.current_step AS BLOB)) NOT BETWEEN 1 AND 255
            OR instr(CAST(NEW.current_step AS BLOB), x'00') > 0
            OR NEW.current_step GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*');
    SELECT RAISE(ABORT, 'invalid data: must be a JSON object as text')
    WHERE NEW.data IS NOT NULL AND (typeof(NEW.data) <> 'text' OR instr(CAST(NEW.data AS BLOB), x'00') > 0
        OR NOT json_valid(NEW.data) OR json_type(NEW.data) <> 'object');
    SELECT RAISE(ABORT, 'invalid retries: must be a number from 0 on')
    WHERE NEW.retries IS NOT NULL AND (typeof(NEW.retries) <> 'integer' OR NEW.retries NOT BETWEEN 0 AND 4294967295);
    SELECT RAISE(ABORT, 'invalid event: needs a type of 1 to 255 bytes other than ProcessStarted, and a JSON object as text')
    WHERE typeof(NEW.event_type) <> 'text' OR length(CAST(NEW.event_type AS BLOB)) NOT BETWEEN 1 AND 255
        OR instr(CAST(NEW.event_type AS BLOB), x'00') > 0 OR NEW.event_type = 'ProcessStarted' OR typeof(NEW.event) <> 'text'
        OR instr(CAST(NEW.event AS BLOB), x'00') > 0 OR NOT json_valid(NEW.event) OR json_type(NEW.event) <> 'object';
    INSERT INTO headwater_check_text (value) VALUES (NEW.current_step), (NEW.data), (NEW.event_type), (NEW.event);
    SELECT RAISE(ABORT, 'invalid status: must be NEW, RUNNING, SUCCEEDED, FAILED, COMPENSATING, COMPENSATED or PAUSED')
    WHERE coalesce(NEW.status, '') NOT IN ('NEW', 'RUNNING', 'SUCCEEDED', 'FAILED', 'COMPENSATING', 'COMPENSATED', 'PAUSED');
    INSERT INTO headwater_process_event (
        process_id, sequence, logged_at_ms, event_type, event, status, current_step, data, retries
    )
    SELECT process.process_id, process.version + 1,
        CAST(strftime('%s', 'now') AS INTEGER) * 1000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER),
        NEW.event_type, NEW.event, iif(NEW.status <> process.status, NEW.status, NULL),
        iif(NEW.current_step IS NOT process.current_step, coalesce(NEW.current_step, ''), NULL),
        iif(NEW.data IS NOT process.data, coalesce(NEW.data, 'null'), NULL),
        iif(coalesce(NEW.retries, 0) <> process.retries, coalesce(NEW.retries, 0), NULL)
    FROM headwater_process AS process
    WHERE process.process_id = NEW.process_id;
    UPDATE headwater_process
    SET status = NEW.status,
        paused_in = CASE WHEN NEW.status <> 'PAUSED' THEN NULL
            WHEN headwater_process.status = 'PAUSED' THEN headwater_process.paused_in ELSE headwater_process.status END,
        current_step = NEW.current_step, data = NEW.data, retries = coalesce(NEW.retries, 0), version = event.sequence,
        updated_at_ms = event.logged_at_ms,
        ended_at_ms = CASE WHEN NEW.status IN ('SUCCEEDED', 'FAILED', 'COMPENSATED') THEN event.logged_at_ms END
    FROM headwater_process_event AS event
    WHERE headwater_process.process_id = NEW.process_id AND event.process_id = NEW.process_id
        AND event.sequence = NEW.version + 1;
END;
