//! `[serve]`: where `serve` and `run` hand their notices and their metrics to, and by which certificate they are asked.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_fetch::http::{Trust, is_in_the_clear};
use evenkeel_listen::access::{self, AccessArgs, Entrance};
use evenkeel_listen::handover::Receiver;
use evenkeel_listen::otlp::{self, Target};
use evenkeel_listen::tls::TlsFiles;
use serde::Deserialize;
use toml::Spanned;

use super::source::Source;
use super::{DEFAULT_FILE, chosen, read};
use crate::cli::{Failure, Global};

/// `[serve]`, see docs/serve.md.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ServeTable {
    webhook: Option<Spanned<String>>,
    webhook_token_file: Option<Spanned<PathBuf>>,
    webhook_ca: Option<Spanned<PathBuf>>,
    otlp: Option<Spanned<String>>,
    otlp_interval: Option<Spanned<String>>,
    otlp_token_file: Option<Spanned<PathBuf>>,
    otlp_ca: Option<Spanned<PathBuf>>,
    scrape_services: bool,
    tls_cert: Option<Spanned<PathBuf>>,
    tls_key: Option<Spanned<PathBuf>>,
    pub(super) blame: Option<Spanned<String>>,
    pub(super) blame_budget: Option<Spanned<f64>>,
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

/// Where metrics are pushed to.
#[derive(Debug, Clone, clap::Args)]
pub struct OtlpArgs {
    /// Push what /metrics has to this OpenTelemetry collector (OTLP over HTTP), such as http://127.0.0.1:4318.
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// Time between two pushes, 1 s to 10 min; 15 s unless set.
    #[arg(long, value_name = "DURATION", requires = "otlp", value_parser = crate::cli::duration)]
    otlp_interval: Option<Duration>,
    /// File with the token that the collector asks for (`Authorization: Bearer`).
    #[arg(long, value_name = "FILE", requires = "otlp")]
    otlp_token_file: Option<PathBuf>,
    /// File with the authorities (PEM) that sign the collector's certificate; without it those that this system trusts.
    #[arg(long, value_name = "FILE", requires = "otlp")]
    otlp_ca: Option<PathBuf>,
}

/// Whether services are asked for their requests.
#[derive(Debug, Clone, clap::Args)]
pub struct ScrapeArgs {
    /// Ask services for rate, durations and errors of their requests: pods with the annotations prometheus.io/scrape and
    /// prometheus.io/port, containers with the label evenkeel.io/metrics.
    #[arg(long)]
    scrape_services: bool,
}

impl ScrapeArgs {
    /// Whether the command line says so.
    pub fn is_given(&self) -> bool {
        self.scrape_services
    }
}

impl OtlpArgs {
    /// Whether the command line names a collector.
    pub fn is_given(&self) -> bool {
        self.otlp.is_some()
    }
}

/// What is pushed how often, unless it is said.
const INTERVAL: Duration = Duration::from_secs(15);
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(600);

const NOTICES: &str = "https://alerts.example/notices";
const COLLECTOR: &str = "http://127.0.0.1:4318";

/// Files that go with an address: of its token, and of the authorities that sign its certificate.
#[derive(Debug, Default)]
struct Files {
    token: Option<PathBuf>,
    ca: Option<PathBuf>,
}

fn interval(value: Duration) -> Result<Duration, String> {
    if (SHORTEST..=LONGEST).contains(&value) {
        return Ok(value);
    }
    Err(format!("{value:?}: from {SHORTEST:?} to {LONGEST:?}"))
}

impl ServeTable {
    /// Looks whether all of it can be meant.
    pub(super) fn check(&self, source: &Source) -> anyhow::Result<()> {
        self.webhook(source)?;
        self.blaming(source)?;
        self.tls_files(source)?;
        self.otlp(source).map(|_| ())
    }

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

    /// The webhook that the file names, and the files that go with it.
    fn webhook(&self, source: &Source) -> anyhow::Result<(Option<Receiver>, Files)> {
        receiver(source, ("webhook", NOTICES), &self.webhook, (&self.webhook_token_file, &self.webhook_ca))
    }

    /// The collector that the file names, and the files that go with it.
    fn otlp(&self, source: &Source) -> anyhow::Result<(Option<Target>, Files)> {
        let beside = (&self.otlp_token_file, &self.otlp_ca);
        let (receiver, files) = receiver(source, ("otlp", COLLECTOR), &self.otlp, beside)?;
        let value = self.otlp_interval.as_ref().map(|text| {
            let value = crate::cli::duration(text.get_ref()).and_then(interval);
            value.map_err(|why| source.fault(text, format!("otlp_interval: {why}")))
        });
        let interval = value.transpose()?.unwrap_or(INTERVAL);
        let target = receiver.map(|receiver| Target { receiver: receiver.with_path(otlp::PATH), interval });
        Ok((target, files))
    }
}

/// A file that the configuration names.
type Named = Option<Spanned<PathBuf>>;

