//! The PostgreSQL engine: a schema for each case, in the database that `HEADWATER_TEST_POSTGRES` names.

use std::process::Command;

use async_trait::async_trait;
use headwater::store::Namespace;
use headwater::store::conformance::{ForeignDatabase, Harness};
use headwater::{NewMessage, OpenOptions, Published, Result, TopicName};
use tokio_postgres::{Client, NoTls};

headwater::conformance_cases!(crate::postgres::PostgresHarness::make);
headwater::conformance_postgres_cases!(crate::postgres::PostgresHarness::make);

/// One case's schema.
pub(crate) struct PostgresHarness {
    server: String,
    namespace: Namespace,
}

impl PostgresHarness {
    pub(crate) async fn make() -> Option<Self> {
        let Ok(server) = std::env::var("HEADWATER_TEST_POSTGRES") else {
            let required = std::env::var("HEADWATER_TEST_REQUIRE_ALL").is_ok_and(|value| value == "1");
            assert!(!required, "HEADWATER_TEST_POSTGRES names no server, and both engines are required");
            println!("skipped: HEADWATER_TEST_POSTGRES names no server");
            return None;
        };
        let unique = uuid::Uuid::now_v7().simple().to_string();
        let namespace = Namespace::new(&format!("hwt_{unique}")).expect("a valid name");
        Some(PostgresHarness { server, namespace })
    }

    fn url_of(&self, namespace: &str) -> String {
        let separator = if self.server.contains('?') { '&' } else { '?' };
        format!("{}{separator}namespace={namespace}", self.server)
    }

    async fn connect(&self) -> Client {
        let (client, connection) =
            tokio_postgres::connect(&self.server, NoTls).await.expect("the server answers");
        tokio::spawn(connection);
        client
    }

    /// Another namespace of this case.
    fn beside(&self, name: &str) -> String {
        format!("{}_{name}", self.namespace)
    }
}

#[async_trait]
impl Harness for PostgresHarness {
    fn url(&self) -> String {
        self.url_of(self.namespace.as_str())
    }

    fn url_beside(&self, name: &str) -> String {
        self.url_of(&self.beside(name))
    }

    async fn publish_in_transaction(
        &self,
        topic: &TopicName,
        messages: &[NewMessage],
        commit: bool,
    ) -> Result<Vec<Published>> {
        let mut client = self.connect().await;
        let transaction = client.transaction().await.expect("begun");
        let published =
            headwater::store::postgres::publish(&transaction, &self.namespace, topic.as_str(), messages)
                .await;
        if commit { transaction.commit().await } else { transaction.rollback().await }.expect("ended");
        published
    }

    async fn publish_by_sql(
        &self,
        topic: &TopicName,
        payload: &str,
        key: Option<&str>,
        commit: bool,
    ) -> std::result::Result<(), String> {
        let mut client = self.connect().await;
        let transaction = client.transaction().await.expect("begun");
        let sql = format!("SELECT {}.publish($1, $2::text::jsonb, key => $3)", self.namespace.quoted());
        let published = transaction.execute(&sql, &[&topic.as_str(), &payload, &key]).await;
        if commit { transaction.commit().await } else { transaction.rollback().await }.expect("ended");
        published.map(drop).map_err(|error| error.to_string())
    }

    fn rollbacks_skip_offsets(&self) -> bool {
        true
    }

    fn worker(&self) -> Option<Command> {
        Some(crate::worker_command())
    }

    async fn foreign_databases(&self) -> Vec<ForeignDatabase> {
        let client = self.connect().await;
        let (tables, alike) = (self.beside("tables"), self.beside("alike"));
        let sql = format!(
            "CREATE SCHEMA {tables};
             CREATE TABLE {tables}.customer (name text); INSERT INTO {tables}.customer VALUES ('Ada');
             CREATE SCHEMA {alike};
             CREATE TABLE {alike}.message (n int); CREATE TABLE {alike}.topic (n int);
             INSERT INTO {alike}.message VALUES (1);"
        );
        client.batch_execute(&sql).await.expect("another application's schemas");
        vec![
            ForeignDatabase { what: "another application's schema", url: self.url_of(&tables) },
            ForeignDatabase { what: "a schema with tables of the same names", url: self.url_of(&alike) },
        ]
    }

    async fn fingerprint(&self, place: &ForeignDatabase) -> Vec<u8> {
        let schema = place.url.rsplit('=').next().expect("a namespace");
        let sql = "SELECT schema_to_xml_and_xmlschema($1::text::name, true, false, '')::text
                   || (SELECT count(*) FROM pg_proc WHERE pronamespace = $1::text::regnamespace)::text
                   || (SELECT count(*) FROM pg_class WHERE relnamespace = $1::text::regnamespace)::text
                   || (SELECT coalesce(nspacl::text, '') FROM pg_namespace WHERE nspname = $1::text)";
        let row = self.connect().await.query_one(sql, &[&schema]).await.expect("the schema exists");
        row.get::<_, String>(0).into_bytes()
    }

    fn unreachable_url(&self) -> String {
        "postgres://postgres@127.0.0.1:1/postgres".into()
    }

    async fn make_read_only(&self) -> Option<String> {
        Some(format!("{}&options=-cdefault_transaction_read_only%3Don", self.url()))
    }

