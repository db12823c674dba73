//! Stolen CPU: the eyes and the hand of [`evenkeel_policy::governor`], for a command (`exec --cpu-limit auto`) and for a
//! scope (`run --cpu-limit auto`, see `scope`).
//!
//! Ten times a second it looks at what the governed tasks got, and what they would have got ([`demand`]), and sets their
//! quota to what the governor says. Stolen CPU shows in up to three ways:
//!
//! * the steal counter of `/proc/stat`, where the hypervisor tells;
//! * tasks that were runnable and did not run, although neither their own quota nor other programs kept them from it:
//!   what held back an outer cgroup, or a guest's whole machine;
//! * gaps in time: this very loop wakes late without a wait for a CPU (`late`), and the tasks seem to have run meanwhile;
//!   and work done per run time, by a short probe. They show a hypervisor that hides.

mod beside;
pub mod demand;
mod late;
pub(crate) mod place;
mod probe;
mod scope;

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use evenkeel_base::{CpuQuota, CpuSet, Limit};
use evenkeel_linux::{Root, proc_stat};
use evenkeel_model::credit::Rule;
use evenkeel_model::families::{self, Family};
use evenkeel_policy::governor::{DemandSample, Governor, Rules, Threshold, Verdict};

use demand::{Demand, OnCpu};
use late::Late;
use probe::Probe;
pub(crate) use scope::{ScopeGovernor, quota_now};

/// Whose CPU is governed.
pub trait Governed {
    /// CPU time so far, nanoseconds. `None` where no one counts it: then threads' times are added up, and what those that
    /// end did since the last look is missed.
    fn cpu_ns(&self) -> Option<u64>;

    fn processes(&self) -> Vec<u32>;

    fn set_quota(&mut self, quota: &CpuQuota) -> Result<(), String>;

    /// Those of its processes that no quota holds back, if that is not all or none.
    fn exempt(&self) -> Option<Exempt> {
        None
    }
}

/// Part of the governed that no quota holds back.
#[derive(Debug)]
pub struct Exempt {
    pub processes: Vec<u32>,
    /// The quota of the others, CPUs; `None`: there is none.
    pub others: Option<f64>,
}

/// What limits are for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Purpose {
    /// Writes are dear: small changes and those of the last moment wait.
    pub seldom: bool,
    /// Services are among the governed, and the limit is for what else they share their CPU with.
    pub for_services: bool,
}

/// Shortest time between two looks: the caller's ticks come earlier when a signal arrives.
const LEAST: Duration = Duration::from_millis(60);
/// By how much a counter of the host may be ahead, seconds.
const AHEAD_S: f64 = 0.1;
/// Share of the time that is no theft worth a word, by the host's counters.
const LITTLE: f64 = 0.02;
/// A look that comes later than this says nothing of what was stolen: a token of throttled CPU wakes this loop sooner, so that
/// somebody had stopped it.
const STOPPED_S: f64 = 10.0;
/// Lateness of a look that is usual, seconds.
const USUAL_S: f64 = 0.03;
/// Share of the run time in which a probe says nothing was done, from which that is stolen. Less than that is also what a
/// busy sibling thread of the core and a lower clock take: up to a half each, and neither lets go when little is asked for.
const SLOW: f64 = 0.6;
/// Where an owner's program (Docker, systemd) has to be run for a write: how far below an threshold to stay, ...
const MARGIN_OWNED: f64 = 0.04;
/// ... and least time between two small changes, seconds.
const REST_OWNED_S: f64 = 2.0;

/// Counters of the host by CPU, seconds. Those of a CPU that is offline are missing, and go on where they were.
#[derive(Debug, Clone, Default)]
struct HostTimes {
    busy_s: BTreeMap<u32, f64>,
    /// `None` where the hypervisor does not tell.
    steal_s: Option<BTreeMap<u32, f64>>,
}

impl HostTimes {
    fn read() -> Option<Self> {
        let stat = proc_stat::read(&Root::host()).ok()?;
        let seconds = |ns: u64| ns as f64 / 1e9;
        Some(Self {
            busy_s: stat.cpus.iter().map(|c| (c.cpu, seconds(c.busy_ns))).collect(),
            steal_s: stat.cpus.iter().map(|c| Some((c.cpu, seconds(c.steal_ns?)))).collect(),
        })
    }
}

/// What others left the governed, and what they would have got of it had nothing been stolen.
#[derive(Debug, Clone, Copy, Default)]
struct Room {
    /// Taken by other programs of this host, seconds.
    others_s: f64,
    /// Wanted, seconds: what was got, and waits on CPUs that had nothing else to do (those who wait on one wait for each other).
    wanted_s: f64,
}

