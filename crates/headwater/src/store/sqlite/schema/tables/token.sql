-- API tokens of servers: the hash of each secret, what it allows and for which topics. A session of a dashboard is a token of its own
-- that belongs to the one it was started with.
CREATE TABLE headwater_token (
    token_id TEXT PRIMARY KEY CHECK (length(token_id) BETWEEN 1 AND 64),
    session_of TEXT REFERENCES headwater_token (token_id) ON DELETE CASCADE,
    name TEXT NOT NULL CHECK (length(CAST(name AS BLOB)) BETWEEN 1 AND 255),
    scopes TEXT NOT NULL CHECK (json_valid(scopes)),
    topics TEXT NOT NULL CHECK (json_valid(topics)),
    hash TEXT NOT NULL CHECK (length(hash) = 64),
    old_hash TEXT CHECK (length(old_hash) = 64),
    old_until_ms INTEGER,
    created_at_ms INTEGER NOT NULL,
    rotated_at_ms INTEGER,
    expires_at_ms INTEGER
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX headwater_token_name ON headwater_token (name) WHERE session_of IS NULL;
CREATE INDEX headwater_token_session ON headwater_token (session_of) WHERE session_of IS NOT NULL;
