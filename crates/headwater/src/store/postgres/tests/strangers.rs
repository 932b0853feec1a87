//! Schemas that other roles made under the namespace's name: nothing in them acts with the rights of a session that has more.

use super::*;

/// A role that may log in and make schemas, and what it does with the rights of those that call its functions.
const STRANGER: &str =
    "CREATE ROLE {name}_mallory LOGIN PASSWORD 'secret'; CREATE SCHEMA {schema} AUTHORIZATION {name}_mallory";
const ACTS: &str = "ALTER ROLE {name}_mallory SUPERUSER";

async fn run(scene: &Scene, client: &Client, sql: &str) {
    client.batch_execute(&scene.sql(sql)).await.unwrap();
}

async fn run_as_stranger(scene: &Scene, client: &Client, sql: &str) {
    run(scene, client, &format!("SET ROLE {{name}}_mallory; {sql}; RESET ROLE")).await;
}

/// Every way into the schema is refused with the name of its owner, who has no more rights than before.
async fn assert_refused(scene: &Scene, client: &Client) {
    let options = OpenOptions::default();
    let opened = async {
        let store = scene.open_as(None).await?;
        store.publish(&orders(), &[NewMessage::new("x")]).await
    };
    let read_only = PostgresStore::open(&scene.url, scene.namespace.clone(), options.clone().read_only(true));
    let refusals = [
        migrate(&scene.url, &scene.namespace, &options).await.err(),
        opened.await.err(),
        read_only.await.err(),
        super::super::version(&scene.url, &scene.namespace, &options).await.err(),
    ];
    let acted = "SELECT rolsuper FROM pg_roles WHERE rolname = '{name}_mallory'";
    let acted: bool = client.query_one(&scene.sql(acted), &[]).await.unwrap().get(0);
    assert!(!acted, "a function of the stranger ran with the rights of a superuser");
    for refused in refusals {
        let refused = refused.expect("refused");
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
        assert!(refused.to_string().contains(&scene.sql("role {name}_mallory")), "{refused}");
    }
}

async fn removed(scene: &Scene, client: &Client) {
    run(scene, client, "SET client_min_messages = warning; DROP SCHEMA {schema} CASCADE").await;
    run(scene, client, "DROP OWNED BY {name}_mallory; DROP ROLE {name}_mallory").await;
}

/// The function that every new session calls.
#[tokio::test]
async fn a_stranger_begins_no_epoch_with_the_rights_of_others() {
    let Some(scene) = Scene::new() else { return };
    let client = scene.client().await;
    run(&scene, &client, STRANGER).await;
    let begin = format!(
        "CREATE FUNCTION {{schema}}.begin_epoch() RETURNS void LANGUAGE plpgsql AS $$ BEGIN {ACTS}; END $$;
         GRANT USAGE ON SCHEMA {{schema}} TO PUBLIC"
    );
    run_as_stranger(&scene, &client, &begin).await;
    assert_refused(&scene, &client).await;
    // A session with fewer rights than a superuser does not call it either.
    run(&scene, &client, "CREATE ROLE {name}_joe").await;
    let refused = scene.open_as(Some("joe")).await.expect_err("refused");
    assert!(refused.to_string().contains(&scene.sql("role {name}_mallory")), "{refused}");
    run(&scene, &client, "DROP ROLE {name}_joe").await;
    removed(&scene, &client).await;
}

/// The table that is read first, as a view.
#[tokio::test]
async fn a_view_in_place_of_the_version_is_not_read() {
    let Some(scene) = Scene::new() else { return };
    let client = scene.client().await;
    run(&scene, &client, STRANGER).await;
    let view = format!(
        "CREATE FUNCTION {{schema}}.act() RETURNS integer LANGUAGE plpgsql AS $$ BEGIN {ACTS}; RETURN 1; END $$;
         CREATE SEQUENCE {{schema}}.lease_token;
         CREATE VIEW {{schema}}.schema_version AS
             SELECT {{schema}}.act() AS tables, ''::text AS definition, ''::text AS code, ''::text AS program;
         GRANT USAGE ON SCHEMA {{schema}} TO PUBLIC; GRANT SELECT ON {{schema}}.schema_version TO PUBLIC"
    );
    run_as_stranger(&scene, &client, &view).await;
    assert_refused(&scene, &client).await;
    // Logged in with other rights: the view is not read either.
    let url = format!("{}?user={}&password=secret", scene.url, scene.sql("{name}_joe"));
    run(&scene, &client, "CREATE ROLE {name}_joe LOGIN PASSWORD 'secret'").await;
    let opened = PostgresStore::open(&url, scene.namespace.clone(), OpenOptions::default()).await;
    let refused = opened.expect_err("refused").to_string();
    assert!(refused.contains("schema_version is not a plain table"), "{refused}");
    run(&scene, &client, "DROP ROLE {name}_joe").await;
    removed(&scene, &client).await;
}

