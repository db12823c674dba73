//! Asks agents or a Prometheus, within bounds of time and memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use evenkeel_fetch::http::{Request, Trust, encoded, get_with};
use evenkeel_fetch::prometheus;
use serde::Deserialize;

use super::host::{COUNTED, Host, Page, UNREAD};

/// Largest page of one agent: 200 containers take some 200 KB.
const PAGE: u64 = 8 << 20;
/// Largest answer of a Prometheus to one query.
const ANSWER: u64 = 256 << 20;
/// Waits shorter than this, percent of one CPU, are not asked for: they starve no task.
const WORTH: &str = "5";

/// How targets are asked.
#[derive(Debug, Clone)]
pub struct Reader {
    pub token: Option<String>,
    /// Of targets that are asked by https.
    pub trust: Option<Trust>,
    pub timeout: Duration,
    pub at_once: usize,
    pub within: Duration,
}

impl Reader {
    /// Asks each; those that have not answered when the time is over are left behind.
    pub fn agents(&self, urls: Vec<String>) -> Vec<Host> {
        let until = Instant::now() + self.within;
        let urls = Arc::new(urls);
        let next = Arc::new(AtomicUsize::new(0));
        let (send, receive) = mpsc::channel();
        for _ in 0..self.at_once.min(urls.len()) {
            let (reader, urls, next, send) = (self.clone(), urls.clone(), next.clone(), send.clone());
            // Not joined: a name that the resolver does not answer for would hold everybody up.
            let started =
                std::thread::Builder::new().name("fleet".to_owned()).stack_size(256 << 10).spawn(move || {
                    while Instant::now() < until {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(url) = urls.get(at) else { break };
                        if send.send((at, reader.agent(url))).is_err() {
                            break;
                        }
                    }
                });
            if let Err(error) = started {
                tracing::warn!("fewer targets are asked at a time: {error}");
                break;
            }
        }
        drop(send);
        let mut hosts: Vec<Option<Host>> = vec![None; urls.len()];
        while let Ok((at, host)) = receive.recv_timeout(until.saturating_duration_since(Instant::now())) {
            hosts[at] = Some(host);
        }
        let late = |url: &String| silent(url, format!("no answer within {:?} (--within)", self.within));
        hosts.into_iter().zip(urls.iter()).map(|(host, url)| host.unwrap_or_else(|| late(url))).collect()
    }

    fn agent(&self, url: &str) -> Host {
        let request = Request {
            within: self.timeout,
            most: PAGE,
            token: self.token.as_deref(),
            trust: self.trust.as_ref(),
        };
        let text = match get_with(url, request) {
            Ok(text) => text,
            Err(error) => return silent(url, error.to_string()),
        };
        of_page(url, &text)
    }

    /// Asks a Prometheus what it scraped.
    pub fn prometheus(&self, base: &str) -> anyhow::Result<Vec<Host>> {
        let base = base.trim_end_matches('/');
        let until = Instant::now() + self.within;
        let mut pages: HashMap<String, Page> = HashMap::new();
        for (name, query) in queries() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(anyhow!("{base} did not answer everything within {:?} (--within)", self.within));
            }
            let url = format!("{base}/api/v1/query?query={}", encoded(&query));
            let request = Request {
                within: self.timeout.max(Duration::from_secs(1)).min(left),
                most: ANSWER,
                token: self.token.as_deref(),
                trust: self.trust.as_ref(),
            };
            let text =
                get_with(&url, request).with_context(|| format!("{base} cannot be asked for {query}"))?;
            take_answer(&mut pages, name, &text).with_context(|| {
                format!("{base} does not answer as a Prometheus does (asked for {query})")
            })?;
        }
        if pages.is_empty() {
            return Err(anyhow!("{base} has no metric of evenkeel: does it scrape the agents?"));
        }
        Ok(pages.into_iter().map(|(instance, page)| page.finish(instance)).collect())
    }
}

/// What an agent's page says.
pub fn of_page(url: &str, text: &str) -> Host {
    let mut page = Page::default();
    for (name, labels, value) in text.lines().filter_map(prometheus::line) {
        page.take(&name, &labels, value);
    }
    if page.is_empty() {
        return silent(url, "its answer has no metric of evenkeel".to_owned());
    }
    page.finish(target(url))
}

/// Takes a Prometheus' answer about one metric.
pub fn take_answer(pages: &mut HashMap<String, Page>, name: &str, text: &str) -> anyhow::Result<()> {
    let answer: Answer = serde_json::from_str(text)?;
    if answer.status != "success" {
        return Err(anyhow!(answer.error.unwrap_or_else(|| "it gives no reason".to_owned())));
    }
    for sample in answer.data.result {
        let Ok(value) = sample.value.1.parse::<f64>() else { continue };
        let instance = sample.metric.get("instance").cloned().unwrap_or_else(|| "unknown".to_owned());
        pages.entry(instance).or_default().take(name, &sample.metric, value);
    }
    Ok(())
}

