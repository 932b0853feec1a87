//! The query API, asked through its router.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use headwater_pipeline::cells::Cell;
use headwater_pipeline::contracts::{CellStateList, OrganismState, RunInfo, TickData};
use headwater_pipeline::index::IndexOptions;
use headwater_pipeline::query::{FixedRuns, QUERY_BYTES_MAX_DEFAULT, QueryState, router};
use headwater_pipeline::resource::{EnvironmentWrite, MetadataWrite, OrganismWrite};
use headwater_pipeline::world::{Topology, World};
use prost::Message;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::index::{Place, create_all};

/// Cases that hold on both databases.
macro_rules! on_both {
    ($($case:ident)+) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $case() {
                super::$case(super::Place::sqlite()).await;
            })+
        }

        mod postgres {
            $(#[tokio::test]
            async fn $case() {
                if let Some(place) = super::Place::postgres() {
                    super::$case(place).await;
                }
            })+
        }
    };
}

on_both! {
    runs_are_listed_newest_first_with_their_ticks
    metadata_and_ticks
    cells_of_a_tick_whole_region_and_filtered
    one_cell_at_a_tick_and_over_time
    difference_of_two_ticks
    organisms_history_and_lineage
}

fn cell(flat_index: u64, molecule_type: u32, molecule_value: i64, owner_id: u64) -> Cell {
    Cell { flat_index, molecule_type, molecule_value, owner_id, marker: 0 }
}

fn run_info(run_id: &str, started_at_ms: i64, state: &str) -> RunInfo {
    RunInfo { run_id: run_id.into(), started_at_ms, state: state.into(), ..RunInfo::default() }
}

/// A world of 10 x 20, a torus, with 3 ticks of cells and organisms.
struct Served {
    router: Router,
    run: String,
    place: Place,
}

impl Served {
    async fn new(place: Place) -> Self {
        Served::with(place, QUERY_BYTES_MAX_DEFAULT).await
    }

    async fn with(place: Place, query_bytes_max: u64) -> Self {
        let world = World::new(&[10, 20], Topology::Torus).unwrap();
        let index = place.index(&IndexOptions::default());
        create_all(&index, &world).await.unwrap();
        index.insert_metadata(&place.metadata(&world)).await.unwrap();
        let organism = |id, parent_id, energy| OrganismState {
            id,
            parent_id,
            birth_tick: 1,
            energy,
            position: vec![1, 2],
            direction: vec![0, 1],
            registers: vec![3],
            alive: true,
        };
        let ticks: Vec<TickData> = [
            (10, vec![cell(0, 1, 5, 1), cell(41, 2, -3, 1), cell(199, 1, 9, 2)], vec![organism(1, 0, 50)]),
            (11, vec![cell(0, 1, 6, 1), cell(42, 2, -3, 1)], vec![organism(1, 0, 49), organism(2, 1, 9)]),
            (12, vec![], vec![]),
        ]
        .into_iter()
        .map(|(n, cells, organisms)| TickData { organisms, ..place.tick(n, &cells) })
        .collect();
        index.write_ticks(&ticks).await.unwrap();
        index.write_organisms(&ticks).await.unwrap();
        let run = place.run().to_owned();
        let runs = vec![run_info(&run, 2_000, "RUNNING")];
        let catalog = Arc::new(FixedRuns::new(place.url(), &IndexOptions::default(), runs));
        Served { router: router(QueryState::new(catalog, query_bytes_max)), run, place }
    }

    async fn request(&self, path: &str, headers: &[(&str, &str)]) -> (StatusCode, HeaderMap, Vec<u8>) {
        let mut request = Request::get(path.replace("{run}", &self.run));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        (status, headers, to_bytes(response.into_body(), 1 << 26).await.unwrap().to_vec())
    }

    async fn json(&self, path: &str) -> Value {
        let (status, headers, body) = self.request(path, &[]).await;
        let text = String::from_utf8(body).unwrap();
        assert_eq!(status, 200, "{path}: {text}");
        assert_eq!(headers["content-type"], "application/json");
        serde_json::from_str(&text).unwrap()
    }

    /// The problem of a request that fails.
    async fn problem(&self, path: &str) -> (u16, Value) {
        let (status, headers, body) = self.request(path, &[]).await;
        assert_eq!(headers["content-type"], "application/problem+json", "{path}");
        let problem: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(problem["status"], status.as_u16());
        (status.as_u16(), problem)
    }
}

