//! `run --listen` on the real kernel: what a scraper and a script see meanwhile.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_linux::testing::{TestChild, awaited};

const BINARY: &str = env!("CARGO_BIN_EXE_evenkeel");

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn metrics_and_status_follow_the_loop() {
    let state = tempfile::tempdir().unwrap();
    let load = TestChild(
        Command::new(BINARY)
            .args(["load", "duty", "--percent", "10", "--seconds", "120"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let promise = state.path().join("promise.toml");
    let table = format!("[[guarantee]]\nscope = \"pid:{}\"\ncpu = \"5%\"\n", load.0.id());
    std::fs::write(&promise, table).unwrap();
    // A service manager that wants a sign of life every second.
    let notify = state.path().join("notify");
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
    let mut agent = TestChild(
        Command::new(BINARY)
            .arg("--state-dir")
            .arg(state.path())
            .arg("--config")
            .arg(&promise)
            .args(["run", "--scope", &format!("pid:{}", load.0.id()), "--for", "100s"])
            .args(["--listen", "127.0.0.1:0", "--record", "30s"])
            .env("NOTIFY_SOCKET", &notify)
            .env("WATCHDOG_USEC", "4000000")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut lines = BufReader::new(agent.0.stderr.take().unwrap()).lines();
    let line = lines.by_ref().map(Result::unwrap).find(|line| line.contains("listening on")).unwrap();
    std::thread::spawn(move || lines.for_each(drop));
    let address = line.rsplit('/').next().unwrap().to_owned();
    let metrics = awaited(60, || {
        let page = get(&address, "/metrics");
        assert!(page.starts_with("HTTP/1.1 200"), "{page}");
        let is_there =
            ["evenkeel_host_busy_percent ", "evenkeel_guarantee_kept{"].map(|name| page.contains(name));
        if is_there == [true, true] { Ok(page) } else { Err(format!("nothing was observed: {page}")) }
    });
    assert!(metrics.contains("text/plain; version=0.0.4"), "{metrics}");
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(value("evenkeel_host_busy_percent") > 0.0);
    assert!(value("evenkeel_self_cpu_seconds_total") >= 0.0 && value("evenkeel_self_resident_bytes") > 1e6);
    let promised = format!("evenkeel_guarantee_promised_percent{{name=\"pid:{}\"}}", load.0.id());
    assert!((value(&promised) - 5.0).abs() < 1e-9);
    let page = get(&address, "/status");
    let body = page.split_once("\r\n\r\n").unwrap().1;
    let status: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(status["schema"], "evenkeel.live/v1");
    assert!(status["host"]["busy_pct"].as_f64().unwrap() > 0.0, "{status}");
    assert_eq!(status["guarantees"][0]["promised_pct"], 5.0, "{status}");
    // The record of the promise, look by look.
    awaited(60, || {
        let page = get(&address, "/api/promises");
        let body: serde_json::Value = serde_json::from_str(page.split_once("\r\n\r\n").unwrap().1).unwrap();
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
    let trace = state.path().join("trace");
    let record = Command::new(BINARY)
        .arg("--state-dir")
        .arg(state.path())
        .args(["record", "--last", "30s", "--to", trace.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(record.status.success(), "{record:?}");
    let (bytes, words) = (std::fs::read(&trace).unwrap(), format!("guarantee pid:{}", load.0.id()));
    assert!(bytes.windows(words.len()).any(|part| part == words.as_bytes()), "no track {words:?}");
    assert!(get(&address, "/nonsense").starts_with("HTTP/1.1 404"));
    // The port is taken: the second one says so and touches nothing.
    let other = tempfile::tempdir().unwrap();
    let out = Command::new(BINARY)
        .arg("--state-dir")
        .arg(other.path())
        .args(["run", "--scope", &format!("pid:{}", load.0.id()), "--for", "5s", "--listen", &address])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&out.stderr).contains(&address));
    rustix::process::kill_process(rustix::process::Pid::from_child(&agent.0), rustix::process::Signal::TERM)
        .unwrap();
    agent.0.wait().unwrap();
    let told = told.join().unwrap();
    assert!(told.starts_with("READY=1\nSTATUS="), "{told}");
    assert!(told.contains("WATCHDOG=1\n") && told.contains(" % busy of "), "{told}");
    assert!(told.ends_with("STOPPING=1\nSTATUS=restoring\n"), "{told}");
}
