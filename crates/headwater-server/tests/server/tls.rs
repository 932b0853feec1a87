//! TLS, with and without client certificates.

use std::path::{Path, PathBuf};

use headwater_server::{ServeError, TlsFiles};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::place::{Place, Running, serve};

crate::on_both_stores!(
    a_client_that_trusts_the_certificate_is_served,
    only_clients_with_a_certificate_are_served,
    files_that_cannot_be_used_are_named
);

/// An authority, a certificate for this machine and one for a client, as files.
struct Files {
    _folder: tempfile::TempDir,
    authority: String,
    tls: TlsFiles,
    client: String,
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("written");
    path
}

fn files(with_clients: bool) -> Files {
    let folder = tempfile::tempdir().expect("a folder");
    let mut params = CertificateParams::new(Vec::<String>::new()).expect("an authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority =
        CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
    let issue = |name: &str| {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &authority).expect("signed");
        (certificate.pem(), key.serialize_pem())
    };
    let (certificate, key) = issue("127.0.0.1");
    let (client, client_key) = issue("client");
    let path = folder.path();
    let authority_file = write(path, "authority.pem", &authority.pem());
    let tls = TlsFiles {
        certificate: write(path, "server.pem", &certificate),
        key: write(path, "server.key", &key),
        client_authorities: with_clients.then_some(authority_file),
    };
    Files { authority: authority.pem(), tls, client: format!("{client}\n{client_key}"), _folder: folder }
}

async fn served(place: &Place, files: &Files) -> Running {
    let tls = files.tls.clone();
    serve(place.headwater.clone(), |options| options.tls = Some(tls)).await.expect("a server")
}

fn client(files: &Files, with_certificate: bool) -> reqwest::Client {
    let authority = reqwest::Certificate::from_pem(files.authority.as_bytes()).expect("a certificate");
    let mut builder = crate::place::client().tls_certs_only([authority]);
    if with_certificate {
        builder =
            builder.identity(reqwest::Identity::from_pem(files.client.as_bytes()).expect("an identity"));
    }
    builder.build().expect("a client")
}

async fn a_client_that_trusts_the_certificate_is_served(place: &Place) {
    let files = files(false);
    let mut server = served(place, &files).await;
    server.client = client(&files, false);
    assert_eq!(server.get("/healthz").await["status"], "ok");
    let stranger = crate::place::client().build().expect("a client");
    assert!(
        stranger.get(format!("{}/healthz", server.base)).send().await.is_err(),
        "it does not trust the certificate"
    );
    let plain = stranger.get(format!("http://{}/healthz", server.address)).send().await;
    assert!(plain.is_err(), "nothing is served without TLS");
    server.end().await;
}

async fn only_clients_with_a_certificate_are_served(place: &Place) {
    let files = files(true);
    let mut server = served(place, &files).await;
    assert!(
        client(&files, false).get(format!("{}/healthz", server.base)).send().await.is_err(),
        "without a certificate"
    );
    server.client = client(&files, true);
    assert_eq!(server.get("/healthz").await["status"], "ok");
    server.end().await;
}

async fn files_that_cannot_be_used_are_named(place: &Place) {
    let files = files(false);
    let empty = write(files._folder.path(), "empty.pem", "");
    for (tls, named) in [
        (TlsFiles { certificate: empty.clone(), ..files.tls.clone() }, "empty.pem"),
        (TlsFiles { key: empty.clone(), ..files.tls.clone() }, "empty.pem"),
        (TlsFiles { key: files._folder.path().join("missing.key"), ..files.tls.clone() }, "missing.key"),
        (TlsFiles { client_authorities: Some(empty), ..files.tls.clone() }, "empty.pem"),
    ] {
        let refused =
            serve(place.headwater.clone(), |options| options.tls = Some(tls)).await.err().expect("refused");
        assert!(matches!(refused, ServeError::Tls(_)) && refused.to_string().contains(named), "{refused}");
    }
}
