//! Consumers in Python, in psql and of the library share a group, and the Python ones are killed again and again: no message is lost, each
//! has its effect once, and none is delivered twice in one attempt.
//!
//! The suite runs a small version; `HEADWATER_KILLS=50 HEADWATER_MESSAGES=20000` is the full one.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use headwater::{Handling, Headwater, Json, NewMessage, TopicSettings};
use tokio::process::{Child, Command};
use tokio_postgres::Client;

use super::super::{Database, drivers, python};

const CONSUMER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/languages/consumer.py");
const PSQL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/languages/consumer.psql");
const PYTHONS: usize = 4;

fn number(variable: &str, default: i64) -> i64 {
    std::env::var(variable).map_or(default, |value| value.parse().expect("a number"))
}

#[derive(serde::Deserialize, serde::Serialize)]
struct Effect {
    n: i64,
}

fn start_python(drivers: &Path, url: &str, name: usize) -> Child {
    let mut command = Command::new(python(drivers));
    command.arg(CONSUMER).arg(url).arg(format!("python {name}")).stdin(Stdio::null()).kill_on_drop(true);
    command.spawn().expect("python starts")
}

/// Runs `consumer.psql` over and over.
async fn run_psql(url: String) {
    loop {
        let mut command = Command::new("psql");
        command.arg(&url).args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", PSQL]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let output = command.output().await.expect("psql starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        // A lease that expired before its turn rolls back the whole round.
        assert!(output.status.success() || errors.contains("lease lost"), "{errors}");
    }
}

async fn publish(headwater: &Headwater, messages: i64) {
    let producer = headwater.producer("effects");
    let all: Vec<i64> = (0..messages).collect();
    for batch in all.chunks(500) {
        let batch: Vec<NewMessage> =
            batch.iter().map(|n| NewMessage::new(format!("{{\"n\":{n}}}"))).collect();
        producer.send_batch(&batch).await.unwrap();
    }
}

async fn count(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_of_all_languages_share_a_group_and_survive_kills() {
    let Some(drivers) = drivers() else { return };
    let Some(database) = Database::new().await else { return };
    let (kills, messages) = (number("HEADWATER_KILLS", 6), number("HEADWATER_MESSAGES", 1_500));
    let headwater = database.open().await;
    let settings =
        TopicSettings { max_attempts: 1_000, lease: Duration::from_secs(2), ..TopicSettings::default() };
    headwater.topic("effects").settings(settings).create().await.unwrap();
    let client = database.client().await;
    let tables = "CREATE TABLE effect (n bigint, consumer text); CREATE TABLE delivered (n bigint, attempt integer, consumer text);
                  SELECT headwater.create_group('effects', 'ledger')";
    client.batch_execute(tables).await.unwrap();
    let begun = Instant::now();
    let handling =
        Handling::in_postgres(move |transaction, Json(Effect { n }): Json<Effect>, _| async move {
            transaction.execute("INSERT INTO effect VALUES ($1, 'library')", &[&n]).await?;
            Ok(())
        });
    // It is faster than the others: they take part only if it is held back.
    let consumer =
        headwater.consumer("effects", "ledger").handling("library", handling).rate_limit(200.0, 10);
    let running = consumer.run().await.unwrap();
    let mut pythons: Vec<Child> =
        (0..PYTHONS).map(|name| start_python(&drivers, &database.url, name)).collect();
    let psql = tokio::spawn(run_psql(database.url.clone()));
    let publishing = {
        let headwater = headwater.clone();
        tokio::spawn(async move { publish(&headwater, messages).await })
    };
    let deadline = begun + Duration::from_secs(60 + u64::try_from(messages / 50).unwrap());
    let mut killed = 0;
    loop {
        let done = count(&client, "SELECT count(*) FROM effect").await;
        if done >= messages && killed >= kills {
            break;
        }
        assert!(Instant::now() < deadline, "{done} of {messages} after {killed} kills");
        // Spread over the run: a kill for each part of the messages.
        if killed < kills && done * (kills + 1) >= (killed + 1) * messages {
            let victim = usize::try_from(killed).unwrap() % PYTHONS;
            pythons[victim].kill().await.unwrap();
            pythons[victim] = start_python(&drivers, &database.url, victim);
            killed += 1;
        }
        assert!(!psql.is_finished(), "psql failed");
        for python in &mut pythons {
            assert!(python.try_wait().unwrap().is_none(), "a consumer ended by itself");
        }
        tokio::task::yield_now().await;
    }
    publishing.await.unwrap();
    psql.abort();
    running.shutdown(Duration::from_secs(10)).await.unwrap();
    drop(pythons);
    let seconds = begun.elapsed().as_secs_f64();
    assert_eq!(count(&client, "SELECT count(DISTINCT n) FROM effect").await, messages, "nothing is lost");
    assert_eq!(count(&client, "SELECT count(*) FROM effect").await, messages, "each effect is there once");
    let twice = "SELECT count(*) FROM (SELECT FROM delivered GROUP BY n, attempt HAVING count(*) > 1) d";
    assert_eq!(count(&client, twice).await, 0, "twice in one attempt: without an expired lease");
    let shares =
        client.query("SELECT consumer, count(*) FROM effect GROUP BY 1 ORDER BY 1", &[]).await.unwrap();
    let shares: Vec<(String, i64)> = shares.iter().map(|row| (row.get(0), row.get(1))).collect();
    let again = count(&client, "SELECT count(*) FROM delivered WHERE attempt > 1").await;
    println!("{messages} messages, {killed} kills, {seconds:.1} s, {again} delivered again: {shares:?}");
    assert!(shares.len() >= 3, "consumers of several languages took part: {shares:?}");
    drop(headwater);
    database.drop().await;
}