fn receiver(
    source: &Source,
    (key, example): (&str, &str),
    url: &Option<Spanned<String>>,
    (token, ca): (&Named, &Named),
) -> anyhow::Result<(Option<Receiver>, Files)> {
    let Some(url) = url else {
        return match (token, ca) {
            (Some(file), _) => {
                Err(source.fault(file, format!("{key}_token_file goes with {key} = \"{example}\"")))
            }
            (None, Some(file)) => {
                Err(source.fault(file, format!("{key}_ca goes with {key} = \"https://HOST:PORT/PATH\"")))
            }
            (None, None) => Ok((None, Files::default())),
        };
    };
    let receiver =
        Receiver::parse(url.get_ref(), example).map_err(|why| source.fault(url, format!("{key}: {why}")))?;
    let path = |of: &Named| of.as_ref().map(|file| file.get_ref().clone());
    Ok((Some(receiver), Files { token: path(token), ca: path(ca) }))
}

/// The webhook of the command line, else of the file. A token goes only where it was named with: the file's is not sent to an
/// address of the command line.
///
/// # Errors
/// Usage: an address that cannot be asked, a file of a token or of authorities that holds none.
pub fn webhook(global: &Global, args: &WebhookArgs) -> Result<Option<Receiver>, Failure> {
    let (receiver, files) = match &args.webhook {
        Some(url) => {
            let files = Files { token: args.webhook_token_file.clone(), ca: args.webhook_ca.clone() };
            (Some(of_option("webhook", url, NOTICES)?), files)
        }
        None => of_file(global, ServeTable::webhook)?.unwrap_or_default(),
    };
    receiver.map(|receiver| equipped("webhook", receiver, &files)).transpose()
}

/// The collector of the command line, else of the file; its token as with [`webhook`].
///
/// # Errors
/// Usage: an address that cannot be asked, an interval that cannot be kept, a file of a token or of authorities that holds none.
pub fn otlp(global: &Global, args: &OtlpArgs) -> Result<Option<Target>, Failure> {
    let (target, files) = match &args.otlp {
        Some(url) => {
            let interval = interval(args.otlp_interval.unwrap_or(INTERVAL));
            let interval = interval.map_err(|why| usage!("--otlp-interval {why}"))?;
            let receiver = of_option("otlp", url, COLLECTOR)?.with_path(otlp::PATH);
            let files = Files { token: args.otlp_token_file.clone(), ca: args.otlp_ca.clone() };
            (Some(Target { receiver, interval }), files)
        }
        None => of_file(global, ServeTable::otlp)?.unwrap_or_default(),
    };
    let Some(Target { receiver, interval }) = target else { return Ok(None) };
    Ok(Some(Target { receiver: equipped("otlp", receiver, &files)?, interval }))
}

/// Whether services are asked for their requests, by the command line or the file.
pub fn scrapes(global: &Global, args: &ScrapeArgs) -> Result<bool, Failure> {
    let of_file = of_file(global, |table, _| Ok(table.scrape_services))?;
    Ok(args.scrape_services || of_file.unwrap_or_default())
}

fn of_option(name: &str, url: &str, example: &str) -> Result<Receiver, Failure> {
    Receiver::parse(url, example).map_err(|why| usage!("--{name}: {why}"))
}

/// What the configuration file has of this; `None` without a file.
pub(super) fn of_file<T>(
    global: &Global,
    pick: impl FnOnce(&ServeTable, &Source) -> anyhow::Result<T>,
) -> Result<Option<T>, Failure> {
    let Some(path) = chosen(global, Path::new(DEFAULT_FILE))? else { return Ok(None) };
    let (file, source) = read(&path).map_err(Failure::Usage)?;
    pick(&file.serve, &source).map(Some).map_err(Failure::Usage)
}

/// With its token, and with whom it believes where it is https.
fn equipped(name: &str, receiver: Receiver, files: &Files) -> Result<Receiver, Failure> {
    let token = files.token.as_deref().map(access::read_to_send).transpose().map_err(Failure::Usage)?;
    if token.is_some() && is_in_the_clear(receiver.url()) {
        say!("evenkeel: {name}: the token is sent in the clear to another host: use an https:// address");
    }
    let receiver = receiver.with_token(token);
    let usage = |why: String| usage!("{name}: {why}");
    match (receiver.is_tls(), &files.ca) {
        (true, ca) => Ok(receiver.with_trust(Trust::open(ca.as_deref(), None).map_err(usage)?)),
        (false, None) => Ok(receiver),
        (false, Some(_)) => Err(usage("authorities go with an https:// address".to_owned())),
    }
}

