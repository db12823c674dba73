//! The connection below a request: bounded in time from its first byte to its last, encrypted where the address says https.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Whose certificates are believed, and for which name where that is not the host of the address.
#[derive(Clone)]
pub struct Trust(Arc<ClientConfig>, Option<ServerName<'static>>);

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trust")
    }
}

impl Trust {
    /// Those of the file's authorities (PEM), else of those that this system trusts. A certificate is to be for `name`, if
    /// that is given, whatever the address is.
    ///
    /// # Errors
    /// In words: the file cannot be read or holds none, the system has none, or no certificate can be for the name.
    pub fn open(file: Option<&Path>, name: Option<&str>) -> Result<Self, String> {
        let no = |name| format!("no certificate can be for {name:?}");
        let name = name.map(|name| server_name(name).ok_or_else(|| no(name))).transpose()?;
        let roots = match file {
            Some(path) => {
                let text = evenkeel_linux::input::read(path)
                    .map_err(|why| format!("cannot read {}: {why}", path.display()))?;
                authorities(&text).map_err(|why| format!("{}: {why}", path.display()))?
            }
            None => {
                let mut roots = RootCertStore::empty();
                // One that cannot be read verifies nobody; the others do.
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err("this system has no certificates of authorities (Debian: apt-get install \
                                ca-certificates); name a file with one"
                        .to_owned());
                }
                roots
            }
        };
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|why| why.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Arc::new(config), name))
    }

    /// The other end is to be who it should: `host`, a name or an address without a port, where no other name is to be verified.
    fn over(&self, host: &str, stream: Bounded) -> io::Result<StreamOwned<ClientConnection, Bounded>> {
        let name = self.1.clone().or_else(|| server_name(host)).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "no certificate can be for this host")
        })?;
        let connection = ClientConnection::new(self.0.clone(), name).map_err(io::Error::other)?;
        Ok(StreamOwned::new(connection, stream))
    }
}

fn server_name(host: &str) -> Option<ServerName<'static>> {
    ServerName::try_from(host.trim_start_matches('[').trim_end_matches(']').to_owned()).ok()
}

fn authorities(text: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(text) {
        let certificate = certificate.map_err(|why| format!("holds no certificate (PEM): {why}"))?;
        roots.add(certificate).map_err(|why| format!("holds a certificate that is none: {why}"))?;
    }
    if roots.is_empty() {
        return Err("holds no certificate (PEM)".to_owned());
    }
    Ok(roots)
}

/// A connection on which one request goes out and its answer comes back.
pub(super) enum Wire {
    Plain(Bounded),
    Tls(Box<StreamOwned<ClientConnection, Bounded>>),
}

impl Wire {
    /// What is read and written on it ends in time, as a whole.
    pub fn new(stream: TcpStream, until: Instant, tls: Option<(&Trust, &str)>) -> io::Result<Self> {
        let stream = Bounded::new(stream, until);
        match tls {
            None => Ok(Self::Plain(stream)),
            Some((trust, host)) => Ok(Self::Tls(Box::new(trust.over(host, stream)?))),
        }
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// A stream whose steps may be bounded in time.
pub(super) trait Socket: Read + Write {
    fn read_within(&self, time: Duration) -> io::Result<()>;
    fn write_within(&self, time: Duration) -> io::Result<()>;
}

impl Socket for TcpStream {
    fn read_within(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))
    }

    fn write_within(&self, time: Duration) -> io::Result<()> {
        self.set_write_timeout(Some(time))
    }
}

impl Socket for UnixStream {
    fn read_within(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))
    }

    fn write_within(&self, time: Duration) -> io::Result<()> {
        self.set_write_timeout(Some(time))
    }
}

/// Each step has what is left of the time, however many there are.
pub(super) struct Bounded<S = TcpStream> {
    stream: S,
    until: Instant,
}

impl<S: Socket> Bounded<S> {
    pub fn new(stream: S, until: Instant) -> Self {
        Self { stream, until }
    }
}

impl<S: Socket> Read for Bounded<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read_within(left(self.until)?)?;
        self.stream.read(buffer).map_err(in_time)
    }
}

impl<S: Socket> Write for Bounded<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write_within(left(self.until)?)?;
        self.stream.write(bytes).map_err(in_time)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(in_time(io::ErrorKind::TimedOut.into())) } else { Ok(left) }
}

/// A socket's time that is over reads as if it would block.
pub(super) fn in_time(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
        }
        _ => error,
    }
}
