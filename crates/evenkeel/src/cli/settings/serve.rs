//! `[serve]`: where `serve` and `run` hand their notices to, and by which certificate they are asked.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use evenkeel_tune::http::Trust;
use serde::Deserialize;
use toml::Spanned;

use super::super::listen::access::{self, AccessArgs};
use super::super::listen::tls::TlsFiles;
use super::super::listen::webhook::Receiver;
use super::{DEFAULT_FILE, Source, chosen, read};
use crate::cli::{Failure, Global};

/// `[serve]`, see docs/serve.md.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ServeTable {
    webhook: Option<Spanned<String>>,
    webhook_token_file: Option<Spanned<PathBuf>>,
    webhook_ca: Option<Spanned<PathBuf>>,
    tls_cert: Option<Spanned<PathBuf>>,
    tls_key: Option<Spanned<PathBuf>>,
}

/// Where notices are handed to.
#[derive(Debug, Clone, clap::Args)]
pub struct WebhookArgs {
    /// Hand each notice and each all-clear to this http:// or https:// address, as a JSON document (POST).
    #[arg(long, value_name = "URL")]
    webhook: Option<String>,
    /// File with the token that the webhook asks for (`Authorization: Bearer`).
    #[arg(long, value_name = "FILE", requires = "webhook")]
    webhook_token_file: Option<PathBuf>,
    /// File with the authorities (PEM) that sign the webhook's certificate; without it those that this system trusts.
    #[arg(long, value_name = "FILE", requires = "webhook")]
    webhook_ca: Option<PathBuf>,
}

impl ServeTable {
    /// Certificate and key that the file names.
    pub(super) fn tls_files(&self, source: &Source) -> anyhow::Result<Option<TlsFiles>> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => {
                Ok(Some(TlsFiles { cert: cert.get_ref().clone(), key: key.get_ref().clone() }))
            }
            (None, None) => Ok(None),
            (Some(alone), None) => Err(source.fault(alone, "tls_cert goes with tls_key")),
            (None, Some(alone)) => Err(source.fault(alone, "tls_key goes with tls_cert")),
        }
    }

    /// The receiver that the file names, without its token.
    pub(super) fn receiver(&self, source: &Source) -> anyhow::Result<Option<Receiver>> {
        match (&self.webhook, &self.webhook_token_file, &self.webhook_ca) {
            (None, Some(file), _) => {
                Err(source.fault(file, "webhook_token_file goes with webhook = \"http://HOST:PORT/PATH\""))
            }
            (None, None, Some(file)) => {
                Err(source.fault(file, "webhook_ca goes with webhook = \"https://HOST:PORT/PATH\""))
            }
            (None, None, None) => Ok(None),
            (Some(url), ..) => {
                let receiver = Receiver::parse(url.get_ref());
                receiver.map(Some).map_err(|why| source.fault(url, format!("webhook: {why}")))
            }
        }
    }
}

/// The receiver of the command line, else of the file. A token goes only where it was named with: the file's is not sent to an
/// address of the command line.
///
/// # Errors
/// Usage: an address that cannot be asked, a token's file that holds none.
pub fn webhook(global: &Global, args: &WebhookArgs) -> Result<Option<Receiver>, Failure> {
    let found = match &args.webhook {
        Some(url) => {
            let receiver = Receiver::parse(url).map_err(|why| Failure::Usage(anyhow!("--webhook: {why}")))?;
            Some((receiver, args.webhook_token_file.clone(), args.webhook_ca.clone()))
        }
        None => match chosen(global, Path::new(DEFAULT_FILE))? {
            Some(path) => of_file(&path).map_err(Failure::Usage)?,
            None => None,
        },
    };
    let Some((receiver, file, ca)) = found else { return Ok(None) };
    let token = file.as_deref().map(access::read_to_send).transpose().map_err(Failure::Usage)?;
    let receiver = receiver.with_token(token);
    let usage = |why: String| Failure::Usage(anyhow!("webhook: {why}"));
    match (receiver.is_tls(), ca) {
        (true, ca) => Ok(Some(receiver.with_trust(Trust::open(ca.as_deref()).map_err(usage)?))),
        (false, None) => Ok(Some(receiver)),
        (false, Some(_)) => Err(usage("authorities go with an https:// address".to_owned())),
    }
}

/// Certificate and key of the command line, else of the file.
///
/// # Errors
/// Usage: the file cannot be read, or names one without the other.
pub fn tls_files(global: &Global, args: &AccessArgs) -> Result<Option<TlsFiles>, Failure> {
    if let Some(files) = args.tls_files() {
        return Ok(Some(files));
    }
    let Some(path) = chosen(global, Path::new(DEFAULT_FILE))? else { return Ok(None) };
    let of_file = || {
        let (file, source) = read(&path)?;
        file.serve.tls_files(&source)
    };
    of_file().map_err(Failure::Usage)
}

