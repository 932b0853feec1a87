-- The outbox: entries for external brokers, each with a status. And the inbox: which handler has processed which message; how far bridges
-- from other brokers have read; and which relays are registered.

-- The payload is the last column: the others are read without its pages.
CREATE TABLE headwater_outbox_entry (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    category TEXT NOT NULL CHECK (category IN ('command', 'event', 'reply')),
    topic TEXT NOT NULL CHECK (length(CAST(topic AS BLOB)) BETWEEN 1 AND 255),
    key TEXT CHECK (length(CAST(key AS BLOB)) BETWEEN 1 AND 255),
    type TEXT NOT NULL CHECK (length(CAST(type AS BLOB)) BETWEEN 1 AND 255),
    headers TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(headers)),
    status TEXT NOT NULL DEFAULT 'NEW' CHECK (status IN ('NEW', 'CLAIMED', 'PUBLISHED', 'FAILED', 'PARKED')),
    -- Failed attempts, and claims that timed out.
    attempts INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    -- Not swept before this time. Of a CLAIMED entry: it was given back by a reschedule.
    next_at_ms INTEGER,
    -- The last claimer. It stays when the entry is FAILED, PUBLISHED or PARKED.
    claimed_by TEXT,
    claimed_at_ms INTEGER,
    created_at_ms INTEGER NOT NULL,
    published_at_ms INTEGER,
    -- When it became PARKED: the time of its dead letter, which a trigger stores.
    parked_at_ms INTEGER,
    last_error TEXT,
    payload BLOB NOT NULL CHECK (length(payload) <= 67108864),
    CHECK (CASE WHEN status = 'NEW' THEN claimed_by IS NULL AND claimed_at_ms IS NULL
        ELSE claimed_by IS NOT NULL AND claimed_at_ms IS NOT NULL END),
    CHECK ((status = 'PUBLISHED') = (published_at_ms IS NOT NULL)),
    CHECK ((status = 'PARKED') = (parked_at_ms IS NOT NULL)),
    CHECK (next_at_ms IS NULL OR status IN ('NEW', 'CLAIMED', 'FAILED'))
) STRICT;
-- An entry that a sweep may take is in exactly one of the first three.
CREATE INDEX headwater_outbox_new ON headwater_outbox_entry (created_at_ms, id) WHERE status = 'NEW' AND next_at_ms IS NULL;
CREATE INDEX headwater_outbox_next ON headwater_outbox_entry (next_at_ms, created_at_ms) WHERE next_at_ms IS NOT NULL;
CREATE INDEX headwater_outbox_claimed ON headwater_outbox_entry (claimed_at_ms, created_at_ms)
WHERE status = 'CLAIMED' AND next_at_ms IS NULL;
-- The unfinished entries of a key, for sweeps in the order of keys.
CREATE INDEX headwater_outbox_of_key ON headwater_outbox_entry (topic, key, id)
WHERE key IS NOT NULL AND status IN ('NEW', 'CLAIMED', 'FAILED');
CREATE INDEX headwater_outbox_published ON headwater_outbox_entry (published_at_ms) WHERE status = 'PUBLISHED';
CREATE INDEX headwater_outbox_parked ON headwater_outbox_entry (id) WHERE status = 'PARKED';

-- Inbox entries: which handler has processed which message, written in the same transaction as the handler's own effects and the
-- ack. message_id is chosen by the publisher, so a second publish of the same id is recognized as well. The id of a message of a
-- topic is the text of its UUID. A NUL ends text in many tools, so none is stored.
CREATE TABLE headwater_inbox (
    handler TEXT NOT NULL CHECK (length(CAST(handler AS BLOB)) BETWEEN 1 AND 255 AND instr(CAST(handler AS BLOB), x'00') = 0),
    message_id TEXT NOT NULL CHECK (length(CAST(message_id AS BLOB)) BETWEEN 1 AND 255 AND instr(CAST(message_id AS BLOB), x'00') = 0),
    processed_at_ms INTEGER NOT NULL,
    PRIMARY KEY (handler, message_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX headwater_inbox_processed ON headwater_inbox (processed_at_ms);

-- Positions of bridges: the next position that a bridge reads of a source, such as a partition of Kafka. Moved in the transaction that
-- publishes what was read before it.
CREATE TABLE headwater_bridge_position (
    bridge TEXT NOT NULL CHECK (length(CAST(bridge AS BLOB)) BETWEEN 1 AND 255 AND instr(CAST(bridge AS BLOB), x'00') = 0),
    source TEXT NOT NULL CHECK (length(CAST(source AS BLOB)) BETWEEN 1 AND 512 AND instr(CAST(source AS BLOB), x'00') = 0),
    position INTEGER NOT NULL CHECK (position >= 0),
    updated_at_ms INTEGER NOT NULL,
    PRIMARY KEY (bridge, source)
) STRICT, WITHOUT ROWID;

-- What the last insert by plain SQL did: the view headwater_inserted shows it. One row, which is only updated.
CREATE TABLE headwater_last_inserted (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    id INTEGER,
    inserted INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO headwater_last_inserted (one) VALUES (1);

-- Registered relays: what is relayed where. A target has no password: it is in the environment of the process that runs the relay.
CREATE TABLE headwater_relay (
    name TEXT PRIMARY KEY CHECK (length(CAST(name AS BLOB)) BETWEEN 1 AND 255),
    source TEXT NOT NULL CHECK (length(CAST(source AS BLOB)) BETWEEN 1 AND 255),
    target TEXT NOT NULL CHECK (length(CAST(target AS BLOB)) BETWEEN 1 AND 2048),
    settings TEXT NOT NULL CHECK (json_valid(settings) AND length(CAST(settings AS BLOB)) <= 16384),
    created_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