impl Room {
    /// By what was busy on each of the CPUs that may be used (empty: not known), and what the governed did there. `ahead_s` is kept from
    /// look to look: a counter that is ahead, by its steps or because it was read late, will be behind by as much.
    fn of(
        busy_s: &BTreeMap<u32, f64>,
        on: &BTreeMap<u32, OnCpu>,
        got_s: f64,
        seconds: f64,
        ahead_s: &mut BTreeMap<u32, f64>,
    ) -> Self {
        let mut unused = |(cpu, busy): (&u32, &f64)| {
            let ahead = ahead_s.entry(*cpu).or_default();
            // Of one that others leave hardly anything, the little that nobody used would be most of what it wants.
            let balance = (1.0 - LITTLE) * seconds - busy + *ahead;
            *ahead = balance.clamp(-AHEAD_S, 0.0);
            (*cpu, balance.max(0.0))
        };
        let unused: BTreeMap<u32, f64> = busy_s.iter().map(&mut unused).collect();
        let waited = |(cpu, on): (&u32, &OnCpu)| {
            let waited_s = (on.wanted_s.min(seconds) - on.ran_s).max(0.0);
            unused.get(cpu).map_or(waited_s, |unused| waited_s.min(*unused))
        };
        let others_s = (busy_s.values().sum::<f64>() - got_s).max(0.0);
        Self { others_s, wanted_s: got_s + on.iter().map(waited).sum::<f64>() }
    }
}

/// Looks for the right limit of whom it is shown.
#[derive(Debug)]
pub struct Auto {
    governor: Governor,
    family: Option<Family>,
    purpose: Purpose,
    cpus: f64,
    within: Option<CpuSet>,
    period: Duration,
    demand: Demand,
    exempt: Demand,
    probe: Probe,
    late: Late,
    last: Option<(Instant, Option<u64>, Option<HostTimes>)>,
    /// See [`Room::of`].
    ahead_s: BTreeMap<u32, f64>,
    /// Limit in force, CPUs.
    limit: Option<f64>,
    changes: usize,
    trouble: Option<String>,
    seen: Seen,
    began: Instant,
}

/// By which signs CPU was found stolen, seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    counter_s: f64,
    waited_s: f64,
    gaps_s: f64,
    slow_s: f64,
}

/// The instance type by name, or by what the firmware calls the machine.
fn family(name: Option<&str>) -> Option<Family> {
    if let Some(name) = name {
        return families::of(name);
    }
    families::of(&fs::read_to_string("/sys/class/dmi/id/product_name").ok()?)
}

/// Whether a rule is known for an instance type.
///
/// # Errors
/// In words, with the nearest one that is known.
pub fn check_instance(name: &str) -> Result<(), String> {
    families::named(name).map(drop).map_err(|near| {
        let near = near.first().map_or("", String::as_str);
        format!("no rule is known for instance type {name:?}; did you mean {near:?}? `evenkeel price --cpu-minutes 1` lists all")
    })
}

impl Auto {
    /// For tasks that could use so many CPUs, if known of these; quotas have this period. `instance` names the instance type
    /// where the firmware does not.
    pub fn new(
        (cpus, within): (f64, Option<CpuSet>),
        period: Duration,
        instance: Option<&str>,
        purpose: Purpose,
    ) -> Result<Self, String> {
        instance.map_or(Ok(()), check_instance)?;
        let family = family(instance);
        let mut rules = Rules { cpus, for_services: purpose.for_services, ..Rules::default() };
        if purpose.seldom {
            (rules.margin, rules.rest_s) = (MARGIN_OWNED, REST_OWNED_S);
        }
        match family.as_ref().map(|f| f.rule) {
            Some(Rule::Window { window_s, above, .. }) => {
                rules.known = Some(Threshold::Window { window_s, share: above });
            }
            Some(Rule::Penalty { free, burst_s, penalty_s, .. }) => {
                rules.known = Some(Threshold::Bucket { free, burst_s, penalty_s });
            }
            Some(rule @ Rule::Credits { .. }) => {
                (rules.futile, rules.baseline) = (true, Some(rule.sustained(cpus)));
            }
            Some(Rule::Constant { .. }) => rules.futile = true,
            Some(Rule::None) | None => {}
        }
        Ok(Self {
            governor: Governor::new(rules),
            family,
            purpose,
            cpus: rules.cpus,
            within,
            period,
            demand: Demand::new(),
            exempt: Demand::new(),
            probe: Probe::default(),
            late: Late::default(),
            last: None,
            ahead_s: BTreeMap::new(),
            limit: None,
            changes: 0,
            trouble: None,
            seen: Seen::default(),
            began: Instant::now(),
        })
    }

