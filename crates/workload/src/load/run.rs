//! Running a load: its threads, their common start, and the report.

use std::os::fd::RawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_base::CpuSet;
use evenkeel_linux::{schedstat, sys};
use serde::{Deserialize, Serialize};

use super::context::Shared;
use super::signals::block_in_this_thread;
use super::{Context, FlowReport, LoadError, LoadSpec, StartAt};
use crate::burn::{
    monotonic_ns, no_timer_slack, realtime_ns, sleep_until, sleep_until_realtime, steps_per_ns,
};
use crate::page::{Page, Progress};
use crate::{Kind, Workload};

/// What ended a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndedBy {
    Time,
    Events,
    /// SIGTERM or SIGINT, or its owner went away.
    Signal,
}

/// How exactly the load started.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StartReport {
    /// The instant asked for, nanoseconds since 1970; `None` without `--start-at`.
    pub asked_ns: Option<u64>,
    /// Wall clock at the first instruction of the first thread, nanoseconds since 1970.
    pub first_instruction_ns: u64,
    /// From the instant asked for to the wake-up of the last thread woken, microseconds: the first instruction less
    /// the time it waited for a CPU (`run_delay` of schedstat). `None` without a common instant or schedstat.
    pub woken_late_usec: Option<f64>,
    /// From the instant asked for to the first instruction of the last thread, microseconds.
    pub first_instruction_late_usec: Option<f64>,
}

/// The `evenkeel.load/v1` document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// `evenkeel.load/v1`.
    pub schema: String,
    pub load: Kind,
    pub threads: u32,
    /// CPU time wanted, percent of ONE CPU, all threads; `None` where it takes what it gets.
    pub wanted_pct: Option<f64>,
    /// CPU time got, percent of ONE CPU, all threads; `None` when no time passed.
    pub got_pct: Option<f64>,
    /// Elapsed time, seconds.
    pub real_s: f64,
    /// CPU time of all threads, seconds.
    pub cpu_s: f64,
    /// Events (what an event is: see the kind), all threads.
    pub events: u64,
    /// Events a second of elapsed time; `None` when no time passed.
    pub events_per_s: Option<f64>,
    /// Voluntary context switches of all threads.
    pub voluntary: u64,
    /// Involuntary context switches of all threads.
    pub involuntary: u64,
    /// Time all threads waited for a CPU (`run_delay`, throttled time included), seconds; `None` without schedstat.
    #[serde(default)]
    pub waited_s: Option<f64>,
    /// Migrations between CPUs of all threads; `None` where the kernel does not tell (`/proc/PID/sched`).
    #[serde(default)]
    pub migrations: Option<u64>,
    /// CPUs its threads were seen on.
    #[serde(default)]
    pub cpus: CpuSet,
    /// CPU time of work dropped because the backlog was at its bound, seconds (open duty); else 0.
    pub dropped_s: f64,
    /// Transactions and latencies by flow, for workloads over the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<FlowReport>,
    /// How exactly it started.
    pub start: StartReport,
    pub ended_by: EndedBy,
}

/// What one thread brings home.
struct Ran {
    progress: Progress,
    real_ns: u64,
    voluntary: u64,
    involuntary: u64,
    waited_ns: Option<u64>,
    migrations: Option<u64>,
    cpus: CpuSet,
    start_realtime_ns: u64,
    woken_late_ns: Option<u64>,
    late_ns: Option<u64>,
}