async fn runs_are_listed_newest_first_with_their_ticks(place: Place) {
    let served = Served::new(place).await;
    let runs = vec![
        run_info("run_older", 1_000, "ENDED"),
        run_info(&served.run, 2_000, "RUNNING"),
        run_info("run_newer", 3_000, "STARTING"),
    ];
    let catalog = Arc::new(FixedRuns::new(served.place.url(), &IndexOptions::default(), runs));
    let router = router(QueryState::new(catalog, QUERY_BYTES_MAX_DEFAULT));
    let served = Served { router, ..served };
    let listed = served.json("/runs").await;
    let names: Vec<&Value> = listed["runs"].as_array().unwrap().iter().map(|run| &run["run_id"]).collect();
    assert_eq!(names, ["run_newer", served.run.as_str(), "run_older"]);
    assert_eq!(listed["runs"][0]["indexed"], Value::Null);
    assert_eq!(listed["runs"][1]["indexed"], json!({"first_tick": 10, "last_tick": 12}));
    assert_eq!(listed["runs"][1]["organisms_indexed"], json!({"first_tick": 10, "last_tick": 12}));
    assert_eq!(listed["runs"][1]["started_at"], "1970-01-01T00:00:02Z");
    assert_eq!(served.json("/runs?limit=1").await["runs"].as_array().unwrap().len(), 1);
    assert_eq!(served.json("/runs/{run}").await["state"], "RUNNING");
    assert_eq!(served.problem("/runs/run_unknown").await.1["detail"], "no run \"run_unknown\"");
    served.place.leave().await;
}

async fn metadata_and_ticks(place: Place) {
    let served = Served::new(place).await;
    let metadata = served.json("/runs/{run}/metadata").await;
    let environment = json!({"dimensions": [{"size": 10}, {"size": 20}], "topology": "TORUS"});
    assert_eq!(metadata["environment"], environment);
    assert_eq!((&metadata["seed"], &metadata["sampling_interval"]), (&json!(7), &json!(1)));
    assert_eq!(metadata["molecule_types"], json!({ "1": "code" }));
    let ticks = served.json("/runs/{run}/ticks?from=11&limit=1").await;
    assert_eq!((&ticks["ticks"], &ticks["next_from"]), (&json!([11]), &json!(12)));
    let rest = served.json("/runs/{run}/ticks?from=12").await;
    assert_eq!((&rest["ticks"], &rest["next_from"]), (&json!([12]), &Value::Null));
    served.place.leave().await;
}

async fn cells_of_a_tick_whole_region_and_filtered(place: Place) {
    let served = Served::new(place).await;
    let flat = async |query: &str| -> Vec<u64> {
        let path = format!("/runs/{{run}}/ticks/10/cells{query}");
        let cells = served.json(&path).await;
        assert_eq!(cells["cell_count"], cells["cells"].as_array().unwrap().len());
        let of = |cell: &Value| cell["flat_index"].as_u64().unwrap();
        cells["cells"].as_array().unwrap().iter().map(of).collect()
    };
    assert_eq!(flat("").await, [0, 41, 199]);
    assert_eq!(flat("?region=9..0,19..0").await, [0, 199], "around the corner of the torus");
    assert_eq!(flat("?region=2,1").await, [41]);
    assert_eq!(flat("?region=*,19").await, [199]);
    assert_eq!(flat("?type=1").await, [0, 199]);
    assert_eq!(flat("?type=1&owner=2").await, [199]);
    assert_eq!(flat("?value_min=-3&value_max=5").await, [0, 41]);
    let all = served.json("/runs/{run}/ticks/10/cells").await;
    assert_eq!(
        all["cells"][1],
        json!({"flat_index": 41, "coordinates": [2, 1], "molecule_type": 2, "molecule_value": -3, "owner_id": 1, "marker": 0})
    );
    assert_eq!((&all["dimensions"], &all["topology"]), (&json!([10, 20]), &json!("TORUS")));
    let columns = served.json("/runs/{run}/ticks/10/cells?layout=columns").await;
    assert_eq!(columns["flat_index"], json!([0, 41, 199]));
    assert_eq!(columns["molecule_value"], json!([5, -3, 9]));
    assert_eq!(served.json("/runs/{run}/ticks/12/cells").await["cells"], json!([]), "an empty tick");
    served.place.leave().await;
}

