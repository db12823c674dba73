//! What the program itself parses, for `crates/fuzz`: no interface. Each function panics where the result makes no sense.
//!
//! What options and files of other crates mean is fuzzed there.

use std::collections::HashMap;
use std::path::Path;
use std::sync::OnceLock;

use clap::Parser as _;
use evenkeel_base::FileError;
use evenkeel_listen::fleet::fetch;
use evenkeel_listen::fleet::host::Host;
use evenkeel_model::price::file;

use super::price::account::Account;
use super::{Cli, Global, exec, history, mcp, net, replay, settings};

/// Global options as they are where none is given.
fn global() -> Option<&'static Global> {
    static GLOBAL: OnceLock<Option<Global>> = OnceLock::new();
    GLOBAL.get_or_init(|| Cli::try_parse_from(["evenkeel", "status"]).ok().map(|cli| cli.global)).as_ref()
}

fn in_text(error: &FileError, text: &str) {
    assert!((1..=text.lines().count() + 1).contains(&error.line), "{error}");
}

pub fn config(text: &str) {
    let Some(global) = global() else { return };
    match settings::of_text(global, Path::new("config.toml"), text) {
        Ok(config) => {
            let rules = &config.rules;
            assert!(rules.least_pct.is_finite() && rules.least_pct >= 0.0, "{}", rules.least_pct);
            assert!(!config.interval.is_zero());
            let share = config.monitor.holdout.share;
            assert!((0.0..=1.0).contains(&share), "{share}");
        }
        Err(error) => {
            if let Some(error) = error.downcast_ref() {
                in_text(error, text);
            }
        }
    }
}

/// A length of time.
pub fn duration(text: &str) {
    if let Ok(time) = super::duration(text) {
        assert!(time <= super::LONGEST);
    }
}

/// Other values of options.
pub fn options(text: &str) {
    if let Ok(speed) = replay::parse_speed(text) {
        assert!(speed.is_finite() && speed >= 0.0, "{speed}");
    }
    let _ = history::parse_run(text);
    let _ = text.parse::<exec::LimitArg>();
    let _ = exec::slice(text);
    let _ = net::rate(text, None);
}

/// A file of prices.
pub fn prices(text: &str) {
    match file::parse(Path::new("prices.toml"), text) {
        Ok(prices) => assert!(prices.prices.iter().all(|price| price.hour.is_finite() && price.hour >= 0.0)),
        Err(error) => in_text(&error, text),
    }
}

/// The account of a run, from which a price is reckoned.
pub fn account(text: &str) {
    if let Ok(account) = Account::parse(text) {
        if let Ok(minutes) = account.cpu_minutes(1) {
            assert!(minutes.is_finite() && minutes >= 0.0, "{minutes} minutes");
        }
        if let Ok(busy) = account.busy(1) {
            assert!((0.0..=1.0).contains(&busy), "{busy}");
        }
    }
}

/// A message of an assistant.
pub fn mcp(line: &[u8]) {
    if let Some(words) = mcp::words_of_call(line) {
        // A call of a tool starts a process: that is left out. No argument may become an option of its own.
        let target = words.iter().position(|word| word == "--").unwrap_or(words.len());
        assert!(words[..target].iter().all(|word| word.starts_with("--")), "{words:?}");
        assert!(words.len() <= target + 2, "{words:?}");
        return;
    }
    if let Some(answer) = global().and_then(|global| mcp::answer_at_once(global, line)) {
        assert_eq!(answer["jsonrpc"], "2.0");
    }
}

fn host(host: &Host) {
    let shares = [host.busy_pct, host.steal_pct, host.trials, host.kept];
    assert!(shares.into_iter().flatten().all(|share| share.is_finite() && share >= 0.0), "{host:?}");
    for finding in &host.findings {
        assert!(finding.wait_share.is_none_or(|share| (0.0..=1.0).contains(&share)), "{finding:?}");
        assert!(!finding.name.chars().any(char::is_control), "{finding:?}");
    }
}

/// An agent's page of metrics.
pub fn fleet_page(text: &str) {
    host(&fetch::of_page("node1:9190", text));
}

/// A Prometheus' answer, to the queries for two metrics.
pub fn fleet_answer(text: &str) {
    let mut pages = HashMap::new();
    for name in ["evenkeel_cpu_percent", "evenkeel_wait_percent"] {
        let _ = fetch::take_answer(&mut pages, name, text);
    }
    pages.into_iter().for_each(|(instance, page)| host(&page.finish(instance)));
}
