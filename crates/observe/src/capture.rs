//! Writes what is read of a host as a tree that [`Root::at`] reads: for reports from machines one cannot log into,
//! and for tests.
//!
//! ```text
//! DIR/0/   the counters at a first instant: proc/stat, every task's stat, schedstat, status, its groups' cpu.stat ..
//! DIR/1/   everything, an interval later: also the machine (sys/devices/system), the kernel, interrupts, cgroups
//! DIR/1/evenkeel/   what is not a file of the kernel:
//!     meta.json          schema evenkeel.capture/v1, version, interval
//!     instant            monotonic and wall clock, nanoseconds (in DIR/0 too)
//!     default_slice_ns   the kernel's default slice
//!     runtimes.json      what the container runtimes said
//! proc/PID/task/TID/evenkeel.sched   policy flags nice priority runtime, of sched_getattr(2)
//! ```
//!
//! Arguments of commands are not written (they may hold secrets), but for virtual machines' names. Names of tasks,
//! cgroups and containers, and labels of containers, are.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_base::Sample;
use evenkeel_linux::mountinfo::{self, Hierarchies};
use evenkeel_linux::sysfs::{CPU_DIR, NODE_DIR};
use evenkeel_linux::{ReadError, Root, cmdline, sys};
use serde_json::json;

use crate::facts::FAIR_SERVER_DIR;
use crate::kernel::{INSTANT_FILE, instant};
use crate::on_demand::{DEFAULT_SLICE_FILE, SCHED_FILE, format_sched};
use crate::runtimes::{Endpoints, FACTS_FILE, ask_once};
use crate::sampler::{Sampler, Select};
use crate::{ObserveError, Observer, ObserverOptions, vm};

#[derive(Debug, Clone)]
pub struct CaptureOptions {
    /// Time between the two samples.
    pub interval: Duration,
    /// Kernel threads too (there are hundreds on large hosts).
    pub kernel_threads: bool,
    /// Runtimes to ask for names.
    pub runtimes: Endpoints,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Captured {
    pub files: u64,
    pub bytes: u64,
    /// Threads in the second sample.
    pub tasks: u64,
}

/// Why a tree could not be written or used.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error("{}: exists and is not empty; name a new directory", .0.display())]
    NotEmpty(PathBuf),
    #[error("{}: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
    /// The host could not be read.
    #[error(transparent)]
    Observe(#[from] ObserveError),
}

impl From<ReadError> for CaptureError {
    fn from(error: ReadError) -> Self {
        Self::Observe(error.into())
    }
}

const PER_TASK: [&str; 4] = ["stat", "schedstat", "cgroup", "status"];
const PER_HOST: [&str; 16] = [
    "proc/cmdline",
    "proc/pressure/cpu",
    "proc/interrupts",
    "proc/softirqs",
    "proc/sys/net/core/rps_sock_flow_entries",
    "proc/sys/kernel/osrelease",
    "proc/sys/kernel/random/boot_id",
    "proc/sys/kernel/sched_autogroup_enabled",
    "proc/sys/kernel/sched_rt_runtime_us",
    "proc/sys/kernel/sched_rt_period_us",
    "proc/sys/kernel/numa_balancing",
    "proc/sys/vm/nr_hugepages",
    "sys/kernel/debug/sched/preempt",
    "sys/kernel/sched_ext/state",
    "sys/kernel/sched_ext/root/ops",
    "sys/devices/system/cpu/smt/active",
];
const CPU_LISTS: [&str; 6] = ["online", "offline", "present", "possible", "isolated", "nohz_full"];
const PER_CPU: [&str; 10] = [
    "topology/physical_package_id",
    "topology/die_id",
    "topology/core_id",
    "topology/core_cpus_list",
    "topology/thread_siblings_list",
    "cpu_capacity",
    "cpufreq/scaling_governor",
    "cpufreq/scaling_driver",
    "cpufreq/energy_performance_preference",
    "cpufreq/scaling_max_freq",
];
const PER_CACHE: [&str; 4] = ["level", "type", "size", "shared_cpu_list"];
const COUNTED: [&str; 3] = ["cpu.stat", "cpu.stat.local", "cpuacct.usage"];
const PER_GROUP: [&str; 21] = [
    "cgroup.controllers",
    "cgroup.subtree_control",
    "cpu.weight",
    "cpu.idle",
    "cpu.max",
    "cpu.max.burst",
    "cpu.pressure",
    "cpu.shares",
    "cpu.cfs_quota_us",
    "cpu.cfs_period_us",
    "cpu.cfs_burst_us",
    "cpu.rt_runtime_us",
    "cpuset.cpus",
    "cpuset.cpus.effective",
    "cpuset.effective_cpus",
    "cpuset.mems",
    "cpuset.mems.effective",
    "cpuset.effective_mems",
    "cpuset.memory_migrate",
    "cpuset.cpus.partition",
    "cpuset.cpus.isolated",
];

/// Writes the tree of this host at `dir`, which must not exist or be empty.
///
/// # Errors
/// See [`CaptureError`]. Files of tasks that vanish meanwhile are left out.
pub fn capture(dir: &Path, options: &CaptureOptions) -> Result<Captured, CaptureError> {
    if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(CaptureError::NotEmpty(dir.to_owned()));
    }
    let host = Root::host();
    let mut written = Captured::default();
    let first = Tree { host: &host, dir: dir.join("0"), written: &mut written };
    first.counters(options.kernel_threads)?;
    std::thread::sleep(options.interval);
    let mut second = Tree { host: &host, dir: dir.join("1"), written: &mut written };
    let tasks = second.counters_again(options.kernel_threads)?;
    second.machine()?;
    second.copy_all(PER_HOST)?;
    second.irqs()?;
    second.links()?;
    second.facts(options)?;
    written.tasks = tasks;
    Ok(written)
}