    /// One look; to be called about ten times a second. `overslept`: how much longer the caller slept than it meant to.
    pub fn tick(&mut self, governed: &mut dyn Governed, overslept: Duration) {
        let now = Instant::now();
        if self.last.as_ref().is_some_and(|(then, ..)| now.duration_since(*then) < LEAST) {
            return;
        }
        if self.is_settled() && self.last.is_some() {
            return;
        }
        let cpu_ns = governed.cpu_ns();
        let host = HostTimes::read();
        let Some((then, cpu_then, host_then)) = self.last.take() else {
            self.demand.look(governed.processes(), 0.0);
            self.most_s(governed, 0.0);
            self.apply(governed, true);
            self.last = Some((now, cpu_ns, host));
            return;
        };
        let seconds = now.duration_since(then).as_secs_f64();
        let on = self.demand.look(governed.processes(), seconds);
        let most_s = self.most_s(governed, seconds);
        let got_s = match cpu_ns.zip(cpu_then) {
            Some((now, then)) => now.saturating_sub(then) as f64 / 1e9,
            None => on.values().map(|on| on.ran_s).sum(),
        };
        let slow = self.probe.look();
        let late = (self.late.look(overslept).as_secs_f64() - USUAL_S).max(0.0) / seconds;
        let look = self.weigh(
            (seconds, most_s),
            got_s,
            &on,
            host_then.as_ref().zip(host.as_ref()),
            (late.min(1.0), slow),
        );
        self.last = Some((now, cpu_ns, host));
        let onsets = self.governor.onsets();
        let at_s = self.began.elapsed().as_secs_f64();
        self.governor.look(DemandSample { at_s, ..look });
        if self.governor.onsets() != onsets {
            tracing::debug!(at_s, limit = self.limit, verdict = %self.governor.verdict(), "throttled");
        }
        self.apply(governed, false);
    }

    /// The rule is known and has nothing to be watched for: looking costs CPU that services need.
    fn is_settled(&self) -> bool {
        let known = self.family.as_ref().map(|family| &family.rule);
        self.purpose.for_services && matches!(known, Some(Rule::Credits { .. } | Rule::Constant { .. }))
    }

    /// What quotas allowed in so many seconds, and what those want that no quota holds back.
    fn most_s(&mut self, governed: &dyn Governed, seconds: f64) -> f64 {
        let Some(exempt) = governed.exempt() else { return self.limit.unwrap_or(self.cpus) * seconds };
        let free = self.exempt.look(exempt.processes, seconds);
        let free_s: f64 = free.values().map(|on| on.wanted_s.min(seconds)).sum();
        free_s + exempt.others.unwrap_or(self.cpus) * seconds
    }

    /// What was got, and would have been got of what quotas allowed (`most_s`) in so many seconds. `late`, `slow`: shares of the
    /// time in which nothing was done, by how late the look came and by the probe.
    fn weigh(
        &mut self,
        (seconds, most_s): (f64, f64),
        got_s: f64,
        on: &BTreeMap<u32, OnCpu>,
        host: Option<(&HostTimes, &HostTimes)>,
        (late, slow): (f64, f64),
    ) -> DemandSample {
        let within = |cpu: u32| self.within.as_ref().is_none_or(|cpus| cpus.contains(cpu));
        let grown = |now: &BTreeMap<u32, f64>, then: &BTreeMap<u32, f64>| -> BTreeMap<u32, f64> {
            let since = |(cpu, now): (&u32, &f64)| Some((*cpu, now - then.get(cpu)?));
            now.iter().filter(|(cpu, _)| within(**cpu)).filter_map(since).collect()
        };
        let busy = host.map_or_else(BTreeMap::new, |(then, now)| grown(&now.busy_s, &then.busy_s));
        let steal = host.and_then(|(then, now)| Some(grown(now.steal_s.as_ref()?, then.steal_s.as_ref()?)));
        let room = Room::of(&busy, on, got_s, seconds, &mut self.ahead_s);
        if seconds > STOPPED_S {
            return DemandSample { at_s: 0.0, seconds, got_s, wanted_s: got_s };
        }
        // What other programs of this host took is not stolen.
        let wanted = room.wanted_s.min(most_s).max(got_s);
        let mut look = DemandSample { at_s: 0.0, seconds, got_s, wanted_s: wanted };
        let counted: f64 = steal.unwrap_or_default().values().map(|stolen| stolen.max(0.0)).sum();
        if counted > LITTLE * seconds {
            // Shared out by what was used; what waited is the same time seen from the other side.
            let busy = (got_s + room.others_s).max(1e-9);
            look.wanted_s =
                wanted.max(got_s + counted * (got_s / busy).clamp(0.0, 1.0)).min(most_s.max(got_s));
            self.seen.counter_s += look.wanted_s - got_s;
            return look;
        }
        self.seen.waited_s += wanted - got_s;
        // It seems to have got all, and yet we woke late: the guest stood still, and its clock of CPU time ran on.
        if got_s > 0.9 * wanted && late > 0.3 {
            look.got_s = got_s * (1.0 - late);
            self.seen.gaps_s += got_s - look.got_s;
        } else if got_s > 0.9 * wanted && slow > SLOW {
            look.got_s = got_s * (1.0 - slow);
            self.seen.slow_s += got_s - look.got_s;
        }
        look
    }

