//! The customers of the example shop: they use its web service, and check what comes of it. Its tables are here too.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headwater::Headwater;
use headwater::transaction::Transaction;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Sent;

/// What the customers of one day do, and what must come of it.
pub(crate) async fn buy(address: SocketAddr, headwater: &Headwater, sent: &Sent) -> Result<()> {
    let mut reminders = Vec::new();
    for (customer, cents) in [("ann", 500), ("bob", -1), ("ann", 42)] {
        let order = serde_json::json!({ "customer": customer, "cents": cents });
        reminders.push(post(address, "/orders", &order.to_string()).await?);
    }
    let reminder = reminders[0].trim_matches('"');
    ensure!(post(address, &format!("/reminders/{reminder}/paid"), "").await? == "true");
    ensure!(headwater.scheduled("reminders").list(10).await?.len() == 2, "two orders are not paid");
    ensure!(get(address, "/prices/kettle").await? == "600");

    // Every group handled everything, and the schedule fired.
    while !is_done(headwater, sent).await? {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let dead = headwater.dead_letters().of("orders", "email").list(10).await?;
    ensure!(dead.len() == 1 && dead[0].error.contains("a negative amount"), "{dead:?}");
    let of_ann: Vec<i64> = sent
        .lock()
        .unwrap()
        .iter()
        .filter(|order| order.customer == "ann")
        .map(|order| order.cents)
        .collect();
    ensure!(of_ann == [500, 42], "parcels of one customer leave in order: {of_ann:?}");
    let booked = headwater.transaction(balance).await?;
    ensure!(booked == 541, "each order was booked once: {booked}");
    let metrics = get(address, "/metrics").await?;
    ensure!(metrics.contains("headwater_acked_total{topic=\"orders\",group=\"email\"} 2"), "{metrics}");
    println!("3 orders, 1 dead letter, 1 reminder cancelled, {booked} cents booked");
    Ok(())
}

async fn is_done(headwater: &Headwater, sent: &Sent) -> Result<bool> {
    let groups = headwater.groups("orders").list().await?;
    let reported = !headwater.published("reports").await?.is_empty();
    Ok(groups.iter().all(|group| group.status.lag == 0) && sent.lock().unwrap().len() == 3 && reported)
}

pub(crate) async fn create_tables(tx: Transaction) -> headwater::Result<()> {
    tx.execute("CREATE TABLE shop_order (cents bigint)", ()).await?;
    tx.execute("CREATE TABLE shop_ledger (cents bigint)", ()).await?;
    Ok(())
}

pub(crate) async fn drop_tables(tx: Transaction) -> headwater::Result<()> {
    tx.execute("DROP TABLE shop_order", ()).await?;
    tx.execute("DROP TABLE shop_ledger", ()).await?;
    Ok(())
}

async fn balance(tx: Transaction) -> headwater::Result<i64> {
    tx.query("SELECT CAST(sum(cents) AS bigint) AS cents FROM shop_ledger", ()).await?[0].get("cents")
}

async fn get(address: SocketAddr, path: &str) -> Result<String> {
    request(address, &format!("GET {path} HTTP/1.0\r\n\r\n")).await
}

async fn post(address: SocketAddr, path: &str, json: &str) -> Result<String> {
    let length = json.len();
    let head =
        format!("POST {path} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n");
    request(address, &(head + json)).await
}

/// The body of the answer; an error unless its status is 200.
async fn request(address: SocketAddr, request: &str) -> Result<String> {
    let mut connection = TcpStream::connect(address).await?;
    connection.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer has a head")?;
    ensure!(head.split(' ').nth(1) == Some("200"), "{request} was answered: {answer}");
    Ok(body.to_owned())
}
