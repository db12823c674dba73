//! A real Prometheus that scrapes a real `serve` and a real `run --listen`, asked what Grafana's panels ask.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::agent::Serve;
use super::looping::Looping;
use super::otlp::Collector;
use super::pki::Pki;
use super::webhook::served_by;
use evenkeel_linux::testing::{TestChild, awaited, until};

const TOKEN: &str = "0123456789abcdefghijklmnopqrstuv";

/// A query with Grafana's variables filled in.
fn filled(expression: &str) -> String {
    expression
        .replace("$__rate_interval", "20s")
        .replace("\"$instance\"", "\".*\"")
        .replace("\"$namespace\"", "\".*\"")
}

struct Prometheus {
    _process: TestChild,
    _files: tempfile::TempDir,
    address: String,
}

impl Prometheus {
    /// Scrapes over https, with the token.
    fn start(targets: &[&str], monitoring: &Path, pki: &Pki, options: &[&str]) -> Self {
        let files = tempfile::tempdir().unwrap();
        // The documented scrape configuration as it says for token and certificate, with targets, files and a pace of our own.
        let mut config = std::fs::read_to_string(monitoring.join("prometheus/scrape.yaml")).unwrap();
        let (token, ca) = (pki.path("token"), pki.ca());
        let targets = targets.iter().map(|target| format!("{target:?}")).collect::<Vec<_>>().join(", ");
        for (documented, ours) in [
            ("\"127.0.0.1:9190\"", targets.as_str()),
            ("scrape_interval: 15s", "scrape_interval: 1s"),
            ("    # authorization:", "    authorization:"),
            ("    #   credentials_file:", "      credentials_file:"),
            ("    # scheme: https", "    scheme: https"),
            ("    # tls_config:", "    tls_config:"),
            ("    #   ca_file:", "      ca_file:"),
            ("/etc/prometheus/evenkeel.token", token.to_str().unwrap()),
            ("/etc/prometheus/evenkeel-ca.crt", ca.to_str().unwrap()),
        ] {
            assert_eq!(config.matches(documented).count(), 1, "{documented} in {config}");
            config = config.replace(documented, ours);
        }
        std::fs::write(files.path().join("prometheus.yml"), config).unwrap();
        std::fs::copy(monitoring.join("prometheus/alerts.yaml"), files.path().join("alerts.yaml")).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", files.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", files.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus must be installed for this test (Debian: apt-get install prometheus)");
        Self { _process: TestChild(process), _files: files, address }
    }

    /// The answer to a query; `None` while there is none.
    fn ask(&self, query: &str) -> Option<Value> {
        let out = Command::new("curl")
            .args(["-s", "-G", "--data-urlencode", &format!("query={query}")])
            .arg(format!("http://{}/api/v1/query", self.address))
            .output()
            .unwrap();
        serde_json::from_slice(&out.stdout).ok()
    }
}

