//! Where files are: from a path or a URL to what stores them.

use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};
#[cfg(feature = "cloud")]
use std::sync::Arc;

#[cfg(feature = "cloud")]
use object_store::ObjectStore;
use object_store::path::Path;
#[cfg(feature = "cloud")]
use object_store::prefix::PrefixStore;

use super::blocking;
use super::objects::{Objects, sync_directory};
use crate::error::{Error, ErrorCode, Result};

type Options = BTreeMap<String, String>;

/// Opens a path, or a URL of a scheme that is known.
pub(super) async fn open(location: &str, options: &Options) -> Result<Objects> {
    let Some((scheme, _)) = location.split_once(':').filter(|(scheme, _)| is_scheme(scheme)) else {
        return in_directory(PathBuf::from(location), location, options).await;
    };
    match scheme {
        "file" => in_directory(path_of_url(location)?, location, options).await,
        "memory" => Ok(Objects::in_memory()),
        "s3" | "s3a" => s3(location, options),
        "gs" => gcs(location, options),
        "az" | "azure" | "adl" | "abfs" | "abfss" => azure(location, options),
        other => {
            let rule = "a path, or a URL of file, s3, gs or az is expected";
            Err(Error::invalid(format!("storage {location:?} has scheme {other}: {rule}")))
        }
    }
}

