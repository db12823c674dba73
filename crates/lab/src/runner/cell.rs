//! One cell: starts the tenants, releases them at one instant, watches them end, and collects what they tell.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_base::SchedPolicy;
use evenkeel_model::laboratory::{Experiment, Place, Tenant};

use super::RunError;
use super::answers::Answers;
use super::docker::{self, Request};
use super::enforcer::Enforcement;
use super::groups::{Places, Sandbox, TenantGroup, Wanted};
use super::host::HostCounters;
use super::order::{Order, Work};
use super::predict;
use super::running::Running;
use super::scratch::{Scratch, fresh_name};
use super::spawn::Launch;
use super::work;
use crate::burn::{monotonic_ns, realtime_ns};
use crate::load::StartAt;
use crate::page::Page;
use crate::record::{Account, Cell, Ended, Host, HostUse, Limits, Point, TenantRecord};

/// How long tenants may take to come up.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// From the opening of the gate to the common instant: time enough for all to go to sleep until then.
const LEAD: Duration = Duration::from_millis(30);
/// How often the tenants are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How long those told to end may take to tell what they did.
const FAREWELL: Duration = Duration::from_millis(1500);

/// A cell to run.
pub(super) struct Task<'a> {
    pub experiment: &'a Experiment,
    pub point: Point,
    pub repetition: u32,
    /// The last tenant is started first.
    pub reversed: bool,
    pub start_at: Option<&'a str>,
    pub binary: &'a Path,
    pub host: &'a Host,
    pub stop: &'a AtomicBool,
}

/// One tenant while the cell runs.
struct Member {
    tenant: Tenant,
    order: Order,
    group: Option<Arc<TenantGroup>>,
    wanted: Wanted,
    limits: Limits,
    ended: Option<String>,
    /// It ended before it was released, or never came up.
    early: Option<String>,
    over_time: bool,
}

/// Runs it; `None` when it was stopped before its end.
pub(super) fn run(task: &Task<'_>, progress: &mut dyn FnMut(f64)) -> Result<Option<Cell>, RunError> {
    let experiment = task.experiment;
    let name = fresh_name();
    let scratch = Scratch::make(&name)?;
    let tenants = experiment.tenants();
    let page_path = scratch.0.join("page");
    let slots = u32::try_from(tenants.len()).unwrap_or(u32::MAX);
    let page = Page::create(&page_path, slots)
        .map_err(|e| RunError::system("the page", std::io::Error::other(e)))?;
    page.lock_as_owner().map_err(|e| RunError::system("cannot lock the page", e))?;
    let (places, sandbox, mut members) = prepare(task, &name, &scratch, tenants, &page_path)?;
    let mut activation: Vec<usize> = (0..members.len()).collect();
    if task.reversed {
        activation.reverse();
    }
    let mut processes = start(task, &name, places.as_ref(), &mut members, &activation, &scratch)?;
    if !wait_until_up(task, &mut members, &activation, &mut processes, &page) {
        return Ok(None);
    }
    let instant = release(task, &page)?;
    if task.stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let enforcement = enforce(task, &members, instant)?;
    let mut watched = watch(task, &mut members, &mut processes, &page, instant, progress);
    if task.stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let enforcer = enforcement.and_then(Enforcement::finish).map(|(record, cpu_s)| {
        watched.host.without_enforcer(cpu_s);
        record
    });
    if let Some(sandbox) = &sandbox {
        // What commands left running.
        sandbox.kill();
    }
    // Containers and processes go before their groups.
    drop(processes);
    let released_at = jiff::Timestamp::from_nanosecond(i128::from(watched.released_realtime_ns)).ok();
    let mut notes = Vec::new();
    let mut records: Vec<TenantRecord> =
        members.into_iter().map(|member| record_of(task, member, &watched, &mut notes)).collect();
    if let (Some(enforcer), [only]) = (&enforcer, records.as_mut_slice()) {
        // What the enforcer kept from it is what a guest would see as stolen.
        only.total.stolen_s = Some(enforcer.stolen_s);
        if let [run] = only.runs.as_mut_slice() {
            run.account.stolen_s = Some(enforcer.stolen_s);
        }
    }
    let predicted = predict::predict(task.experiment, task.host, task.repetition)
        .map_err(|why| notes.push(format!("not predicted: {why}")))
        .ok();
    Ok(Some(Cell {
        point: task.point.clone(),
        repetition: task.repetition,
        released_at: released_at.map(|stamp| stamp.to_string()),
        seconds: watched.seconds,
        activation,
        tenants: records,
        host: watched.host,
        enforcer,
        predicted,
        notes,
    }))
}

