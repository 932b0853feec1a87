//! Whether and how bytes are compressed, and the contexts of zstd that a thread reuses.

use std::cell::RefCell;
use std::fmt;

use serde::{Deserialize, Serialize};
use zstd::bulk::{Compressor, Decompressor};

use crate::error::{Error, Result};

/// The level without configuration.
pub const LEVEL_DEFAULT: i32 = 3;

/// How bytes are compressed: zstd at level 3, unless configured otherwise. In configuration a table with `enabled`, `codec` and `level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Settings", into = "Settings")]
pub struct Compression(Option<Level>);

/// The form in configuration.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    enabled: Option<bool>,
    codec: Option<String>,
    level: Option<i64>,
}

impl TryFrom<Settings> for Compression {
    type Error = Error;

    fn try_from(settings: Settings) -> Result<Self> {
        Compression::from_settings(settings.enabled, settings.codec.as_deref(), settings.level)
    }
}

impl From<Compression> for Settings {
    fn from(compression: Compression) -> Self {
        let codec = Some(compression.codec().as_str().to_owned());
        let level = compression.level().map(i64::from);
        Settings { enabled: Some(level.is_some()), codec, level }
    }
}

/// 1 to 22.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level(i32);

/// How the raw bytes of a blob are stored. The number is part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Codec {
    None = 0,
    Zstd = 1,
}

impl Codec {
    pub(super) fn from_number(number: u8) -> Option<Self> {
        [Codec::None, Codec::Zstd].into_iter().find(|codec| *codec as u8 == number)
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Codec::None => "none",
            Codec::Zstd => "zstd",
        }
    }
}

impl Compression {
    /// Bytes as they are.
    pub const NONE: Compression = Compression(None);

    /// zstd at a level of 1 to 22.
    pub fn zstd(level: i64) -> Result<Self> {
        match i32::try_from(level) {
            Ok(fits @ 1..=22) => Ok(Compression(Some(Level(fits)))),
            _ => Err(Error::invalid(format!("compression.level {level}: 1 to 22 are allowed"))),
        }
    }

    /// From configuration: `enabled`, `codec` (`zstd` or `none`) and `level`. What is not given has its default: enabled, zstd, 3. Codec and
    /// level are checked even if compression is off.
    pub fn from_settings(enabled: Option<bool>, codec: Option<&str>, level: Option<i64>) -> Result<Self> {
        let zstd = Compression::zstd(level.unwrap_or(i64::from(LEVEL_DEFAULT)))?;
        match codec.unwrap_or(Codec::Zstd.as_str()) {
            "zstd" if enabled.unwrap_or(true) => Ok(zstd),
            "zstd" | "none" => Ok(Compression::NONE),
            other => Err(Error::invalid(format!("compression.codec {other:?}: zstd or none is expected"))),
        }
    }

    /// The level of zstd; `None` without compression.
    pub fn level(self) -> Option<i32> {
        self.0.map(|level| level.0)
    }

    pub(super) fn codec(self) -> Codec {
        if self.0.is_some() { Codec::Zstd } else { Codec::None }
    }

    /// How many bytes so many become at most.
    pub(super) fn bound(self, bytes: usize) -> usize {
        if self.0.is_some() { zstd::zstd_safe::compress_bound(bytes) } else { bytes }
    }

    /// Compresses, and appends the result.
    pub(super) fn compress_onto(self, raw: &[u8], buffer: &mut Vec<u8>) {
        match self.0 {
            None => buffer.extend_from_slice(raw),
            Some(level) => buffer.extend_from_slice(&compressed(raw, level)),
        }
    }

    /// Whole bytes, compressed: for files.
    pub(crate) fn compress(self, raw: Vec<u8>) -> Vec<u8> {
        match self.0 {
            None => raw,
            Some(level) => compressed(&raw, level),
        }
    }
}

impl Default for Compression {
    fn default() -> Self {
        Compression(Some(Level(LEVEL_DEFAULT)))
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level() {
            None => f.write_str("none"),
            Some(level) => write!(f, "zstd level {level}"),
        }
    }
}

