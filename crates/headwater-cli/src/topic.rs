//! `headwater topic`.

use std::process::ExitCode;

use anyhow::Result;
use headwater::{Ordering, Semantics, TopicSettings};
use serde_json::json;

use crate::args::{Global, TopicCommand, TopicCreateArgs};
use crate::output::Rows;

pub(crate) async fn run(global: &Global, command: &TopicCommand) -> Result<ExitCode> {
    match command {
        TopicCommand::Create(args) => create(global, args).await,
        TopicCommand::List => list(global).await,
    }
}

async fn create(global: &Global, args: &TopicCreateArgs) -> Result<ExitCode> {
    let headwater = global.open(global.options()).await?;
    let settings = TopicSettings {
        semantics: if args.pub_sub { Semantics::PubSub } else { Semantics::Queue },
        ordering: if args.ordered { Ordering::Key } else { Ordering::None },
        lanes: args.lanes,
        lease: args.lease,
        max_attempts: args.max_attempts,
        payload_bytes_max: args.payload_bytes_max,
        dedup_window: args.dedup_window,
        ..TopicSettings::default()
    };
    let topic = headwater.topic(&args.name).settings(settings).create().await?;
    let mut rows = Rows::new(&["topic", "semantics", "ordering"]);
    rows.push(vec![
        json!(topic.name.as_str()),
        json!(topic.settings.semantics.as_str()),
        json!(topic.settings.ordering.as_str()),
    ]);
    rows.print(global.output)?;
    headwater.close().await?;
    Ok(ExitCode::SUCCESS)
}

async fn list(global: &Global) -> Result<ExitCode> {
    let headwater = global.open(global.options()).await?;
    let mut rows = Rows::new(&[
        "topic",
        "semantics",
        "ordering",
        "head",
        "scheduled",
        "gaps",
        "subscriptions",
        "lease_ms",
    ]);
    for status in headwater.store().topics().await? {
        rows.push(vec![
            json!(status.topic.name.as_str()),
            json!(status.topic.settings.semantics.as_str()),
            json!(status.topic.settings.ordering.as_str()),
            json!(status.head.0),
            json!(status.scheduled),
            json!(status.gaps),
            json!(status.subscriptions),
            json!(u64::try_from(status.topic.settings.lease.as_millis())?),
        ]);
    }
    rows.print(global.output)?;
    headwater.close().await?;
    Ok(ExitCode::SUCCESS)
}
