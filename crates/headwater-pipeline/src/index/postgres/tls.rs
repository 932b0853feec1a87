//! TLS with the modes of libpq, as Headwater's own connections have it: `prefer` and `require` encrypt, `verify-full` also verifies the
//! server's certificate.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{Error, Result};

/// The URL as the driver understands it, and the connector for it.
pub(super) fn connector(url: &str) -> Result<(String, MakeRustlsConnect)> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid(format!("TLS cannot be set up: {error}")))?;
    // The driver knows `require` only.
    let verified = ["sslmode=verify-full", "sslmode=verify-ca"].into_iter().find(|mode| url.contains(mode));
    let config = match verified {
        Some(_) => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            builder.with_root_certificates(roots).with_no_client_auth()
        }
        None => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth(),
    };
    let url = verified.map_or_else(|| url.to_owned(), |mode| url.replace(mode, "sslmode=require"));
    Ok((url, MakeRustlsConnect::new(config)))
}

/// Accepts any certificate, as libpq without verification does, and still checks that the server holds its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_gets_a_mode_that_it_knows() {
        let url_of = |url| connector(url).unwrap().0;
        assert_eq!(url_of("postgres://h/d?sslmode=verify-full&a=b"), "postgres://h/d?sslmode=require&a=b");
        assert_eq!(url_of("postgres://h/d?sslmode=prefer"), "postgres://h/d?sslmode=prefer");
    }
}
