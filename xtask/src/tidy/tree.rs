//! The files that the rules are about: those that git has or would take, as text.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use headwater_servers::output_of;

/// Path from the root, with `/`, to content.
pub(crate) struct Tree(BTreeMap<String, String>);

impl Tree {
    /// Also what is not added yet: a file should be right before it is committed. Ignored and binary files are not part.
    pub(crate) fn load(root: &Path) -> Result<Self> {
        let mut list = Command::new("git");
        list.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
        let names = output_of(&mut list).context("cannot list the repository's files")?;
        let mut files = BTreeMap::new();
        for name in names.split('\0').filter(|name| !name.is_empty()) {
            // Deleted but not yet committed, a link to a folder, or not text: nothing to check.
            if let Ok(content) = std::fs::read_to_string(root.join(name)) {
                files.insert(name.to_owned(), content);
            }
        }
        Ok(Self(files))
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(path, content)| (path.as_str(), content.as_str()))
    }

    pub(crate) fn with_extension(&self, extension: &str) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(move |(path, _)| Path::new(path).extension().is_some_and(|own| own == extension))
    }

    /// Files below a folder, by their path inside it.
    pub(crate) fn below(&self, folder: &str) -> impl Iterator<Item = (&str, &str)> {
        self.files()
            .filter_map(move |(path, content)| Some((path.strip_prefix(folder)?.strip_prefix('/')?, content)))
    }

    pub(crate) fn get(&self, path: &str) -> Option<&str> {
        self.0.get(path).map(String::as_str)
    }
}

#[cfg(test)]
impl Tree {
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|(path, content)| ((*path).to_owned(), (*content).to_owned())).collect())
    }

    pub(crate) fn insert(&mut self, path: &str, content: &str) {
        self.0.insert(path.to_owned(), content.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_on_disk_is_what_git_would_take() {
        let root = std::env::temp_dir().join(format!("headwater-xtask-tree-{}", std::process::id()));
        std::fs::create_dir_all(root.join("src")).unwrap();
        std::fs::write(root.join(".gitignore"), "/target\n").unwrap();
        std::fs::write(root.join("target"), "ignored").unwrap();
        std::fs::write(root.join("picture"), [0xff, 0xfe, 0x00]).unwrap();
        std::fs::write(root.join("src/ä b.rs"), "//! Here.\n").unwrap();
        output_of(Command::new("git").args(["init", "--quiet"]).current_dir(&root)).unwrap();
        let tree = Tree::load(&root).unwrap();
        let paths: Vec<&str> = tree.files().map(|(path, _)| path).collect();
        assert_eq!(paths, [".gitignore", "src/ä b.rs"]);
        assert_eq!(tree.with_extension("rs").count(), 1);
        assert_eq!(tree.below("src").map(|(path, _)| path).collect::<Vec<_>>(), ["ä b.rs"]);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
