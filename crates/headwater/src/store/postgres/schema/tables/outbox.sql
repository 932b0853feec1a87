-- The outbox: entries for external brokers, each with a status. And the inbox: which handler has processed which message; how far bridges
-- from other brokers have read; and which relays are registered.

-- Each update changes an indexed column, so no update is heap-only: dead rows are vacuumed early. A payload of more than about 2 kB is
-- stored apart and not copied by updates.
CREATE TABLE {schema}.outbox_entry (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    category     text NOT NULL CONSTRAINT outbox_category CHECK (category IN ('command', 'event', 'reply')),
    topic        text COLLATE "C" NOT NULL CONSTRAINT outbox_topic CHECK (octet_length(topic) BETWEEN 1 AND 255),
    key          text COLLATE "C" CONSTRAINT outbox_key CHECK (octet_length(key) BETWEEN 1 AND 255),
    type         text NOT NULL CONSTRAINT outbox_type CHECK (octet_length(type) BETWEEN 1 AND 255),
    payload      bytea NOT NULL CONSTRAINT outbox_payload CHECK (octet_length(payload) <= 67108864),
    headers      jsonb NOT NULL DEFAULT '{}' CONSTRAINT outbox_headers CHECK (jsonb_typeof(headers) = 'object'),
    status       text NOT NULL DEFAULT 'NEW'
                 CONSTRAINT outbox_status CHECK (status IN ('NEW', 'CLAIMED', 'PUBLISHED', 'FAILED', 'PARKED')),
    -- Failed attempts, and claims that timed out.
    attempts     integer NOT NULL DEFAULT 0 CONSTRAINT outbox_attempts CHECK (attempts >= 0),
    -- Not swept before this time. Of a CLAIMED entry: it was given back by "reschedule".
    next_at      timestamptz,
    -- The last claimer. It stays when the entry is FAILED, PUBLISHED or PARKED.
    claimed_by   text,
    claimed_at   timestamptz,
    created_at   timestamptz NOT NULL,
    published_at timestamptz,
    last_error   text,
    CONSTRAINT outbox_claimed_is_whole
        CHECK (CASE WHEN status = 'NEW' THEN claimed_by IS NULL AND claimed_at IS NULL
                    ELSE claimed_by IS NOT NULL AND claimed_at IS NOT NULL END),
    CONSTRAINT outbox_published_is_whole CHECK ((status = 'PUBLISHED') = (published_at IS NOT NULL)),
    CONSTRAINT outbox_next_is_open CHECK (next_at IS NULL OR status IN ('NEW', 'CLAIMED', 'FAILED'))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_scale_factor = 0.1);

-- An entry that a sweep may take is in exactly one of the first three: see functions/outbox.sql.
CREATE INDEX outbox_new ON {schema}.outbox_entry (created_at, id) WHERE status = 'NEW' AND next_at IS NULL;
CREATE INDEX outbox_next ON {schema}.outbox_entry (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX outbox_claimed ON {schema}.outbox_entry (claimed_at) WHERE status = 'CLAIMED' AND next_at IS NULL;
-- The unfinished entries of a key, for sweeps in the order of keys.
CREATE INDEX outbox_of_key ON {schema}.outbox_entry (topic, key, id)
    WHERE key IS NOT NULL AND status IN ('NEW', 'CLAIMED', 'FAILED');
CREATE INDEX outbox_published ON {schema}.outbox_entry (published_at) WHERE status = 'PUBLISHED';
CREATE INDEX outbox_parked ON {schema}.outbox_entry (id) WHERE status = 'PARKED';

-- Inbox entries: which handler has processed which message, written in the same transaction as the handler's own effects and the
-- ack. "message_id" is chosen by the publisher, so a second publish of the same id is recognized as well. The id of a message of a
-- topic is the text of its UUID.
CREATE TABLE {schema}.inbox (
    handler      text COLLATE "C" NOT NULL CONSTRAINT inbox_handler CHECK (octet_length(handler) BETWEEN 1 AND 255),
    message_id   text COLLATE "C" NOT NULL CONSTRAINT inbox_message_id CHECK (octet_length(message_id) BETWEEN 1 AND 255),
    processed_at timestamptz NOT NULL,
    PRIMARY KEY (handler, message_id)
);

CREATE INDEX inbox_processed ON {schema}.inbox (processed_at);

-- Positions of bridges: the next position that a bridge reads of a source, such as a partition of Kafka. Moved in the transaction that
-- publishes what was read before it. Few rows, each updated per batch: the fill factor keeps the updates heap-only.
CREATE TABLE {schema}.bridge_position (
    bridge     text COLLATE "C" NOT NULL CONSTRAINT bridge_name CHECK (octet_length(bridge) BETWEEN 1 AND 255),
    source     text COLLATE "C" NOT NULL CONSTRAINT bridge_source CHECK (octet_length(source) BETWEEN 1 AND 512),
    position   bigint NOT NULL CONSTRAINT bridge_position_rises CHECK (position >= 0),
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (bridge, source)
) WITH (fillfactor = 50);

-- Registered relays: what is relayed where. A target has no password: it is in the environment of the process that runs the relay.
CREATE TABLE {schema}.relay (
    name       text COLLATE "C" PRIMARY KEY CONSTRAINT relay_name CHECK (octet_length(name) BETWEEN 1 AND 255),
    source     text NOT NULL CONSTRAINT relay_source CHECK (octet_length(source) BETWEEN 1 AND 255),
    target     text NOT NULL CONSTRAINT relay_target CHECK (octet_length(target) BETWEEN 1 AND 2048),
    -- As text: it reads back as it was written.
    settings   text NOT NULL CONSTRAINT relay_settings CHECK (octet_length(settings) <= 16384),
    created_at timestamptz NOT NULL
);
