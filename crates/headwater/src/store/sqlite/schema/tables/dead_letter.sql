-- Dead letters of three sources: messages that a subscription gave up on, entries of the outbox that ran out of attempts, and commands
-- that were parked by hand.

CREATE TABLE headwater_dead_letter (
    dead_letter_key INTEGER PRIMARY KEY AUTOINCREMENT,
    dead_letter_id BLOB NOT NULL UNIQUE,
    -- A subscription's: a copy of the message, which stays when the message is removed from the log.
    subscription_id INTEGER,
    message_offset INTEGER,
    message_id BLOB,
    -- Any other: outbox or command. The source of a subscription's is its topic and group.
    source TEXT CHECK (source IN ('outbox', 'command')),
    -- The entry of the outbox. It is PARKED as long as its dead letter exists.
    outbox_id INTEGER,
    command_id TEXT CHECK (length(CAST(command_id AS BLOB)) BETWEEN 1 AND 255),
    -- Where a parked command is published by a redrive, or the topic of an entry of the outbox.
    topic TEXT CHECK (length(CAST(topic AS BLOB)) BETWEEN 1 AND 255),
    -- The business key, and the name of a command.
    key TEXT,
    type TEXT,
    content_type TEXT,
    headers TEXT,
    correlation_id TEXT,
    created_at_ms INTEGER NOT NULL,
    -- NULL for a subscription's, which has always failed.
    failed_status TEXT CHECK (length(CAST(failed_status AS BLOB)) BETWEEN 1 AND 50),
    error_class TEXT CHECK (length(CAST(error_class AS BLOB)) BETWEEN 1 AND 255),
    error TEXT,
    attempts INTEGER NOT NULL,
    -- The owner of the lease, the claimer of the entry, or who parked the command. NULL if an operator buried the message.
    parked_by TEXT CHECK (length(CAST(parked_by AS BLOB)) BETWEEN 1 AND 255),
    buried_at_ms INTEGER NOT NULL,
    payload BLOB NOT NULL,
    CHECK (CASE WHEN subscription_id IS NOT NULL
        THEN source IS NULL AND message_offset IS NOT NULL AND message_id IS NOT NULL AND error IS NOT NULL
        ELSE source IS NOT NULL AND command_id IS NOT NULL AND type IS NOT NULL AND (source = 'outbox') = (outbox_id IS NOT NULL) END)
) STRICT;
CREATE INDEX headwater_dead_letter_of ON headwater_dead_letter (subscription_id, dead_letter_key);
CREATE INDEX headwater_dead_letter_buried ON headwater_dead_letter (subscription_id, buried_at_ms);
CREATE UNIQUE INDEX headwater_dead_letter_outbox ON headwater_dead_letter (outbox_id) WHERE outbox_id IS NOT NULL;
