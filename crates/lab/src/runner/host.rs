//! Facts of the host, what it can do undisturbed, and whether it is fit for an experiment.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use evenkeel_base::Topology;
use evenkeel_base::text::count;
use evenkeel_experiment::file::Experiment;
use evenkeel_experiment::record::{Host, Requirement};
use evenkeel_linux::sys::usable_cpus;
use evenkeel_linux::{Root, proc_stat};
use evenkeel_observe::read_kernel;

use crate::mounts::CgroupMounts;
use evenkeel_workload::Kind;
use evenkeel_workload::load::{LoadSpec, run as run_load};
use evenkeel_workload::primes::Primes;
use evenkeel_workload::sieve::divisions_per_s;

/// CPU others may use before the host counts as busy, percent of one CPU.
const BUSY_PCT: f64 = 5.0;
/// How long it is looked at.
const LOOK: Duration = Duration::from_millis(400);

/// Facts. The topology is the observer's, given by the caller.
pub fn facts(topology: Option<&Topology>) -> Host {
    let read = |path: &str| std::fs::read_to_string(path).ok().map(|t| t.trim().to_owned());
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line =
            cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let count = |n: usize| u32::try_from(n).ok();
    let kernel = read_kernel(&Root::host());
    let distinct = |f: fn(&evenkeel_base::Cpu) -> Option<u32>| {
        let mut all: Vec<u32> = topology?.cpus.iter().filter(|c| c.online).filter_map(f).collect();
        all.sort_unstable();
        all.dedup();
        count(all.len()).filter(|n| *n > 0)
    };
    let memory = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
        Some(line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
    });
    Host {
        name: read("/proc/sys/kernel/hostname"),
        cpu_model: field("model name").or_else(|| field("CPU part")),
        arch: Some(std::env::consts::ARCH.to_owned()),
        cpus: topology.and_then(|t| count(t.online.len())).or_else(|| count(usable_cpus().len())),
        cores: distinct(|c| c.core),
        sockets: distinct(|c| c.socket),
        nodes: topology.and_then(|t| count(t.nodes.len())),
        threads_per_core: topology
            .and_then(|t| t.cpus.iter().map(|c| c.siblings.len()).max())
            .and_then(count),
        kernel: kernel.release,
        scheduler: kernel.scheduler.map(|scheduler| scheduler.name().to_owned()),
        cgroup: kernel.cgroup,
        tenants_v2: CgroupMounts::find().ok().map(|mounts| mounts.is_v2()),
        virtual_machine: (cfg!(target_arch = "x86_64") && !cpuinfo.is_empty())
            .then(|| field("flags").is_some_and(|flags| flags.split(' ').any(|f| f == "hypervisor"))),
        governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        memory_bytes: memory,
        primes_per_s: None,
        primes_per_s_all: None,
        divisions_per_s: None,
    }
}

/// Measures what one thread, and one on every CPU, do undisturbed. Per CPU second, so that others on the host cost
/// nothing but where they share a core; the best of many short passes, since a hypervisor that steals without saying so
/// spoils most long ones. Takes about a second.
pub fn calibrate(host: &mut Host, stop: &AtomicBool) {
    let rate = |threads: u32| {
        let mut spec = LoadSpec::new(Kind::Primes(Primes { max_prime: 10_000 }));
        spec.common.threads = Some(threads);
        spec.common.seconds = Some(0.04);
        let passes = (0..12).filter_map(|_| run_load(&spec, stop).ok());
        let rates = passes.filter(|r| r.cpu_s > 0.0).map(|r| r.events as f64 / r.cpu_s * f64::from(threads));
        rates.fold(None, |best: Option<f64>, rate| Some(best.map_or(rate, |b| b.max(rate))))
    };
    host.primes_per_s = rate(1);
    host.divisions_per_s = divisions_per_s();
    host.primes_per_s_all = host.cpus.and_then(|cpus| if cpus > 1 { rate(cpus) } else { host.primes_per_s });
}