    fn quota(&self, limit: Option<f64>) -> CpuQuota {
        let period_usec = u64::try_from(self.period.as_micros()).unwrap_or(CpuQuota::UNLIMITED.period_usec);
        let usec = |cpus: f64| ((cpus * period_usec as f64).round() as u64).max(CpuQuota::LEAST_USEC);
        let quota_usec = limit.map_or(Limit::Max, |cpus| Limit::Value(usec(cpus)));
        CpuQuota { quota_usec, period_usec, burst_usec: 0 }
    }

    /// Sets what the governor says, where that is not in force; `first`: whatever is in force.
    fn apply(&mut self, governed: &mut dyn Governed, first: bool) {
        let limit = self.governor.limit();
        if limit == self.limit && !first {
            return;
        }
        match governed.set_quota(&self.quota(limit)) {
            Ok(()) => {
                self.trouble = None;
                self.changes += usize::from(limit != self.limit);
                self.limit = limit;
            }
            Err(error) => self.trouble = Some(format!("the limit could not be set: {error}")),
        }
    }

    /// The governor, which knows how often throttling began, and what was used and stolen.
    pub fn governor(&self) -> &Governor {
        &self.governor
    }

    /// What was found, done, and spent, for people.
    pub fn notes(&self) -> Vec<String> {
        let mut out = Vec::new();
        let verdict = self.words();
        match &self.family {
            Some(family) if self.purpose.for_services => {
                out.push(format!("auto: {} is known for {}; {verdict}", family.name, family.rule.words()));
            }
            Some(family) if matches!(family.rule, Rule::Credits { .. } | Rule::Constant { .. }) => {
                out.push(format!("auto: {} is known for {}: no limit", family.name, family.rule.words()));
            }
            Some(family) => out.push(format!("auto: {} is known ({}); {verdict}", family.name, family.from)),
            None => out.push(format!("auto: {verdict}")),
        }
        if self.governor.onsets() > 0 {
            let limit = self.limit.map_or_else(|| "none".into(), |l| format!("{:.1} %", 100.0 * l));
            out.push(format!(
                "auto: throttled {} times, limit changed {} times, at the end {limit} of one CPU",
                self.governor.onsets(),
                self.changes
            ));
        }
        let signs = [
            (self.seen.counter_s, "by the steal counter"),
            (self.seen.waited_s, "by waiting that neither a limit nor other programs explain"),
            (self.seen.gaps_s, "by gaps in time"),
            (self.seen.slow_s, "by little work done per run time"),
        ];
        let signs: Vec<String> =
            signs.iter().filter(|(s, _)| *s > 0.1).map(|(s, how)| format!("{s:.1} s {how}")).collect();
        if !signs.is_empty() && !matches!(self.verdict(), Verdict::Nothing) {
            out.push(format!("auto: stolen of what was wanted: {}", signs.join(", ")));
        }
        if let Some(Rule::Credits { per_hour, .. }) = self.family.as_ref().map(|f| f.rule)
            && !self.is_settled()
        {
            let hours = self.began.elapsed().as_secs_f64() / 3600.0;
            out.push(format!(
                "auto: {:.2} credits used, {:.2} earned meanwhile",
                self.governor.used_s() / 60.0,
                per_hour * hours
            ));
        }
        out.extend(self.trouble.iter().map(|t| format!("auto: {t}")));
        out
    }

    pub fn words(&self) -> String {
        match self.purpose.for_services {
            true => self.verdict().for_services(),
            false => self.verdict().to_string(),
        }
    }

    /// The limit in force, CPUs.
    pub fn limit(&self) -> Option<f64> {
        self.limit
    }

    pub fn verdict(&self) -> Verdict {
        self.governor.verdict()
    }
}

#[cfg(test)]
mod tests;
