//! Configurations: what is refused, at which line, and what was expected.

use std::time::Duration;

use headwater_pipeline::config::{Resource, ServiceOptions, Usage};
use headwater_pipeline::{Config, Pipeline};

/// The built-in configuration with one change; the line is that of the change.
fn parse(from: &str, to: &str) -> Result<Config, String> {
    let text = Config::embedded_text();
    assert!(text.contains(from), "{from}");
    let lookup = |name: &str| (name == "DIRECTORY").then(|| "/data".to_owned());
    Config::parse("tides.toml".as_ref(), &text.replacen(from, to, 1), &lookup)
        .map_err(|error| error.to_string())
}

fn refused(from: &str, to: &str) -> String {
    parse(from, to).expect_err(to)
}

/// The line of the built-in configuration that begins with these words.
fn line(words: &str) -> usize {
    let at = Config::embedded_text().lines().position(|line| line.starts_with(words));
    at.unwrap_or_else(|| panic!("{words}")) + 1
}

#[test]
fn missing_and_blank_group() {
    let at = line("batches = \"topic-read:batch-topic?group=environment\"");
    let path = "services.environment-indexer.resources.batches";
    assert_eq!(
        refused("batch-topic?group=environment", "batch-topic"),
        format!(
            "tides.toml:{at}: {path}: \"topic-read:batch-topic\" has no group; expected topic-read:NAME?group=GROUP"
        )
    );
    for blank in ["batch-topic?group=", "batch-topic?group=  ", "batch-topic?group"] {
        assert_eq!(
            refused("batch-topic?group=environment", blank),
            format!("tides.toml:{at}: {path}: blank group; expected topic-read:NAME?group=GROUP")
        );
    }
}

#[test]
fn missing_and_unknown_usage_type() {
    let at = line("storage = \"storage-write:files\"");
    let all: Vec<&str> = Usage::ALL.iter().map(|usage| usage.as_str()).collect();
    let all = all.join(", ");
    let missing = refused("storage-write:files", "files");
    assert_eq!(
        missing,
        format!(
            "tides.toml:{at}: services.metadata-persistence.resources.storage: \"files\" has no usage type; expected USAGE:NAME \
             with one of {all}"
        )
    );
    let unknown = refused("storage-write:files", "storage-wirte:files");
    assert!(unknown.starts_with(&format!("tides.toml:{at}: ")), "{unknown}");
    assert!(
        unknown.ends_with(&format!("unknown usage type \"storage-wirte\"; expected one of {all}")),
        "{unknown}"
    );
}

/// What is replaced by what, on which line, and what the error says.
const MISTAKES: &[(&str, &str, &str, &str)] = &[
    (
        "storage-write:files",
        "storage-write:flies",
        "storage = \"storage-write",
        "no resource \"flies\"; declared are tick-queue",
    ),
    (
        "storage-write:files",
        "storage-write:index",
        "storage = \"storage-write",
        "resource index is a index, and storage-write expects a storage",
    ),
    (
        "storage-write:files",
        "storage-read:files",
        "storage = \"storage-write",
        "does not fit; expected storage-write:NAME",
    ),
    (
        "storage-write:files",
        "storage-write:",
        "storage = \"storage-write",
        "names no resource; expected storage-write:NAME",
    ),
    (
        "db-env-write:index",
        "db-env-write:index?metrics_window_s=soon",
        "index = \"db-env",
        "metrics_window_s=soon: expected a whole number from 1 to 3600",
    ),
    (
        "db-env-write:index",
        "db-env-write:index?window=3",
        "index = \"db-env",
        "unknown parameter \"window\" of db-env-write; expected one of connections_idle_min, connections_max, metrics_window_s",
    ),
    (
        "topic-read:metadata-topic?group=metadata",
        "topic-read:metadata-topic?group=metadata&start=noon",
        "announcements = \"topic-read",
        "start=noon: expected beginning or now",
    ),
    (
        "batch_timeout_ms = 1000",
        "batch_timeout_ms = \"1s\"",
        "batch_timeout_ms",
        "services.persistence.batch_timeout_ms: expected a whole number from 1 to 86400000, not \"1s\"",
    ),
    ("batch_timeout_ms = 1000", "batch_timeout_ms = 0", "batch_timeout_ms", "not 0"),
    (
        "batch_timeout_ms = 1000",
        "batch_timeout = 1000",
        "batch_timeout_ms",
        "services.persistence.batch_timeout: unknown option; expected one of batch_attempts, batch_size, batch_timeout_ms, resources, run_id, type",
    ),
    (
        "type = \"persistence\"",
        "type = \"persistance\"",
        "type = \"persistence\"",
        "\"persistance\" is not known; expected one of tidepool, persistence",
    ),
    (
        "url = \"${DIRECTORY}/files\"",
        "url = \"${DIRECTROY}/files\"",
        "url",
        "environment variable DIRECTROY is not defined",
    ),
    ("url = \"${DIRECTORY}/files\"", "url = 7", "url", "expected text in quotes, not 7"),
    ("url = \"${DIRECTORY}/files\"", "url = \"x\"\ncompression = { level = 23 }", "url", "23"),
    ("url = \"${DIRECTORY}/files\"", "url = \"x\"\ncompression = { codec = \"lz4\" }", "url", "lz4"),
    (
        "listen = \"127.0.0.1:0\"",
        "listen = \"0.0.0.0:80\"",
        "listen",
        "control.listen: 0.0.0.0:80 is not this machine; expected 127.0.0.1:PORT",
    ),
    (
        "listen = \"127.0.0.1:0\"",
        "listen = \"here\"",
        "listen",
        "\"here\" is no address; expected one like 127.0.0.1:7411",
    ),
    (
        "store = \"sqlite:${DIRECTORY}/pipeline.db\"",
        "store = \"mysql://x\"",
        "store",
        "pipeline.store: invalid store: scheme \"mysql\" is not known",
    ),
    (
        "store = \"sqlite:${DIRECTORY}/pipeline.db\"",
        "store = \"sqlite::memory:\"",
        "store",
        "each run has a file of its own",
    ),
    ("[control]", "run_id = \" \"\n[control]", "[control]", "pipeline.run_id: blank"),
    ("[resources.index]", "[ressources.index]", "[resources.index]", "ressources"),
];

