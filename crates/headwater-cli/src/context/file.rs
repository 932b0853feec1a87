//! The file of contexts, in the user's folder for configuration.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use serde::{Deserialize, Serialize};

/// All contexts of a user.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Contexts {
    /// The context of commands that name none.
    pub(super) in_use: Option<String>,
    pub(super) contexts: BTreeMap<String, Context>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Context {
    pub(super) store: String,
    pub(super) namespace: Option<String>,
    #[serde(default)]
    pub(super) production: bool,
}

impl Contexts {
    /// None if there is no file.
    pub(super) fn read() -> Result<Self> {
        match path() {
            Some(path) => Self::read_from(&path),
            None => Ok(Contexts::default()),
        }
    }

    fn read_from(path: &Path) -> Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Contexts::default()),
            text => text.with_context(|| format!("reading {}", path.display()))?,
        };
        serde_json::from_str(&text).with_context(|| format!("{} is not a file of contexts", path.display()))
    }

    pub(super) fn write(&self) -> Result<()> {
        let path =
            path().ok_or_else(|| anyhow!("no folder for configuration: set HOME or XDG_CONFIG_HOME"))?;
        self.write_to(&path).with_context(|| format!("writing {}", path.display()))
    }

    /// Through a file of its own that takes the old one's place: a reader sees all of one of them. A temporary file is readable
    /// by its owner only. Of two commands at the same moment the later one decides.
    fn write_to(&self, path: &Path) -> Result<()> {
        let folder = path.parent().context("a path with a folder")?;
        std::fs::create_dir_all(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        serde_json::to_writer_pretty(&mut file, self)?;
        file.write_all(b"\n")?;
        file.persist(path)?;
        Ok(())
    }
}

/// By the rule of the XDG base directories: a relative path counts as none.
fn path() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let folder = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(folder.join("headwater").join("contexts.json"))
}

/// A URL for people: a password in it is replaced.
pub(crate) fn without_password(url: &str) -> String {
    let (base, query) = url.split_once('?').map_or((url, None), |(base, query)| (base, Some(query)));
    let base = match base.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?)))
    {
        Some((scheme, (user, rest))) if user.contains(':') => {
            let user = user.split(':').next().unwrap_or_default();
            format!("{scheme}://{user}:***@{rest}")
        }
        _ => base.to_owned(),
    };
    let Some(query) = query else { return base };
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name, _)) if name.eq_ignore_ascii_case("password") => format!("{name}=***"),
        _ => pair.to_owned(),
    });
    format!("{base}?{}", pairs.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_it_was_written_by_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a").join("contexts.json");
        assert_eq!(Contexts::read_from(&path).unwrap(), Contexts::default());
        let prod = Context { store: "postgres://h/d".into(), namespace: Some("n".into()), production: true };
        let contexts =
            Contexts { in_use: Some("prod".into()), contexts: BTreeMap::from([("prod".into(), prod)]) };
        contexts.write_to(&path).unwrap();
        assert_eq!(Contexts::read_from(&path).unwrap(), contexts);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        std::fs::write(&path, "notes").unwrap();
        assert!(Contexts::read_from(&path).unwrap_err().to_string().contains("is not a file of contexts"));
    }

    #[test]
    fn a_password_is_hidden_wherever_it_is() {
        for (url, shown) in [
            ("sqlite:a.db", "sqlite:a.db"),
            ("postgres://ann@h/d", "postgres://ann@h/d"),
            ("postgres://ann:s3cr:et@h:1/d?sslmode=require", "postgres://ann:***@h:1/d?sslmode=require"),
            ("postgres://ann:s3@cret@h/d", "postgres://ann:***@h/d"),
            ("postgres://h/d?user=ann&password=s3cret", "postgres://h/d?user=ann&password=***"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
