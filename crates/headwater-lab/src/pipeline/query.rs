//! The time of queries over HTTP: a whole tick, and a small region of a large world.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater_pipeline::cells::Compression;
use headwater_pipeline::contracts::TickData;
use headwater_pipeline::index::IndexOptions;
use headwater_pipeline::resource::EnvironmentWrite;
use headwater_pipeline::runs::Runs;
use headwater_pipeline::tidepool::Synthetic;
use headwater_pipeline::{Config, Pipeline};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::files;
use super::{CELLS_PER_TICK, OCCUPANCY, Setting, WORLD, sqlite_in};
use crate::check::http::{Client, JSON};
use crate::check::{Floor, Judged, Unit, percentile_ms, progress};

/// Of the large world.
const SIDE: u64 = 2_000;
/// Of the region.
const REGION: u64 = 20;
const WARM_UP: usize = 20;
const LATENCY_MS_MAX: f64 = 10.0;
const PROTOBUF: &str = "application/x-protobuf";

const SERVER: &str = r#"
[pipeline]
store = "${STORE}"

[control]
listen = "127.0.0.1:0"

[resources.index]
type = "index"
url = "${INDEX}"

[services.query]
type = "query"
listen = "127.0.0.1:0"
resources = { index = "db-read:index" }
"#;

pub(super) async fn run(setting: &Setting) -> Result<Vec<Judged>> {
    let requests = usize::try_from(setting.count(1_000, 300))?;
    let directory = setting.directory()?;
    let (store, index) =
        (sqlite_in(&directory), format!("sqlite:{}", directory.path().join("index").display()));
    let small =
        indexed(&store, &index, &WORLD, setting.count(1_000, 200), "single_blob", setting.seed).await?;
    let large = indexed(&store, &index, &[SIDE, SIDE], 3, "regions", setting.seed).await?;
    let lookup = |name: &str| match name {
        "STORE" => Some(store.clone()),
        "INDEX" => Some(index.clone()),
        _ => None,
    };
    let pipeline =
        Pipeline::from_config(Config::parse(Path::new("the lab"), SERVER, &lookup)?).start().await?;
    let mut client = Client::connect(pipeline.query_address().context("the query API listens")?).await?;
    let mut random = StdRng::seed_from_u64(setting.seed);
    let whole = |random: &mut StdRng| small.path(random, "");
    let answer = client.get(&whole(&mut random), JSON).await?;
    let found: serde_json::Value = serde_json::from_slice(&answer)?;
    ensure!(found["cell_count"] == CELLS_PER_TICK, "a tick has {} cells", found["cell_count"]);
    let mut judged = Vec::new();
    for (name, accept) in [("JSON", JSON), ("protobuf", PROTOBUF)] {
        progress(&format!("whole ticks as {name}"));
        let (times, bytes) = measure(&mut client, accept, requests, || whole(&mut random)).await?;
        judged.extend(judge(&format!("whole tick as {name}"), &times, bytes));
    }
    progress("regions");
    let region = || {
        let (x, y) = (random.random_range(0..SIDE - REGION), random.random_range(0..SIDE - REGION));
        let (x_last, y_last) = (x + REGION - 1, y + REGION - 1);
        large.path(&mut random, &format!("?region={x}..{x_last},{y}..{y_last}"))
    };
    let (times, bytes) = measure(&mut client, JSON, requests, region).await?;
    judged.extend(judge(&format!("{REGION}x{REGION} of {SIDE}x{SIDE}"), &times, bytes));
    drop(client);
    pipeline.stop().await?;
    Ok(judged)
}

/// A run in the index.
struct Indexed {
    run_id: String,
    ticks: u64,
}

impl Indexed {
    /// The cells of any of its ticks.
    fn path(&self, random: &mut StdRng, query: &str) -> String {
        format!("/runs/{}/ticks/{}/cells{query}", self.run_id, random.random_range(0..self.ticks))
    }
}

/// Makes a run and writes its ticks into the index.
async fn indexed(
    store: &str,
    url: &str,
    sizes: &[u64],
    ticks: u64,
    strategy: &str,
    seed: u64,
) -> Result<Indexed> {
    progress(&format!("indexing {ticks} ticks of {sizes:?} as {strategy}"));
    let runs = Runs::open(store).await?;
    let run_id = files::register(&runs, "ENDED").await?.run_id;
    runs.close().await?;
    let world = files::torus(sizes)?;
    let options = IndexOptions { strategy: strategy.to_owned(), ..IndexOptions::default() };
    let index = files::index_with_metadata(url, &files::metadata(&run_id, &world, seed), &options).await?;
    EnvironmentWrite::create_schema(&*index, &world).await?;
    let mut source = Synthetic::new(&world, OCCUPANCY, seed, Compression::default())?;
    for _ in 0..ticks {
        let tick: TickData = tokio::task::block_in_place(|| source.next_tick(&run_id));
        index.write_ticks(&[tick]).await?;
    }
    index.close().await;
    Ok(Indexed { run_id, ticks })
}

/// The time from each request to the last byte of its answer, and the bytes of an answer on average.
async fn measure(
    client: &mut Client,
    accept: &'static str,
    requests: usize,
    mut path: impl FnMut() -> String,
) -> Result<(Vec<Duration>, usize)> {
    for _ in 0..WARM_UP {
        client.get(&path(), accept).await?;
    }
    let (mut times, mut bytes) = (Vec::with_capacity(requests), 0);
    for _ in 0..requests {
        let path = path();
        let start = Instant::now();
        bytes += client.get(&path, accept).await?.len();
        times.push(start.elapsed());
    }
    Ok((times, bytes / requests))
}

fn judge(what: &str, times: &[Duration], bytes: usize) -> [Judged; 2] {
    let at = |name: &str, share| {
        let time = percentile_ms(times, share);
        Judged::new(&format!("{what}, {name}"), time, Unit::Milliseconds, Floor::AtMost(LATENCY_MS_MAX))
    };
    let note = format!("{} requests, {bytes} bytes each", times.len());
    [at("p50", 0.5).note(note), at("p99", 0.99)]
}