/// Two characters at least: one is a drive of Windows.
fn is_scheme(text: &str) -> bool {
    text.len() > 1 && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The absolute path of a `file:` URL.
fn path_of_url(url: &str) -> Result<PathBuf> {
    let refused = |rule: &str| Error::invalid(format!("storage {url:?}: {rule}"));
    let rest = url.strip_prefix("file:").unwrap_or(url);
    let path = rest.strip_prefix("//localhost").or_else(|| rest.strip_prefix("//")).unwrap_or(rest);
    if !path.starts_with('/') {
        return Err(refused("file:///absolute/path is expected"));
    }
    let decoded = Path::from_url_path(path).map_err(|error| refused(&error.to_string()))?;
    Ok(FilePath::new("/").join(decoded.as_ref()))
}

async fn in_directory(root: PathBuf, location: &str, options: &Options) -> Result<Objects> {
    if root.as_os_str().is_empty() {
        return Err(Error::invalid("storage has no path: a directory or a URL is expected"));
    }
    if let Some(option) = options.keys().next() {
        let rule = "a local directory has no options";
        return Err(Error::invalid(format!("option {option} of storage {location:?}: {rule}")));
    }
    blocking(ErrorCode::WriteFailed, move || {
        let root = created(&root).map_err(|error| {
            let text = format!("directory {} could not be created: {error}", root.display());
            Error::transient(ErrorCode::WriteFailed, text)
        })?;
        Objects::in_directory(root)
    })
    .await
}

/// Creates a directory with its parents, each durable in its own parent, and returns its absolute path.
fn created(root: &FilePath) -> std::io::Result<PathBuf> {
    let absolute = std::path::absolute(root)?;
    let is_missing = |ancestor: &&FilePath| !ancestor.exists();
    let missing: Vec<&FilePath> = absolute.ancestors().take_while(is_missing).collect();
    std::fs::create_dir_all(&absolute)?;
    // The parent of the last one that was missing has a new entry. Of an existing one too: another process may have just created it.
    for directory in missing.iter().copied().chain([absolute.as_path()]) {
        if let Some(parent) = directory.parent() {
            sync_directory(parent)?;
        }
    }
    absolute.canonicalize()
}

/// The store of a URL, below the folder that the URL names.
#[cfg(feature = "cloud")]
fn below(store: impl ObjectStore, url: &str) -> Result<Objects> {
    let path = url.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map_or("", |(_, path)| path);
    let folder = Path::from_url_path(path)
        .map_err(|error| Error::invalid(format!("folder of storage {url:?}: {error}")))?;
    if folder.as_ref().is_empty() {
        return Ok(Objects::new(Arc::new(store), url));
    }
    Ok(Objects::new(Arc::new(PrefixStore::new(store, folder)), url))
}

/// Connections use the process's provider of cryptography; ring, which the rest of the tree uses, unless the program has chosen one.
#[cfg(feature = "cloud")]
fn choose_cryptography() {
    // An error means that one is installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Services wait outages out themselves, with a record of each failure; the client repeats only what fails by chance. Its own patience,
/// minutes of it, would hold up a stop.
#[cfg(feature = "cloud")]
fn retries() -> object_store::RetryConfig {
    object_store::RetryConfig {
        max_retries: 2,
        retry_timeout: std::time::Duration::from_secs(10),
        ..object_store::RetryConfig::default()
    }
}

/// Opens one kind of store: environment variables first, then options, which are refused if the store does not know them.
#[cfg(feature = "cloud")]
macro_rules! open_with {
    ($builder:ty, $key:ty, $url:expr, $options:expr) => {{
        choose_cryptography();
        let mut builder = <$builder>::from_env().with_url($url).with_retry(retries());
        for (name, value) in $options {
            let key: $key = name
                .parse()
                .map_err(|error| Error::invalid(format!("option {name} of storage {:?}: {error}", $url)))?;
            builder = builder.with_config(key, value);
        }
        let store =
            builder.build().map_err(|error| Error::invalid(format!("storage {:?}: {error}", $url)))?;
        below(store, $url)
    }};
}

#[cfg(feature = "aws")]
fn s3(url: &str, options: &Options) -> Result<Objects> {
    use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
    open_with!(AmazonS3Builder, AmazonS3ConfigKey, url, options)
}

#[cfg(feature = "gcp")]
fn gcs(url: &str, options: &Options) -> Result<Objects> {
    use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
    open_with!(GoogleCloudStorageBuilder, GoogleConfigKey, url, options)
}

#[cfg(feature = "azure")]
fn azure(url: &str, options: &Options) -> Result<Objects> {
    use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
    open_with!(MicrosoftAzureBuilder, AzureConfigKey, url, options)
}

#[cfg(not(feature = "aws"))]
fn s3(url: &str, _: &Options) -> Result<Objects> {
    Err(without(url, "aws"))
}

#[cfg(not(feature = "gcp"))]
fn gcs(url: &str, _: &Options) -> Result<Objects> {
    Err(without(url, "gcp"))
}

#[cfg(not(feature = "azure"))]
fn azure(url: &str, _: &Options) -> Result<Objects> {
    Err(without(url, "azure"))
}

#[cfg(not(all(feature = "aws", feature = "gcp", feature = "azure")))]
fn without(url: &str, feature: &str) -> Error {
    Error::invalid(format!("storage {url:?}: this program was built without the feature {feature}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refused(location: &str, options: &Options) -> String {
        let error = open(location, options).await.expect_err("refused");
        assert_eq!(error.code(), ErrorCode::InvalidConfiguration);
        error.to_string()
    }

    #[tokio::test]
    async fn a_directory_is_created_by_path_and_by_url() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        for (location, expected) in [
            (root.join("a/b c").display().to_string(), root.join("a/b c")),
            (format!("file://{}/d%20e/f", root.display()), root.join("d e/f")),
            (format!("file:{}/g", root.display()), root.join("g")),
        ] {
            let objects = open(&location, &Options::new()).await.unwrap();
            assert_eq!(objects.location(), expected.to_str().unwrap());
            assert!(expected.is_dir(), "{location}");
        }
    }

    #[tokio::test]
    async fn what_is_not_known_is_refused_with_what_is() {
        let none = Options::new();
        assert!(refused("", &none).await.contains("a directory or a URL is expected"));
        let error = refused("ftp://host/x", &none).await;
        assert!(error.contains("scheme ftp: a path, or a URL of file, s3, gs or az"), "{error}");
        assert!(refused("file:relative", &none).await.contains("file:///absolute/path is expected"));
        let options = Options::from([("region".to_owned(), "x".to_owned())]);
        let directory = tempfile::tempdir().unwrap();
        let error = refused(directory.path().to_str().unwrap(), &options).await;
        assert!(error.contains("option region") && error.contains("has no options"), "{error}");
    }

    #[cfg(not(feature = "aws"))]
    #[tokio::test]
    async fn a_build_without_object_stores_says_which_feature_is_missing() {
        for (url, feature) in [("s3://b/x", "aws"), ("gs://b/x", "gcp"), ("az://b/x", "azure")] {
            let error = refused(url, &Options::new()).await;
            assert!(error.ends_with(&format!("without the feature {feature}")), "{error}");
        }
    }

    #[cfg(feature = "aws")]
    #[tokio::test]
    async fn options_of_s3_are_checked_by_name() {
        let options = Options::from([("region".to_owned(), "eu-central-1".to_owned())]);
        assert_eq!(open("s3://bucket/a/b", &options).await.unwrap().location(), "s3://bucket/a/b");
        let options = Options::from([("regoin".to_owned(), "eu-central-1".to_owned())]);
        let error = refused("s3://bucket", &options).await;
        assert!(error.contains("option regoin"), "{error}");
    }
}