/// A receiver, and the files of its token and of its authorities.
type Named = (Receiver, Option<PathBuf>, Option<PathBuf>);

fn of_file(path: &Path) -> anyhow::Result<Option<Named>> {
    let (file, source) = read(path)?;
    let path = |of: &Option<Spanned<PathBuf>>| of.as_ref().map(|file| file.get_ref().clone());
    let (token, ca) = (path(&file.serve.webhook_token_file), path(&file.serve.webhook_ca));
    Ok(file.serve.receiver(&source)?.map(|receiver| (receiver, token, ca)))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn asked(dir: &Path, text: &str, options: &[&str]) -> Result<Option<Receiver>, String> {
        let file = dir.join("config.toml");
        std::fs::write(&file, text).unwrap();
        let global = ["evenkeel", "--config", file.to_str().unwrap(), "status"];
        let global = crate::cli::Cli::try_parse_from(global).unwrap().global;
        #[derive(clap::Parser)]
        struct Only {
            #[command(flatten)]
            webhook: WebhookArgs,
        }
        let args = Only::try_parse_from([&["x"], options].concat()).map_err(|error| error.to_string())?;
        webhook(&global, &args.webhook).map_err(|failure| match failure {
            Failure::Usage(error) => format!("{error:#}"),
            other => format!("{other:?}"),
        })
    }

    #[test]
    fn the_command_line_wins_and_gets_no_token_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        std::fs::write(&token, "of-the-file\n").unwrap();
        let text = format!(
            "[serve]\nwebhook = \"http://a:1/x\"\nwebhook_token_file = {:?}\n",
            token.to_str().unwrap()
        );
        let of_file = asked(dir.path(), &text, &[]).unwrap().unwrap();
        assert_eq!((of_file.name(), of_file.token()), ("a:1", Some("of-the-file")));
        let named = asked(dir.path(), &text, &["--webhook", "http://b/"]).unwrap().unwrap();
        assert_eq!((named.name(), named.token()), ("b:80", None));
        assert!(!format!("{of_file:?}").contains("of-the-file"));
        assert!(asked(dir.path(), "", &[]).unwrap().is_none());
    }

    #[test]
    fn what_cannot_be_asked_is_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        for (text, why) in [
            (
                "[serve]\nwebhook = \"https://h/\"\nwebhook_ca = \"/none/there\"\n",
                "webhook: cannot read /none/there",
            ),
            (
                "[serve]\nwebhook = \"http://h/\"\nwebhook_ca = \"/none/there\"\n",
                "authorities go with an https:// address",
            ),
            ("[serve]\nwebhook_ca = \"/x\"\n", "config.toml:2: webhook_ca goes with webhook"),
            ("[serve]\nwebhook = \"h:80\"\n", "config.toml:2: webhook: an address such as https://"),
            ("[serve]\nwebhook = \"http:///x\"\n", "names no host"),
            ("[serve]\nwebhook = \"http://u:secret@h/\"\n", "webhook_token_file"),
            ("[serve]\nwebhook_token_file = \"/x\"\n", "config.toml:2: webhook_token_file goes with webhook"),
            ("[serve]\nwebhok = \"http://h\"\n", "webhook"),
            (
                "[serve]\nwebhook = \"http://h\"\nwebhook_token_file = \"/none/there\"\n",
                "cannot read /none/there",
            ),
        ] {
            let error = asked(dir.path(), text, &[]).unwrap_err();
            assert!(error.contains(why) && !error.contains("secret"), "{text}: {error}");
        }
        assert!(
            asked(dir.path(), "", &["--webhook", "ftp://h"]).unwrap_err().contains("--webhook: an address")
        );
        assert!(asked(dir.path(), "", &["--webhook-token-file", "x"]).unwrap_err().contains("--webhook"));
    }

    #[test]
    fn a_certificate_goes_with_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let of_file = |text: &str| -> anyhow::Result<Option<TlsFiles>> {
            let path = dir.path().join("config.toml");
            std::fs::write(&path, text).unwrap();
            let (file, source) = read(&path)?;
            file.serve.tls_files(&source)
        };
        let both = of_file("[serve]\ntls_cert = \"/c\"\ntls_key = \"/k\"\n").unwrap();
        assert_eq!(both, Some(TlsFiles { cert: "/c".into(), key: "/k".into() }));
        assert_eq!(of_file("[serve]\n").unwrap(), None);
        for (alone, other) in [("tls_cert", "tls_key"), ("tls_key", "tls_cert")] {
            let error = format!("{:#}", of_file(&format!("[serve]\n{alone} = \"/x\"\n")).unwrap_err());
            assert!(error.contains(&format!("config.toml:2: {alone} goes with {other}")), "{error}");
        }
    }
}