    async fn cramped_url(&self) -> Option<String> {
        let store = self.open(OpenOptions::default()).await.expect("the namespace is created");
        store.close().await.expect("closes");
        let schema = self.namespace.quoted();
        let sql = format!(
            "CREATE FUNCTION {schema}.full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF NEW.message_offset > 31 THEN
                     RAISE EXCEPTION USING ERRCODE = 'disk_full', MESSAGE = 'could not extend file: No space left';
                 END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER full_disk BEFORE INSERT ON {schema}.message FOR EACH ROW EXECUTE FUNCTION {schema}.full();"
        );
        self.connect().await.batch_execute(&sql).await.expect("the trigger is made");
        Some(self.url())
    }

    async fn make_room(&self) {
        let schema = self.namespace.quoted();
        let sql = format!("DROP TRIGGER full_disk ON {schema}.message; DROP FUNCTION {schema}.full();");
        self.connect().await.batch_execute(&sql).await.expect("the trigger is dropped");
    }

    async fn lock(&self) -> Option<Box<dyn Send>> {
        let client = self.connect().await;
        let schema = self.namespace.quoted();
        let sql = format!("BEGIN; LOCK TABLE {schema}.message IN ACCESS EXCLUSIVE MODE");
        client.batch_execute(&sql).await.expect("locked");
        Some(Box::new(client))
    }

    async fn cut_connections(&self) -> bool {
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                   WHERE pid <> pg_backend_pid() AND strpos(query, $1) > 0";
        let row = self.connect().await.query_one(sql, &[&self.namespace.as_str()]).await.expect("cut");
        row.get::<_, i64>(0) > 0
    }

    async fn remove_message(&self, offset: i64) {
        let sql = format!("DELETE FROM {}.message WHERE message_offset = $1", self.namespace.quoted());
        assert_eq!(self.connect().await.execute(&sql, &[&offset]).await.expect("removed"), 1);
    }

    async fn damage(&self) {
        let sql = format!("UPDATE {}.cursor SET next_offset = 1000", self.namespace.quoted());
        self.connect().await.batch_execute(&sql).await.expect("a cursor is moved");
    }

    async fn sql(&self, _: &str, postgres: &str) -> std::result::Result<u64, String> {
        let sql = postgres.replace("{schema}", &self.namespace.quoted());
        let changed = self.connect().await.execute(&sql, &[]).await;
        changed.map_err(|error| error.as_db_error().map_or(error.to_string(), |db| db.message().to_owned()))
    }

    async fn number(&self, _: &str, postgres: &str) -> i64 {
        let sql = postgres.replace("{schema}", &self.namespace.quoted());
        self.connect().await.query_one(&sql, &[]).await.expect("a number").get(0)
    }

    async fn copy(&self) {
        let (from, to) = (self.namespace.as_str(), self.beside("copy"));
        let sql = format!(
            "CREATE SCHEMA {to};
             DO $$ DECLARE t text; BEGIN
                 FOR t IN SELECT relname FROM pg_class WHERE relnamespace = '{from}'::regnamespace AND relkind = 'r' LOOP
                     EXECUTE format('CREATE TABLE {to}.%I AS TABLE {from}.%I', t, t);
                 END LOOP;
             END $$;
             CREATE TABLE {to}.sequences AS
             SELECT format('%I.%I', schemaname, sequencename) AS name, last_value, start_value FROM pg_sequences WHERE schemaname = '{from}'"
        );
        self.connect().await.batch_execute(&sql).await.expect("a copy is made");
    }

    /// The epoch's table is unlogged: a standby that is promoted finds it empty.
    async fn restore(&self) {
        let (to, from) = (self.namespace.as_str(), self.beside("copy"));
        let sql = format!(
            "BEGIN;
             SET LOCAL session_replication_role = replica;
             DO $$ DECLARE t text; c text; BEGIN
                 FOR t, c IN SELECT r.relname, string_agg(quote_ident(a.attname), ', ') FROM pg_class r
                     LEFT JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
                     WHERE r.relnamespace = '{to}'::regnamespace AND r.relkind = 'r' GROUP BY r.relname
                 LOOP
                     EXECUTE format('DELETE FROM {to}.%I', t);
                     CONTINUE WHEN c IS NULL;
                     EXECUTE format('INSERT INTO {to}.%I (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM {from}.%I', t, c, c, t);
                 END LOOP;
             END $$;
             SELECT setval(name::regclass, coalesce(last_value, start_value), last_value IS NOT NULL) FROM {from}.sequences;
             DELETE FROM {to}.epoch;
             COMMIT"
        );
        self.connect().await.batch_execute(&sql).await.expect("the copy is restored");
    }

    async fn cleanup(&self) {
        let client = self.connect().await;
        let listed = [
            ("SELECT gid FROM pg_prepared_xacts WHERE starts_with(gid, $1)", "ROLLBACK PREPARED", '\''),
            ("SELECT nspname FROM pg_namespace WHERE starts_with(nspname, $1)", "DROP SCHEMA", '"'),
            ("SELECT rolname FROM pg_roles WHERE starts_with(rolname, $1)", "DROP ROLE", '"'),
        ];
        for (list, verb, quote) in listed {
            for row in client.query(list, &[&self.namespace.as_str()]).await.expect("listed") {
                let name: String = row.get(0);
                let cascade = if verb == "DROP SCHEMA" { " CASCADE" } else { "" };
                let sql = format!("{verb} {quote}{name}{quote}{cascade}");
                client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
            }
        }
    }
}
