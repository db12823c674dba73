//! Waits counted in turns: programs rest where they cost more than their budget, and sums are right all the same.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use evenkeel_linux::sys::{setaffinity, usable_cpus};
use evenkeel_linux::testing::{TestCgroup, TestChild, awaited, schedstat};

use super::agent::Serve;

/// Threads that hand a byte to and fro, which is nothing but switches, until it is dropped. They have the last CPU: next to
/// the hogs now and then, they would make those wait in crowds, of which a few turns see no fair part.
struct Switches {
    over: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Switches {
    fn start(pairs: usize) -> Self {
        let over = Arc::<AtomicBool>::default();
        let mut threads = Vec::new();
        for _ in 0..pairs {
            let ((theirs, to), (from, back)) = (rustix::pipe::pipe().unwrap(), rustix::pipe::pipe().unwrap());
            rustix::io::write(&to, &[0]).unwrap();
            let pass = |over: Arc<AtomicBool>, from: OwnedFd, to: OwnedFd| {
                move || {
                    setaffinity(0, &usable_cpus().iter().last().into_iter().collect()).unwrap();
                    let mut byte = [0];
                    // Who ends closes both: the other reads nothing more, or cannot write.
                    while !over.load(Ordering::Relaxed)
                        && rustix::io::read(&from, &mut byte) == Ok(1)
                        && rustix::io::write(&to, &byte).is_ok()
                    {}
                }
            };
            threads.push(std::thread::spawn(pass(over.clone(), theirs, back)));
            threads.push(std::thread::spawn(pass(over.clone(), from, to)));
        }
        Self { over, threads }
    }
}

impl Drop for Switches {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Spins on the first CPU.
fn hog() -> TestChild {
    TestChild::shell_on(0, "while :; do :; done")
}

fn value(page: &str, name: &str, label: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.starts_with(name) && line.contains(label))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// What is counted of a cgroup, and what the kernel counts of its processes: seconds waited, and waits.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Reading {
    ours: [f64; 2],
    kernels: [f64; 2],
}

/// Waits until the counters grow.
fn at_growth(serve: &Serve, id: &str, hogs: &[TestChild]) -> Reading {
    let read = || {
        let page = serve.metrics();
        ["sum", "count"]
            .map(|part| value(&page, &format!("evenkeel_runqueue_wait_seconds_{part}"), id).unwrap_or(0.0))
    };
    let before = read();
    awaited(60, || {
        let ours = read();
        let mut kernels = [0.0; 2];
        for hog in hogs {
            let [_, waited_ns, turns] = schedstat(hog.id()).map(|number| number as f64);
            kernels = [kernels[0] + waited_ns / 1e9, kernels[1] + turns];
        }
        if ours != before {
            Ok(Reading { ours, kernels })
        } else {
            Err(format!("nothing is counted: {ours:?}"))
        }
    })
}

pub fn a_small_budget_is_kept_and_sums_stay_right() {
    let group = TestCgroup::new("turns").unwrap();
    let hogs = [hog(), hog()];
    hogs.iter().for_each(|hog| group.add(hog.0.id()).unwrap());
    let id = group.path().trim_start_matches('/').to_owned();
    let _switches = Switches::start(2);
    let began = Instant::now();
    let serve = Serve::start(&["--no-history", "--blame-budget", "2"]);
    let begin = at_growth(&serve, &id, &hogs);
    // Some turns, whose rests are of different lengths.
    let (mut end, mut turns) = (begin, 0);
    while turns < 5 || end.kernels[0] - begin.kernels[0] < 5.0 {
        (end, turns) = (at_growth(&serve, &id, &hogs), turns + 1);
    }
    let page = serve.metrics();
    let observed = value(&page, "evenkeel_blame_observed_ratio", "").unwrap();
    let spent = value(&page, "evenkeel_blame_cpu_seconds_total", "").unwrap();
    let cpus = value(&page, "evenkeel_host_cpus", "").unwrap();
    let seconds = began.elapsed().as_secs_f64();
    assert!(observed < 0.8, "it never rests: {observed}; {spent} s in {seconds} s");
    // What is not paid for yet is a turn's, which cannot cost more than a quarter of each CPU.
    assert!(spent > 0.0 && spent < cpus * (0.02 * seconds + 0.25), "{spent} s in {seconds} s on {cpus} CPUs");
    // Time passes evenly; short waits come in crowds, of which a few turns see more or fewer than their part.
    for (at, what, bounds) in [(0, "seconds", 0.6..1.6), (1, "waits", 0.4..2.5)] {
        let ratio = (end.ours[at] - begin.ours[at]) / (end.kernels[at] - begin.kernels[at]);
        assert!(bounds.contains(&ratio), "{what}: {ratio} of the kernel's: {begin:?} {end:?}");
    }
}
