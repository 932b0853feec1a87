//! The group of `consume`: it exists, or is created on purpose. A group holds back retention, so a mistyped name must not
//! create one.

use anyhow::{Result, bail};
use headwater::{Headwater, Start, SubscriptionState};

use crate::args::ConsumeArgs;
use crate::group::with_fan_out_hint;
use crate::output::note;
use crate::suggest::closest;

/// How many names an error lists.
const NAMES_MAX: usize = 10;

/// Finds the group, or subscribes it with `--create`.
pub(super) async fn find_or_create(headwater: &Headwater, args: &ConsumeArgs) -> Result<()> {
    let ConsumeArgs { topic, group, .. } = args;
    let groups = headwater.groups(topic);
    let mut existing = groups.list().await?;
    existing.retain(|group| group.status.state != SubscriptionState::Cancelled);
    if let Some(found) = existing.iter().find(|found| found.status.group.as_str() == group) {
        if args.from.is_some() {
            let next = found.status.next;
            note(format_args!(
                "--from is ignored: group {group} exists and continues at offset {next}; \
                 `headwater group seek {topic} {group}` moves it"
            ));
        }
        return Ok(());
    }
    if !args.create {
        let names: Vec<&str> = existing.iter().map(|group| group.status.group.as_str()).collect();
        bail!(unknown(topic, group, &names));
    }
    let start = args.from.unwrap_or_default();
    let created = groups.subscribe(group, start).await.map_err(|error| with_fan_out_hint(error, topic))?;
    if created {
        note(format_args!("subscribed new group {group} {}", place(start)));
    }
    Ok(())
}

fn unknown(topic: &str, group: &str, names: &[&str]) -> String {
    let create = "--create subscribes it as a new group";
    if names.is_empty() {
        return format!("no group {group} on topic {topic}, which has none yet; {create}");
    }
    let meant = closest(group, names.iter().copied()).map(|name| format!("did you mean {name}? "));
    let mut listed = names[..names.len().min(NAMES_MAX)].join(", ");
    if names.len() > NAMES_MAX {
        listed += &format!(" and {} more", names.len() - NAMES_MAX);
    }
    let meant = meant.unwrap_or_default();
    format!("no group {group} on topic {topic}; {meant}its groups: {listed}; {create}")
}

fn place(start: Start) -> String {
    match start {
        Start::Beginning => "at the beginning".into(),
        Start::Now => "at the end".into(),
        Start::Offset(offset) => format!("at offset {offset}"),
        Start::Timestamp(time) => format!("at {time}"),
        Start::BeginningBounded(messages) => format!("at most {messages} messages back"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_group_is_refused_with_what_exists() {
        assert_eq!(
            unknown("orders", "emial", &["audit", "email"]),
            "no group emial on topic orders; did you mean email? its groups: audit, email; \
             --create subscribes it as a new group"
        );
        let none = unknown("orders", "email", &[]);
        assert!(none.contains("which has none yet; --create"), "{none}");
        let many: Vec<String> = (0..12).map(|n| format!("group-{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let many = unknown("orders", "x", &many);
        assert!(many.contains("its groups: group-0, ") && many.contains("group-9 and 2 more"), "{many}");
    }
}
