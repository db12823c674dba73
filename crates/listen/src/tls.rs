//! TLS of the pages: a certificate and its key, read again when their files change.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, anyhow};
use rustls::ServerConfig;
use rustls::client::verify_server_name;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::follow::{Stamp, follow};

/// First byte of a TLS connection: a handshake.
const HANDSHAKE: u8 = 0x16;
/// The answer to who asks by http.
const PLAIN: &str = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n\
                     evenkeel: ask by https\n";

/// Where certificate and key are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM: the certificate, then those that it was signed with.
    pub cert: PathBuf,
    /// PEM.
    pub key: PathBuf,
}

/// What the files held when they were read last and were good.
struct Identity {
    acceptor: TlsAcceptor,
    certificate: CertificateDer<'static>,
}

/// A certificate in use. Copies share it.
#[derive(Clone)]
pub struct Tls {
    files: TlsFiles,
    /// As the files were when they were read.
    seen: Stamp,
    identity: Arc<Mutex<Arc<Identity>>>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// They cannot be read, hold no certificate and its key, or everybody may read the key.
    pub fn open(files: TlsFiles) -> anyhow::Result<Self> {
        let seen = Stamp::of([files.cert.clone(), files.key.clone()]);
        let identity = Arc::new(Mutex::new(Arc::new(Identity::read(&files)?)));
        Ok(Self { files, seen, identity })
    }

    fn now(&self) -> Arc<Identity> {
        Arc::clone(&self.identity.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the certificate is for this name.
    pub fn covers(&self, name: &str) -> bool {
        let Ok(name) = ServerName::try_from(name) else { return false };
        let now = self.now();
        ParsedCertificate::try_from(&now.certificate)
            .is_ok_and(|certificate| verify_server_name(&certificate, &name).is_ok())
    }

    /// A client's connection, encrypted from here on. Who asks by http is told so. The caller bounds the time.
    pub async fn accept(&self, mut stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
            // What it sends is taken first: closed with bytes unread, the answer would be lost.
            let _ = stream.read(&mut [0; 4096]).await?;
            stream.write_all(PLAIN.as_bytes()).await?;
            stream.shutdown().await?;
            return Err(io::ErrorKind::InvalidData.into());
        }
        let acceptor = self.now().acceptor.clone();
        acceptor.accept(stream).await
    }

    /// Takes up a new certificate soon after it is in the files; does not end.
    pub async fn follow(self) {
        follow(self.seen.clone(), "certificate", || {
            let identity = Identity::read(&self.files)?;
            *self.identity.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(identity);
            Ok(())
        })
        .await;
    }
}

impl Identity {
    fn read(files: &TlsFiles) -> anyhow::Result<Self> {
        let (cert, key) = (files.cert.display(), files.key.display());
        let chain = CertificateDer::pem_slice_iter(&read(&files.cert)?)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| anyhow!("{cert}: holds no certificate (PEM): {error}"))?;
        let certificate =
            chain.first().cloned().with_context(|| format!("{cert}: holds no certificate (PEM)"))?;
        if is_open_to_all(&files.key) {
            return Err(anyhow!(
                "{key}: every user of this host can read or write this key: chmod o= {key}, and think of a new one"
            ));
        }
        let secret = PrivateKeyDer::from_pem_slice(&read(&files.key)?)
            .map_err(|_| anyhow!("{key}: holds no private key (PEM, not encrypted)"))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, secret))
            .map_err(|error| anyhow!("{cert} and {key} are no certificate and its key: {error}"))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), certificate })
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    evenkeel_linux::input::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Whether somebody who is neither its owner nor of its group may read or write a file; not where it is not there.
pub fn is_open_to_all(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.mode() & 0o006 != 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    /// A certificate for this name, and its key.
    fn made(dir: &Path, name: &str) -> TlsFiles {
        let files = TlsFiles { cert: dir.join(format!("{name}.crt")), key: dir.join(format!("{name}.key")) };
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
            .args(["-days", "2", "-subj", "/CN=evenkeel", "-addext"])
            .arg(format!("subjectAltName=DNS:{name},DNS:*.wild.example"))
            .arg("-keyout")
            .arg(&files.key)
            .arg("-out")
            .arg(&files.cert)
            .output()
            .expect("openssl must be installed for this test (Debian: apt-get install openssl)");
        assert!(made.status.success(), "{made:?}");
        files
    }

    #[test]
    fn a_certificate_covers_its_names_alone() {
        let dir = tempfile::tempdir().unwrap();
        let tls = Tls::open(made(dir.path(), "node1.example")).unwrap();
        for name in ["node1.example", "NODE1.example", "a.wild.example"] {
            assert!(tls.covers(name), "{name}");
        }
        for name in ["node1", "node1.evil.example", "wild.example", "a.b.wild.example", "evenkeel", "", "*"] {
            assert!(!tls.covers(name), "{name}");
        }
    }

    #[test]
    fn what_is_no_certificate_with_its_own_secret_key_is_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (made(dir.path(), "one"), made(dir.path(), "other"));
        let why = |files: &TlsFiles| format!("{:#}", Tls::open(files.clone()).unwrap_err());
        assert!(why(&TlsFiles { key: other.key, ..one.clone() }).contains("no certificate and its key"));
        assert!(why(&TlsFiles { key: one.cert.clone(), ..one.clone() }).contains("every user"));
        assert!(why(&TlsFiles { cert: one.key.clone(), ..one.clone() }).contains("no certificate (PEM)"));
        let none = dir.path().join("none");
        assert!(why(&TlsFiles { cert: none.clone(), ..one.clone() }).contains("cannot read"));
        std::fs::write(&none, "no key").unwrap();
        std::fs::set_permissions(&none, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(why(&TlsFiles { key: none, ..one.clone() }).contains("no private key"));
        std::fs::set_permissions(&one.key, std::fs::Permissions::from_mode(0o604)).unwrap();
        assert!(why(&one).contains("every user"));
        std::fs::set_permissions(&one.key, std::fs::Permissions::from_mode(0o640)).unwrap();
        Tls::open(one).unwrap();
    }
}