/// An answer of `/api/v1/query`; of a vector's samples the time is not used.
#[derive(Deserialize)]
struct Answer {
    status: String,
    error: Option<String>,
    #[serde(default)]
    data: Data,
}

#[derive(Deserialize, Default)]
struct Data {
    #[serde(default)]
    result: Vec<Sample>,
}

#[derive(Deserialize)]
struct Sample {
    metric: BTreeMap<String, String>,
    value: (f64, String),
}

/// Metrics by the name that an agent has for them, and how they are asked for: whoever hardly waits is left to Prometheus.
fn queries() -> Vec<(&'static str, String)> {
    let mut all: Vec<(&str, String)> = [
        "evenkeel_host_busy_percent",
        "evenkeel_host_steal_percent",
        "evenkeel_trials_total",
        "evenkeel_trials_kept_total",
        "evenkeel_effect_cpu_percent",
        "evenkeel_effect_cpu_percent_low",
        "evenkeel_effect_cpu_percent_high",
        "evenkeel_settings_in_force",
    ]
    .map(|name| (name, name.to_owned()))
    .into();
    // What is counted is counted once, however many jobs scrape an agent.
    all.push(("evenkeel_guarantee_kept", "min by (instance, name) (evenkeel_guarantee_kept)".to_owned()));
    // Not a metric of an agent's page.
    all.push((
        COUNTED,
        "count by (instance) (group by (instance, kind, name, pod) (evenkeel_cpu_percent))".to_owned(),
    ));
    // An agent that is gone has no metric any more: it would be missing without a word.
    all.push((
        UNREAD,
        "group by (instance) ((up == 0) and on(instance, job) last_over_time(evenkeel_host_busy_percent[1h]))"
            .to_owned(),
    ));
    let same = "on(instance, kind, name, pod)";
    for name in ["evenkeel_wait_percent", "evenkeel_cpu_percent", "evenkeel_throttled_percent"] {
        all.push((name, format!("{name} and {same} (evenkeel_wait_percent >= {WORTH})")));
    }
    all
}

/// The target as it was named: without what every address has.
fn target(url: &str) -> String {
    let bare = url.split_once("://").map_or(url, |(_, rest)| rest);
    bare.strip_suffix("/metrics").unwrap_or(bare).to_owned()
}

fn silent(url: &str, why: String) -> Host {
    Host { target: target(url), error: Some(why), ..Host::default() }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn an_agent_that_two_jobs_scrape_is_counted_once_and_one_that_is_gone_is_named() {
        let series = |job: &str, metric: &str, labels: &str, value: u32| {
            format!(
                "      - {{ series: '{metric}{{job=\"{job}\",instance=\"n\",{labels}}}', values: '{value}' }}\n"
            )
        };
        let owner = |name: &str| format!("kind=\"container\",name=\"{name}\",pod=\"\"");
        let of_job = |job: &str| {
            series(job, "evenkeel_cpu_percent", &owner("web"), 30)
                + &series(job, "evenkeel_cpu_percent", &owner("db"), 10)
                + &series(job, "evenkeel_guarantee_kept", "name=\"web\"", 0)
        };
        let asked = |name: &str, labels: &str, value: u32| {
            let query = queries().into_iter().find(|(of, _)| *of == name).unwrap().1;
            format!(
                "      - {{ expr: '{query}', eval_time: 0m, exp_samples: [{{ labels: '{labels}', value: {value} }}] }}\n"
            )
        };
        let host = |job: &str, instance: &str, up: u32| {
            let of = format!("job=\"{job}\",instance=\"{instance}\"");
            format!(
                "      - {{ series: 'up{{{of}}}', values: '{up}' }}\n      - {{ series: 'evenkeel_host_busy_percent{{{of}}}', values: '30' }}\n"
            )
        };
        let text = format!(
            "rule_files: []\ntests:\n  - interval: 1m\n    input_series:\n{}{}{}{}    promql_expr_test:\n{}{}{}",
            of_job("one"),
            of_job("other"),
            host("one", "n", 1),
            host("one", "gone", 0)
                + "      - { series: 'up{job=\"another\",instance=\"n\"}', values: '0' }\n",
            asked(UNREAD, "{instance=\"gone\"}", 1),
            asked(COUNTED, "{instance=\"n\"}", 2),
            asked("evenkeel_guarantee_kept", "{instance=\"n\",name=\"web\"}", 0),
        );
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("test.yaml");
        std::fs::write(&file, text).unwrap();
        let judged = Command::new("promtool").args(["test", "rules"]).arg(&file).output();
        let judged = judged.expect("promtool is missing (Debian: apt-get install prometheus)");
        assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stderr));
    }
}
