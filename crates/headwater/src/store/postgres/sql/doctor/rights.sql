-- Purpose: find rights that others than the owner and the granted roles have in the schema.
-- Parameters: none.
-- Index: none in particular; it reads the catalogues of the schema.
SELECT 'public_rights' AS finding, format('PUBLIC may %s %s', lower(a.privilege_type), p.oid::regprocedure) AS problem
FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
WHERE p.pronamespace = '{schema}'::regnamespace AND a.grantee = 0
UNION ALL
SELECT 'public_rights', format('PUBLIC may %s %s', lower(a.privilege_type), c.oid::regclass)
FROM pg_class c, aclexplode(c.relacl) a
WHERE c.relnamespace = '{schema}'::regnamespace AND a.grantee = 0
UNION ALL
SELECT 'public_rights', format('PUBLIC has %s on schema {name}', a.privilege_type)
FROM pg_namespace n, aclexplode(n.nspacl) a
WHERE n.nspname = '{name}' AND a.grantee = 0
UNION ALL
SELECT 'foreign_rights', format('role %s may create objects in schema {name}', pg_get_userbyid(a.grantee))
FROM pg_namespace n, aclexplode(n.nspacl) a
WHERE n.nspname = '{name}' AND a.privilege_type = 'CREATE' AND a.grantee NOT IN (0, n.nspowner)
UNION ALL
SELECT 'foreign_rights', format('%s belongs to role %s', pg_describe_object(d.classid, d.objid, 0), pg_get_userbyid(o.refobjid))
FROM pg_namespace n
JOIN pg_depend d ON d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid
JOIN pg_shdepend o ON o.classid = d.classid AND o.objid = d.objid AND o.deptype = 'o' AND o.refobjid <> n.nspowner
    AND o.dbid = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
WHERE n.nspname = '{name}'
