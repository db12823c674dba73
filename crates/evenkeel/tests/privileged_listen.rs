//! `run --listen` on the real kernel: what a scraper and a script see meanwhile.

#[path = "serve/agent.rs"]
#[allow(dead_code)]
mod agent;
mod program;

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use agent::{BINARY, Serve, load};
use evenkeel_linux::testing::awaited;
use program::{end, evenkeel};

#[test]
fn metrics_and_status_follow_the_loop() {
    let dir = tempfile::tempdir().unwrap();
    let load = load(Path::new(BINARY), 10);
    let scope = format!("pid:{}", load.0.id());
    let promise = dir.path().join("promise.toml");
    std::fs::write(&promise, format!("[[guarantee]]\nscope = \"{scope}\"\ncpu = \"5%\"\n")).unwrap();
    // A service manager that wants a sign of life every second.
    let notify = dir.path().join("notify");
    let manager = UnixDatagram::bind(&notify).unwrap();
    let told = std::thread::spawn(move || {
        let (mut told, mut bytes) = (String::new(), [0; 1000]);
        manager.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        while !told.contains("STOPPING=1") {
            let count = manager.recv(&mut bytes).expect("a message of the service");
            told.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        told
    });
    let args = ["run", "--scope", &scope, "--for", "100s", "--listen", "127.0.0.1:0", "--record", "30s"];
    let args = [&["--config", promise.to_str().unwrap()][..], &args].concat();
    let watched = [("NOTIFY_SOCKET", notify.to_str().unwrap()), ("WATCHDOG_USEC", "4000000")];
    let mut agent = Serve::command_with(&args, &watched);
    let metrics = awaited(60, || {
        let page = agent.metrics();
        let is_there =
            ["evenkeel_host_busy_percent ", "evenkeel_guarantee_kept{"].map(|name| page.contains(name));
        if is_there == [true, true] { Ok(page) } else { Err(format!("nothing was observed: {page}")) }
    });
    let (head, _) = agent.get("/metrics", "");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(value("evenkeel_host_busy_percent") > 0.0);
    assert!(value("evenkeel_self_cpu_seconds_total") >= 0.0 && value("evenkeel_self_resident_bytes") > 1e6);
    let promised = format!("evenkeel_guarantee_promised_percent{{name=\"{scope}\"}}");
    assert!((value(&promised) - 5.0).abs() < 1e-9);
    let status: serde_json::Value = serde_json::from_str(&agent.get("/status", "").1).unwrap();
    assert_eq!(status["schema"], "evenkeel.live/v1");
    assert!(status["host"]["busy_pct"].as_f64().unwrap() > 0.0, "{status}");
    assert_eq!(status["guarantees"][0]["promised_pct"], 5.0, "{status}");
    // The record of the promise, look by look.
    awaited(60, || {
        let body: serde_json::Value = serde_json::from_str(&agent.get("/api/promises", "").1).unwrap();
        let moments = body["guarantees"][0]["moments"].as_array().map_or(0, Vec::len);
        if moments < 2 || !body["guarantees"][0]["moments"][moments - 1][1].is_number() {
            return Err(body.to_string());
        }
        assert_eq!(
            (&body["schema"], &body["guarantees"][0]["bound"]),
            (&"evenkeel.promises/v1".into(), &5.0.into())
        );
        Ok(())
    });
    // What it recorded has the promise's track.
    let (state, trace) = (agent.state.path().to_str().unwrap(), dir.path().join("trace"));
    let record = ["--state-dir", state, "record", "--last", "30s", "--to", trace.to_str().unwrap()];
    end(&mut evenkeel(record)).with(0);
    let (bytes, words) = (std::fs::read(&trace).unwrap(), format!("guarantee {scope}"));
    assert!(bytes.windows(words.len()).any(|part| part == words.as_bytes()), "no track {words:?}");
    assert!(agent.get("/nonsense", "").0.starts_with("HTTP/1.1 404"));
    // The port is taken: the second one says so and touches nothing.
    let other = dir.path().join("other");
    let second = ["run", "--scope", &scope, "--for", "5s", "--listen", &agent.address];
    end(evenkeel(["--state-dir"]).arg(other).args(second)).says(3, &agent.address);
    agent.end();
    let told = told.join().unwrap();
    assert!(told.starts_with("READY=1\nSTATUS="), "{told}");
    assert!(told.contains("WATCHDOG=1\n") && told.contains(" % busy of "), "{told}");
    assert!(told.ends_with("STOPPING=1\nSTATUS=restoring\n"), "{told}");
}
