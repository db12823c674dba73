//! A real Prometheus that scrapes a real `serve` and a real `run --listen`, asked what Grafana's panels ask.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::agent::{Running, Serve};
use super::looping::Looping;
use super::pki::Pki;

const TOKEN: &str = "0123456789abcdefghijklmnopqrstuv";

/// A query with Grafana's variables filled in.
fn filled(expression: &str) -> String {
    expression
        .replace("$__rate_interval", "20s")
        .replace("\"$instance\"", "\".*\"")
        .replace("\"$namespace\"", "\".*\"")
}

struct Prometheus {
    _process: Running,
    _files: tempfile::TempDir,
    address: String,
}

impl Prometheus {
    /// Scrapes over https, with the token.
    fn start(targets: [&str; 2], monitoring: &Path, pki: &Pki) -> Self {
        let files = tempfile::tempdir().unwrap();
        // The documented scrape configuration as it says for token and certificate, with targets, files and a pace of our own.
        let mut config = std::fs::read_to_string(monitoring.join("prometheus/scrape.yaml")).unwrap();
        let (token, ca) = (pki.path("token"), pki.ca());
        let targets = targets.map(|target| format!("{target:?}")).join(", ");
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
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus must be installed for this test (Debian: apt-get install prometheus)");
        Self { _process: Running(process), _files: files, address }
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
    let token = pki.secret("token", TOKEN);
    let [token, cert, key] = [&token, &cert, &key].map(|path| path.to_str().unwrap());
    let access = ["--token-file", token, "--tls-cert", cert, "--tls-key", key];
    let serve = Serve::start(&[&["--no-history", "--blame"], &access[..]].concat());
    let looping = Looping::start(pki.path(""), &access);
    let prometheus = Prometheus::start([&serve.address, &looping.agent.address], &monitoring, &pki);
    let docs = std::fs::read_to_string(monitoring.join("../docs/serve.md")).unwrap();
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
                let until = Instant::now() + Duration::from_secs(90);
                loop {
                    let answer = prometheus.ask(&query);
                    let status =
                        answer.as_ref().and_then(|answer| answer["status"].as_str()).unwrap_or_default();
                    assert_ne!(status, "error", "{}: {query}: {answer:?}", panel["title"]);
                    let found = answer
                        .as_ref()
                        .is_some_and(|answer| answer["data"]["result"] != serde_json::json!([]));
                    if status == "success" && (found || only) {
                        break;
                    }
                    assert!(
                        Instant::now() < until,
                        "{}: no data for {query}: {}",
                        panel["title"],
                        looping.agent.said()
                    );
                    std::thread::sleep(Duration::from_millis(300));
                }
                if only {
                    // What this host need not have is at least described.
                    let metric = query.split("evenkeel_").nth(1).unwrap();
                    let end = metric.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap();
                    let metric = format!("evenkeel_{}", &metric[..end]);
                    assert!(docs.contains(&metric), "docs/serve.md does not know {metric}");
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
}
