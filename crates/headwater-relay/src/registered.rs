//! Relays that are registered in the store, for processes that run them: `headwater relay run` and [`load`].

use headwater::{Error, Headwater, Result};
use jiff::Timestamp;

use crate::relay::{Relay, RelaySettings, Source};
use crate::source::topic;
use crate::target;

/// A registered relay.
#[derive(Clone, Debug, PartialEq)]
pub struct Registered {
    /// Its name.
    pub name: String,
    /// Where its records come from.
    pub source: Source,
    /// The URL of its sink, with `${NAME}` for what the environment has.
    pub target: String,
    /// How it delivers.
    pub settings: RelaySettings,
    /// When it was added.
    pub created_at: Timestamp,
}

/// A relay to be registered.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// use headwater::Headwater;
/// use headwater_relay::registered::{self, NewRelay};
/// use headwater_relay::{RelaySettings, Source};
///
/// let headwater = Headwater::in_memory().await?;
/// let new = NewRelay {
///     name: None,
///     source: Source::Topic("orders".into()),
///     target: "https://hooks.example.com/orders#secret=${HOOK_SECRET}".into(),
///     settings: RelaySettings::default(),
/// };
/// assert_eq!(registered::add(&headwater, new).await?, "orders-webhook");
/// assert_eq!(registered::load(&headwater).await?[0].group().as_deref(), Some("relay-webhook"));
/// # headwater.close().await }
/// ```
#[derive(Clone, Debug)]
pub struct NewRelay {
    /// Its name; the source and the kind of the sink if absent.
    pub name: Option<String>,
    /// Where its records come from.
    pub source: Source,
    /// The URL of its sink. A password or secret has to be `${NAME}`, which the environment of the relay's process has.
    pub target: String,
    /// How it delivers.
    pub settings: RelaySettings,
}

impl Registered {
    /// The group that serves its topic.
    pub fn group(&self) -> Option<String> {
        group_of(&self.source, &self.target, &self.settings)
    }

    /// The relay, with the variables of its target replaced by those of this process.
    pub fn relay(&self, headwater: &Headwater) -> Result<Relay> {
        let url = target::expand(&self.target, |name| std::env::var(name).ok())?;
        let sink = target::sink_for(&url)?.into();
        Ok(Relay::new(headwater, self.source.clone(), sink).name(&self.name).settings(self.settings.clone()))
    }
}

fn group_of(source: &Source, target: &str, settings: &RelaySettings) -> Option<String> {
    let kind = target::kind_of(target).ok()?;
    matches!(source, Source::Topic(_)).then(|| settings.group_for(kind))
}

/// Registers a relay and returns its name. The group of a topic is subscribed at once: from now on nothing that is published is missed,
/// whenever the relay runs first.
pub async fn add(headwater: &Headwater, new: NewRelay) -> Result<String> {
    target::check_no_secret(&new.target)?;
    let kind = target::kind_of(&new.target)?;
    // Variables that are set here can be checked here; others where the relay runs.
    if let Ok(url) = target::expand(&new.target, |name| std::env::var(name).ok()) {
        target::sink_for(&url)?;
    } else {
        target::expand(&new.target, |_| Some("x".into()))?;
    }
    new.settings.check(&new.source)?;
    let name = new.name.unwrap_or_else(|| format!("{}-{kind}", new.source));
    let group = group_of(&new.source, &new.target, &new.settings);
    for other in load(headwater).await?.into_iter().filter(|other| other.name != name) {
        if other.source == new.source && other.group() == group {
            let (what, other) =
                (group.map_or_else(|| "the outbox".into(), |group| format!("group {group}")), other.name);
            let rule = format!(
                "{what} is served by relay {other}, and two relays would share its records; choose another group, or remove {other}"
            );
            return Err(Error::invalid("relay", rule));
        }
    }
    let settings = serde_json::to_string(&new.settings).expect("settings are always JSON");
    headwater.relays().add(&name, &new.source.to_string(), &new.target, &settings).await?;
    // Registered first: a relay that is refused leaves no group behind, for which messages would be kept.
    if let (Source::Topic(of), Some(group)) = (&new.source, &group)
        && let Err(error) = subscribe(headwater, of, group, &new.settings).await
    {
        headwater.relays().remove(&name).await?;
        return Err(error);
    }
    Ok(name)
}

async fn subscribe(headwater: &Headwater, topic: &str, group: &str, settings: &RelaySettings) -> Result<()> {
    topic::consumer(headwater, topic, group, settings).open().await?.close().await
}

/// The registered relays, by name.
pub async fn load(headwater: &Headwater) -> Result<Vec<Registered>> {
    let rows = headwater.relays().list().await?;
    rows.into_iter()
        .map(|row| {
            let settings = serde_json::from_str(&row.settings).map_err(|error| {
                Error::invalid(
                    "settings",
                    format!("of relay {}: {error}; remove it and add it again", row.name),
                )
            })?;
            let source = Source::parse(&row.source)?;
            Ok(Registered {
                name: row.name,
                source,
                target: row.target,
                settings,
                created_at: row.created_at,
            })
        })
        .collect()
}