async fn one_cell_at_a_tick_and_over_time(place: Place) {
    let served = Served::new(place).await;
    let content = json!({"molecule_type": 2, "molecule_value": -3, "owner_id": 1, "marker": 0});
    for name in ["41", "2,1"] {
        let cell = served.json(&format!("/runs/{{run}}/ticks/10/cells/{name}")).await;
        assert_eq!((&cell["flat_index"], &cell["coordinates"]), (&json!(41), &json!([2, 1])));
        assert_eq!(cell["cell"], content);
    }
    assert_eq!(served.json("/runs/{run}/ticks/11/cells/41").await["cell"], Value::Null);
    let history = served.json("/runs/{run}/cells/2,1/history").await;
    let expected =
        json!([{"tick": 10, "cell": content}, {"tick": 11, "cell": null}, {"tick": 12, "cell": null}]);
    assert_eq!((&history["history"], &history["next_from"]), (&expected, &Value::Null));
    let part = served.json("/runs/{run}/cells/0/history?from=11&limit=1").await;
    assert_eq!((&part["history"][0]["cell"]["molecule_value"], &part["next_from"]), (&json!(6), &json!(12)));
    served.place.leave().await;
}

async fn difference_of_two_ticks(place: Place) {
    let served = Served::new(place).await;
    let difference = served.json("/runs/{run}/difference?from=10&to=11").await;
    let said: Vec<(u64, bool, bool)> = difference["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| {
            (change["flat_index"].as_u64().unwrap(), change["before"].is_null(), change["after"].is_null())
        })
        .collect();
    assert_eq!(said, [(0, false, false), (41, false, true), (42, true, false), (199, false, true)]);
    let area = served.json("/runs/{run}/difference?from=10&to=11&region=2,0..5").await;
    assert_eq!(area["changes"].as_array().unwrap().len(), 2);
    assert_eq!(served.problem("/runs/{run}/difference?from=10&to=99").await.0, 404);
    assert_eq!(served.problem("/runs/{run}/difference?from=10").await.1["parameter"], "to");
    served.place.leave().await;
}

async fn organisms_history_and_lineage(place: Place) {
    let served = Served::new(place).await;
    let organisms = served.json("/runs/{run}/ticks/11/organisms").await;
    assert_eq!(
        organisms["organisms"][1],
        json!({"id": 2, "parent_id": 1, "birth_tick": 1, "alive": true, "energy": 9, "position": [1, 2], "direction": [0, 1], "registers": [3]})
    );
    let first = served.json("/runs/{run}/ticks/11/organisms?limit=1").await;
    assert_eq!((first["organisms"].as_array().unwrap().len(), &first["next_after"]), (1, &json!(1)));
    let second = served.json("/runs/{run}/ticks/11/organisms?after=1").await;
    assert_eq!(second["organisms"][0]["id"], 2);
    assert_eq!(served.json("/runs/{run}/ticks/12/organisms").await["organisms"], json!([]));
    assert_eq!(served.problem("/runs/{run}/ticks/13/organisms").await.0, 404);
    let history = served.json("/runs/{run}/organisms/1/history").await;
    assert_eq!(history["organism"], json!({"id": 1, "parent_id": 0, "birth_tick": 1}));
    let energies: Vec<&Value> =
        history["history"].as_array().unwrap().iter().map(|at| &at["energy"]).collect();
    assert_eq!(energies, [50, 49]);
    let lineage = served.json("/runs/{run}/organisms/2/lineage").await;
    assert_eq!((&lineage["ancestors"][0]["id"], &lineage["children"]), (&json!(1), &json!([])));
    assert_eq!(served.json("/runs/{run}/organisms/1/lineage").await["children"][0]["id"], 2);
    assert_eq!(served.problem("/runs/{run}/organisms/9/history").await.0, 404);
    served.place.leave().await;
}