/// What the experiment needs that can be looked at beforehand.
pub fn requirements(experiment: &Experiment, host: &Host) -> Vec<Requirement> {
    let mut all = Vec::new();
    let mut add = |name: &str, met: Option<bool>, evidence: String, consequence: &str| {
        all.push(Requirement::new(name, met, evidence, consequence));
    };
    let cpus = host.cpus.unwrap_or(1);
    add(
        "cpus",
        Some(cpus >= experiment.needs_cpus),
        format!("{}, {} wanted", count(cpus as usize, "CPU"), experiment.needs_cpus),
        "points that need more CPUs are marked and left out",
    );
    all.extend(undisturbed("what others use is missing from the tenants' shares"));
    let mut add = |name: &str, met: Option<bool>, evidence: String, consequence: &str| {
        all.push(Requirement::new(name, met, evidence, consequence));
    };
    let governor = host.governor.as_deref();
    add(
        "fixed-frequency",
        match governor {
            Some("performance") => Some(true),
            Some(_) => Some(false),
            None => None,
        },
        governor.map_or_else(
            || "no frequency control seen (usual in a virtual machine)".into(),
            |g| format!("governor {g}"),
        ),
        "work per CPU second may change with load",
    );
    let schedstat = Path::new("/proc/self/schedstat").exists();
    add("schedstat", Some(schedstat), "/proc/PID/schedstat".into(), "waits and wake-up times are unknown");
    all
}

/// Whether anybody else uses the CPU, and what that means; whether it is stolen.
pub(crate) fn undisturbed(consequence: &str) -> [Requirement; 2] {
    let (busy, steal) = quiet();
    let used = |pct| format!("others used {pct:.1} % of one CPU at the start");
    let stolen = |pct| format!("{pct:.1} % of one CPU stolen at the start");
    [
        Requirement::new(
            "quiet-host",
            busy.map(|pct| pct <= BUSY_PCT),
            busy.map_or_else(|| "unknown".into(), used),
            consequence,
        ),
        Requirement::new(
            "no-steal",
            steal.map(|pct| pct <= 0.5),
            steal.map_or_else(|| "not reported".into(), stolen),
            "stolen time slows everybody; ratios hold better than rates",
        ),
    ]
}

/// CPU used by all and stolen, percent of ONE CPU, over a short look.
fn quiet() -> (Option<f64>, Option<f64>) {
    let Some((before, begun)) = HostCounters::now().zip(Some(Instant::now())) else { return (None, None) };
    std::thread::sleep(LOOK);
    let Some(after) = HostCounters::now() else { return (None, None) };
    let seconds = begun.elapsed().as_secs_f64();
    let pct = |s: f64| 100.0 * s / seconds;
    (Some(pct(after.busy_s - before.busy_s)), after.steal_s.zip(before.steal_s).map(|(a, b)| pct(a - b)))
}

/// `/proc/stat`, summed over CPUs, seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct HostCounters {
    pub busy_s: f64,
    pub steal_s: Option<f64>,
}

impl HostCounters {
    pub fn now() -> Option<Self> {
        let stat = proc_stat::read(&Root::host()).ok()?;
        let sum: u64 = stat.cpus.iter().map(|c| c.busy_ns).sum();
        let steal: Option<u64> = stat.cpus.iter().map(|c| c.steal_ns).sum();
        Some(Self { busy_s: sum as f64 / 1e9, steal_s: steal.map(|ns| ns as f64 / 1e9) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_described() {
        let host = facts(None);
        assert!(host.cpus.unwrap() >= 1 && host.kernel.is_some() && host.memory_bytes.unwrap() > 1 << 20);
        let experiment = Experiment { needs_cpus: 100_000, ..Experiment::new("x", "") };
        let all = requirements(&experiment, &host);
        let cpus = all.iter().find(|r| r.name == "cpus").unwrap();
        assert!(cpus.met == Some(false) && !cpus.consequence.is_empty());
    }
}
