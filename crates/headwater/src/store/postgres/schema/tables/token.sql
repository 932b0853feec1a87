-- API tokens of servers: the hash of each secret, what it allows and for which topics. A session of a dashboard is a token of its own
-- that belongs to the one it was started with.
CREATE TABLE {schema}.token (
    token_id   text COLLATE "C" PRIMARY KEY CONSTRAINT token_id CHECK (octet_length(token_id) BETWEEN 1 AND 64),
    session_of text COLLATE "C" REFERENCES {schema}.token (token_id) ON DELETE CASCADE,
    name       text COLLATE "C" NOT NULL CONSTRAINT token_name CHECK (octet_length(name) BETWEEN 1 AND 255),
    scopes     jsonb NOT NULL,
    topics     jsonb NOT NULL,
    hash       text NOT NULL CONSTRAINT token_hash CHECK (octet_length(hash) = 64),
    old_hash   text CONSTRAINT token_old_hash CHECK (octet_length(old_hash) = 64),
    old_until  timestamptz,
    created_at timestamptz NOT NULL,
    rotated_at timestamptz,
    expires_at timestamptz
);

CREATE UNIQUE INDEX token_name_key ON {schema}.token (name) WHERE session_of IS NULL;
CREATE INDEX token_session ON {schema}.token (session_of) WHERE session_of IS NOT NULL;