#[tokio::test]
async fn wrong_missing_and_unavailable_differ_and_say_why() {
    let served = Served::new(Place::sqlite()).await;
    for (path, parameter) in [
        ("/runs/{run}/ticks/x/cells", "tick"),
        ("/runs/{run}/ticks/-1/cells", "tick"),
        ("/runs/{run}/ticks/10/cells?region=1..2", "region"),
        ("/runs/{run}/ticks/10/cells?region=1..2,0..20", "region"),
        ("/runs/{run}/ticks/10/cells?type=-1", "type"),
        ("/runs/{run}/ticks/10/cells?owner=x", "owner"),
        ("/runs/{run}/ticks/10/cells?value_min=3&value_max=2", "value_min"),
        ("/runs/{run}/ticks/10/cells?layout=square", "layout"),
        ("/runs/{run}/ticks/10/cells?regoin=1,2", "query"),
        ("/runs/{run}/ticks/10/cells/200", "cell"),
        ("/runs/{run}/ticks/10/cells/10,0", "cell"),
        ("/runs/{run}/cells/a/history", "cell"),
        ("/runs/{run}/ticks?limit=0", "limit"),
        ("/runs/{run}/ticks?from=2&to=1", "from"),
        ("/runs/{run}/organisms/x/history", "id"),
        ("/runs?page=2", "query"),
    ] {
        let (status, problem) = served.problem(path).await;
        assert_eq!((status, &problem["parameter"]), (400, &json!(parameter)), "{path}: {problem}");
        assert!(problem["rule"].as_str().is_some_and(|rule| !rule.is_empty()), "{problem}");
    }
    for (path, says) in [
        ("/runs/other/metadata", "no run \"other\""),
        ("/runs/{run}/ticks/13/cells", "tick 13 of run"),
        ("/runs/{run}/ticks/13/cells/1", "tick 13 of run"),
        ("/nothing", "no path \"/nothing\""),
    ] {
        let (status, problem) = served.problem(path).await;
        assert_eq!(status, 404, "{path}");
        assert!(problem["detail"].as_str().unwrap().contains(says), "{problem}");
    }
    let post = Request::post("/runs").body(Body::empty()).unwrap();
    let refused = served.router.clone().oneshot(post).await.unwrap();
    assert_eq!(
        (refused.status(), &refused.headers()["allow"]),
        (StatusCode::METHOD_NOT_ALLOWED, &"GET, HEAD".parse().unwrap())
    );
}

#[tokio::test]
async fn a_run_without_metadata_is_not_there_yet() {
    let place = Place::sqlite();
    let catalog = FixedRuns::new(place.url(), &IndexOptions::default(), vec![]);
    catalog.set(run_info(place.run(), 1, "STARTING"));
    let router = router(QueryState::new(Arc::new(catalog), QUERY_BYTES_MAX_DEFAULT));
    let served = Served { router, run: place.run().to_owned(), place };
    for path in ["/runs/{run}/metadata", "/runs/{run}/ticks/1/cells", "/runs/{run}/cells/1/history"] {
        let (status, problem) = served.problem(path).await;
        assert_eq!(status, 404, "{path}");
        assert!(problem["detail"].as_str().unwrap().ends_with("is not indexed yet"), "{problem}");
    }
    assert_eq!(served.json("/runs/{run}").await["indexed"], Value::Null);
}

#[tokio::test]
async fn a_damaged_index_hides_no_other_run() {
    let served = Served::new(Place::sqlite()).await;
    let damaged = served.place.file().with_file_name("run_damaged.index.db");
    std::fs::write(damaged, "this is no database, it only has its name".repeat(100)).unwrap();
    let runs = vec![run_info(&served.run, 1, "ENDED"), run_info("run_damaged", 2, "ENDED")];
    let catalog = FixedRuns::new(served.place.url(), &IndexOptions::default(), runs);
    let router = router(QueryState::new(Arc::new(catalog), QUERY_BYTES_MAX_DEFAULT));
    let served = Served { router, ..served };
    let listed = served.json("/runs").await;
    assert!(listed["runs"][0]["problem"].as_str().unwrap().starts_with("READ_FAILED: index "), "{listed}");
    assert_eq!(listed["runs"][1]["indexed"]["last_tick"], 12);
}

#[tokio::test]
async fn an_unreachable_index_is_unavailable() {
    let runs = vec![run_info("run_x", 1, "RUNNING")];
    let catalog = FixedRuns::new("postgres://tester@127.0.0.1:1/none", &IndexOptions::default(), runs);
    let router = router(QueryState::new(Arc::new(catalog), QUERY_BYTES_MAX_DEFAULT));
    let served = Served { router, run: "run_x".into(), place: Place::sqlite() };
    let (status, headers, _) = served.request("/runs/{run}/ticks/1/cells", &[]).await;
    assert_eq!((status, &headers["retry-after"]), (StatusCode::SERVICE_UNAVAILABLE, &"1".parse().unwrap()));
    assert!(served.problem("/runs").await.1["detail"].as_str().unwrap().starts_with("READ_FAILED: "));
}

#[tokio::test]
async fn decoding_beyond_the_limit_is_unavailable() {
    let served = Served::with(Place::sqlite(), 8).await;
    for path in ["/runs/{run}/ticks/10/cells", "/runs/{run}/ticks/10/cells/0", "/runs/{run}/cells/0/history"]
    {
        let (status, headers, body) = served.request(path, &[]).await;
        let text = String::from_utf8(body).unwrap();
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
        assert_eq!(headers["retry-after"], "1");
        assert!(text.contains("query_bytes_max is 8"), "{text}");
    }
    // What decodes nothing is not limited.
    served.json("/runs/{run}/ticks/12/cells").await;
    served.json("/runs/{run}/ticks").await;
}

