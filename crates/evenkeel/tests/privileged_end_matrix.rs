//! The short form of `make test-ends`: every command ended in the ways that once left values behind, and all scheduling
//! state of the host compared by a dumper that shares no code with evenkeel (`scripts/ends`).

use std::path::Path;
use std::process::{Command, Stdio};

/// Ends that differ in what they meet: a request twice, a reader and a terminal that go away, no answer possible.
const CELLS: [&str; 12] = [
    "run:timeout:force",
    "run:head-1:trial",
    "run:terminal:force",
    "run:sigpipe-http:force",
    "run:sigkill:trial",
    "exec:head-1:force",
    "exec:terminal:force",
    "prove:timeout:force",
    "demo:sigkill:force",
    "tune:timeout:force",
    "lab:terminal:force",
    "net:timeout:restoring",
];

#[test]
fn nothing_is_left_after_any_end() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/ends/ends.py");
    let mut command = Command::new("python3");
    command.arg(script).args(["--evenkeel", env!("CARGO_BIN_EXE_evenkeel"), "--seed", "1", "--mine", "-v"]);
    command.args(["--lanes", "3"]);
    command.args(["--runs", &CELLS.len().to_string()]).args(CELLS.iter().flat_map(|cell| ["--only", cell]));
    let output = command.stdin(Stdio::null()).output().expect("python3 is needed");
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{words}{}", String::from_utf8_lossy(&output.stderr));
}
