//! A topic's settings: as given on the command line, and as shown.

use anyhow::Result;
use headwater::TopicSettings;
use headwater::topic::{Partition, Storage};
use serde_json::{Map, Value, json};

use crate::args::SettingsArgs;
use crate::args::words::ENDLESS;
use crate::output::{Fields, Usage};

/// The settings, with those changed that are given.
pub(super) fn changed(base: &TopicSettings, args: &SettingsArgs) -> Result<TopicSettings> {
    let mut settings = json!(base);
    for (name, value) in named(args) {
        settings[name] = value;
    }
    Ok(TopicSettings { storage: chosen_storage(base.storage, args)?, ..serde_json::from_value(settings)? })
}

/// The given settings in the form in which they are stored, except storage, which has two flags.
fn named(args: &SettingsArgs) -> Map<String, Value> {
    let Value::Object(mut named) = json!(args) else { unreachable!("a struct is an object") };
    named.retain(|_, value| !value.is_null());
    for value in named.values_mut().filter(|value| **value == ENDLESS) {
        *value = Value::Null;
    }
    named
}

/// Whether no setting is given.
pub(super) fn names_nothing(args: &SettingsArgs) -> bool {
    args.storage.is_none() && args.partition.is_none() && named(args).is_empty()
}

fn chosen_storage(base: Storage, args: &SettingsArgs) -> Result<Storage> {
    use crate::args::StorageWord;
    Ok(match (args.storage, args.partition) {
        (None, None) => base,
        (Some(StorageWord::Shared), None) => Storage::Shared,
        (Some(StorageWord::Shared), Some(_)) => {
            return Err(Usage(
                "shared storage has no partitions: --partition needs --storage dedicated".into(),
            )
            .into());
        }
        (Some(StorageWord::Dedicated), None) => match base {
            Storage::Dedicated(partition) => Storage::Dedicated(partition),
            Storage::Shared => Storage::Dedicated(Partition::None),
        },
        (_, Some(partition)) => Storage::Dedicated(partition),
    })
}

/// Every setting, under its stored name.
pub(super) fn push(fields: &mut Fields, settings: &TopicSettings) {
    for (name, value, words) in settings.described() {
        fields.said(name, value, words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_its_flag() {
        let Value::Object(mut flags) = json!(SettingsArgs::default()) else {
            panic!("a struct is an object")
        };
        flags.insert("storage".into(), Value::Null);
        let flags: Vec<String> = flags.into_iter().map(|(name, _)| name).collect();
        let mut settings: Vec<String> =
            TopicSettings::default().described().into_iter().map(|(name, ..)| name).collect();
        settings.sort_unstable();
        assert_eq!(flags, settings);
    }
}
