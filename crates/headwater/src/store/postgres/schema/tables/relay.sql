-- Registered relays: what is relayed where. A target has no password: it is in the environment of the process that runs the relay.
CREATE TABLE {schema}.relay (
    name       text COLLATE "C" PRIMARY KEY CONSTRAINT relay_name CHECK (octet_length(name) BETWEEN 1 AND 255),
    source     text NOT NULL CONSTRAINT relay_source CHECK (octet_length(source) BETWEEN 1 AND 255),
    target     text NOT NULL CONSTRAINT relay_target CHECK (octet_length(target) BETWEEN 1 AND 2048),
    -- As text: it reads back as it was written.
    settings   text NOT NULL CONSTRAINT relay_settings CHECK (octet_length(settings) <= 16384),
    created_at timestamptz NOT NULL
);
