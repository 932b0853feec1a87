//! TLS by rustls, with optional client certificates.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::listen::ServeError;
use crate::options::TlsFiles;

/// Accepts TLS 1.2 and 1.3 with these files.
pub(crate) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, ServeError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificates = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| unreadable(&files.key, error))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| refused(files, error))?;
    let builder = match &files.client_authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut authorities = RootCertStore::empty();
            for certificate in self::certificates(path)? {
                authorities.add(certificate).map_err(|error| unreadable(path, error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(|error| unreadable(path, error))?)
        }
    };
    let mut config = builder.with_single_cert(certificates, key).map_err(|error| refused(files, error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ServeError> {
    let read = CertificateDer::pem_file_iter(path).map_err(|error| unreadable(path, error))?;
    let certificates: Vec<_> = read.collect::<Result<_, _>>().map_err(|error| unreadable(path, error))?;
    match certificates.is_empty() {
        true => Err(unreadable(path, "it has no certificate in PEM")),
        false => Ok(certificates),
    }
}

fn unreadable(path: &Path, why: impl std::fmt::Display) -> ServeError {
    ServeError::Tls(format!("cannot use {}: {why}", path.display()))
}

fn refused(files: &TlsFiles, why: impl std::fmt::Display) -> ServeError {
    ServeError::Tls(format!("cannot use {} with its key: {why}", files.certificate.display()))
}
