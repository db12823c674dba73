//! `evenkeel fleet`: many agents' metrics, one answer: who is starved where.

mod show_fleet;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use evenkeel_base::text::count;

use evenkeel_fetch::http::{Trust, is_in_the_clear, parse_either};
use evenkeel_listen::access;
use evenkeel_listen::fleet::fetch::Reader;

use super::{Failure, Global, Outcome};

/// Read many agents' metrics and show who is starved on which host, what else is wrong there, and what the changes in
/// force bring in sum.
///
/// A target is an agent (`HOST:PORT`, or the address of its metrics page), as `serve` and `run --listen` serve it. One that
/// hangs or sends without end loses only its own answer. A scope is starved when it waits for a CPU at
/// least a fifth of the time in which it could run, and by 5 % of a CPU or more. Exit status: 0 all were read, 1 some
/// were not, 3 none was.
///
/// Example: evenkeel fleet node1:9190 node2:9190
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Agents: HOST:PORT, http://HOST:PORT/PATH or https://HOST:PORT/PATH. HOST:PORT alone is asked by http; by https with a token, where it is
    /// another host.
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// A file of targets, one a line; # begins a comment.
    #[arg(long, value_name = "FILE")]
    targets_file: Option<PathBuf>,
    /// Ask this Prometheus, which scrapes the agents, instead of the agents themselves.
    #[arg(long, value_name = "URL", conflicts_with_all = ["targets", "targets_file"])]
    prometheus: Option<String>,
    /// A file with the token that the agents (or the Prometheus) ask for.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A file with the authorities (PEM) that sign the agents' certificates; without it those that this system trusts.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// The name that certificates must be for, instead of the target's, such as the service's name where nodes are asked by address.
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
    /// Time that one answer may take.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = super::duration)]
    timeout: Duration,
    /// Time that all answers together may take.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = super::duration)]
    within: Duration,
    /// Targets asked at a time.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    at_once: u16,
    /// Lines at most of each table (text only).
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    lines: usize,
}

/// Targets at most.
const MOST_TARGETS: usize = 100_000;

pub fn run(global: &Global, args: Args) -> Outcome {
    global.no_tree("fleet asks agents over the network; leave out --root")?;
    let token = args.token_file.as_deref().map(access::read_to_send).transpose().map_err(Failure::Usage)?;
    let urls = match &args.prometheus {
        Some(url) => vec![with_scheme(url, token.is_some())],
        None => targets(&args).map_err(Failure::Usage)?,
    };
    if token.is_some() && urls.iter().any(|url| is_in_the_clear(url)) {
        say!("evenkeel: the token is sent in the clear to addresses of other hosts that begin with http://");
    }
    let is_tls = urls.iter().any(|url| url.starts_with("https://"));
    if !is_tls && args.server_name.is_some() {
        return Err(usage!("--server-name: nobody is asked by https"));
    }
    let trust = (is_tls || args.ca_file.is_some())
        .then(|| Trust::open(args.ca_file.as_deref(), args.server_name.as_deref()))
        .transpose();
    let reader = Reader {
        token,
        trust: trust.map_err(|why| usage!(why))?,
        timeout: args.timeout,
        at_once: usize::from(args.at_once),
        within: args.within,
    };
    let began = Instant::now();
    let mut hosts = match &args.prometheus {
        Some(_) => reader.prometheus(&urls[0]).map_err(Failure::Cannot)?,
        None => reader.agents(urls),
    };
    hosts.sort_by(|a, b| a.target.cmp(&b.target));
    let seconds = began.elapsed().as_secs_f64();
    out!("{}", show_fleet::shown(global.output, &hosts, seconds, args.lines))?;
    let silent = hosts.iter().filter(|host| host.error.is_some()).count();
    match silent {
        0 => Ok(0),
        all if all == hosts.len() => {
            let first = hosts.iter().find_map(|host| host.error.as_deref()).unwrap_or("no host answered");
            Err(cannot!("none of {all} hosts could be read; the first: {first}"))
        }
        some => {
            say!("evenkeel: {some} of {} could not be read", count(hosts.len(), "host"));
            Ok(1)
        }
    }
}

/// The agents asked, each once.
fn targets(args: &Args) -> anyhow::Result<Vec<String>> {
    let mut all = args.targets.clone();
    if let Some(path) = &args.targets_file {
        let text = evenkeel_linux::input::read_text(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let bare = |line: &str| line.split('#').next().unwrap_or_default().trim().to_owned();
        all.extend(text.lines().map(bare).filter(|line| !line.is_empty()));
    }
    let mut seen = std::collections::HashSet::new();
    let mut urls = Vec::new();
    for target in all {
        let url = url(&target, args.token_file.is_some())?;
        if seen.insert(url.clone()) {
            urls.push(url);
        }
    }
    if urls.is_empty() {
        return Err(anyhow!("name agents (HOST:PORT), --targets-file FILE or --prometheus URL"));
    }
    if urls.len() > MOST_TARGETS {
        return Err(anyhow!(
            "{} targets: at most {MOST_TARGETS}; let a Prometheus scrape them (--prometheus)",
            urls.len()
        ));
    }
    Ok(urls)
}

/// An address with its scheme. Whom other hosts reach wants the token over https alone.
fn with_scheme(address: &str, with_token: bool) -> String {
    let plain = format!("http://{address}");
    match address.contains("://") {
        true => address.to_owned(),
        false if with_token && is_in_the_clear(&plain) => format!("https://{address}"),
        false => plain,
    }
}

/// The metrics page of a target.
fn url(target: &str, with_token: bool) -> anyhow::Result<String> {
    let url = with_scheme(target, with_token);
    parse_either(&url).map_err(|why| anyhow!("{why}; write HOST:PORT or http://HOST:PORT/PATH"))?;
    let has_path = url.matches('/').count() > "//".len();
    Ok(if has_path { url } else { format!("{url}/metrics") })
}

/// Peak memory of this process, bytes.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_in_the_clear_to_this_host_alone() {
        let of = |target| url(target, true).unwrap();
        assert_eq!(of("node1:9190"), "https://node1:9190/metrics");
        assert_eq!(of("10.0.0.7:9190"), "https://10.0.0.7:9190/metrics");
        assert_eq!(of("localhost.evil.example:9190"), "https://localhost.evil.example:9190/metrics");
        for own in ["127.0.0.1:9190", "localhost:9190", "localhost", "[::1]:9190", "[::1]"] {
            assert_eq!(of(own), format!("http://{own}/metrics"));
        }
        // Said so by who asks.
        assert_eq!(of("http://node1:9190"), "http://node1:9190/metrics");
    }

    #[test]
    fn targets_are_pages() {
        let url = |target: &str| url(target, false);
        assert_eq!(url("node1:9190").unwrap(), "http://node1:9190/metrics");
        assert_eq!(url("http://node1:9190").unwrap(), "http://node1:9190/metrics");
        assert_eq!(url("http://node1/x").unwrap(), "http://node1/x");
        assert_eq!(url("https://node1:9190").unwrap(), "https://node1:9190/metrics");
        for wrong in ["https://", "", "http://", "a b", "ftp://x"] {
            assert!(url(wrong).is_err(), "{wrong}");
        }
    }
}
