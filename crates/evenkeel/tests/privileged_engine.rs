//! `scripts/with-docker.sh`, which `make demo` uses on the reader's host: the command gets an engine, its status is
//! passed on, and nothing of a private engine is left behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Runs a shell command with an engine.
fn with_engine(command: &str) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    Command::new(root.join("scripts/with-docker.sh"))
        .args(["bash", "-c", command])
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Directories of this name anywhere below.
fn named(dir: &Path, name: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if entry.file_name() == name {
                found.push(entry.path());
            }
            named(&entry.path(), name, found);
        }
    }
}

#[test]
fn an_engine_is_lent_and_taken_back() {
    let script = r#"
        set -e
        echo "host=$DOCKER_HOST"
        image=$(tar -C / -c --dereference bin/busybox | docker import - evenkeel-engine-test)
        trap 'docker rm -f "$box" >&2; docker rmi "$image" >&2' EXIT
        box=$(docker run --detach --network none --cpu-shares 512 "$image" /bin/busybox sleep 60)
        echo "pid=$(docker inspect --format '{{.State.Pid}}' "$box")"
        exit 7
    "#;
    let output = with_engine(script);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(7), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    let value = |key: &str| {
        stdout
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .unwrap_or_else(|| panic!("no {key} in {stdout}"))
    };
    let pid: u32 = value("pid=").parse().unwrap();
    assert!(pid > 0);
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "the container still runs");

    // A private engine's socket is in a directory of its own; the cgroup has the directory's name.
    let socket = Path::new(value("host=unix://"));
    let dir = socket.parent().unwrap();
    let name = dir.file_name().unwrap().to_str().unwrap();
    if !name.starts_with("evenkeel-docker") {
        assert!(socket.exists(), "the engine that ran before is gone");
        return;
    }
    assert!(!dir.exists(), "{} is left", dir.display());
    let mut groups = Vec::new();
    named(Path::new("/sys/fs/cgroup"), &name.replace('.', "-"), &mut groups);
    assert!(groups.is_empty(), "left: {groups:?}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(name), "a mount is left:\n{mounts}");
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&line).contains(name), "{} still runs", process.path().display());
    }
}