/// A whole namespace that is up to date, but for one function.
#[tokio::test]
async fn a_whole_namespace_of_a_stranger_is_not_used_by_a_superuser() {
    let Some(scene) = Scene::new() else { return };
    let client = scene.client().await;
    run(&scene, &client, STRANGER).await;
    let url = format!("{}?user={}&password=secret", scene.url, scene.sql("{name}_mallory"));
    let store = PostgresStore::open(&url, scene.namespace.clone(), OpenOptions::default()).await.unwrap();
    subscribed(&store).await;
    store.close().await.unwrap();
    let replace = format!(
        "DO $$ BEGIN EXECUTE (SELECT string_agg('ALTER FUNCTION ' || p.oid::regprocedure || ' SECURITY INVOKER', ';') FROM pg_proc p
             WHERE p.pronamespace = '{{schema}}'::regnamespace AND p.proname = 'publish_batch'); END $$;
         CREATE FUNCTION {{schema}}.act() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {ACTS}; RETURN NULL; END $$;
         CREATE TRIGGER acts AFTER INSERT ON {{schema}}.message FOR EACH ROW EXECUTE FUNCTION {{schema}}.act()"
    );
    run_as_stranger(&scene, &client, &replace).await;
    assert_refused(&scene, &client).await;
    // Nor by a session that a superuser has given the owner's role: a function could set it back.
    let options = OpenOptions::default();
    let url = format!("{}?options=-c%20role%3D{}", scene.url, scene.sql("{name}_mallory"));
    let refused =
        PostgresStore::open(&url, scene.namespace.clone(), options.clone()).await.expect_err("refused");
    assert!(refused.to_string().contains("log in as"), "{refused}");
    run(&scene, &client, "SET client_min_messages = warning; DROP SCHEMA {schema} CASCADE").await;
    let made =
        migrate(&url, &scene.namespace, &options).await.expect_err("the next session would be refused");
    assert_eq!(made.kind(), ErrorKind::PermissionDenied, "{made}");
    assert!(made.to_string().contains("log in as"), "{made}");
    run(&scene, &client, "DROP OWNED BY {name}_mallory; DROP ROLE {name}_mallory").await;
}

/// A session whose `search_path` names a schema of the stranger, whose operator fits a comparison of the check exactly.
#[tokio::test]
async fn the_check_of_the_owner_runs_no_operator_of_a_stranger() {
    let Some(scene) = Scene::new() else { return };
    let client = scene.client().await;
    run(&scene, &client, &STRANGER.replace("{schema}", "{name}_open")).await;
    let operator = format!(
        "CREATE FUNCTION {{name}}_open.fits(a oid, b regclass) RETURNS boolean LANGUAGE plpgsql AS $$
         BEGIN {ACTS}; RETURN a OPERATOR(pg_catalog.=) b::oid; END $$;
         CREATE OPERATOR {{name}}_open.= (LEFTARG = oid, RIGHTARG = regclass, FUNCTION = {{name}}_open.fits);
         GRANT USAGE ON SCHEMA {{name}}_open TO PUBLIC"
    );
    run_as_stranger(&scene, &client, &operator).await;
    let url = format!("{}?options=-c%20search_path%3D{}", scene.url, scene.sql("{name}_open"));
    let options = OpenOptions::default();
    let store = PostgresStore::open(&url, scene.namespace.clone(), options.clone()).await.unwrap();
    subscribed(&store).await;
    store.close().await.unwrap();
    let version = super::super::version(&url, &scene.namespace, &options).await.unwrap().expect("a schema");
    assert!(version.is_current, "{version:?}");
    let acted = "SELECT rolsuper FROM pg_roles WHERE rolname = '{name}_mallory'";
    let acted: bool = client.query_one(&scene.sql(acted), &[]).await.unwrap().get(0);
    assert!(!acted, "an operator of the stranger ran with the rights of a superuser");
    run(&scene, &client, "SET client_min_messages = warning; DROP SCHEMA {name}_open CASCADE").await;
    run(&scene, &client, "DROP OWNED BY {name}_mallory; DROP ROLE {name}_mallory").await;
    scene.drop().await;
}
