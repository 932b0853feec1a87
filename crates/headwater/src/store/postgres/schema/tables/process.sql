-- Processes (sagas), and the log of what happened to each.
--
-- Data and events are JSON in text and not jsonb: key order, large numbers and escaped characters (U+0000) stay as they were written.

-- No index has a column that an update of a running process changes, except its status: such updates are heap-only.
CREATE TABLE {schema}.process (
    process_id   uuid PRIMARY KEY,
    process_type text COLLATE "C" NOT NULL CHECK (octet_length(process_type) BETWEEN 1 AND 255),
    business_key text COLLATE "C" CHECK (octet_length(business_key) BETWEEN 1 AND 255),
    status       text COLLATE "C" NOT NULL
                 CHECK (status IN ('NEW', 'RUNNING', 'SUCCEEDED', 'FAILED', 'COMPENSATING', 'COMPENSATED', 'PAUSED')),
    -- The status that a pause interrupted.
    paused_in    text CHECK (paused_in IN ('NEW', 'RUNNING', 'COMPENSATING')),
    current_step text CHECK (octet_length(current_step) BETWEEN 1 AND 255),
    data         text CHECK (json_typeof(data::json) = 'object'),
    -- Failed attempts of the current step.
    retries      bigint NOT NULL DEFAULT 0 CHECK (retries BETWEEN 0 AND 4294967295),
    created_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL,
    ended_at     timestamptz,
    -- The number of its newest event. An update names the version that it read.
    version      bigint NOT NULL DEFAULT 1 CHECK (version >= 1),
    CHECK ((status = 'PAUSED') = (paused_in IS NOT NULL)),
    CHECK ((status IN ('SUCCEEDED', 'FAILED', 'COMPENSATED')) = (ended_at IS NOT NULL))
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);

CREATE INDEX process_status ON {schema}.process (status, created_at, process_id);
CREATE INDEX process_type ON {schema}.process (process_type, status, created_at, process_id);
CREATE INDEX process_business ON {schema}.process (process_type, business_key, created_at, process_id) WHERE business_key IS NOT NULL;
CREATE INDEX process_ended ON {schema}.process (ended_at) WHERE ended_at IS NOT NULL;

-- The log: one row per event, with what changed with it. Null is what stayed; an empty step and the JSON null as data mean that the
-- process has none any more. No foreign key: it would lock the row of the process once more for each event.
CREATE TABLE {schema}.process_event (
    process_id   uuid NOT NULL,
    sequence     bigint NOT NULL CHECK (sequence >= 1),
    logged_at    timestamptz NOT NULL,
    event_type   text NOT NULL CHECK (octet_length(event_type) BETWEEN 1 AND 255),
    event        text NOT NULL CHECK (json_typeof(event::json) = 'object'),
    status       text,
    current_step text,
    data         text,
    retries      bigint,
    PRIMARY KEY (process_id, sequence)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 10000);
