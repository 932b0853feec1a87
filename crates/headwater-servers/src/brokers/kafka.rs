//! Apache Kafka: one node that is broker and controller, run from the libraries that `cargo xtask test` has fetched.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Kind, Place};
use crate::programs::find_program;

/// The environment variable with the folder of Kafka's libraries.
pub const LIBRARIES_VARIABLE: &str = "HEADWATER_KAFKA_LIBRARIES";

/// [`Kafka`](super::Kafka).
#[derive(Debug)]
pub struct KafkaKind;

impl Kind for KafkaKind {
    const NAME: &'static str = "kafka";
    const READY: &'static str = "Kafka Server started";
    const TAKEN: &'static [&'static str] = &["Address already in use"];
    /// For clients and for the controller.
    const PORTS: usize = 2;

    fn find() -> Result<()> {
        find_program("java").context("java is not installed")?;
        let folder = libraries();
        let jars = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let is_there =
            jars.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().starts_with("kafka_"));
        ensure!(
            is_there,
            "Kafka's libraries are not in {}; `cargo xtask test` fetches them",
            folder.display()
        );
        Ok(())
    }

    fn configure(place: &Place) -> Result<()> {
        let (client, controller) = (place.ports[0], place.ports[1]);
        let data = place.path().join("data");
        let text = format!(
            "process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{client}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
log.segment.bytes=67108864
",
            data.display()
        );
        std::fs::write(place.path().join("server.properties"), text)?;
        Ok(())
    }

    fn prepare(place: &Place) -> Result<Vec<Command>> {
        let mut format = place.command(&java()?);
        // Any identity: there is one node, and its data are its own.
        format.args(arguments("warn")).args(["kafka.tools.StorageTool", "format", "--ignore-formatted"]);
        format.args(["-t", "aGVhZHdhdGVyLXRlc3RzMQ", "-c"]).arg(place.path().join("server.properties"));
        Ok(vec![format])
    }

    fn processes(place: &Place) -> Result<Vec<Command>> {
        let mut command = place.tied_command(&java()?);
        command.args(arguments("info")).arg("kafka.Kafka").arg(place.path().join("server.properties"));
        Ok(vec![command])
    }

    fn url(place: &Place) -> String {
        format!("127.0.0.1:{}", place.ports[0])
    }
}

fn java() -> Result<PathBuf> {
    find_program("java").context("java is not installed")
}

/// The folder of Kafka's libraries: by the environment, else below the folder of build products.
pub fn libraries() -> PathBuf {
    if let Some(folder) = std::env::var_os(LIBRARIES_VARIABLE) {
        return PathBuf::from(folder);
    }
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
    target.join("brokers/kafka/lib")
}

/// A small heap and the quick compiler: a broker of a test lives for seconds.
fn arguments(level: &str) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["-Xms128m", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
            .map(str::to_owned)
            .to_vec();
    arguments.push(format!("-Dorg.slf4j.simpleLogger.defaultLogLevel={level}"));
    // A start logs thousands of lines of settings.
    for quiet in ["org.apache.kafka.common.config", "kafka.server.KafkaConfig", "org.apache.kafka.storage"] {
        arguments.push(format!("-Dorg.slf4j.simpleLogger.log.{quiet}=warn"));
    }
    arguments.extend(["-cp".to_owned(), libraries().join("*").display().to_string()]);
    arguments
}