/// The two samples of a captured tree, and an observer for it.
///
/// # Errors
/// [`ObserveError::Other`] when the tree has only one sample; else as [`Observer::new`].
pub fn replay(root: &Root) -> Result<(Observer, Sample, Sample), ObserveError> {
    let earlier = root.earlier().ok_or_else(|| {
        ObserveError::Other(format!(
            "{}: no earlier sample next to it; rates need two (evenkeel capture writes DIR/0 and DIR/1)",
            root.dir().display()
        ))
    })?;
    let options = ObserverOptions { switches: Select::All, ..ObserverOptions::default() };
    let before = Observer::new(&earlier, options.clone())?.sample()?;
    let mut observer = Observer::new(root, options)?;
    let after = observer.sample()?;
    Ok((observer, before, after))
}

struct Tree<'a> {
    host: &'a Root,
    dir: PathBuf,
    written: &'a mut Captured,
}

impl Tree<'_> {
    fn counters(mut self, kernel_threads: bool) -> Result<u64, CaptureError> {
        self.counters_again(kernel_threads)
    }

    /// What both samples have. Returns the number of threads.
    fn counters_again(&mut self, kernel_threads: bool) -> Result<u64, CaptureError> {
        let (monotonic, wall) = instant(self.host);
        self.write(INSTANT_FILE, &format!("{monotonic} {wall}\n"))?;
        self.proc_stat()?;
        self.copy_all(["proc/self/cgroup", "proc/self/schedstat", "proc/self/status"])?;
        let hierarchies = self.mounts()?;
        // The sampler knows the tasks there are; its table is not kept.
        let mut sampler = Sampler::new(self.host)?;
        let sample = sampler.sample(&Select::All, &Select::None)?;
        let mut tasks = 0;
        for task in &sample.tasks {
            let Some(meta) = sampler.meta(task.id) else { continue };
            if meta.kernel_thread && !kernel_threads {
                continue;
            }
            tasks += 1;
            let dir = format!("proc/{}/task/{}", task.id.tgid, task.id.tid);
            for name in PER_TASK {
                self.task_file(&format!("{dir}/{name}"))?;
            }
            if let Ok(raw) = sys::sched_getattr(task.id.tid) {
                self.write(&format!("{dir}/{SCHED_FILE}"), &format_sched(&raw))?;
            }
            if task.id.tid == task.id.tgid {
                self.copy(&format!("proc/{}/autogroup", task.id.tgid))?;
                if vm::may_be_emulator(&meta.comm) {
                    self.guest(task.id.tgid)?;
                }
            }
        }
        if let Some(hierarchies) = hierarchies {
            let mut dirs = sampler.group_dirs(&hierarchies);
            dirs.sort();
            dirs.dedup();
            for dir in dirs {
                for name in PER_GROUP.iter().chain(&COUNTED) {
                    self.copy(&format!("{dir}/{name}"))?;
                }
            }
        }
        Ok(tasks)
    }

    /// `/proc/stat` without the line that counts every interrupt.
    fn proc_stat(&mut self) -> Result<(), CaptureError> {
        let text = self.host.read("proc/stat")?;
        let lines = text.lines().filter(|line| !line.starts_with("intr"));
        self.write("proc/stat", &(lines.collect::<Vec<_>>().join("\n") + "\n"))
    }

    /// `/proc/self/mountinfo`, cgroup file systems only.
    fn mounts(&mut self) -> Result<Option<Hierarchies>, CaptureError> {
        let Some(text) = self.host.read_optional("proc/self/mountinfo")? else { return Ok(None) };
        let is_cgroup = |line: &&str| {
            mountinfo::parse(line).is_ok_and(|mounts| mounts.iter().any(|m| m.fs_type.starts_with("cgroup")))
        };
        let lines: Vec<_> = text.lines().filter(is_cgroup).collect();
        self.write("proc/self/mountinfo", &lines.iter().map(|line| format!("{line}\n")).collect::<String>())?;
        Ok(Some(Hierarchies::read(self.host)?))
    }

    /// A task's file; of `status` the lines that are used.
    fn task_file(&mut self, relative: &str) -> Result<(), CaptureError> {
        let Ok(text) = self.host.read(relative) else { return Ok(()) };
        if !relative.ends_with("/status") {
            return self.write(relative, &text);
        }
        const KEYS: [&str; 5] = ["Name:", "Tgid:", "VmRSS:", "Cpus_allowed_list:", "Mems_allowed_list:"];
        let wanted =
            |line: &&str| KEYS.iter().any(|key| line.starts_with(key)) || line.contains("ctxt_switches:");
        let lines: String = text.lines().filter(wanted).map(|line| format!("{line}\n")).collect();
        self.write(relative, &lines)
    }

    /// An emulator's program and guest name, the rest of its arguments left out.
    fn guest(&mut self, pid: u32) -> Result<(), CaptureError> {
        let file = format!("proc/{pid}/cmdline");
        let args = cmdline::parse(&self.host.read(&file).unwrap_or_default());
        let Some(program) = args.first().filter(|_| vm::is_emulator(&args)) else { return Ok(()) };
        let name = vm::guest_name(&args).map(|name| format!("-name\0guest={name}\0")).unwrap_or_default();
        self.write(&file, &format!("{program}\0{name}"))
    }

    fn machine(&mut self) -> Result<(), CaptureError> {
        for name in CPU_LISTS {
            self.copy(&format!("{CPU_DIR}/{name}"))?;
        }
        for cpu in self.numbered(CPU_DIR, "cpu") {
            for name in PER_CPU {
                self.copy(&format!("{CPU_DIR}/cpu{cpu}/{name}"))?;
            }
            self.copy(&format!("{FAIR_SERVER_DIR}/cpu{cpu}/runtime"))?;
            let cache = format!("{CPU_DIR}/cpu{cpu}/cache");
            for index in self.numbered(&cache, "index") {
                for name in PER_CACHE {
                    self.copy(&format!("{cache}/index{index}/{name}"))?;
                }
            }
        }
        for node in self.numbered(NODE_DIR, "node") {
            let dir = format!("{NODE_DIR}/node{node}");
            self.copy_all([&format!("{dir}/cpulist"), &format!("{dir}/distance")])?;
            if let Ok(text) = self.host.read(format!("{dir}/meminfo")) {
                let total: String = text
                    .lines()
                    .filter(|line| line.contains("MemTotal"))
                    .map(|line| format!("{line}\n"))
                    .collect();
                self.write(&format!("{dir}/meminfo"), &total)?;
            }
        }
        // Only that it is there counts; it is megabytes long.
        if self.host.path("sys/kernel/btf/vmlinux").exists() {
            self.write("sys/kernel/btf/vmlinux", "")?;
        }
        // One CPU's flags tell whether this is a guest.
        if let Ok(text) = self.host.read("proc/cpuinfo") {
            let first = text.split("\n\n").next().unwrap_or("");
            let flags: String = first
                .lines()
                .filter(|line| line.starts_with("flags"))
                .map(|line| format!("{line}\n"))
                .collect();
            self.write("proc/cpuinfo", &flags)?;
        }
        Ok(())
    }

    fn irqs(&mut self) -> Result<(), CaptureError> {
        for irq in self.numbered("proc/irq", "") {
            self.copy(&format!("proc/irq/{irq}/smp_affinity_list"))?;
            self.copy(&format!("proc/irq/{irq}/effective_affinity_list"))?;
        }
        Ok(())
    }

    /// Packet steering of every link.
    fn links(&mut self) -> Result<(), CaptureError> {
        for link in self.host.names("sys/class/net").unwrap_or_default() {
            let dir = format!("sys/class/net/{link}");
            for queue in self.numbered(&format!("{dir}/queues"), "rx-") {
                self.copy(&format!("{dir}/queues/rx-{queue}/rps_cpus"))?;
                self.copy(&format!("{dir}/queues/rx-{queue}/rps_flow_cnt"))?;
            }
            for queue in self.numbered(&format!("{dir}/queues"), "tx-") {
                self.copy(&format!("{dir}/queues/tx-{queue}/xps_cpus"))?;
            }
            // Only that there is one counts.
            if self.host.path(format!("{dir}/device")).exists() {
                self.write(&format!("{dir}/device/here"), "")?;
            }
        }
        Ok(())
    }

    /// What is not a file of the kernel.
    fn facts(&mut self, options: &CaptureOptions) -> Result<(), CaptureError> {
        if let Some(slice) = sys::default_slice_ns() {
            self.write(DEFAULT_SLICE_FILE, &format!("{slice}\n"))?;
        }
        if let Some(facts) = ask_once(&options.runtimes) {
            self.write(FACTS_FILE, &format!("{:#}\n", json!(facts)))?;
        }
        let meta = json!({
            "schema": "evenkeel.capture/v1",
            "version": env!("CARGO_PKG_VERSION"),
            "interval_s": options.interval.as_secs_f64(),
            "kernel_threads": options.kernel_threads,
        });
        self.write("evenkeel/meta.json", &format!("{meta:#}\n"))
    }

    fn numbered(&self, relative: &str, prefix: &str) -> Vec<u32> {
        self.host.numbered(relative, prefix).unwrap_or_default()
    }

    fn copy_all<T: AsRef<str>>(&mut self, files: impl IntoIterator<Item = T>) -> Result<(), CaptureError> {
        files.into_iter().try_for_each(|file| self.copy(file.as_ref()))
    }

    /// Copies a file if it can be read: absence and refusal are facts, too.
    fn copy(&mut self, relative: &str) -> Result<(), CaptureError> {
        match self.host.read(relative) {
            Ok(text) => self.write(relative, &text),
            Err(error) => {
                if !error.is_gone() {
                    tracing::debug!("left out: {error}");
                }
                Ok(())
            }
        }
    }

    fn write(&mut self, relative: &str, text: &str) -> Result<(), CaptureError> {
        let path = self.dir.join(relative.trim_start_matches('/'));
        let written = match path.parent() {
            Some(parent) => fs::create_dir_all(parent).and_then(|()| fs::write(&path, text)),
            None => fs::write(&path, text),
        };
        self.written.files += 1;
        self.written.bytes += text.len() as u64;
        written.map_err(|error| CaptureError::Write { path, error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{FactsOptions, read_facts, tests::tree};

    #[test]
    fn deadline_servers_of_a_captured_tree_are_those_of_the_host() {
        let (_host, host) = tree(&[
            ("sys/devices/system/cpu/cpu0/topology/core_id", "0\n"),
            ("sys/devices/system/cpu/cpu1/topology/core_id", "1\n"),
            ("sys/kernel/debug/sched/fair_server/cpu0/runtime", "50000000\n"),
            ("sys/kernel/debug/sched/fair_server/cpu1/runtime", "0\n"),
        ]);
        let dir = tempfile::tempdir().unwrap();
        let mut written = Captured::default();
        let mut tree = Tree { host: &host, dir: dir.path().to_owned(), written: &mut written };
        tree.machine().unwrap();
        let [captured, own] = [&Root::at(dir.path()), &host]
            .map(|root| read_facts(root, &FactsOptions::default()).fair_server_off);
        assert_eq!(captured.get().unwrap().to_string(), "1");
        assert_eq!(captured, own);
    }
}
