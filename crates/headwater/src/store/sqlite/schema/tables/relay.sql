-- Registered relays: what is relayed where. A target has no password: it is in the environment of the process that runs the relay.
CREATE TABLE headwater_relay (
    name TEXT PRIMARY KEY CHECK (length(CAST(name AS BLOB)) BETWEEN 1 AND 255),
    source TEXT NOT NULL CHECK (length(CAST(source AS BLOB)) BETWEEN 1 AND 255),
    target TEXT NOT NULL CHECK (length(CAST(target AS BLOB)) BETWEEN 1 AND 2048),
    settings TEXT NOT NULL CHECK (json_valid(settings) AND length(CAST(settings AS BLOB)) <= 16384),
    created_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
