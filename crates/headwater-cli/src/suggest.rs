//! The name that a mistyped one was meant to be.

use clap::ArgMatches;
use headwater::{ErrorKind, Headwater};

use crate::args::Global;
use crate::output;

/// The end of an error about a topic or group that does not exist: the one that was probably meant. Empty if none is close, or if
/// the store cannot be read.
pub(crate) async fn meant(global: &Global, given: &ArgMatches, error: &anyhow::Error) -> String {
    let named = |ids: &[&str]| {
        let mut values = ids.iter().filter_map(|id| given.try_get_one::<String>(id).ok().flatten());
        values.next().cloned()
    };
    let (topic, group) = (named(&["topic", "name"]), named(&["group"]));
    let wanted = match (output::kind(error), topic, group) {
        (Some(ErrorKind::NoSuchTopic), Some(topic), _) => (topic, None),
        (Some(ErrorKind::NoSuchSubscription), Some(topic), Some(group)) => (topic, Some(group)),
        _ => return String::new(),
    };
    let Ok(headwater) = global.create(global.options().create(false)).await else { return String::new() };
    let found = existing(&headwater, &wanted).await.unwrap_or_default();
    // The answer is known: a failure to close changes nothing.
    let _ = headwater.close().await;
    let name = wanted.1.as_ref().unwrap_or(&wanted.0);
    match closest(name, found.iter().map(String::as_str)) {
        Some(close) => format!("; did you mean {close}?"),
        None => String::new(),
    }
}

/// The topics, or the groups of a topic.
async fn existing(
    headwater: &Headwater,
    (topic, group): &(String, Option<String>),
) -> headwater::Result<Vec<String>> {
    Ok(match group {
        None => headwater
            .topics()
            .list()
            .await?
            .iter()
            .map(|status| status.topic.name.as_str().to_owned())
            .collect(),
        Some(_) => headwater
            .groups(topic)
            .list()
            .await?
            .iter()
            .map(|group| group.status.group.as_str().to_owned())
            .collect(),
    })
}

/// The candidate that a mistyped name most likely stands for; none if all of them differ too much.
pub(crate) fn closest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_lowercase();
    let close = candidates.into_iter().filter_map(|candidate| {
        let other = candidate.to_lowercase();
        let edits = strsim::damerau_levenshtein(&name, &other);
        // One edit in three characters: `ab` is not close to `ac`, `oders` is to `orders`.
        (edits <= name.chars().count().max(other.chars().count()) / 3).then_some((edits, candidate))
    });
    close.min().map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognized_and_another_word_is_not() {
        let topics = ["orders", "order.created", "invoices", "x"];
        for slip in ["oders", "ordres", "orderss", "Orders", "order"] {
            assert_eq!(closest(slip, topics), Some("orders"), "{slip}");
        }
        assert_eq!(closest("order_created", topics), Some("order.created"));
        for other in ["payments", "y", ""] {
            assert_eq!(closest(other, topics), None, "{other}");
        }
        assert_eq!(closest("ab", []), None);
    }
}
