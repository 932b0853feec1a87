-- Processes (sagas), and the log of what happened to each.
--
-- Data and events are JSON in text: key order, large numbers and escaped characters stay as they were written.

CREATE TABLE headwater_process (
    process_key INTEGER PRIMARY KEY,
    process_id BLOB NOT NULL UNIQUE CHECK (length(process_id) = 16),
    process_type TEXT NOT NULL CHECK (length(CAST(process_type AS BLOB)) BETWEEN 1 AND 255),
    business_key TEXT CHECK (length(CAST(business_key AS BLOB)) BETWEEN 1 AND 255),
    status TEXT NOT NULL
        CHECK (status IN ('NEW', 'RUNNING', 'SUCCEEDED', 'FAILED', 'COMPENSATING', 'COMPENSATED', 'PAUSED')),
    -- The status that a pause interrupted.
    paused_in TEXT CHECK (paused_in IN ('NEW', 'RUNNING', 'COMPENSATING')),
    current_step TEXT CHECK (length(CAST(current_step AS BLOB)) BETWEEN 1 AND 255),
    data TEXT CHECK (json_valid(data) AND json_type(data) = 'object'),
    -- Failed attempts of the current step.
    retries INTEGER NOT NULL DEFAULT 0 CHECK (retries BETWEEN 0 AND 4294967295),
    created_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL,
    ended_at_ms INTEGER,
    -- The number of its newest event. An update names the version that it read.
    version INTEGER NOT NULL DEFAULT 1 CHECK (version >= 1),
    CHECK ((status = 'PAUSED') = (paused_in IS NOT NULL)),
    CHECK ((status IN ('SUCCEEDED', 'FAILED', 'COMPENSATED')) = (ended_at_ms IS NOT NULL))
) STRICT;
CREATE INDEX headwater_process_status ON headwater_process (status, created_at_ms, process_id);
CREATE INDEX headwater_process_type ON headwater_process (process_type, status, created_at_ms, process_id);
CREATE INDEX headwater_process_business ON headwater_process (process_type, business_key, created_at_ms, process_id)
WHERE business_key IS NOT NULL;
CREATE INDEX headwater_process_ended ON headwater_process (ended_at_ms) WHERE ended_at_ms IS NOT NULL;

-- The log: one row per event, with what changed with it. NULL is what stayed; an empty step and the JSON null as data mean
-- that the process has none any more.
CREATE TABLE headwater_process_event (
    event_key INTEGER PRIMARY KEY,
    process_id BLOB NOT NULL,
    sequence INTEGER NOT NULL CHECK (sequence >= 1),
    logged_at_ms INTEGER NOT NULL,
    event_type TEXT NOT NULL CHECK (length(CAST(event_type AS BLOB)) BETWEEN 1 AND 255),
    event TEXT NOT NULL CHECK (json_valid(event) AND json_type(event) = 'object'),
    status TEXT,
    current_step TEXT,
    data TEXT,
    retries INTEGER,
    UNIQUE (process_id, sequence)
) STRICT;
