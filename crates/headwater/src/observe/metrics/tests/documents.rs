//! The documents agree with the code: `docs/metrics.md` lists every metric, dashboard and alerts use no others, and every
//! alert fires on its figures.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use jiff::Timestamp;

use super::*;
use crate::maintenance::tests::{backfill, topic as topic_status};
use crate::observe::metrics::{JobMetrics, SurveyMetrics};
use crate::store::{Survey, SurveyedGroup};
use crate::subscription::status::tests::served;

/// The kind and the labels of a metric.
type Described = (String, BTreeSet<String>);

/// An exporter that keeps which series were registered and which names were described.
#[derive(Default)]
struct Catalogue {
    registered: Mutex<BTreeMap<String, Described>>,
    described: Mutex<BTreeSet<String>>,
}

impl Catalogue {
    fn register(&self, kind: &str, key: &Key) {
        let labels = key.labels().map(|label| label.key().to_owned()).collect();
        self.registered.lock().unwrap().insert(key.name().to_owned(), (kind.to_owned(), labels));
    }

    fn describe(&self, name: &KeyName) {
        self.described.lock().unwrap().insert(name.as_str().to_owned());
    }
}

impl Recorder for Catalogue {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&name);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&name);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&name);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.register("counter", key);
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.register("gauge", key);
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.register("histogram", key);
        Histogram::noop()
    }
}

/// Every metric of the library, as an exporter sees it.
fn registered() -> BTreeMap<String, Described> {
    let catalogue = Catalogue::default();
    with_local_recorder(&catalogue, || {
        let (topic, group) = names();
        let registry = Registry::default();
        // Refusals are counted by kind, from the first one on.
        registry.topic(&topic).failed(1, &Error::no_subscriptions("orders"));
        registry.group(&topic, &group);
        #[cfg(feature = "postgres")]
        Tally::replica_fetches(WINDOW_DEFAULT);
        let _jobs = JobMetrics::default();
        let survey = SurveyMetrics::default();
        let groups =
            vec![SurveyedGroup { topic: topic.clone(), status: served("email", Timestamp::UNIX_EPOCH) }];
        let seen = Survey { now: Timestamp::UNIX_EPOCH, groups, left_out: 0, topics: vec![] };
        survey.show(&[topic_status(1)], seen, vec![backfill("late", 1, 1)]);
        survey.released(&topic, 1);
    });
    let registered = catalogue.registered.into_inner().unwrap();
    let described = catalogue.described.into_inner().unwrap();
    assert_eq!(registered.keys().cloned().collect::<BTreeSet<_>>(), described, "every metric is described");
    registered
}

fn document(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

fn text_of(name: &str) -> String {
    std::fs::read_to_string(document(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The metrics that a text names, without the suffixes of histograms.
fn named_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = words.filter(|word| word.starts_with("headwater_"));
    let base = |word: &str| {
        let suffixes = ["_seconds_sum", "_seconds_count", "_seconds_bucket"];
        let suffix = suffixes.iter().find(|suffix| word.ends_with(**suffix));
        suffix.map_or_else(
            || word.to_owned(),
            |suffix| format!("{}_seconds", &word[..word.len() - suffix.len()]),
        )
    };
    names.map(base).collect()
}

#[test]
fn the_list_of_metrics_is_what_the_code_registers() {
    let rows = text_of("metrics.md");
    let rows = rows.lines().filter_map(|line| line.strip_prefix("| `headwater_"));
    let listed: BTreeMap<String, Described> = rows
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let labels = cells[2].split(',').map(str::trim).filter(|label| !label.is_empty());
            let name = format!("headwater_{}", cells[0].trim_end_matches('`'));
            assert!(cells[3].len() > 10, "{name} has no meaning");
            (name, (cells[1].to_owned(), labels.map(str::to_owned).collect()))
        })
        .collect();
    assert_eq!(listed, registered());
}

#[test]
fn metrics_are_registered_in_one_place() {
    fn visit(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                visit(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let registers =
                    ["counter!(", "gauge!(", "histogram!("].iter().any(|call| text.contains(call));
                found.extend(
                    (registers && !path.to_string_lossy().contains("observe/metrics")).then_some(path),
                );
            }
        }
    }
    let mut found = Vec::new();
    visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert_eq!(found, [] as [PathBuf; 0], "these would be missing in the list");
}

/// Those that the guide of the server lists; a test of the server compares that list with its code.
fn of_the_server() -> BTreeSet<String> {
    let guide = text_of("server.md");
    let rows = guide.lines().filter_map(|line| line.strip_prefix("| `headwater_")?.split_once('`'));
    rows.map(|(name, _)| format!("headwater_{name}")).collect()
}

#[test]
fn dashboard_and_alerts_use_only_metrics_that_exist() {
    let mut known: BTreeSet<String> = registered().into_keys().collect();
    known.extend(of_the_server());
    let dashboard: serde_json::Value = serde_json::from_str(&text_of("dashboard.json")).expect("it is JSON");
    let panels = dashboard["panels"].as_array().expect("it has panels");
    for target in panels.iter().flat_map(|panel| panel["targets"].as_array().expect("a panel has targets")) {
        let expression = target["expr"].as_str().expect("a target has an expression");
        let used = named_in(expression);
        assert!(!used.is_empty() && used.is_subset(&known), "{expression}");
    }
    for name in ["dashboard.json", "alerts.yml", "alerts.test.yml"] {
        let used = named_in(&text_of(name));
        let unknown: Vec<_> = used.difference(&known).collect();
        assert!(used.len() > 5 && unknown.is_empty(), "{name}: {unknown:?}");
    }
}

#[test]
fn every_alert_says_what_it_means_and_what_to_do_and_has_a_test() {
    let (rules, tests) = (text_of("alerts.yml"), text_of("alerts.test.yml"));
    let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    assert!(alerts.len() >= 11, "{}", alerts.len());
    for alert in alerts {
        let name = alert.lines().next().expect("it has a name");
        assert!(alert.contains("meaning: ") && alert.contains("action: "), "{name}");
        assert!(tests.contains(&format!("alertname=\"{name}\",alertstate=\"firing\"")), "{name} has no test");
    }
}

/// Loads the rules in promtool, and runs the unit tests that make each alert fire.
#[test]
fn every_alert_fires_on_its_figures() {
    for (verb, file) in [("check", "alerts.yml"), ("test", "alerts.test.yml")] {
        let run = Command::new("promtool").args([verb, "rules"]).arg(document(file)).output();
        let Ok(output) = run else {
            assert!(std::env::var_os("HEADWATER_TEST_REQUIRE_ALL").is_none(), "promtool is missing");
            eprintln!("skipped: promtool is missing; `cargo xtask test` installs it");
            return;
        };
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    }
}
