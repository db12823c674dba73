//! `tenants` where something is missing or somebody else's is in the way: said, and left alone. Needs root.

mod program;

use std::path::Path;
use std::process::{Command, Stdio};

use program::{Ended, end, evenkeel};

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
fn tenants(dir: &Path, by: &[&str], arguments: &[&str], path: Option<&str>) -> Ended {
    let words = [by, &[env!("CARGO_BIN_EXE_evenkeel")]].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg("--state-dir").arg(dir.join("state")).arg("tenants").args(arguments);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    end(command.current_dir(dir).stdin(Stdio::null()))
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

#[test]
fn links_of_the_same_names_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    // A host which has all the names that are used inside, as interfaces of its own.
    let script = "set -eu; for name in up0 sw0 p0 p1 t0 eth0; do ip link add name $name type bridge; done; \
        ip -o link >before; \"$@\"; ip -o link >after; cmp before after";
    let by = ["unshare", "--net", "sh", "-c", script, "sh"];
    tenants(dir.path(), &by, &[&["net"], &SHORT[..]].concat(), None).says(0, "veth");
}

#[test]
fn what_this_host_lacks_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = only(&["ip", "tc"], dir.path());
    let lacks = |arguments: &[&str], folder: &str| {
        let arguments = [arguments, &SHORT[..], &[folder]].concat();
        tenants(dir.path(), &[], &arguments, Some(&path))
    };
    lacks(&["net", "--traffic=netperf"], "a").says(3, "netperf is not installed: apt-get install netperf");
    lacks(&["net", "--traffic=iperf3"], "b").says(3, "iperf3 is not installed: apt-get install iperf3");
    // The machine has no result, and why; the others have.
    let ended = lacks(&["net", "--vms=1"], "c").says(0, "x 1 x vm, 1 vCPU: qemu-system-");
    ended.says(0, "apt-get install qemu-system-");
    let none = std::fs::read_dir("/sys/class/net")
        .unwrap()
        .flatten()
        .all(|link| !link.path().join("device/sriov_totalvfs").exists());
    if none {
        lacks(&["net", "--vms=1", "--vm-nic=vf"], "d").says(0, "no network card of this host can be divided");
    }
    // Nobody listens on this socket.
    let mut command = evenkeel(["tenants", "cpu", "--quick", "--tenants=0", "--containers=2", "--vcpus=1"]);
    command.args(["--seconds=0.1", "--state-dir"]).arg(dir.path().join("state")).arg(dir.path().join("e"));
    end(command.env("DOCKER_HOST", "unix:///no/such/socket")).says(1, "no Docker Engine answers");
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
        tenants(dir.path(), &[], arguments, None).says(2, words);
    }
    // Root in name only, as in many containers: every cell says why.
    let without = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"];
    let ended = tenants(dir.path(), &without, &[&["net"], &SHORT[..]].concat(), None);
    ended.says(1, "need root (CAP_SYS_ADMIN)");
}
