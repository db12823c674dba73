//! What tests of observation share: trees of kernel files unpacked from `tests/fixtures/*.tree` (a line `=== PATH`,
//! then the file's text), and machines written file by file.
#![allow(dead_code)] // each test binary uses a part

pub mod docker;

use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_linux::Root;
use tempfile::TempDir;

/// A tree on disk that goes away with the test.
pub struct Tree {
    dir: TempDir,
}

impl Tree {
    pub fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    /// Unpacks `tests/fixtures/NAME.tree`.
    pub fn fixture(name: &str) -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.tree"));
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let tree = Self::new();
        for part in text.split("=== ").skip(1) {
            let (path, text) = part.split_once('\n').unwrap();
            tree.file(path, text);
        }
        tree
    }

    pub fn file(&self, path: &str, text: &str) -> &Self {
        evenkeel_linux::testing::lay(self.dir.path(), &[(path, text)]);
        self
    }

    pub fn remove(&self, path: &str) -> &Self {
        let path = self.dir.path().join(path);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap()
        } else {
            fs::remove_file(path).unwrap()
        }
        self
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    pub fn root(&self) -> Root {
        Root::at(self.dir.path())
    }

    /// One thread of both samples: it ran `ran_ms` of the second between them and waited `waited_ms`.
    pub fn task(&self, tgid: u32, tid: u32, comm: &str, cgroup: &str, ran_ms: u64, waited_ms: u64) -> &Self {
        for sample in [0, 1] {
            let dir = format!("{sample}/proc/{tgid}/task/{tid}");
            let stat = format!(
                "{tid} ({comm}) S 1 {tgid} {tgid} 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 1000 0 0 0 0 0 0 0 0 0 0 0 0 \
                 0 0 0 17 {} 0 0 0 0 0\n",
                tid % 2
            );
            self.file(&format!("{dir}/stat"), &stat);
            let (ran, waited) = (5_000_000 + sample * ran_ms * 1_000_000, sample * waited_ms * 1_000_000);
            self.file(&format!("{dir}/schedstat"), &format!("{ran} {waited} {}\n", 10 + sample));
            self.file(&format!("{dir}/cgroup"), cgroup);
            let status = format!(
                "Name:\t{comm}\nTgid:\t{tgid}\nCpus_allowed_list:\t0-1\nvoluntary_ctxt_switches:\t{}\n\
                 nonvoluntary_ctxt_switches:\t5\n",
                7 + sample
            );
            self.file(&format!("{dir}/status"), &status);
        }
        self
    }

    /// A host of two CPUs, half busy for the second between the samples, with these mounts.
    pub fn host(&self, mountinfo: &str) -> &Self {
        for sample in [0u64, 1] {
            self.file(&format!("{sample}/evenkeel/instant"), &format!("{}000000000 1\n", 100 + sample));
            let (busy, idle) = (1000 + 50 * sample, 5000 + 40 * sample);
            let cpu = |n: &str| format!("cpu{n} {busy} 0 0 {idle} 0 0 0 {} 0 0\n", 10 * sample);
            self.file(&format!("{sample}/proc/stat"), &format!("{}{}{}", cpu(" "), cpu("0"), cpu("1")));
            self.file(&format!("{sample}/proc/self/mountinfo"), mountinfo);
            self.file(&format!("{sample}/proc/self/schedstat"), "1 1 1\n");
            self.file(&format!("{sample}/proc/self/cgroup"), "0::/\n");
        }
        self.file("1/proc/sys/kernel/osrelease", "6.1.0-test\n");
        self.file("1/sys/devices/system/cpu/online", "0-1\n")
            .file("1/sys/devices/system/cpu/present", "0-1\n")
    }
}

/// Two sockets of twelve cores with two threads each, numbered as the mission's machine: even CPUs on socket 0, odd
/// ones on socket 1; core 0 has the logical CPUs 0 and 24; 2 and 26 are isolated.
pub fn numa_host() -> Tree {
    let tree = Tree::new();
    let cpus = "sys/devices/system/cpu";
    for (name, list) in [
        ("online", "0-47"),
        ("present", "0-47"),
        ("possible", "0-47"),
        ("isolated", "2,26"),
        ("nohz_full", "2,26"),
    ] {
        tree.file(&format!("{cpus}/{name}"), &format!("{list}\n"));
    }
    for cpu in 0..48 {
        let dir = format!("{cpus}/cpu{cpu}");
        let (socket, core) = (cpu % 2, cpu % 24);
        let (even, odd) = ("0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,42,44,46", "1-47:1/2");
        let shared = if socket == 0 { even } else { odd };
        tree.file(&format!("{dir}/topology/physical_package_id"), &format!("{socket}\n"))
            .file(&format!("{dir}/topology/die_id"), "0\n")
            .file(&format!("{dir}/topology/core_cpus_list"), &format!("{core},{}\n", core + 24))
            .file(&format!("{dir}/cache/index0/level"), "1\n")
            .file(&format!("{dir}/cache/index0/type"), "Data\n")
            .file(&format!("{dir}/cache/index0/shared_cpu_list"), &format!("{core},{}\n", core + 24))
            .file(&format!("{dir}/cache/index3/level"), "3\n")
            .file(&format!("{dir}/cache/index3/type"), "Unified\n")
            .file(&format!("{dir}/cache/index3/shared_cpu_list"), &format!("{shared}\n"));
    }
    for (node, list, distance) in [(0, "0-46:1/2", "10 21"), (1, "1-47:1/2", "21 10")] {
        let dir = format!("sys/devices/system/node/node{node}");
        tree.file(&format!("{dir}/cpulist"), &format!("{list}\n"))
            .file(&format!("{dir}/distance"), &format!("{distance}\n"))
            .file(&format!("{dir}/meminfo"), &format!("Node {node} MemTotal:       65536 kB\n"));
    }
    tree.file("proc/cmdline", "isolcpus=2,26 nohz_full=2,26 rcu_nocbs=2,26,4\n");
    tree.file("proc/stat", "cpu 1 1 1 1\n");
    tree
}