thread_local! {
    /// Contexts have tables of several 100 KiB, which are reused from tick to tick.
    static COMPRESSOR: RefCell<Option<(Level, Compressor<'static>)>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

fn compressed(raw: &[u8], level: Level) -> Vec<u8> {
    COMPRESSOR.with_borrow_mut(|kept| {
        let compressor = match kept {
            Some((of, compressor)) if *of == level => compressor,
            _ => {
                // Fails only without memory, where nothing else could continue either.
                let new = Compressor::new(level.0).expect("a level of 1 to 22 is accepted");
                &mut kept.insert((level, new)).1
            }
        };
        compressor.compress(raw).expect("the buffer has the size that zstd requires")
    })
}

/// Decompresses exactly `bytes` bytes: less or more is an error, and no more memory than that is used.
pub(crate) fn decompressed(content: &[u8], bytes: usize) -> std::io::Result<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let decompressor = match kept {
            Some(decompressor) => decompressor,
            None => kept.insert(Decompressor::new()?),
        };
        // Checked first: the number comes from the input, and memory is taken only for what the frame itself confirms.
        if zstd::zstd_safe::get_frame_content_size(content).ok().flatten() != Some(bytes as u64) {
            return Err(std::io::Error::other("the length in the frame of zstd is another one"));
        }
        let mut raw = Vec::with_capacity(bytes);
        decompressor.decompress_to_buffer(content, &mut raw)?;
        if raw.len() != bytes {
            return Err(std::io::Error::other(format!("{} bytes instead of {bytes}", raw.len())));
        }
        Ok(raw)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_defaults_and_are_refused_by_name_and_value() {
        let parsed = |enabled, codec, level| Compression::from_settings(enabled, codec, level);
        assert_eq!(parsed(None, None, None).unwrap(), Compression::default());
        assert_eq!(parsed(Some(true), Some("zstd"), Some(22)).unwrap().level(), Some(22));
        assert_eq!(parsed(Some(false), Some("zstd"), Some(5)).unwrap(), Compression::NONE);
        assert_eq!(parsed(None, Some("none"), None).unwrap(), Compression::NONE);
        for level in [0, -1, 23, i64::MAX] {
            let error = parsed(Some(false), None, Some(level)).unwrap_err().to_string();
            assert_eq!(error, format!("compression.level {level}: 1 to 22 are allowed"));
        }
        let error = parsed(None, Some("lz4"), None).unwrap_err().to_string();
        assert_eq!(error, "compression.codec \"lz4\": zstd or none is expected");
        assert_eq!(Compression::default().to_string(), "zstd level 3");
    }

    #[test]
    fn a_table_of_toml_round_trips_and_unknown_options_are_refused() {
        let parsed: Compression = toml::from_str("level = 9").unwrap();
        assert_eq!(parsed, Compression::zstd(9).unwrap());
        for compression in [parsed, Compression::NONE] {
            let text = toml::to_string(&compression).unwrap();
            assert_eq!(toml::from_str::<Compression>(&text).unwrap(), compression, "{text}");
        }
        let error = toml::from_str::<Compression>("levle = 9").unwrap_err().to_string();
        assert!(error.contains("levle"), "{error}");
        let error = toml::from_str::<Compression>("level = 99").unwrap_err().to_string();
        assert!(error.contains("1 to 22 are allowed"), "{error}");
    }

    #[test]
    fn levels_alternate_on_one_thread_and_lengths_are_exact() {
        let raw: Vec<u8> = (0..20_000_u32).map(|n| u8::try_from(n * n % 251).unwrap()).collect();
        for level in [1, 22, 3, 1] {
            let bytes = Compression::zstd(level).unwrap().compress(raw.clone());
            assert!(bytes.len() < raw.len(), "level {level}");
            assert_eq!(decompressed(&bytes, raw.len()).unwrap(), raw);
            for wrong in [0, raw.len() - 1, raw.len() + 1, usize::MAX] {
                assert!(decompressed(&bytes, wrong).is_err(), "{wrong}");
            }
            assert!(decompressed(&bytes[..bytes.len() - 1], raw.len()).is_err());
        }
    }
}
