-- Dead letters of three sources: messages that a subscription gave up on, entries of the outbox that ran out of attempts, and commands
-- that were parked by hand.

CREATE TABLE {schema}.dead_letter (
    dead_letter_id  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    -- A subscription's: a copy of the message, which stays when the message is removed from the log.
    subscription_id integer,
    topic_id        integer,
    message_offset  bigint,
    message_id      uuid,
    -- Any other: "outbox" or "command". The source of a subscription's is its topic and group.
    source          text CONSTRAINT dead_letter_source CHECK (source IN ('outbox', 'command')),
    -- The entry of the outbox; it is PARKED as long as its dead letter exists.
    outbox_id       bigint,
    command_id      text CONSTRAINT dead_letter_command_id CHECK (octet_length(command_id) BETWEEN 1 AND 255),
    -- Where a parked command is published by a redrive; the topic of an entry of the outbox.
    topic           text CONSTRAINT dead_letter_topic CHECK (octet_length(topic) BETWEEN 1 AND 255),
    -- The business key, and the name of a command.
    key             text,
    message_type    text,
    payload         bytea NOT NULL,
    content_type    text,
    headers         jsonb,
    correlation_id  text,
    created_at      timestamptz NOT NULL,
    -- Null for a subscription's, which has always failed.
    failed_status   text CONSTRAINT dead_letter_failed_status CHECK (octet_length(failed_status) BETWEEN 1 AND 50),
    error_class     text CONSTRAINT dead_letter_error_class CHECK (octet_length(error_class) BETWEEN 1 AND 255),
    error           text,
    attempts        integer NOT NULL,
    -- The owner of the lease, the claimer of the entry, or who parked the command; null if an operator buried the message.
    parked_by       text CONSTRAINT dead_letter_parked_by CHECK (octet_length(parked_by) BETWEEN 1 AND 255),
    buried_at       timestamptz NOT NULL,
    CONSTRAINT dead_letter_is_whole CHECK (
        CASE WHEN subscription_id IS NOT NULL
             THEN source IS NULL AND topic_id IS NOT NULL AND message_offset IS NOT NULL AND message_id IS NOT NULL AND error IS NOT NULL
             ELSE source IS NOT NULL AND command_id IS NOT NULL AND message_type IS NOT NULL
                  AND (source = 'outbox') = (outbox_id IS NOT NULL) END)
);

CREATE INDEX dead_letter_subscription ON {schema}.dead_letter (subscription_id, buried_at, message_offset);
-- Those of every source, oldest first.
CREATE INDEX dead_letter_buried ON {schema}.dead_letter (buried_at, dead_letter_id);
CREATE UNIQUE INDEX dead_letter_outbox ON {schema}.dead_letter (outbox_id) WHERE outbox_id IS NOT NULL;