/// Starts the enforcer, if there is one.
fn enforce(task: &Task<'_>, members: &[Member], instant: u64) -> Result<Option<Enforcement>, RunError> {
    let Some(enforcer) = &task.experiment.enforcer else { return Ok(None) };
    let victim = members.iter().find(|m| !m.order.background && m.group.is_some());
    let Some((victim, group)) = victim.and_then(|m| Some((m, m.group.clone()?))) else {
        return Err(RunError::Usage(
            "an enforcer needs a tenant in a plain cgroup (place = \"cgroup\")".into(),
        ));
    };
    let limit = task.experiment.tenants[victim.tenant.spec].quota_pct;
    Enforcement::start(enforcer, limit, group, instant).map(Some)
}

/// Groups and orders of all tenants: where groups are, the sandbox that holds ours, the members.
type Prepared = (Option<Places>, Option<Sandbox>, Vec<Member>);

fn prepare(
    task: &Task<'_>,
    name: &str,
    scratch: &Scratch,
    tenants: Vec<Tenant>,
    page: &Path,
) -> Result<Prepared, RunError> {
    let experiment = task.experiment;
    let specs = &experiment.tenants;
    let in_groups = specs.iter().any(|t| t.place != Place::Process);
    let places = if in_groups { Some(Places::find()?) } else { None };
    let v2 = places.as_ref().is_some_and(|p| p.v2);
    let factor = experiment.unit_factor(v2).map_err(|e| RunError::Missing(e.to_string()))?;
    let cpuset = experiment.cpus.is_some() || specs.iter().any(|t| t.cpus.is_some());
    let memory = specs.iter().any(|t| t.memory_bytes.is_some());
    let sandbox = match places.as_ref().filter(|_| specs.iter().any(|t| t.place == Place::Cgroup)) {
        Some(places) => Some(Sandbox::make(places, name, cpuset, memory)?),
        None => None,
    };
    if let (Some(sandbox), Some(cpus)) = (&sandbox, &experiment.cpus) {
        sandbox.set_cpus(cpus)?;
    }
    let mut members = Vec::new();
    let mut weights = Vec::new();
    for (number, tenant) in tenants.into_iter().enumerate() {
        let spec = &specs[tenant.spec];
        let seed = experiment
            .seed
            .wrapping_mul(1_000_003)
            .wrapping_add(u64::from(task.repetition) * 10_007 + number as u64);
        let work = work::work(&tenant, spec, seed)?;
        let mut wanted = work::wanted(&tenant, spec, factor, v2);
        if spec.place == Place::Docker {
            wanted.cpus = wanted.cpus.or_else(|| experiment.cpus.clone());
        }
        let group = match (&sandbox, spec.place) {
            (Some(sandbox), Place::Cgroup) => {
                Some(Arc::new(sandbox.tenant(number, &wanted, experiment.enforcer.is_some())?))
            }
            _ => None,
        };
        weights.push(wanted.weight);
        let affinity =
            spec.cpus.clone().or_else(|| experiment.cpus.clone()).filter(|_| spec.place == Place::Process);
        let limits = Limits {
            unit_factor: tenant.units.and(factor),
            nice: Some(spec.nice).filter(|nice| *nice != 0),
            policy: Some(spec.policy).filter(|p| *p != SchedPolicy::Other).map(|p| p.to_string()),
            slice_ms: spec.slice_ms,
            cpus: affinity.clone(),
            ..group.as_ref().map(|g| g.limits()).unwrap_or_default()
        };
        let limits = Limits { cpus: limits.cpus.or_else(|| group.as_ref()?.limits().cpus), ..limits };
        let order = Order {
            page: page.to_owned(),
            slot: u32::try_from(number).unwrap_or(u32::MAX),
            answers: scratch.0.join(format!("answers-{number}")),
            work,
            runs: spec.runs,
            offset_ns: (spec.start_s * 1e9) as u64,
            background: spec.background,
            nice: spec.nice,
            policy: spec.policy.raw(),
            slice_ns: spec.slice_ms.map(|ms| (ms * 1e6) as u64),
            cpus: affinity,
            cpu_stat: match spec.place {
                Place::Docker => docker::cpu_stat(),
                _ => group.iter().map(|g| g.cpu_stat()).collect(),
            },
            owned: spec.place == Place::Docker,
        };
        members.push(Member {
            tenant,
            order,
            group,
            wanted,
            limits,
            ended: None,
            early: None,
            over_time: false,
        });
    }
    if let Some(sandbox) = &sandbox {
        sandbox.weigh(weights.into_iter())?;
    }
    Ok((places, sandbox, members))
}