/// Takes the place to listen at, for those who may ask as options and the file's `[serve]` say.
///
/// # Errors
/// Usage: the file cannot be read or names a certificate without its key, or what [`access::open`] refuses.
pub fn open(global: &Global, address: SocketAddr, args: &AccessArgs) -> Result<Entrance, Failure> {
    let files = match args.tls_files() {
        Some(files) => Some(files),
        None => of_file(global, ServeTable::tls_files)?.flatten(),
    };
    access::open(address, args, files)
}

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Only<A: clap::Args> {
        #[command(flatten)]
        args: A,
    }

    /// What is read of a file and of options, or why it is refused.
    pub fn asked<A: clap::Args, T>(
        text: &str,
        options: &[&str],
        read: impl Fn(&Global, &A) -> Result<T, Failure>,
    ) -> Result<T, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        std::fs::write(&file, text).unwrap();
        let global = ["evenkeel", "--config", file.to_str().unwrap(), "status"];
        let global = crate::cli::Cli::try_parse_from(global).unwrap().global;
        let args =
            Only::<A>::try_parse_from([&["x"], options].concat()).map_err(|error| error.to_string())?;
        read(&global, &args.args).map_err(|failure| match failure {
            Failure::Usage(error) => format!("{error:#}"),
            other => format!("{other:?}"),
        })
    }

    fn webhook_of(text: &str, options: &[&str]) -> Result<Option<Receiver>, String> {
        asked(text, options, webhook)
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
        let of_file = webhook_of(&text, &[]).unwrap().unwrap();
        assert_eq!((of_file.name(), of_file.token()), ("a:1", Some("of-the-file")));
        let named = webhook_of(&text, &["--webhook", "http://b/"]).unwrap().unwrap();
        assert_eq!((named.name(), named.token()), ("b:80", None));
        assert!(!format!("{of_file:?}").contains("of-the-file"));
        assert!(webhook_of("", &[]).unwrap().is_none());
    }

    #[test]
    fn services_are_asked_when_one_of_both_says_so() {
        let of = |text: &str, options: &[&str]| asked(text, options, scrapes).unwrap();
        let on = "[serve]\nscrape_services = true\n";
        assert_eq!((of("", &[]), of("", &["--scrape-services"]), of(on, &[])), (false, true, true));
    }

    #[test]
    fn a_collector_has_a_path_and_a_pace_and_a_token_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        std::fs::write(&token, "of-the-file\n").unwrap();
        let text = format!(
            "[serve]\notlp = \"http://a:4318/\"\notlp_interval = \"1m\"\notlp_token_file = {:?}\n",
            token.to_str().unwrap()
        );
        let read = |text: &str, options: &[&str]| asked(text, options, otlp);
        let of = |text: &str, options: &[&str]| read(text, options).unwrap().unwrap();
        let target = of(&text, &[]);
        assert_eq!((target.receiver.url(), target.interval.as_secs()), ("http://a:4318/v1/metrics", 60));
        assert_eq!(target.receiver.token(), Some("of-the-file"));
        let target = of(&text, &["--otlp", "http://b/otlp/v1/metrics"]);
        assert_eq!((target.receiver.url(), target.interval.as_secs()), ("http://b/otlp/v1/metrics", 15));
        assert_eq!(target.receiver.token(), None);
        assert_eq!(of("", &["--otlp", "http://b:1", "--otlp-interval", "1s"]).interval.as_secs(), 1);
        assert_eq!(of("", &["--otlp", "https://b"]).receiver.url(), "https://b/v1/metrics");
        let refused = |text: &str, options: &[&str]| read(text, options).unwrap_err();
        assert!(refused("", &["--otlp", "http://b", "--otlp-interval", "0s"]).contains("from 1s to 600s"));
        assert!(refused("", &["--otlp-interval", "1s"]).contains("--otlp"));
        for (text, why) in [
            (
                "[serve]\notlp = \"grpc://h:4317\"\n",
                "config.toml:2: otlp: an address such as http://127.0.0.1:4318",
            ),
            (
                "[serve]\notlp = \"http://h\"\notlp_interval = \"1h\"\n",
                "config.toml:3: otlp_interval: 3600s: from",
            ),
            ("[serve]\notlp_interval = \"soon\"\n", "config.toml:2: otlp_interval"),
            ("[serve]\notlp_token_file = \"/x\"\n", "config.toml:2: otlp_token_file goes with otlp"),
            ("[serve]\notlp_ca = \"/x\"\n", "config.toml:2: otlp_ca goes with otlp"),
            ("[serve]\notlp = \"https://h/\"\notlp_ca = \"/none/there\"\n", "otlp: cannot read /none/there"),
            (
                "[serve]\notlp = \"http://h/\"\notlp_ca = \"/none/there\"\n",
                "otlp: authorities go with an https:// address",
            ),
        ] {
            let error = refused(text, &[]);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn what_cannot_be_asked_is_refused_with_the_reason() {
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
            let error = webhook_of(text, &[]).unwrap_err();
            assert!(error.contains(why) && !error.contains("secret"), "{text}: {error}");
        }
        assert!(webhook_of("", &["--webhook", "ftp://h"]).unwrap_err().contains("--webhook: an address"));
        assert!(webhook_of("", &["--webhook-token-file", "x"]).unwrap_err().contains("--webhook"));
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
            let text = format!("[serve]\n{alone} = \"/x\"\n");
            let error = format!("{:#}", of_file(&text).unwrap_err());
            assert!(error.contains(&format!("config.toml:2: {alone} goes with {other}")), "{error}");
            // Whoever reads the file for something else refuses it, too.
            let (file, source) = read(&dir.path().join("config.toml")).unwrap();
            assert_eq!(format!("{:#}", file.serve.check(&source).unwrap_err()), error);
        }
    }
}
