//! From the gate to the end: the tenants come up, are released at one instant, and are watched until they have ended.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use evenkeel_experiment::record::HostUse;

use super::super::RunError;
use super::super::host::HostCounters;
use super::super::running::Running;
use super::super::work;
use super::member::{Member, Task};
use crate::launch::READY_WITHIN;
use evenkeel_workload::burn::{monotonic_ns, realtime_ns};
use evenkeel_workload::load::StartAt;
use evenkeel_workload::page::Page;

/// From the opening of the gate to the common instant: time enough for all to go to sleep until then.
const LEAD: Duration = Duration::from_millis(30);
/// How often the tenants are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How long those told to end may take to tell what they did.
const FAREWELL: Duration = Duration::from_millis(1500);

/// Waits until every tenant stands at the gate, or has ended before; `false` when told to stop.
pub(super) fn wait_until_up(
    task: &Task<'_>,
    members: &mut [Member],
    activation: &[usize],
    processes: &mut Running,
    page: &Page,
) -> bool {
    let until = Instant::now() + READY_WITHIN;
    for &number in activation {
        let member = &mut members[number];
        while page.read(member.order.slot).is_none_or(|progress| progress.pid == 0) {
            if task.stop.load(Ordering::Relaxed) {
                return false;
            }
            if let Some(status) = processes.ended(number) {
                member.ended = Some(status.clone());
                member.early = Some(format!("did not come up: it ended with {status}"));
                break;
            }
            if Instant::now() >= until {
                member.early = Some(format!("did not come up within {READY_WITHIN:?}"));
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    true
}

/// Opens the gate; gives the common instant (`CLOCK_MONOTONIC`).
pub(super) fn release(task: &Task<'_>, page: &Page) -> Result<u64, RunError> {
    let mut instant = monotonic_ns() + LEAD.as_nanos() as u64;
    if let Some(text) = task.start_at {
        let StartAt(at) = text.parse().map_err(|e| RunError::Usage(format!("start_at: {e}")))?;
        let (wall, clock) = (realtime_ns(), monotonic_ns());
        let ahead = at.saturating_sub(wall);
        if ahead < LEAD.as_nanos() as u64 {
            return Err(RunError::Usage(format!("start_at {text}: that instant has passed")));
        }
        instant = clock + ahead;
        while monotonic_ns() + 200_000_000 < instant && !task.stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    page.release(instant);
    Ok(instant)
}

/// What was seen from outside while the tenants ran.
pub(super) struct Watched {
    pub(super) released_realtime_ns: u64,
    pub(super) seconds: f64,
    pub(super) host: HostUse,
    /// Seconds from the release, and what the host had used and lost by then.
    pub(super) samples: Vec<(f64, HostCounters)>,
    pub(super) limit_s: f64,
}

/// CPU time of this process so far, seconds.
fn own_cpu_s() -> f64 {
    let usage = evenkeel_linux::sys::usage(libc::RUSAGE_SELF);
    usage.user_s + usage.sys_s
}

/// Waits until all that have runs to do have ended, or the time limit has passed, or told to stop.
pub(super) fn watch(
    task: &Task<'_>,
    members: &mut [Member],
    processes: &mut Running,
    page: &Page,
    instant: u64,
    progress: &mut dyn FnMut(f64),
) -> Watched {
    let limit_s = work::time_limit_s(task.experiment);
    let planned: u64 = members.iter().filter(|m| !m.order.background).map(|m| u64::from(m.order.runs)).sum();
    let seconds = || monotonic_ns().saturating_sub(instant) as f64 / 1e9;
    let (clock, wall) = (monotonic_ns(), realtime_ns());
    let released_realtime_ns = wall + instant.saturating_sub(clock);
    let until = instant.saturating_sub(monotonic_ns());
    std::thread::sleep(Duration::from_nanos(until));
    let before = own_cpu_s();
    let mut samples = Vec::new();
    let sample =
        |samples: &mut Vec<(f64, HostCounters)>| samples.extend(HostCounters::now().map(|c| (seconds(), c)));
    sample(&mut samples);
    let mut looks = 0u64;
    let end_s;
    loop {
        std::thread::sleep(LOOK);
        for (number, member) in members.iter_mut().enumerate() {
            if member.ended.is_none() {
                member.ended = processes.ended(number);
            }
        }
        looks += 1;
        if looks.is_multiple_of(5) {
            sample(&mut samples);
            let done: u64 = members
                .iter()
                .filter(|m| !m.order.background)
                .filter_map(|m| Some(page.read(m.order.slot)?.cycles))
                .sum();
            progress(done as f64 / planned.max(1) as f64);
        }
        let over =
            members.iter().filter(|m| !m.order.background).all(|m| m.ended.is_some() || m.early.is_some());
        if over || task.stop.load(Ordering::Relaxed) {
            end_s = seconds();
            break;
        }
        if seconds() > limit_s {
            end_s = seconds();
            for member in members.iter_mut().filter(|m| m.ended.is_none() && !m.order.background) {
                member.over_time = true;
            }
            break;
        }
    }
    sample(&mut samples);
    let used = own_cpu_s() - before;
    farewell(members, processes);
    let host = match (samples.first(), samples.last()) {
        (Some((from, a)), Some((to, b))) if to > from => HostUse {
            busy_s: Some(b.busy_s - a.busy_s),
            steal_s: b.steal_s.zip(a.steal_s).map(|(b, a)| b - a),
            harness_cpu_s: Some(used),
            harness_cpu_pct: Some(100.0 * used / (to - from)),
            enforcer_cpu_s: None,
        },
        _ => HostUse::default(),
    };
    Watched { released_realtime_ns, seconds: end_s, host, samples, limit_s }
}

/// Tells those that still run to end, and waits a moment for their last words.
fn farewell(members: &mut [Member], processes: &mut Running) {
    for (number, member) in members.iter().enumerate() {
        if member.ended.is_none() {
            processes.ask_to_end(number);
        }
    }
    let until = Instant::now() + FAREWELL;
    while Instant::now() < until {
        let mut all = true;
        for (number, member) in members.iter_mut().enumerate() {
            if member.ended.is_none() {
                member.ended = processes.ended(number);
            }
            all &= member.ended.is_some();
        }
        if all {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