/// Runs a load in this process, one of its threads being the calling one, until its end or until `stop` is set.
pub fn run(spec: &LoadSpec, stop: &AtomicBool) -> Result<LoadReport, LoadError> {
    let mut kind = spec.kind.clone();
    kind.workload().check().map_err(LoadError::Parameters)?;
    let threads = spec.common.thread_count();
    let page = spec.common.progress.as_deref().map(open_page).transpose()?;
    let first_slot = spec.common.slot.unwrap_or(0);
    if let Some(page) = &page
        && first_slot.saturating_add(threads) > page.slots()
    {
        return Err(LoadError::Parameters(format!(
            "--slot {first_slot} and {threads} threads: the page has {} slots",
            page.slots()
        )));
    }
    steps_per_ns();
    kind.workload_mut().prepare(threads)?;
    let shared = Shared {
        stop,
        budget: spec.common.events.map(AtomicU64::new),
        page: page.as_ref(),
        first_slot,
        owned: spec.common.owned,
        threads,
    };
    let ready = AtomicU32::new(0);
    let workload = kind.workload();
    let results: Vec<Result<Ran, LoadError>> = std::thread::scope(|scope| {
        let mut others = Vec::new();
        for thread in 1..threads {
            let (shared, ready) = (&shared, &ready);
            let spawned = std::thread::Builder::new().spawn_scoped(scope, move || {
                block_in_this_thread();
                run_thread(spec, workload, shared, ready, thread)
            });
            match spawned {
                Ok(handle) => others.push(handle),
                Err(source) => {
                    // Those that wait for the rest see the flag and end.
                    stop.store(true, Ordering::Relaxed);
                    return vec![Err(LoadError::system("cannot start a thread", source))];
                }
            }
        }
        let mut results = vec![run_thread(spec, workload, &shared, &ready, 0)];
        results.extend(others.into_iter().map(|handle| {
            handle.join().unwrap_or_else(|_| Err(LoadError::Parameters("a thread of the load failed".into())))
        }));
        results
    });
    let ran = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(report(spec, &kind, threads, &ran, stop))
}

/// Opens the page; an inherited descriptor is closed then, so that only the mapping is kept.
fn open_page(path: &Path) -> Result<Page, LoadError> {
    let page = Page::open(path)?;
    let inherited = path
        .to_str()
        .and_then(|p| p.strip_prefix("/proc/self/fd/"))
        .and_then(|fd| fd.parse::<RawFd>().ok())
        .filter(|fd| *fd > 2);
    if let Some(fd) = inherited {
        // SAFETY: the starter left this descriptor to us for this purpose; nothing else uses it.
        unsafe { libc::close(fd) };
    }
    Ok(page)
}

/// The common start instant on whichever clock it was given.
#[derive(Clone, Copy)]
enum Instant {
    Monotonic(u64),
    Realtime(StartAt),
}

fn run_thread(
    spec: &LoadSpec,
    workload: &dyn Workload,
    shared: &Shared<'_>,
    ready: &AtomicU32,
    thread: u32,
) -> Result<Ran, LoadError> {
    no_timer_slack();
    if let Some(name) = &spec.common.name {
        let name: Vec<u8> = name.bytes().filter(|b| *b != 0).take(15).collect();
        let _ = std::ffi::CString::new(name).map(|name| rustix::thread::set_name(&name));
    }
    let mut progress = Progress {
        pid: std::process::id(),
        tid: rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs(),
        ..Progress::default()
    };
    let tell = |progress: &Progress| {
        if let Some(page) = shared.page {
            page.write(shared.first_slot + thread, progress);
        }
    };
    tell(&progress);
    ready.fetch_add(1, Ordering::AcqRel);
    while ready.load(Ordering::Acquire) < shared.threads && !stopped(shared) {
        std::thread::sleep(Duration::from_micros(200));
    }
    let instant = match (shared.page, spec.common.start_at) {
        (Some(page), _) if spec.common.gate => Some(Instant::Monotonic(wait_gate(page, shared)?)),
        (_, at) => at.map(Instant::Realtime),
    };
    let before = run_delay_ns();
    match instant {
        Some(Instant::Monotonic(at)) => while !stopped(shared) && monotonic_ns() < at && !sleep_until(at) {},
        Some(Instant::Realtime(StartAt(at))) => {
            while !stopped(shared) && realtime_ns() < at {
                // Pieces, so that a signal to another thread is seen as well.
                sleep_until_realtime(at.min(realtime_ns() + 500_000_000));
            }
        }
        None => {}
    }
    let (start_ns, start_realtime_ns) = (monotonic_ns(), realtime_ns());
    let waited = before.zip(run_delay_ns()).map(|(before, after)| after.saturating_sub(before));
    let late_ns = instant.map(|instant| match instant {
        Instant::Monotonic(at) => start_ns.saturating_sub(at),
        Instant::Realtime(StartAt(at)) => start_realtime_ns.saturating_sub(at),
    });
    // Elapsed time counts from the common instant: being late to run is being kept waiting.
    let base_ns = start_ns.saturating_sub(late_ns.filter(|late| *late < 1_000_000_000).unwrap_or(0));
    progress.started_ns = start_ns;
    progress.late_ns = late_ns.unwrap_or(0);
    let deadline_ns = spec.common.seconds.map(|s| base_ns.saturating_add((s * 1e9) as u64));
    let (switches, migrated) = (switches(), migrations());
    let mut context = Context::new(shared, thread, deadline_ns, progress);
    let result = workload.run(&mut context);
    context.tell();
    let end_ns = monotonic_ns();
    if result.is_err() {
        shared.stop.store(true, Ordering::Relaxed);
    }
    result?;
    let after = self::switches();
    let counted = |before: Option<u64>, after: Option<u64>| Some(after?.saturating_sub(before?));
    Ok(Ran {
        waited_ns: counted(before, run_delay_ns()),
        migrations: counted(migrated, migrations()),
        cpus: context.cpus(),
        progress: context.progress(),
        real_ns: end_ns.saturating_sub(base_ns),
        voluntary: after.0.saturating_sub(switches.0),
        involuntary: after.1.saturating_sub(switches.1),
        start_realtime_ns,
        woken_late_ns: late_ns.zip(waited).map(|(late, waited)| late.saturating_sub(waited)),
        late_ns,
    })
}

