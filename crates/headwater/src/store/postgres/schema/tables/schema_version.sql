-- The version of the schema.

CREATE TABLE {schema}.schema_version (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    -- The version of the tables.
    tables      integer NOT NULL,
    -- The hash of what their files define: a build with other tables of the same version is refused.
    definition  text NOT NULL,
    -- The hash of the functions, views, triggers and rights, and the version of the program that installed them.
    code        text NOT NULL,
    program     text NOT NULL,
    migrated_at timestamptz NOT NULL
);
