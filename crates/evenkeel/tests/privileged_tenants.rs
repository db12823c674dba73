//! `tenants` where something is missing or somebody else's is in the way: said, and left alone. Needs root.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Programs of the host that are still found.
fn only(programs: &[&str], dir: &Path) -> String {
    let bin = dir.join("bin");
    std::fs::create_dir(&bin).unwrap();
    for program in programs {
        let found = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].iter().map(|dir| Path::new(dir).join(program));
        let found = found.into_iter().find(|path| path.exists()).expect("iproute2 is needed");
        std::os::unix::fs::symlink(found, bin.join(program)).unwrap();
    }
    bin.display().to_string()
}

/// Runs a short `tenants` with more arguments, by a command such as `unshare`; out of a folder of its own.
fn tenants(dir: &Path, by: &[&str], arguments: &[&str], path: Option<&str>) -> Output {
    let mut words: Vec<&str> = by.to_vec();
    words.push(env!("CARGO_BIN_EXE_evenkeel"));
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg("--state-dir").arg(dir.join("state")).arg("tenants").args(arguments);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    command.current_dir(dir).stdin(Stdio::null()).output().unwrap()
}

const SHORT: [&str; 7] = [
    "--quick",
    "--rps=off",
    "--flows=2",
    "--repetitions=1",
    "--seconds=0.1",
    "--tenants=1,2",
    "--nic=none,veth",
];

/// What it printed and its status; it did not panic.
#[track_caller]
fn said(output: &Output) -> (Option<i32>, String) {
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(!text.contains("panicked"), "{text}");
    (output.status.code(), text)
}

#[test]
fn links_of_the_same_names_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    // A host which has all the names that are used inside, as interfaces of its own.
    let script = "set -eu; for name in up0 sw0 p0 p1 t0 eth0; do ip link add name $name type bridge; done; \
        ip -o link >before; \"$@\"; ip -o link >after; cmp before after";
    let output = tenants(
        dir.path(),
        &["unshare", "--net", "sh", "-c", script, "sh"],
        &[&["net"], &SHORT[..]].concat(),
        None,
    );
    let (status, text) = said(&output);
    assert!(status == Some(0) && text.contains("veth"), "{text}");
}

#[test]
fn what_this_host_lacks_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = only(&["ip", "tc"], dir.path());
    let lacks = |arguments: &[&str], folder: &str| {
        let arguments = [arguments, &SHORT[..], &[folder]].concat();
        said(&tenants(dir.path(), &[], &arguments, Some(&path)))
    };
    let (status, text) = lacks(&["net", "--traffic=netperf"], "a");
    assert!(
        status == Some(3) && text.contains("netperf is not installed: apt-get install netperf"),
        "{text}"
    );
    let (status, text) = lacks(&["net", "--traffic=iperf3"], "b");
    assert!(status == Some(3) && text.contains("iperf3 is not installed: apt-get install iperf3"), "{text}");
    // The machine has no result, and why; the others have.
    let (status, text) = lacks(&["net", "--vms=1"], "c");
    assert!(status == Some(0) && text.contains("x 1 x vm, 1 vCPU: qemu-system-"), "{text}");
    assert!(text.contains("apt-get install qemu-system-"), "{text}");
    let none = std::fs::read_dir("/sys/class/net")
        .unwrap()
        .flatten()
        .all(|link| !link.path().join("device/sriov_totalvfs").exists());
    if none {
        let (status, text) = lacks(&["net", "--vms=1", "--vm-nic=vf"], "d");
        assert!(status == Some(0) && text.contains("no network card of this host can be divided"), "{text}");
    }
    // Nobody listens on this socket.
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .arg("--state-dir")
        .arg(dir.path().join("state"))
        .args(["tenants", "cpu", "--quick", "--tenants=0", "--containers=2", "--vcpus=1", "--seconds=0.1"])
        .arg(dir.path().join("e"))
        .env("DOCKER_HOST", "unix:///no/such/socket")
        .output()
        .unwrap();
    let (status, text) = said(&output);
    assert!(status == Some(1) && text.contains("no Docker Engine answers"), "{text}");
}

#[test]
fn what_makes_no_sense_and_what_is_not_allowed_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, words) in [
        (&["cpu", "--traffic=iperf3"][..], "no traffic"),
        (&["net", "--traffic=netperf", "--vms=1"], "leave out machines"),
        (&["net", "--vm-nic=sriov"], "possible values"),
        (&["net", "--tenants=2", "--flows=3"], "2 would"),
    ] {
        let (status, text) = said(&tenants(dir.path(), &[], arguments, None));
        assert!(status == Some(2) && text.contains(words), "{arguments:?}: {text}");
    }
    // Root in name only, as in many containers: every cell says why.
    let without = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"];
    let (status, text) = said(&tenants(dir.path(), &without, &[&["net"], &SHORT[..]].concat(), None));
    assert!(status == Some(1) && text.contains("need root (CAP_SYS_ADMIN)"), "{text}");
}