/// Each mistake is refused with its line, what is wrong and what was expected.
#[test]
fn mistakes_are_refused_with_file_line_and_expectation() {
    for (from, to, words, said) in MISTAKES {
        let error = refused(from, to);
        assert!(error.contains(said), "{to}: {error}");
        let place = error.split(": ").next().unwrap();
        let found: usize =
            place.strip_prefix("tides.toml:").unwrap_or_else(|| panic!("{error}")).parse().unwrap();
        let expected = line(words);
        assert!((expected..=expected + 1).contains(&found), "{to}: line {found} and not {expected}: {error}");
    }
}

#[test]
fn missing_ports_and_types_are_named() {
    let error = refused("batches = \"topic-write:batch-topic\"\n", "");
    assert!(
        error.ends_with("services.persistence: resources.batches of a persistence is missing; expected batches = \"topic-write:NAME\""),
        "{error}"
    );
    let error = refused("type = \"storage\"\n", "");
    assert!(
        error.contains("resources.files: type is missing; expected one of topic, queue, storage, index"),
        "{error}"
    );
    let error = refused("batches = \"topic-write:batch-topic\"", "batch = \"topic-write:batch-topic\"");
    assert!(
        error.ends_with("unknown resource of a persistence; expected one of ticks, storage, batches"),
        "{error}"
    );
    let error = refused("flush_timeout_ms = 1000", "enable_idempotency = true");
    assert!(
        error.ends_with("enable_idempotency needs resources.idempotency = \"db-idempotency:NAME\""),
        "{error}"
    );
    let error = refused("[pipeline]", "[pipeline");
    assert!(error.starts_with("tides.toml:3: not TOML: "), "{error}");
    let error =
        refused("type = \"tidepool\"", "type = \"tidepool\"\n[services.source.tidepool]\nthreads = 0");
    assert!(error.contains("threads of Tidepool is 0"), "{error}");
}

#[test]
fn parameter_is_the_uris_else_the_resources_else_the_default() {
    let window = |config: &Config, service: &str| {
        let service = config.services.iter().find(|found| found.name == service).unwrap();
        service.bindings["index"].metrics_window
    };
    let config = parse("type = \"index\"", "type = \"index\"").unwrap();
    assert_eq!(window(&config, "environment-indexer"), Duration::from_secs(60));
    let config =
        parse("type = \"index\"", "type = \"index\"\nmetrics_window_s = 45\nconnections_max = 7").unwrap();
    assert_eq!(window(&config, "environment-indexer"), Duration::from_secs(45));
    assert_eq!(config.binding("db-read:index").unwrap().values.connections_max, 7);
    assert_eq!(config.binding("db-read:index?connections_max=3").unwrap().values.connections_max, 3);
    assert_eq!(config.binding("db-read:index").unwrap().values.connections_idle_min, 2);
    let uri = "db-env-write:index?metrics_window_s=30";
    let config = parse("db-env-write:index", uri).unwrap();
    assert_eq!(window(&config, "environment-indexer"), Duration::from_secs(30));
    assert_eq!(window(&config, "organism-indexer"), Duration::from_secs(60));
}

#[test]
fn built_in_configuration_has_every_stage() {
    let directory = std::path::Path::new("/data/${x} ~");
    let config = Config::default_embedded(directory, Some(70)).unwrap();
    assert_eq!(config.store, "sqlite:/data/${x} ~/pipeline.db");
    let names: Vec<&str> = config.services.iter().map(|service| service.name.as_str()).collect();
    let order = [
        "query",
        "metadata-indexer",
        "environment-indexer",
        "organism-indexer",
        "metadata-persistence",
        "persistence",
        "source",
    ];
    assert_eq!(names, order, "in the order of the file");
    let Some(ServiceOptions::Tidepool(source)) = config.services.last().map(|service| &service.options)
    else {
        panic!("the source is last");
    };
    assert_eq!((source.ticks, source.checkpoint_directory.as_path()), (Some(70), directory));
    assert_eq!(config.upstream_of("batch-topic"), Some("tick-queue"));
    assert_eq!(config.upstream_of("metadata-topic"), Some("metadata-queue"));
    assert_eq!(config.index().unwrap().url, "sqlite:/data/${x} ~");
    assert_eq!(config.storage().unwrap().url, "/data/${x} ~/files");
    let alone = config.clone().only(&["persistence".into()]).unwrap();
    assert_eq!((alone.services.len(), alone.upstream_of("batch-topic")), (1, Some("tick-queue")));
    let error = config.only(&["persistance".into()]).unwrap_err().to_string();
    assert!(
        error.starts_with("no service \"persistance\"; configured are query, metadata-indexer"),
        "{error}"
    );
}

