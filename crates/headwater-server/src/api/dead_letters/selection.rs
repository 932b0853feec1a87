//! Which dead letters a request means: these ids, or all that match.

use std::collections::BTreeMap;

use headwater::Headwater;
use headwater::store::{AnyDeadLetter, AnyDeadLetterSelection, DeadLetterPlace, DeadLetterSource, Redriven};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{can, topic_of};
use crate::auth::{Caller, Scope};
use crate::problem::Problem;

/// Ids of one request at most.
const IDS_MAX: usize = 1_000;
/// Dead letters that one request changes at most.
const CHANGED_MAX: usize = 100_000;
/// How many are read and changed at a time.
pub(super) const STEP: u32 = 500;

/// Where a dead letter comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum SourceName {
    /// A group gave up on a message.
    Subscription,
    /// An entry of the outbox ran out of attempts.
    Outbox,
    /// A command was parked by hand.
    Command,
}

impl SourceName {
    pub(super) fn of(source: &DeadLetterSource) -> Self {
        match source {
            DeadLetterSource::Subscription { .. } => SourceName::Subscription,
            DeadLetterSource::Outbox { .. } => SourceName::Outbox,
            DeadLetterSource::Command { .. } => SourceName::Command,
        }
    }
}

/// A selection: at least one field is set.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"topic": "orders", "group": "email", "error_contains": "no such customer"}))]
pub(super) struct Selection {
    /// Those of this source.
    source: Option<SourceName>,
    /// Those of this topic.
    #[schema(min_length = 1, max_length = 255)]
    topic: Option<String>,
    /// Those of groups of this name.
    #[schema(min_length = 1, max_length = 255)]
    group: Option<String>,
    /// Those of this type or name.
    #[serde(rename = "type")]
    #[schema(min_length = 1, max_length = 255)]
    message_type: Option<String>,
    /// Those of this key.
    #[schema(min_length = 1, max_length = 255)]
    key: Option<String>,
    /// Those whose error contains this text.
    #[schema(min_length = 1)]
    error_contains: Option<String>,
    /// Those whose error, type, key or command id contains this text in any case.
    #[schema(min_length = 1, max_length = 255)]
    search: Option<String>,
}

/// The dead letters of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Chosen {
    pub(super) ids: Option<Vec<Uuid>>,
    pub(super) source: Option<SourceName>,
    pub(super) topic: Option<String>,
    pub(super) group: Option<String>,
    pub(super) message_type: Option<String>,
    pub(super) key: Option<String>,
    pub(super) error_contains: Option<String>,
    pub(super) search: Option<String>,
}

impl Chosen {
    /// Exactly one of the two: a change of all dead letters has to name a field on purpose.
    pub(super) fn of(ids: Option<Vec<Uuid>>, selection: Option<Selection>) -> Result<Self, Problem> {
        match (ids, selection) {
            (Some(ids), None) if ids.len() > IDS_MAX => Err(Problem::invalid(
                "ids",
                format!("{}, at most {IDS_MAX} are allowed; send several requests", ids.len()),
            )),
            (Some(ids), None) => Ok(Chosen { ids: Some(ids), ..Chosen::default() }),
            (None, Some(selection)) => {
                let Selection { source, topic, group, message_type, key, error_contains, search } = selection;
                let texts = [&topic, &group, &message_type, &key, &error_contains, &search];
                if source.is_none() && texts.iter().all(|text| text.is_none()) {
                    let rule = "is empty; set at least one field, such as source";
                    return Err(Problem::invalid("selection", rule));
                }
                Ok(Chosen { ids: None, source, topic, group, message_type, key, error_contains, search })
            }
            (None, None) => Err(Problem::invalid("ids", "missing; send ids or a selection")),
            (Some(_), Some(_)) => Err(Problem::invalid("selection", "ids is there too; send one of the two")),
        }
    }

    /// Reads them without payloads, oldest first.
    pub(super) async fn read(
        &self,
        headwater: &Headwater,
        after: Option<DeadLetterPlace>,
        limit: u32,
    ) -> Result<Vec<AnyDeadLetter>, Problem> {
        let letters = headwater.dead_letters();
        let found = letters.list(limit, |all| {
            let all = self.narrowed(all.without_payloads());
            after.map_or(all.clone(), |place| all.after(place))
        });
        Ok(found.await?)
    }

    fn narrowed(&self, mut all: AnyDeadLetterSelection) -> AnyDeadLetterSelection {
        all = match self.source {
            Some(SourceName::Subscription) => all.of_subscriptions(),
            Some(SourceName::Outbox) => all.of_outbox(),
            Some(SourceName::Command) => all.of_commands(),
            None => all,
        };
        if let Some(ids) = &self.ids {
            all = all.ids(ids.iter().copied());
        }
        type Narrow = fn(AnyDeadLetterSelection, String) -> AnyDeadLetterSelection;
        let narrow: [(&Option<String>, Narrow); 6] = [
            (&self.topic, |all, topic| all.topic(topic)),
            (&self.group, |all, group| all.group(group)),
            (&self.message_type, |all, name| all.name(name)),
            (&self.key, |all, key| all.business_key(key)),
            (&self.error_contains, |all, text| all.error_contains(text)),
            (&self.search, |all, text| all.contains(text)),
        ];
        for (value, narrow) in narrow {
            if let Some(value) = value {
                all = narrow(all, value.clone());
            }
        }
        all
    }

    /// All of them, oldest first, as they are now: what is buried meanwhile is not part of it. 403 if the caller may not change one that it names by
    /// its id; others it does not see are left out.
    pub(super) async fn all(&self, headwater: &Headwater, caller: &Caller) -> Result<Vec<Found>, Problem> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let found = self.read(headwater, after, STEP).await?;
            after = found.last().map(AnyDeadLetter::place);
            let is_end = found.len() < STEP as usize;
            if self.ids.is_some() {
                found.iter().try_for_each(|one| caller.may(Scope::Admin, topic_of(&one.source)))?;
            }
            let mine = found.into_iter().filter(|one| can(caller, Scope::Admin, one));
            all.extend(mine.map(|one| Found { id: one.dead_letter_id, source: one.source }));
            if is_end || all.len() >= CHANGED_MAX {
                all.truncate(CHANGED_MAX);
                return Ok(all);
            }
        }
    }
}

/// A dead letter without its content.
pub(super) struct Found {
    pub(super) id: Uuid,
    source: DeadLetterSource,
}

/// How many a redrive would hand out, and how many have lost their message.
pub(super) async fn count(headwater: &Headwater, found: &[Found]) -> Result<Redriven, Problem> {
    let mut of_groups: BTreeMap<(&str, &str), Vec<Uuid>> = BTreeMap::new();
    for one in found {
        if let DeadLetterSource::Subscription { topic, group, .. } = &one.source {
            of_groups.entry((topic, group)).or_default().push(one.id);
        }
    }
    let mut gone = 0;
    for ((topic, group), ids) in of_groups {
        let letters = headwater.dead_letters().of(topic, group);
        for ids in ids.chunks(STEP as usize) {
            gone += letters.count_of(|all| all.ids(ids.iter().copied())).await?.gone;
        }
    }
    Ok(Redriven { redriven: found.len() as u64 - gone, gone })
}
