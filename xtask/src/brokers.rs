//! The message brokers of the relay's tests: their installation, and the ones of a run.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use headwater_servers::brokers::{Broker, Kafka, Kind, LIBRARIES_VARIABLE, Nats, RabbitMq};
use headwater_servers::output_of;

use crate::interrupt::Interrupt;
use crate::languages::install;
use crate::packages::{self, Need};
use crate::process::say;
use crate::services;

const KAFKA: &str = "4.1.0";

/// A project without code: Maven copies what Kafka needs at run time. Kafka's log is written by slf4j-simple.
const POM: &str = r#"<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headwater</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>KAFKA</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"#;

/// The brokers of a run, each where it could be had. They end with the thread that started them.
#[derive(Debug, Default)]
pub(crate) struct Brokers {
    kafka: Option<Kafka>,
    rabbitmq: Option<RabbitMq>,
    nats: Option<Nats>,
    /// Names of brokers that cannot be had, with the reason.
    pub(crate) missing: Vec<String>,
}

impl Brokers {
    /// Installs and starts all of them, except those that the environment names; [`Self::wait`] waits until they are ready.
    pub(crate) fn start(root: &Path) -> Result<Self> {
        let parent = services::parent(root)?;
        let mut brokers = Self::default();
        let missing = &mut brokers.missing;
        brokers.kafka = start_one(&parent, missing, "KAFKA", || {
            packages::ensure(&[Need::Java, Need::Maven])?;
            fetch_kafka(root)
        });
        brokers.rabbitmq =
            start_one(&parent, missing, "RABBITMQ", || packages::ensure(&[Need::RabbitMq, Need::Epmd]));
        brokers.nats = start_one(&parent, missing, "NATS", || packages::ensure(&[Need::Nats]));
        Ok(brokers)
    }

    /// Waits for all that were started; one that does not become ready is missing from then on.
    pub(crate) fn wait(&mut self, interrupt: &Interrupt) -> Result<()> {
        wait_for(&mut self.kafka, &mut self.missing, interrupt)?;
        wait_for(&mut self.rabbitmq, &mut self.missing, interrupt)?;
        wait_for(&mut self.nats, &mut self.missing, interrupt)
    }

    /// An error once one of them has ended.
    pub(crate) fn poll(&mut self) -> Result<()> {
        self.kafka.as_mut().map(Broker::poll).transpose()?;
        self.rabbitmq.as_mut().map(Broker::poll).transpose()?;
        self.nats.as_mut().map(Broker::poll).transpose()?;
        Ok(())
    }

    /// The environment for tests: addresses, and where to find Kafka for a test that starts its own.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let urls = [
            ("KAFKA", self.kafka.as_ref().map(Broker::url)),
            ("RABBITMQ", self.rabbitmq.as_ref().map(Broker::url)),
            ("NATS", self.nats.as_ref().map(Broker::url)),
        ];
        let urls = urls.into_iter().filter_map(|(name, url)| Some((variable(name), url?)));
        let libraries = headwater_servers::brokers::libraries();
        urls.chain([(LIBRARIES_VARIABLE.to_owned(), libraries.display().to_string())]).collect()
    }
}

/// The environment variable with the address of a broker that tests use.
fn variable(name: &str) -> String {
    format!("HEADWATER_TEST_{name}")
}

fn start_one<K: Kind>(
    parent: &Path,
    missing: &mut Vec<String>,
    name: &str,
    install: impl FnOnce() -> Result<()>,
) -> Option<Broker<K>> {
    if std::env::var(variable(name)).is_ok_and(|url| !url.is_empty()) {
        say(&format!("using the broker of {}", variable(name)));
        return None;
    }
    let started = install().and_then(|()| Broker::<K>::start(parent));
    started.map_err(|error| missing.push(format!("{}: {error:#}", K::NAME))).ok()
}

fn wait_for<K: Kind>(
    broker: &mut Option<Broker<K>>,
    missing: &mut Vec<String>,
    interrupt: &Interrupt,
) -> Result<()> {
    let Some(started) = broker else { return Ok(()) };
    let ready = started.wait(|| interrupt.check());
    interrupt.check()?;
    if let Err(error) = ready {
        missing.push(format!("{}: {error:#}", K::NAME));
        *broker = None;
    }
    Ok(())
}

/// Copies Kafka's libraries from Maven's repository, once for each version.
fn fetch_kafka(root: &Path) -> Result<()> {
    let libraries = headwater_servers::brokers::libraries();
    let home = libraries.parent().context("the libraries are in a folder")?;
    std::fs::create_dir_all(home).with_context(|| format!("cannot create {}", home.display()))?;
    install(home, &format!("kafka {KAFKA}"), |home| {
        std::fs::write(home.join("pom.xml"), POM.replace("KAFKA", KAFKA))?;
        if libraries.exists() {
            // Of another version, or incomplete.
            std::fs::remove_dir_all(&libraries)?;
        }
        let mut maven = Command::new("mvn");
        maven.args(["-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]);
        maven.arg(format!("-DoutputDirectory={}", libraries.display())).arg("-f").arg(home.join("pom.xml"));
        output_of(maven.current_dir(root)).context("mvn dependency:copy-dependencies")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_project_names_the_version() {
        let text = POM.replace("KAFKA", KAFKA);
        assert!(text.contains("<artifactId>kafka_2.13</artifactId><version>4."), "{text}");
    }

    #[test]
    fn broker_that_cannot_be_had_is_named_with_the_reason() {
        let mut missing = Vec::new();
        let broker: Option<Nats> =
            start_one(Path::new("/"), &mut missing, "NO_SUCH_BROKER", || anyhow::bail!("no network"));
        assert!(broker.is_none());
        assert_eq!(missing, ["nats: no network"]);
    }

    #[test]
    fn tests_get_the_folder_of_the_libraries() {
        let environment = Brokers::default().environment();
        assert_eq!(environment.len(), 1, "{environment:?}");
        assert_eq!(environment[0].0, LIBRARIES_VARIABLE);
    }
}