fn stopped(shared: &Shared<'_>) -> bool {
    shared.stop.load(Ordering::Relaxed)
}

fn wait_gate(page: &Page, shared: &Shared<'_>) -> Result<u64, LoadError> {
    loop {
        if let Some(start) = page.wait_gate(Duration::from_millis(500)) {
            return Ok(start);
        }
        if stopped(shared) {
            return Ok(monotonic_ns());
        }
        if shared.owned && page.owner_is_gone() {
            return Err(LoadError::OwnerGone);
        }
    }
}

/// Time this thread has waited for a CPU so far; `None` without schedstat.
fn run_delay_ns() -> Option<u64> {
    Some(schedstat::of_this_thread()?.waited_ns)
}

/// Migrations of this thread so far; `None` where the kernel does not tell.
fn migrations() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/sched").ok()?;
    let line = text.lines().find(|line| line.starts_with("se.nr_migrations"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

/// Voluntary and involuntary context switches of this thread.
fn switches() -> (u64, u64) {
    let usage = sys::usage(libc::RUSAGE_THREAD);
    (usage.voluntary, usage.involuntary)
}

fn report(spec: &LoadSpec, kind: &Kind, threads: u32, ran: &[Ran], stop: &AtomicBool) -> LoadReport {
    let sum = |f: fn(&Ran) -> u64| ran.iter().map(f).sum::<u64>();
    let longest = |f: fn(&Ran) -> Option<u64>| ran.iter().filter_map(f).max().map(|ns| ns as f64 / 1e3);
    let real_s = ran.iter().map(|r| r.real_ns).max().unwrap_or(0) as f64 / 1e9;
    let cpu_s = sum(|r| r.progress.cpu_ns) as f64 / 1e9;
    let events = sum(|r| r.progress.cycles);
    let rate = |n: f64| (real_s > 0.0).then_some(n / real_s);
    let ended_by = if stop.load(Ordering::Relaxed) {
        EndedBy::Signal
    } else if spec.common.seconds.is_some_and(|s| real_s >= s) {
        EndedBy::Time
    } else {
        EndedBy::Events
    };
    LoadReport {
        schema: "evenkeel.load/v1".into(),
        load: kind.clone(),
        threads,
        wanted_pct: spec.wanted_pct(),
        got_pct: rate(cpu_s * 100.0),
        real_s,
        cpu_s,
        events,
        events_per_s: rate(events as f64),
        voluntary: sum(|r| r.voluntary),
        involuntary: sum(|r| r.involuntary),
        waited_s: ran.iter().map(|r| r.waited_ns).sum::<Option<u64>>().map(|ns| ns as f64 / 1e9),
        migrations: ran.iter().map(|r| r.migrations).sum(),
        cpus: ran.iter().fold(CpuSet::default(), |all, r| all.union(&r.cpus)),
        dropped_s: sum(|r| r.progress.dropped_ns) as f64 / 1e9,
        flows: kind.workload().flows(),
        start: StartReport {
            asked_ns: spec.common.start_at.map(|at| at.0),
            first_instruction_ns: ran.iter().map(|r| r.start_realtime_ns).min().unwrap_or(0),
            woken_late_usec: longest(|r| r.woken_late_ns),
            first_instruction_late_usec: longest(|r| r.late_ns),
        },
        ended_by,
    }
}