#[test]
fn topics_are_permanent_and_queues_keep_what_is_not_done() {
    let config = Config::default_embedded("/data".as_ref(), None).unwrap();
    let century = Duration::from_secs(100 * 365 * 86_400);
    let Some(Resource::Topic(topic)) = config.resource("batch-topic").map(|found| &found.resource) else {
        panic!()
    };
    let settings = topic.topic_settings();
    assert_eq!((settings.message_retention, settings.max_retention), (None, None));
    assert_eq!((settings.zombie_subscription_ttl, settings.max_attempts), (century, 1_000));
    assert_eq!(settings.lease, Duration::from_secs(300));
    settings.validate().unwrap();
    let Some(Resource::Queue(queue)) = config.resource("tick-queue").map(|found| &found.resource) else {
        panic!()
    };
    let settings = queue.delivery.queue_settings();
    assert_eq!((settings.message_retention, settings.max_retention), (Some(Duration::ZERO), None));
    assert_eq!((settings.zero_subscription_retention, settings.zombie_subscription_ttl), (century, century));
    assert_eq!((settings.max_attempts, settings.payload_bytes_max), (1_000, 64 * 1024 * 1024));
    settings.validate().unwrap();
    assert_eq!((queue.values.pending_max, queue.values.pending_bytes_max), (2_000, 512 * 1024 * 1024));
    let text = "[resources.tick-queue]\ntype = \"queue\"\nlease_s = 0\nbackoff_max_s = 9\ndedup_window_s = 8\npayload_bytes_max = 77";
    let config = parse("[resources.tick-queue]\ntype = \"queue\"", text).unwrap();
    let Some(Resource::Queue(queue)) = config.resource("tick-queue").map(|found| &found.resource) else {
        panic!()
    };
    let settings = queue.delivery.queue_settings();
    assert_eq!((settings.lease, settings.backoff_max), (Duration::ZERO, Duration::from_secs(9)));
    assert_eq!((settings.dedup_window, settings.payload_bytes_max), (Duration::from_secs(8), 77));
}

#[test]
fn run_is_inherited_unless_a_service_has_its_own() {
    let text = "[control]\nlisten = \"127.0.0.1:0\"";
    let config = parse(text, &format!("run_id = \"run_a\"\n{text}")).unwrap();
    assert!(config.services.iter().all(|service| service.run_id.as_deref() == Some("run_a")));
    let ServiceOptions::Persistence(options) = &config.services[5].options else { panic!() };
    assert_eq!(options.run_id.as_deref(), Some("run_a"));
    let config = parse("type = \"persistence\"", "type = \"persistence\"\nrun_id = \"run_b\"").unwrap();
    assert_eq!(config.services[5].run_id.as_deref(), Some("run_b"));
    assert_eq!(config.services[4].run_id, None);
}

#[tokio::test]
async fn unknown_strategy_starts_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let text = Config::embedded_text()
        .replace("type = \"environment-indexer\"", "type = \"environment-indexer\"\nstrategy = \"mine\"");
    let path = directory.path().display().to_string();
    let lookup = |name: &str| (name == "DIRECTORY").then(|| path.clone());
    let config = Config::parse("tides.toml".as_ref(), &text, &lookup).unwrap();
    let at = line("type = \"environment-indexer\"") + 1;
    let error = Pipeline::from_config(config).start().await.err().unwrap().to_string();
    assert!(
        error.starts_with(&format!("tides.toml:{at}: strategy \"mine\" is not known: regions, single_blob")),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is half-started");
}

#[test]
fn example_of_the_guide_is_sound() {
    let text = include_str!("../../../../docs/pipeline.toml");
    let lookup = |name: &str| match name {
        "HOME" => Some("/users/ann".to_owned()),
        "TIDES_DATABASE" => Some("postgres://ann@db/tides".to_owned()),
        _ => None,
    };
    let config = Config::parse("docs/pipeline.toml".as_ref(), text, &lookup).unwrap();
    let groups: Vec<_> = config
        .services
        .iter()
        .filter(|service| matches!(service.options, ServiceOptions::Environment(..)))
        .map(|service| service.bindings["batches"].group.clone().unwrap())
        .collect();
    assert_eq!(groups.len(), 2, "two indexers compete");
    assert_eq!(groups[0], groups[1]);
    assert!(config.store.starts_with("postgres://"));
}