#[tokio::test]
async fn protobuf_by_accept() {
    let served = Served::new(Place::sqlite()).await;
    let path = "/runs/{run}/ticks/10/cells?type=1";
    let (status, headers, body) = served.request(path, &[("accept", "application/x-protobuf")]).await;
    assert_eq!(status, 200);
    assert!(headers["content-type"].to_str().unwrap().starts_with("application/x-protobuf"));
    let list = CellStateList::decode(body.as_slice()).unwrap();
    let cells: Vec<(u64, i64)> =
        list.cells.iter().map(|cell| (cell.flat_index, cell.molecule_value)).collect();
    assert_eq!(cells, [(0, 5), (199, 9)]);
    assert_eq!(served.request(path, &[("accept", "text/html")]).await.0, StatusCode::NOT_ACCEPTABLE);
}

#[tokio::test]
async fn answers_are_compressed_by_accept_encoding() {
    let served = Served::new(Place::sqlite()).await;
    let path = "/runs/{run}/ticks/10/cells";
    let (_, headers, plain) = served.request(path, &[]).await;
    assert_eq!(headers.get("content-encoding"), None);
    let (_, headers, zstd) = served.request(path, &[("accept-encoding", "zstd")]).await;
    assert_eq!(headers["content-encoding"], "zstd");
    let vary: Vec<&str> = headers.get_all("vary").iter().map(|value| value.to_str().unwrap()).collect();
    assert!(vary.contains(&"accept-encoding") && vary.contains(&"accept"), "{vary:?}");
    assert_eq!(zstd::decode_all(zstd.as_slice()).unwrap(), plain);
    let (_, headers, gzip) = served.request(path, &[("accept-encoding", "gzip")]).await;
    assert_eq!((&headers["content-encoding"], &gzip[..2]), (&"gzip".parse().unwrap(), &[0x1f, 0x8b][..]));
    assert!(zstd.len() < plain.len() && gzip.len() < plain.len());
}

#[tokio::test]
async fn an_indexed_tick_is_cached_for_ever() {
    let served = Served::new(Place::sqlite()).await;
    for path in [
        "/runs/{run}/ticks/10/cells",
        "/runs/{run}/ticks/10/cells/0",
        "/runs/{run}/ticks/10/organisms",
        "/runs/{run}/difference?from=10&to=11",
    ] {
        let (_, headers, _) = served.request(path, &[]).await;
        assert!(headers["cache-control"].to_str().unwrap().contains("immutable"), "{path}");
        let tag = headers["etag"].to_str().unwrap();
        let (status, headers, body) = served.request(path, &[("if-none-match", tag)]).await;
        assert_eq!((status, body.len()), (StatusCode::NOT_MODIFIED, 0), "{path}");
        assert_eq!(headers["etag"], tag);
        assert_eq!(served.request(path, &[("if-none-match", "W/\"other\"")]).await.0, 200);
    }
    for path in ["/runs", "/runs/{run}", "/runs/{run}/ticks", "/runs/{run}/cells/0/history"] {
        let (_, headers, _) = served.request(path, &[]).await;
        assert_eq!(headers["cache-control"], "no-cache", "{path}");
    }
    let (_, headers, _) = served.request("/runs/{run}/ticks/13/cells", &[]).await;
    assert_eq!(headers["cache-control"], "no-store", "it may be indexed a moment later");
}

#[tokio::test]
async fn the_page_is_served_with_a_policy() {
    let served = Served::new(Place::sqlite()).await;
    for path in ["/", "/world"] {
        let (status, headers, body) = served.request(path, &[]).await;
        let text = String::from_utf8(body).unwrap();
        assert_eq!(status, 200);
        assert_eq!(headers["content-type"], "text/html; charset=utf-8");
        let policy = headers["content-security-policy"].to_str().unwrap();
        let nonce = policy.split("'nonce-").nth(1).unwrap().split('\'').next().unwrap();
        assert!(policy.starts_with("default-src 'none'") && nonce.len() == 32, "{policy}");
        assert!(text.contains(&format!("<script nonce=\"{nonce}\">")));
        let again = served.request(path, &[]).await.1;
        assert_ne!(headers["content-security-policy"], again["content-security-policy"]);
    }
}

#[tokio::test]
async fn the_router_can_be_nested() {
    let served = Served::new(Place::sqlite()).await;
    let nested = Router::new().nest("/pipeline", served.router.clone());
    let served = Served { router: nested, ..served };
    assert_eq!(served.json("/pipeline/runs/{run}").await["state"], "RUNNING");
}
