//! Who may ask: by address, by a token, and whether what is said is encrypted.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use evenkeel_console::{Failure, say};
use tokio::sync::watch;

use crate::follow::{Stamp, follow};
use crate::tls::{Tls, TlsFiles, is_open_to_all};

/// Bytes of a token: what is shorter is guessed, what is longer is no token.
const TOKEN: std::ops::RangeInclusive<usize> = 16..=1024;

/// Where to listen and who may ask.
#[derive(Debug, Clone, clap::Args)]
pub struct AccessArgs {
    /// File with a token of 16 to 1024 characters on its only line. Whoever asks for a page must send it (`Authorization:
    /// Bearer TOKEN`; a browser asks for it as a password); /healthz answers without. It is read again when it changes.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// File with the certificate (PEM, its chain after it) by which the pages are served over https. It is read again when it
    /// changes. An address that other hosts can reach needs this and a token.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// File with the certificate's private key (PEM), which not every user may read.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

impl AccessArgs {
    /// Whether something is asked for that goes with pages alone.
    pub fn is_given(&self) -> bool {
        self.token_file.is_some() || self.tls_cert.is_some()
    }

    /// The files named here.
    pub fn tls_files(&self) -> Option<TlsFiles> {
        Some(TlsFiles { cert: self.tls_cert.clone()?, key: self.tls_key.clone()? })
    }
}

/// What must be sent; nothing where no token is asked for. Copies share it.
#[derive(Clone, Default)]
pub struct Token {
    secret: Option<Arc<watch::Sender<Vec<u8>>>>,
    /// Where it is from, as that was when it was read.
    file: Option<(PathBuf, Stamp)>,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_set() { "Token(secret)" } else { "Token(none)" })
    }
}

impl Token {
    /// Reads the file.
    fn read(path: &Path) -> anyhow::Result<Self> {
        let file = Some((path.to_owned(), Stamp::of([path.to_owned()])));
        Ok(Self { file, ..Self::parse(path, &text(path)?)? })
    }

    /// Reads the text of a token's file; the path is for messages.
    pub fn parse(path: &Path, text: &str) -> anyhow::Result<Self> {
        Ok(Self { secret: Some(Arc::new(watch::Sender::new(secret(path, text)?))), file: None })
    }

    /// Takes up a new token soon after it is in the file, and refuses the one before from then on; does not end.
    pub async fn follow(self) {
        let (Some(kept), Some((path, seen))) = (self.secret, self.file) else { return };
        follow(seen, "token", || {
            let new = secret(&path, &text(&path)?)?;
            kept.send_if_modified(|old| std::mem::replace(old, new) != *old);
            Ok(())
        })
        .await;
    }

    /// Tells when another one is asked for than now; nothing where none is.
    pub(crate) fn changes(&self) -> Option<watch::Receiver<Vec<u8>>> {
        self.secret.as_ref().map(|secret| secret.subscribe())
    }

    /// Whether one is asked for.
    pub fn is_set(&self) -> bool {
        self.secret.is_some()
    }

    /// Whether the request may have the page.
    pub fn admits(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.secret else { return true };
        let token = token.borrow();
        let mut sent = headers.get_all(AUTHORIZATION).iter();
        let (Some(sent), None) = (sent.next(), sent.next()) else { return false };
        let Some((scheme, credentials)) = sent.to_str().ok().and_then(|text| text.split_once(' ')) else {
            return false;
        };
        if scheme.eq_ignore_ascii_case("bearer") {
            return same(credentials.trim().as_bytes(), &token);
        }
        // The password of whatever user: what a browser can ask for.
        let basic = scheme.eq_ignore_ascii_case("basic").then(|| base64(credentials.trim())).flatten();
        basic
            .and_then(|pair| Some(pair.splitn(2, |b| *b == b':').nth(1)?.to_vec()))
            .is_some_and(|p| same(&p, &token))
    }
}

/// What is in a token's file. The token itself is in no message.
fn text(path: &Path) -> anyhow::Result<String> {
    evenkeel_linux::input::read_text(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The token that readers must send.
fn secret(path: &Path, text: &str) -> anyhow::Result<Vec<u8>> {
    let token = text.trim_end_matches(['\n', '\r']);
    if !TOKEN.contains(&token.len()) || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(anyhow!(
            "{}: holds no token: {} to {} printable ASCII characters on one line, such as `openssl rand -hex 32` \
             writes",
            path.display(),
            TOKEN.start(),
            TOKEN.end()
        ));
    }
    Ok(token.as_bytes().to_vec())
}

/// Reads a token that somebody else asks for, to be sent; the token itself is in no message.
pub fn read_to_send(path: &Path) -> anyhow::Result<String> {
    let text = text(path)?;
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(anyhow!("{}: one line of printable characters is a token", path.display()));
    }
    Ok(token.to_owned())
}

