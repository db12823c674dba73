//! The flight recorder of `serve`, `record` and `why --at` on the real kernel.

#[path = "serve/agent.rs"]
#[allow(dead_code)]
mod agent;
mod program;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use agent::Serve;
use evenkeel_linux::testing::{TestChild, awaited, until};
use program::{Ended, end};
use serde_json::Value;

#[track_caller]
fn evenkeel(state: &Path, args: &[&str]) -> Ended {
    end(program::evenkeel(args).env("EVENKEEL_STATE_DIR", state))
}

#[test]
fn what_an_agent_kept_answers_afterwards() {
    let serve = Serve::start(&["--record", "60s"]);
    let state = serve.state.path();
    let target = TestChild::shell_on(
        0,
        "while :; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.005; done",
    );
    let hog = TestChild::shell_on(0, "while :; do :; done");
    std::thread::sleep(Duration::from_secs(4));
    let named = format!("pid:{}", target.0.id());
    // Both are still there: names are those of the last look.
    let why = evenkeel(state, &["why", &named, "--at", "2s", "--for", "2s", "-o", "json"]).json();
    assert_eq!(
        (why["schema"].as_str(), why["source"].as_str()),
        (Some("evenkeel.why/v1"), Some("recording"))
    );
    let seconds = |what: &str| why[what].as_f64().unwrap();
    let whole = why["wall_s"].as_f64().unwrap() * why["threads"].as_f64().unwrap();
    let parts = ["ran_s", "waited_s", "throttled_s", "stolen_s", "slept_s"].map(seconds);
    assert!((parts.iter().sum::<f64>() - whole).abs() < 0.01 * whole, "{parts:?} of {whole}");
    assert!(seconds("waited_s") > 0.1, "{why}");
    let blamed = |row: &Value| row["tid"] == hog.0.id() && row["seconds"].as_f64().unwrap() > 0.05;
    assert!(why["blame"].as_array().unwrap().iter().any(blamed), "{why}");

    let trace = state.join("trace.pftrace");
    evenkeel(state, &["record", "--last", "3s", "--to", trace.to_str().unwrap()]).says(0, " events");
    let bytes = std::fs::read(&trace).unwrap();
    assert!(bytes.len() > 1000 && bytes[0] == 0x0a, "a trace is a list of packets");

    // A recording is kept and asked later, by somebody who has no agent.
    let kept = state.join("kept");
    evenkeel(state, &["record", "--form", "recording", "--to", kept.to_str().unwrap()]).with(0);
    let nowhere = tempfile::tempdir().unwrap();
    let args = ["why", &named, "--recording", kept.to_str().unwrap(), "-o", "json"];
    let again = evenkeel(nowhere.path(), &args).json();
    assert!(again["wall_s"].as_f64().unwrap() > 3.0, "{again}");

    let socket = state.join("flight.sock");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    evenkeel(state, &["serve", "--listen", "127.0.0.1:0", "--record", "2s"]).says(3, "another agent listens");
}

#[test]
fn without_an_agent_it_says_what_to_do() {
    let state = tempfile::tempdir().unwrap();
    evenkeel(state.path(), &["why", "comm:sh", "--at", "3s"]).refused(3, "serve --record 60s");
    assert!(evenkeel(state.path(), &["record", "--for", "500ms"]).ok().len() > 1000);
    // What is no recording.
    let file = state.path().join("no");
    std::fs::write(&file, "{}\n").unwrap();
    let args = ["why", "comm:sh", "--recording", file.to_str().unwrap()];
    evenkeel(state.path(), &args).refused(2, "not a recording");
    evenkeel(state.path(), &["why", "comm:sh", "--at", "noon"]).refused(2, "a time such as");
}

#[test]
fn a_socket_that_a_killed_agent_left_is_taken_over() {
    let mut first = Serve::start(&["--record", "2s"]);
    let state = first.state.path().to_owned();
    let socket = state.join("flight.sock");
    until("there is a socket", || socket.exists());
    first.process.0.kill().unwrap();
    first.process.0.wait().unwrap();
    assert!(socket.exists(), "what a kill leaves");
    let mut second = TestChild(
        program::evenkeel(["serve", "--listen", "127.0.0.1:0", "--record", "2s", "--state-dir"])
            .arg(&state)
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    awaited(60, || {
        assert!(second.0.try_wait().unwrap().is_none(), "it ended");
        let out = evenkeel(&state, &["record", "--last", "1s"]);
        if out.status == Some(0) { Ok(()) } else { Err(out.to_string()) }
    });
}
