//! `evenkeel top` on a terminal of its own (util-linux' `script`), and without one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_evenkeel");

#[test]
fn without_a_terminal_it_says_what_there_is_instead() {
    let out = Command::new(BINARY).arg("top").stdin(Stdio::null()).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(out.stdout.is_empty());
    let words = String::from_utf8_lossy(&out.stderr);
    assert!(words.contains("evenkeel ps"), "{words}");
}

#[test]
fn keys_change_what_is_shown_and_q_ends() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("typescript");
    let mut child = Command::new("script")
        .args(["-qfec", &format!("stty rows 24 cols 100; exec {BINARY} top --interval 100ms")])
        .arg(&log)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut keys = child.stdin.take().unwrap();
    let shown = |what: &str| {
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            if std::fs::read(&log).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(what)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    };
    assert!(shown("by process"), "the heading");
    assert!(shown("busy"), "the host's line");
    keys.write_all(b"\t").unwrap();
    // The terminal gets only the cells that changed: "process" becomes "container" in its place.
    assert!(shown("container"), "another grouping");
    keys.write_all(b"q").unwrap();
    drop(keys);
    let status = child.wait().unwrap();
    assert!(status.success(), "{status:?}");
    let text = std::fs::read(&log).unwrap();
    // The terminal is left as it was found: the alternate screen is closed.
    assert!(String::from_utf8_lossy(&text).contains("\u{1b}[?1049l"));
}