/// The answer to who has no token.
pub fn who_are_you() -> Response {
    let text = "evenkeel: this page needs the token: Authorization: Bearer TOKEN\n";
    let ask = [(WWW_AUTHENTICATE, "Basic realm=\"evenkeel: the token is the password\", Bearer")];
    (StatusCode::UNAUTHORIZED, ask, text).into_response()
}

/// Compares in a time that depends on the length of what was sent alone.
fn same(sent: &[u8], token: &[u8]) -> bool {
    let mut differ = u8::from(sent.len() != token.len());
    for (at, byte) in sent.iter().enumerate() {
        differ |= std::hint::black_box(byte ^ token[at % token.len()]);
    }
    std::hint::black_box(differ) == 0
}

/// RFC 4648, padding optional; nothing where it is none.
fn base64(text: &str) -> Option<Vec<u8>> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut held, mut out) = (0_u32, 0, Vec::new());
    for byte in text.trim_end_matches('=').bytes() {
        let digit = DIGITS.iter().position(|d| *d == byte)? as u32;
        bits = bits << 6 | digit;
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    Some(out)
}

/// A place to listen, taken, and what is asked of those who come.
#[derive(Debug)]
pub struct Entrance {
    /// Where they come.
    pub listener: TcpListener,
    /// What they must send.
    pub token: Token,
    /// How they must speak; in the clear where there is none.
    pub tls: Option<Tls>,
}

/// Takes the place and reads token and certificate, the latter from these files.
///
/// # Errors
/// Usage: an address that other hosts can reach without token and certificate, a bad file of either; otherwise the address
/// cannot be had.
pub fn open(address: SocketAddr, args: &AccessArgs, files: Option<TlsFiles>) -> Result<Entrance, Failure> {
    let token = args.token_file.as_deref().map(Token::read).transpose().map_err(Failure::Usage)?;
    let tls = files.map(Tls::open).transpose().map_err(Failure::Usage)?;
    if !address.ip().is_loopback() && (token.is_none() || tls.is_none()) {
        let mut missing = Vec::new();
        if token.is_none() {
            missing.push("--token-file FILE");
        }
        if tls.is_none() {
            missing.push("--tls-cert FILE --tls-key FILE");
        }
        return Err(Failure::Usage(anyhow!(
            "--listen {address}: other hosts can reach this address, so it takes a token and a certificate: add {}. Or \
             listen on 127.0.0.1:{port}, which this host alone can reach",
            missing.join(" and "),
            port = address.port()
        )));
    }
    if let Some(file) = args.token_file.as_deref().filter(|file| is_open_to_all(file)) {
        say!("evenkeel: {0}: every user of this host can read the token: chmod o= {0}", file.display());
    }
    let listener = TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .with_context(|| format!("cannot listen on {address}"))
        .map_err(Failure::Cannot)?;
    Ok(Entrance { listener, token: token.unwrap_or_default(), tls })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, value.parse().unwrap());
        headers
    }

    #[test]
    fn only_the_token_admits() {
        let token = Token::parse(Path::new("token"), "0123456789abcdef").unwrap();
        assert!(token.admits(&headers("Bearer 0123456789abcdef")));
        // `prometheus:0123456789abcdef` and `:0123456789abcdef`
        assert!(token.admits(&headers("basic cHJvbWV0aGV1czowMTIzNDU2Nzg5YWJjZGVm")));
        assert!(token.admits(&headers("Basic OjAxMjM0NTY3ODlhYmNkZWY=")));
        for wrong in [
            "Bearer 0123456789abcdeF",
            "Bearer 0123456789abcdef0123456789abcdef",
            "Bearer 0123456789abcde",
            "Bearer ",
            "Bearer",
            "Basic MDEyMzQ1Njc4OWFiY2RlZg==",
            "Basic ?",
            "Digest 0123456789abcdef",
        ] {
            assert!(!token.admits(&headers(wrong)), "{wrong}");
        }
        assert!(!token.admits(&HeaderMap::new()));
        assert!(Token::default().admits(&HeaderMap::new()));
        assert!(!format!("{token:?}").contains("0123"));
    }

    #[test]
    fn a_token_file_that_holds_none_is_refused_without_showing_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        for bad in ["", "short", "with a blank inside it", "zwölf-zwölf-zwölf", "0123456789abcdef\nand more"]
        {
            std::fs::write(&file, bad).unwrap();
            let error = format!("{:#}", Token::read(&file).unwrap_err());
            assert!(error.contains("holds no token") && (bad.is_empty() || !error.contains(bad)), "{error}");
        }
        std::fs::write(&file, "0123456789abcdef\n").unwrap();
        assert!(Token::read(&file).unwrap().is_set());
    }
}