pub fn every_panel_has_data() {
    let monitoring = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../monitoring");
    let rules = Command::new("promtool")
        .args(["test", "rules"])
        .arg(monitoring.join("prometheus/alerts_test.yaml"))
        .output()
        .expect("promtool must be installed for this test (Debian: apt-get install prometheus)");
    assert!(
        rules.status.success(),
        "{}",
        String::from_utf8_lossy(&rules.stdout) + String::from_utf8_lossy(&rules.stderr)
    );
    let pki = Pki::make();
    let (cert, key) = pki.issue("one", "IP:127.0.0.1");
    let collector = Collector::start(served_by(pki.issue("collector", "IP:127.0.0.1")));
    let (token, ca) = (pki.secret("token", TOKEN), pki.ca());
    let [token, cert, key, ca] = [&token, &cert, &key, &ca].map(|path| path.to_str().unwrap());
    let access = ["--token-file", token, "--tls-cert", cert, "--tls-key", key];
    let push = ["--otlp", &collector.url, "--otlp-interval", "1s", "--otlp-ca", ca];
    let serve = Serve::start(&[&["--no-history", "--blame"], &access[..], &push].concat());
    let looping = Looping::start(pki.path(""), &access);
    let targets = [serve.address.as_str(), &looping.agent.address];
    let prometheus = Prometheus::start(&targets, &monitoring, &pki, &[]);
    let native = Prometheus::start(&targets[..1], &monitoring, &pki, &["--enable-feature=native-histograms"]);
    let docs = std::fs::read_to_string(monitoring.join("../docs/metrics.md")).unwrap();
    let (mut panels, mut conditional) = (0, 0);
    for file in std::fs::read_dir(monitoring.join("grafana/dashboards")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let dashboard: Value = serde_json::from_str(&text).unwrap();
        for panel in dashboard["panels"].as_array().unwrap() {
            // What no host of these two has; whatever else a loop alone has is there.
            let description = panel["description"].as_str().unwrap();
            let only =
                description.starts_with("Only where") || description.contains("while a change is in force");
            for target in panel["targets"].as_array().unwrap() {
                panels += 1;
                conditional += usize::from(only);
                let query = filled(target["expr"].as_str().unwrap());
                awaited(90, || {
                    let answer = prometheus.ask(&query);
                    let status =
                        answer.as_ref().and_then(|answer| answer["status"].as_str()).unwrap_or_default();
                    assert_ne!(status, "error", "{}: {query}: {answer:?}", panel["title"]);
                    let found = answer
                        .as_ref()
                        .is_some_and(|answer| answer["data"]["result"] != serde_json::json!([]));
                    let told = status == "success" && (found || only);
                    let lacks =
                        || format!("{}: no data for {query}: {}", panel["title"], looping.agent.said());
                    told.then_some(()).ok_or_else(lacks)
                });
                if only {
                    // What this host need not have is at least described.
                    let metric = query.split("evenkeel_").nth(1).unwrap();
                    let end = metric.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap();
                    let metric = format!("evenkeel_{}", &metric[..end]);
                    assert!(docs.contains(&metric), "docs/metrics.md does not know {metric}");
                }
            }
        }
    }
    assert!(panels - conditional >= 48 && conditional <= 6, "{panels} queries, {conditional} conditional");
    // A fleet of two: both are told apart, and their sums are of both.
    let value = |query: &str| prometheus.ask(query).unwrap()["data"]["result"][0]["value"][1].clone();
    assert_eq!(
        (value("count(evenkeel_build_info)"), value("count(count by (instance) (evenkeel_host_tasks))")),
        ("2".into(), "2".into())
    );
    // Every rule was evaluated, and this quiet host sets none off that is wrong in itself.
    let down = prometheus.ask("up == 0").unwrap();
    assert_eq!(down["data"]["result"], serde_json::json!([]), "{down}");
    let page = || serve_page(&serve, Path::new(ca));
    native_histograms_are_the_classic_ones(&native, &page);
    collector.has_what_the_page_has(&page);
}

/// A Prometheus that takes native histograms gets them instead of the classic ones, and its quantiles are right.
fn native_histograms_are_the_classic_ones(prometheus: &Prometheus, page: &dyn Fn() -> String) {
    const NAME: &str = "evenkeel_runqueue_wait_seconds";
    let number = |query: &str| -> Option<f64> {
        let answer = prometheus.ask(query)?;
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    };
    let known = |query: &str| {
        let look = || number(query).filter(|value| value.is_finite());
        awaited(90, || look().ok_or_else(|| format!("no data for {query}")))
    };
    let p99 = known(&format!("histogram_quantile(0.99, sum(rate({NAME}[20s])))"));
    assert!(p99 > 1e-9 && p99 < 1000.0, "{p99}");
    assert_eq!(number(&format!("count({NAME}_bucket)")), None, "the classic one is there, too");
    // Where ours and theirs have an edge between the same two buckets, counts are the same. Counts grow meanwhile: the one of
    // Prometheus lies between that of a page before its scrape and that of one after.
    let first = page();
    let most = |line: &&str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64;
    let line =
        first.lines().filter(|line| line.starts_with(&format!("{NAME}_count"))).max_by_key(most).unwrap();
    let labels = line.split_once('{').unwrap().1.rsplit_once('}').unwrap().0.to_owned();
    let scraped = known(&format!("timestamp({NAME}{{{labels}}})"));
    until("it is scraped again", || known(&format!("timestamp({NAME}{{{labels}}})")) >= scraped + 2.0);
    for octave in [12, 16, 20, 24] {
        let (ours, theirs) = ((1_u64 << octave) as f64 / 1e9, f64::exp2(f64::from(octave) - 29.75));
        let of = format!("{NAME}{{{labels}}}");
        let value = known(&format!("histogram_fraction(0, {theirs:e}, {of}) * histogram_count({of})"));
        let classic = |page: &str| -> f64 {
            let start = format!("{NAME}_bucket{{{labels},le=\"{ours}\"}} ");
            let line = page.lines().find_map(|line| line.strip_prefix(&start));
            line.unwrap_or_else(|| panic!("no {start} in {page}")).parse().unwrap()
        };
        let (before, after) = (classic(&first), classic(&page()));
        assert!(
            before - 0.01 <= value && value <= after + 0.01,
            "up to {ours} s: {value} are none of {before} to {after}"
        );
    }
}

/// The page of metrics, over https with the token.
fn serve_page(serve: &Serve, ca: &Path) -> String {
    let out = Command::new("curl")
        .args([
            "-sS",
            "--fail",
            "--max-time",
            "20",
            "-H",
            &format!("Authorization: Bearer {TOKEN}"),
            "--cacert",
        ])
        .arg(ca)
        .arg(format!("https://{}/metrics", serve.address))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}