/// Starts the tenants in the order of `activation` (those in containers after the others).
fn start(
    task: &Task<'_>,
    name: &str,
    places: Option<&Places>,
    members: &mut [Member],
    activation: &[usize],
    scratch: &Scratch,
) -> Result<Running, RunError> {
    let specs = &task.experiment.tenants;
    let in_container = |member: &Member| specs[member.tenant.spec].place == Place::Docker;
    let mut running =
        if members.iter().any(in_container) { Running::with_containers(name)? } else { Running::default() };
    let mut launches = Vec::new();
    for &number in activation {
        let member = &members[number];
        let path = scratch.0.join(format!("order-{number}"));
        let text = serde_json::to_vec(&member.order)
            .map_err(|e| RunError::system("an order", std::io::Error::other(e)))?;
        std::fs::write(&path, text).map_err(|e| RunError::system(path.display().to_string(), e))?;
        if in_container(member) {
            continue;
        }
        let arguments = vec!["lab".to_owned(), "tenant".to_owned(), path.display().to_string()];
        let entrances = member.group.as_ref().map_or_else(|| Ok(Vec::new()), |g| g.entrances())?;
        launches.push((number, Launch { arguments, entrances }));
    }
    running.launch(task.binary, launches)?;
    for &number in activation {
        let member = &mut members[number];
        let (true, Some(places)) = (in_container(member), places) else { continue };
        let request = Request {
            number,
            order: &scratch.0.join(format!("order-{number}")),
            wanted: &member.wanted,
            v2: places.v2,
            command: matches!(member.order.work, Work::Command(_)),
            may_nice: member.order.nice < 0,
        };
        if let Some(group) = running.contain(task.binary, &scratch.0, places, &request)? {
            let found = group.limits();
            let own = std::mem::take(&mut member.limits);
            member.limits = Limits {
                unit_factor: own.unit_factor,
                nice: own.nice,
                policy: own.policy,
                slice_ms: own.slice_ms,
                ..found
            };
        }
    }
    Ok(running)
}

/// Waits until every tenant stands at the gate, or has ended before; `false` when told to stop.
fn wait_until_up(
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
fn release(task: &Task<'_>, page: &Page) -> Result<u64, RunError> {
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
struct Watched {
    released_realtime_ns: u64,
    seconds: f64,
    host: HostUse,
    /// Seconds from the release, and what the host had used and lost by then.
    samples: Vec<(f64, HostCounters)>,
    limit_s: f64,
}

/// CPU time of this process so far, seconds.
fn own_cpu_s() -> f64 {
    // SAFETY: getrusage fills the zeroed struct it is given.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Waits until all that have runs to do have ended, or the time limit has passed, or told to stop.
fn watch(
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

impl Watched {
    /// The host's steal between two instants, as a share of the CPU time it used meanwhile.
    fn steal_share(&self, from_s: f64, to_s: f64) -> Option<f64> {
        let before = self.samples.iter().rfind(|(at, _)| *at <= from_s).or(self.samples.first())?;
        let after = self.samples.iter().find(|(at, _)| *at >= to_s).or(self.samples.last())?;
        let steal = after.1.steal_s? - before.1.steal_s?;
        let busy = after.1.busy_s - before.1.busy_s;
        if steal <= 0.0 {
            return Some(0.0);
        }
        (busy > 0.0).then(|| steal / busy)
    }

    fn stolen_s(&self, account: &Account, from_s: f64, to_s: f64) -> Option<f64> {
        Some(self.steal_share(from_s, to_s)? * account.cpu_s()?)
    }
}

fn record_of(task: &Task<'_>, member: Member, watched: &Watched, notes: &mut Vec<String>) -> TenantRecord {
    let Member { tenant, order, limits, ended, early, over_time, .. } = member;
    let spec = &task.experiment.tenants[tenant.spec];
    let mut answers = Answers::read(&order.answers);
    let mut total = answers.account();
    for run in &mut answers.runs {
        run.account.stolen_s = watched.stolen_s(&run.account, run.start_s, run.end_s);
    }
    let begun = answers.runs.first().map_or(0.0, |run| run.start_s);
    total.stolen_s = watched.stolen_s(&total, begun, begun + total.real_s);
    notes.extend(answers.notes.iter().map(|note| format!("{}: {note}", tenant.name)));
    let ended = if over_time {
        Ended::TimeLimit(format!("{} s", watched.limit_s))
    } else if let Some(what) = early.or(answers.failed) {
        Ended::Died(what)
    } else if answers.total.is_some() {
        Ended::Done
    } else {
        Ended::Died(ended.unwrap_or_else(|| "it was still there and had to be killed".into()))
    };
    if !matches!(ended, Ended::Done) {
        let what = match &ended {
            Ended::Died(what) => what.clone(),
            Ended::TimeLimit(limit) => format!("ended by the time limit of {limit}"),
            _ => String::new(),
        };
        notes.push(format!("{}: {what}", tenant.name));
    }
    TenantRecord {
        name: tenant.name,
        units: tenant.units,
        place: spec.place.name().to_owned(),
        limits,
        workload: work::text(spec),
        threads: work::threads(&order.work),
        runs_planned: if spec.background { 0 } else { spec.runs },
        release: answers.release,
        ended,
        total,
        runs: answers.runs,
    }
}
