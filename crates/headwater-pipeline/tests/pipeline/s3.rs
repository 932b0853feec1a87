//! Files in an object store that speaks the protocol of S3: a small one of the test's own, and in `moto` a whole pipeline on a real one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use headwater_pipeline::contracts::TickData;
use headwater_pipeline::resource::{BatchStorageRead, BatchStorageWrite};
use headwater_pipeline::storage::{FileStorage, StorageSettings};

#[path = "s3/moto.rs"]
mod moto;

/// Objects by path, with the bucket.
type Objects = Arc<Mutex<BTreeMap<String, Bytes>>>;

const TIME: &str = "Tue, 14 Oct 2025 14:30:25 GMT";

/// The part of the protocol that the storage uses.
async fn serve(State(objects): State<Objects>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.expect("a body");
    let path = parts.uri.path().trim_start_matches('/').to_owned();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let mut objects = objects.lock().expect("no panic while held");
    if !has_signature(&parts.headers) {
        return StatusCode::FORBIDDEN.into_response();
    }
    match parts.method {
        Method::PUT if parts.headers.contains_key("if-none-match") && objects.contains_key(&path) => {
            StatusCode::PRECONDITION_FAILED.into_response()
        }
        Method::PUT => {
            objects.insert(path, body);
            [("etag", "\"1\"")].into_response()
        }
        Method::GET if query.contains("list-type=2") => list(&objects, &path, &query).into_response(),
        Method::GET => match objects.get(&path) {
            Some(bytes) => ([("etag", "\"1\""), ("last-modified", TIME)], bytes.clone()).into_response(),
            None => (StatusCode::NOT_FOUND, "<Error><Code>NoSuchKey</Code></Error>").into_response(),
        },
        Method::POST => {
            let text = String::from_utf8_lossy(&body);
            let keys = text.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next());
            let deleted = keys.map(|key| {
                objects.remove(&format!("{}/{key}", path.trim_end_matches('/')));
                format!("<Deleted><Key>{key}</Key></Deleted>")
            });
            let deleted: String = deleted.collect();
            format!("<DeleteResult>{deleted}</DeleteResult>").into_response()
        }
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

fn has_signature(headers: &HeaderMap) -> bool {
    headers.get("authorization").is_some_and(|value| value.as_bytes().starts_with(b"AWS4-HMAC-SHA256"))
}

fn list(objects: &BTreeMap<String, Bytes>, bucket: &str, query: &str) -> String {
    let prefix = query.split('&').find_map(|pair| pair.strip_prefix("prefix=")).unwrap_or_default();
    let prefix = format!("{}/{}", bucket.trim_end_matches('/'), prefix.replace("%2F", "/"));
    let contents = objects.iter().filter(|(path, _)| path.starts_with(&prefix)).map(|(path, bytes)| {
        let (_, key) = path.split_once('/').expect("a bucket");
        let (size, time) = (bytes.len(), "2025-10-14T14:30:25.000Z");
        format!("<Contents><Key>{key}</Key><LastModified>{time}</LastModified><ETag>1</ETag><Size>{size}</Size></Contents>")
    });
    let contents: String = contents.collect();
    format!("<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>")
}

#[tokio::test]
async fn batches_are_written_once_read_listed_and_dropped() {
    let objects = Objects::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().fallback(serve).with_state(Arc::clone(&objects));
    let server = tokio::spawn(async move { axum::serve(listener, router).await });

    let options = [
        ("endpoint", format!("http://{address}")),
        ("allow_http", "true".into()),
        ("region", "eu-central-1".into()),
        ("access_key_id", "id".into()),
        ("secret_access_key", "secret".into()),
    ];
    let options = options.map(|(name, value)| (name.to_owned(), value)).into();
    let settings = StorageSettings { options, ..StorageSettings::default() };
    let storage = FileStorage::open("s3://bucket/folder", settings).await.unwrap();

    let tick = |tick_number| TickData { run_id: "run_1".into(), tick_number, ..TickData::default() };
    let first = storage.write_batch(vec![tick(1), tick(9)]).await.unwrap();
    let again = storage.write_batch(vec![tick(1), tick(9)]).await.unwrap();
    assert_eq!(again.storage_key, first.storage_key);
    let other = storage.write_batch(vec![tick(1), tick(5), tick(9)]).await.unwrap();
    assert_ne!(other.storage_key, first.storage_key, "the first is not replaced");
    assert_eq!(storage.read_batch(&first).await.unwrap().ticks, [tick(1), tick(9)]);
    assert_eq!(storage.read_batch(&other).await.unwrap().ticks.len(), 3);
    let names: Vec<String> = objects.lock().unwrap().keys().cloned().collect();
    assert_eq!(names[0], format!("bucket/folder/{}", first.storage_key));

    assert_eq!(storage.list_batches("run_1").await.unwrap().len(), 2);
    assert_eq!(storage.delete_run("run_1").await.unwrap().batches.files, 2);
    assert!(objects.lock().unwrap().is_empty());
    assert!(storage.read_batch(&first).await.unwrap_err().is_transient(), "nothing of the run is there");

    server.abort();
}
