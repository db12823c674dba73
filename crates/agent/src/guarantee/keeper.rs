//! Who is promised what, solved anew at each observation.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use evenkeel_actuate::{SetReport, Verdict};
use evenkeel_base::run::GuaranteeStatus;
use evenkeel_base::{Change, CpuSet, Knob, Observation, Setting, Target, TaskId};
use evenkeel_policy::guarantee::admit::{Ask, Supply};
use evenkeel_policy::guarantee::control::Debt;
use evenkeel_policy::guarantee::nice::Dither;
use evenkeel_policy::guarantee::pack::Item;
use evenkeel_policy::guarantee::tree::{self, Bearer};
use evenkeel_policy::guarantee::{Promise, admit};
use evenkeel_store::PromiseTime;

use super::counters::Counters;
use super::layout::{self, Layout};
use super::pins::{Pinnable, Pins, Signs};
use super::solver::left_for;
use super::ward::Ward;
use super::{CPU_LABEL, Goal, Guarantees, Originals, Source, WAIT_LABEL};
use crate::scope::Scope;

/// Demand from which a thread counts as busy, percent of one CPU.
const BUSY_PCT: f64 = 1.0;
/// Weight of the newest observation in smoothed values.
const NEWEST: f64 = 0.5;
/// A factor between weights and points is kept while the new one is within this ratio of it.
const STEADY: f64 = 1.33;
/// Points a promise may be short before its threads are packed onto CPUs.
const SHORT_PCT: f64 = 1.0;
/// Points a promised scope may wait and still be called calm.
const CALM_PCT: f64 = 2.0;
/// Idle and waiting, percent of one CPU, at once: waste.
const WASTE_PCT: f64 = 15.0;
/// A scope in which tasks were born so recently is not pinned: children would be born on their parent's CPU.
const RESTLESS: Duration = Duration::from_secs(10);
/// Between two writings of broken time.
const WRITE_EVERY: Duration = Duration::from_secs(10);

/// A setting in force for a promise.
#[derive(Debug, Clone)]
pub(crate) struct InForce {
    pub change: Change,
    pub at: Instant,
}

/// Keeps promises.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    pub(super) config: Guarantees,
    pub(super) wards: Vec<Ward>,
    labelled: BTreeMap<String, Goal>,
    told: BTreeSet<String>,
    pub(super) known: BTreeMap<u32, f64>,
    demand: HashMap<TaskId, f64>,
    stolen: BTreeMap<u32, f64>,
    born: HashMap<usize, Instant>,
    seen: BTreeMap<TaskId, usize>,
    pins: Pins,
    pub(super) layout: Layout,
    scales: HashMap<String, f64>,
    pub(super) counters: Counters,
    pub(super) debts: HashMap<Target, Debt>,
    pub(super) dithers: HashMap<TaskId, Dither>,
    pub(super) in_force: BTreeMap<(Target, Knob), InForce>,
    pub(super) ticked: Option<Instant>,
    pub(super) calm_ticks: u32,
    pub(super) notes: Vec<String>,
    details: BTreeSet<TaskId>,
    written: Option<Instant>,
}

impl Keeper {
    pub fn new(config: Guarantees) -> Self {
        let wards = config.goals.iter().cloned().map(Ward::new).collect();
        Self { config, wards, ..Self::default() }
    }

    /// Whether anything is promised, here or by a label.
    pub fn is_needed(&self, observation: &Observation) -> bool {
        !self.wards.is_empty()
            || (self.config.labels
                && (observation.containers.iter().any(|c| is_labelled(&c.labels))
                    || observation.pods.iter().any(|p| is_labelled(&p.annotations))))
    }

    /// Tasks whose class, nice and affinity are read with each observation.
    pub fn wants_details(&self) -> &BTreeSet<TaskId> {
        &self.details
    }

    /// Promised tasks and their rivals whose details are not known yet.
    pub fn missing_details(&mut self, observation: &Observation) -> BTreeSet<TaskId> {
        self.take_labels(observation);
        let mut groups = BTreeSet::new();
        let mut wanted = BTreeSet::new();
        for task in &observation.tasks {
            if self.wards.iter().any(|ward| ward.goal.scope.has(task, observation)) {
                wanted.insert(task.id);
                let mut at = task.group;
                while let Some(group) = at {
                    groups.insert(group);
                    at = observation.groups.get(group as usize).and_then(|group| group.parent);
                }
            }
        }
        // Those who compete with them somewhere on the path, as far as they do anything.
        for task in &observation.tasks {
            let rival = task.group.is_some_and(|group| groups.contains(&group));
            if rival && !task.kernel_thread && task.cpu_pct + task.wait_pct.unwrap_or(0.0) >= 0.5 {
                wanted.insert(task.id);
            }
        }
        let missing = wanted
            .iter()
            .filter(|id| observation.task(**id).is_some_and(|t| t.sched.is_none()))
            .copied()
            .collect();
        self.details = wanted;
        missing
    }

    /// Whether a task is left alone by trials: it is promised something, or shares a cgroup with one whose nice value
    /// carries a promise.
    pub fn governs(&self, id: TaskId) -> bool {
        self.layout.owner.contains_key(&id) || self.layout.mates.contains(&id)
    }

    pub fn set_known(&mut self, known: &BTreeMap<u32, f64>) {
        if self.known != *known {
            self.known.clone_from(known);
        }
    }

    /// Changes in force.
    pub fn changes(&self) -> impl Iterator<Item = Change> + '_ {
        self.in_force.values().map(|in_force| in_force.change.clone())
    }

    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    pub fn statuses(&self) -> Vec<GuaranteeStatus> {
        self.wards.iter().map(Ward::status).collect()
    }

    /// Broken time to be written, now and then.
    pub fn take_times(&mut self, now: Instant) -> Vec<(String, PromiseTime)> {
        let since = *self.written.get_or_insert(now);
        if now.duration_since(since) < WRITE_EVERY {
            return Vec::new();
        }
        self.written = Some(now);
        self.wards.iter_mut().filter_map(|w| Some((w.goal.name.clone(), w.take_time()?))).collect()
    }

    pub fn unwritten_broken_s(&self, name: &str) -> f64 {
        self.wards.iter().filter(|w| w.goal.name == name).map(|w| w.unwritten().broken_s).sum()
    }

    pub fn broken_s(&self, name: &str) -> f64 {
        self.wards.iter().filter(|w| w.goal.name == name).map(|w| w.total().broken_s).sum()
    }

    /// Notes what could not be set.
    pub fn learn(&mut self, report: &SetReport) {
        for outcome in &report.changes {
            let why = match &outcome.verdict {
                Verdict::Applied(_) | Verdict::Unchanged | Verdict::Gone => None,
                Verdict::Conflict(now) => Some(format!("somebody else set {now}")),
                Verdict::Refused(why) => Some(why.clone()),
                Verdict::Failed(error) => Some(error.to_string()),
            };
            let gone = matches!(outcome.verdict, Verdict::Gone);
            if why.is_some() || gone {
                self.in_force.remove(&(outcome.target.clone(), outcome.knob));
            }
            let Some(why) = why else { continue };
            let name = match &outcome.target {
                Target::Task(id) => format!("task {id}"),
                Target::Group(group) => group.path.clone(),
            };
            let problem = format!("{} of {name} could not be set: {why}", outcome.knob.name());
            for ward in self.concerned(&outcome.target) {
                if let Some(ward) = self.wards.get_mut(ward) {
                    ward.problem = Some(problem.clone());
                }
            }
            if self.told.insert(problem.clone()) {
                self.notes.push(format!("guarantee: {problem}"));
            }
        }
    }

    /// Promises that a bearer carries.
    fn concerned(&self, target: &Target) -> BTreeSet<usize> {
        let bearers =
            self.layout.held.iter().filter(|(_, held)| held.target == *target).map(|(bearer, _)| *bearer);
        let bearers: Vec<Bearer> = bearers.collect();
        let children = self.layout.contests.iter().flat_map(|contest| &contest.children);
        let carriers =
            children.filter(|child| bearers.contains(&child.bearer)).flat_map(|child| &child.carriers);
        carriers.map(|&index| self.layout.carriers[index].owner).collect()
    }

    /// Containers' labels and pods' annotations.
    fn take_labels(&mut self, observation: &Observation) {
        if !self.config.labels {
            return;
        }
        let mut found: BTreeMap<String, Goal> = BTreeMap::new();
        let mut add = |told: &mut BTreeSet<String>,
                       notes: &mut Vec<String>,
                       name: String,
                       scope: String,
                       labels: &[(String, String)],
                       source| {
            match labelled(labels) {
                Ok(None) => {}
                Ok(Some(promise)) => {
                    if let Ok(scope) = Scope::parse(&[&scope]) {
                        found.insert(name.clone(), Goal { name, scope, promise, source });
                    }
                }
                Err(error) => {
                    let note = format!("{name}: {error}");
                    if told.insert(note.clone()) {
                        notes.push(note);
                    }
                }
            }
        };
        let (told, notes) = (&mut self.told, &mut self.notes);
        for c in &observation.containers {
            add(
                told,
                notes,
                format!("container:{}", c.name),
                format!("container:{}", c.id),
                &c.labels,
                Source::Label,
            );
        }
        for p in &observation.pods {
            let name = format!("pod:{}/{}", p.namespace.as_deref().unwrap_or(""), p.name);
            add(told, notes, name, format!("pod:{}", p.uid), &p.annotations, Source::Annotation);
        }
        // What the configuration says about the same name counts; what is gone is forgotten.
        found.retain(|name, _| !self.config.goals.iter().any(|goal| goal.name == *name));
        let same = |a: &Goal, b: &Goal| a.promise == b.promise && a.scope.texts() == b.scope.texts();
        self.wards.retain(|ward| {
            ward.goal.source == Source::Config
                || found.get(&ward.goal.name).is_some_and(|goal| same(goal, &ward.goal))
        });
        for (name, goal) in &found {
            if !self.wards.iter().any(|ward| ward.goal.name == *name) {
                self.wards.push(Ward::new(goal.clone()));
            }
        }
        self.labelled = found;
    }

    /// Solves everything for what was observed. True when a setting in force is no longer wanted.
    pub fn resolve(&mut self, observation: &Observation, originals: &Originals, now: Instant) -> bool {
        let owner = self.match_tasks(observation, now);
        let cpus: Vec<CpuSet> =
            observation.tasks.iter().map(|task| layout::allowed(observation, task, originals)).collect();
        let supply = self.supply(observation);
        self.admit(observation, &owner, &cpus, &supply);
        // Who is refused competes like everybody else; one who is promised short waits only has no weight to win.
        let admitted: Vec<Option<usize>> = observation
            .tasks
            .iter()
            .zip(&owner)
            .map(|(task, owner)| {
                let ward = (*owner)?;
                let carries = self.wards[ward].refusal.is_none()
                    && self.wards[ward].pct.is_some()
                    && layout::may_carry(task, originals);
                carries.then_some(ward)
            })
            .collect();
        let promised: Vec<f64> = self.wards.iter().map(|ward| ward.pct.unwrap_or(0.0)).collect();
        let wants: Vec<f64> =
            observation.tasks.iter().map(|task| self.demand.get(&task.id).copied().unwrap_or(0.0)).collect();
        let demand = |index: usize| wants[index];
        let carriers = tree::carriers(observation, &admitted, &demand, &promised);
        let promisable = supply.promisable();
        self.pin(observation, &carriers, &cpus, &promisable, now);
        let pins = &self.pins;
        let where_to = |carrier: &tree::Carrier| -> CpuSet {
            let busy = carrier.tasks.iter().filter(|&&i| demand(i) >= BUSY_PCT || carrier.tasks.len() == 1);
            let sets = busy.map(|&i| match pins.cpu(observation.tasks[i].id) {
                Some(cpu) => CpuSet::single(cpu),
                None => cpus[i].clone(),
            });
            let union = sets.fold(CpuSet::new(), |a, b| a.union(&b));
            if union.is_empty() { observation.topology.online.clone() } else { union }
        };
        let carrier_cpus: Vec<CpuSet> = carriers.iter().map(where_to).collect();
        let contests = tree::contests(observation, &carriers);
        let slack: Vec<f64> =
            contests.iter().map(|c| tree::slack_pct(c, &carriers, &carrier_cpus, &promisable)).collect();
        let bearers = contests.iter().flat_map(|c| c.children.iter().map(|child| child.bearer));
        let held = bearers.filter_map(|b| Some((b, layout::held(observation, b, originals)?))).collect();
        let members: Vec<Vec<TaskId>> = carriers
            .iter()
            .map(|carrier| carrier.tasks.iter().map(|&i| observation.tasks[i].id).collect())
            .collect();
        let mixed: BTreeSet<u32> = carriers
            .iter()
            .filter_map(|carrier| match carrier.bearer {
                Bearer::Task(index) => observation.tasks[index].group,
                Bearer::Group(_) => None,
            })
            .filter(|group| observation.groups.get(*group as usize).is_some_and(|g| g.parent.is_some()))
            .collect();
        let mates = observation
            .tasks
            .iter()
            .zip(&owner)
            .filter(|(task, owner)| owner.is_none() && task.group.is_some_and(|g| mixed.contains(&g)))
            .map(|(task, _)| task.id)
            .collect();
        let sched = observation
            .tasks
            .iter()
            .zip(&owner)
            .filter(|(task, owner)| owner.is_some() && layout::may_carry(task, originals))
            .filter_map(|(task, _)| Some((task.id, originals.sched.get(&task.id).copied().or(task.sched)?)))
            .collect();
        let owner = observation
            .tasks
            .iter()
            .zip(&owner)
            .filter_map(|(task, ward)| Some((task.id, (*ward)?)))
            .collect();
        self.layout = Layout {
            owner,
            sched,
            mates,
            carriers,
            members,
            contests,
            slack,
            per_point: BTreeMap::new(),
            held,
            limited: false,
        };
        self.steady_scales(observation);
        let followed: BTreeSet<TaskId> = self.layout.owner.keys().copied().collect();
        self.counters.follow(&followed);
        let targets: BTreeSet<&Target> = self.layout.held.values().map(|held| &held.target).collect();
        self.debts.retain(|target, _| targets.contains(target));
        self.dithers.retain(|id, _| targets.contains(&Target::Task(*id)));
        self.name_levers();
        self.drop_unwanted()
    }

    /// The promise of each task: the first whose scope it matches. Updates what tasks would use.
    fn match_tasks(&mut self, observation: &Observation, now: Instant) -> Vec<Option<usize>> {
        let mut counts = vec![0u32; self.wards.len()];
        let mut seen = BTreeMap::new();
        let owner: Vec<Option<usize>> = observation
            .tasks
            .iter()
            .map(|task| {
                let ward = self.wards.iter().position(|ward| ward.goal.scope.has(task, observation))?;
                counts[ward] += 1;
                seen.insert(task.id, ward);
                let pct = (task.cpu_pct + task.wait_pct.unwrap_or(0.0)).min(100.0);
                let demand = self.demand.entry(task.id).or_insert(pct);
                *demand += NEWEST * (pct - *demand);
                Some(ward)
            })
            .collect();
        for (id, ward) in &seen {
            if !self.seen.is_empty() && !self.seen.contains_key(id) && self.wards[*ward].tasks > 0 {
                self.born.insert(*ward, now);
            }
        }
        self.demand.retain(|id, _| seen.contains_key(id));
        self.seen = seen;
        for (ward, count) in self.wards.iter_mut().zip(counts) {
            if count == 0 && (ward.tasks > 0 || ward.lever.is_empty()) {
                if ward.tasks > 0 || self.told.insert(format!("waiting {}", ward.goal.name)) {
                    let note = format!(
                        "guarantee {}: no task matches its scope; it stands for when one does",
                        ward.goal.name
                    );
                    self.notes.push(note);
                }
                ward.forget();
            }
            ward.tasks = count;
            ward.pct = ward.goal.promise.cpu.map(|amount| amount.pct(observation.host.cpus));
        }
        owner
    }

    /// What CPUs can give, stolen time smoothed.
    fn supply(&mut self, observation: &Observation) -> Supply {
        let cpus = observation.host.per_cpu.iter();
        for cpu in cpus {
            let new = cpu.steal_pct.unwrap_or(0.0).clamp(0.0, 100.0);
            let stolen = self.stolen.entry(cpu.cpu).or_insert(new);
            *stolen += 0.1 * (new - *stolen);
        }
        let stolen = |cpu: u32| self.stolen.get(&cpu).copied().filter(|pct| *pct >= 0.5).unwrap_or(0.0);
        Supply {
            cpus: observation.topology.online.iter().map(|cpu| (cpu, 100.0 - stolen(cpu))).collect(),
            reserved_pct: self.config.reserved.map_or(0.0, |amount| amount.pct(observation.host.cpus)),
        }
    }

    fn admit(
        &mut self,
        observation: &Observation,
        owner: &[Option<usize>],
        cpus: &[CpuSet],
        supply: &Supply,
    ) {
        let mut sets = vec![CpuSet::new(); self.wards.len()];
        for (owner, cpus) in owner.iter().zip(cpus) {
            if let Some(ward) = owner {
                sets[*ward] = sets[*ward].union(cpus);
            }
        }
        let asking: Vec<usize> = (0..self.wards.len()).filter(|&i| self.wards[i].pct.is_some()).collect();
        let asks: Vec<Ask> = asking
            .iter()
            .map(|&i| Ask {
                name: self.wards[i].goal.name.clone(),
                pct: self.wards[i].pct.unwrap_or(0.0),
                // One who waits for its tasks may come anywhere.
                cpus: if sets[i].is_empty() { observation.topology.online.clone() } else { sets[i].clone() },
            })
            .collect();
        let answers = admit(&asks, supply, &|admitted, ask, promisable| {
            left_for(&observation.topology, admitted, ask, promisable)
        });
        for ((&index, ask), answer) in asking.iter().zip(&asks).zip(&answers) {
            let refusal = answer.refusal(ask);
            let ward = &mut self.wards[index];
            if let Some(refusal) = &refusal
                && ward.refusal.is_none()
            {
                self.notes.push(format!("guarantee {}: refused: it {refusal}", ward.goal.name));
            } else if refusal.is_none() && ward.refusal.is_some() {
                self.notes.push(format!("guarantee {}: fits now", ward.goal.name));
            }
            ward.refusal = refusal;
        }
    }

    fn pin(
        &mut self,
        observation: &Observation,
        carriers: &[tree::Carrier],
        cpus: &[CpuSet],
        promisable: &[(u32, f64)],
        now: Instant,
    ) {
        let mut threads = Vec::new();
        let mut floating = 0.0;
        for carrier in carriers {
            let demand = |i: usize| self.demand.get(&observation.tasks[i].id).copied().unwrap_or(0.0);
            let busy: Vec<usize> = match carrier.tasks.as_slice() {
                [only] => vec![*only],
                tasks => tasks.iter().copied().filter(|&i| demand(i) >= BUSY_PCT).collect(),
            };
            let restless = self.born.get(&carrier.owner).is_some_and(|at| now.duration_since(*at) < RESTLESS);
            // More threads than CPUs are better balanced by the kernel than one by one from here.
            if restless || busy.is_empty() || busy.len() > 2 * promisable.len() {
                floating += carrier.points;
                continue;
            }
            threads.extend(busy.iter().map(|&i| Pinnable {
                id: observation.tasks[i].id,
                item: Item { points: carrier.points / busy.len() as f64, cpus: cpus[i].clone(), at: None },
                demand: demand(i),
            }));
        }
        let part = floating / promisable.len().max(1) as f64;
        let supply: Vec<(u32, f64)> =
            promisable.iter().map(|(cpu, pct)| (*cpu, (pct - part).max(0.0))).collect();
        let active = || self.wards.iter().filter(|ward| ward.is_active());
        let waiting = active().filter_map(Ward::waited_pct).fold(0.0, f64::max);
        let idle = observation.host.per_cpu.iter().map(|cpu| 100.0 - cpu.busy_pct).fold(0.0, f64::max);
        let owing = self.debts.values().any(|debt| debt.points_s() > 4.0);
        let signs = Signs {
            short: owing || active().any(|ward| ward.short_pct() >= SHORT_PCT),
            calm: waiting < CALM_PCT,
            waste: idle >= WASTE_PCT && waiting >= WASTE_PCT,
        };
        self.pins.decide(now, &threads, &supply, signs);
    }

    /// Settles the factor between points and weights of each contest: the last one while it is near enough.
    fn steady_scales(&mut self, observation: &Observation) {
        let layout = &self.layout;
        let name = |node: Option<u32>| {
            node.and_then(|n| observation.groups.get(n as usize)).map_or(String::new(), |g| g.path.clone())
        };
        let (scales, mut per_point) = (&mut self.scales, BTreeMap::new());
        let boost = vec![1.0; layout.carriers.len()];
        let slack = |contest: &tree::Contest| {
            let at = layout.contests.iter().position(|c| c.node == contest.node);
            at.map_or(0.0, |at| layout.slack[at])
        };
        let heaviest = |bearer: Bearer| layout.held.get(&bearer).map_or(f64::INFINITY, |held| held.heaviest);
        let solved =
            tree::solve(&heaviest, &layout.contests, &layout.carriers, &slack, &boost, &mut |node, new| {
                let scale = scales.entry(name(node)).or_insert(new);
                if !(new / STEADY..=new * STEADY).contains(scale) {
                    *scale = new;
                }
                per_point.insert(node, *scale);
                *scale
            });
        let limited = solved.iter().any(|s| s.scaled_down.is_some_and(|factor| factor > 2.0));
        let names: BTreeSet<String> = layout.contests.iter().map(|c| name(c.node)).collect();
        self.scales.retain(|path, _| names.contains(path));
        self.layout.per_point = per_point;
        self.layout.limited = limited;
    }

    fn name_levers(&mut self) {
        for index in 0..self.wards.len() {
            let of: Vec<usize> =
                (0..self.layout.carriers.len()).filter(|&c| self.layout.carriers[c].owner == index).collect();
            let mut names: Vec<String> = of
                .iter()
                .filter_map(|&c| Some(self.layout.held.get(&self.layout.carriers[c].bearer)?.name.clone()))
                .collect();
            let more = names.len().saturating_sub(3);
            names.truncate(3);
            let mut text = names.join(", ");
            if more > 0 {
                text += &format!(" and {more} more");
            }
            let pinned =
                self.pins.all().keys().filter(|id| self.layout.owner.get(id) == Some(&index)).count();
            if pinned > 0 {
                text += &format!("; {pinned} pinned");
            }
            if self.wards[index].goal.promise.wait_p99_ns.is_some() {
                text += if text.is_empty() { "slice" } else { "; slice" };
            }
            self.wards[index].lever = text;
        }
    }

    /// Forgets settings for what is not promised any more. True when there were some.
    fn drop_unwanted(&mut self) -> bool {
        let carried: BTreeSet<&Target> = self.layout.held.values().map(|held| &held.target).collect();
        let (owner, pins, wards) = (&self.layout.owner, &self.pins, &self.wards);
        let before = self.in_force.len();
        self.in_force.retain(|(target, knob), _| match (target, knob) {
            (Target::Task(id), Knob::Affinity) => pins.cpu(*id).is_some(),
            (Target::Task(id), _) => {
                carried.contains(target)
                    || owner.get(id).is_some_and(|w| wards[*w].goal.promise.wait_p99_ns.is_some())
            }
            (target, _) => carried.contains(target),
        });
        self.in_force.len() != before
    }

    /// Where threads are to be.
    pub(super) fn pinned(&self) -> impl Iterator<Item = (TaskId, Setting)> + '_ {
        self.pins.all().iter().map(|(id, cpu)| (*id, Setting::Affinity(CpuSet::single(*cpu))))
    }
}

fn is_labelled(labels: &[(String, String)]) -> bool {
    labels.iter().any(|(key, _)| key == CPU_LABEL || key == WAIT_LABEL)
}

/// The promise that labels make.
fn labelled(labels: &[(String, String)]) -> Result<Option<Promise>, String> {
    let value = |name: &str| labels.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let cpu = value(CPU_LABEL)
        .map(|text| text.parse().map_err(|error| format!("{CPU_LABEL}: {error}")))
        .transpose()?;
    let wait_p99_ns = value(WAIT_LABEL)
        .map(|text| wait_ns(text).map_err(|error| format!("{WAIT_LABEL}: {error}")))
        .transpose()?;
    Ok((cpu.is_some() || wait_p99_ns.is_some()).then_some(Promise { cpu, wait_p99_ns }))
}

/// Reads a promised wait such as `2ms`, nanoseconds.
///
/// # Errors
/// No duration, or one outside 0.1 ms to 10 s.
pub fn wait_ns(text: &str) -> Result<u64, String> {
    let split = text.trim().find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.trim().len());
    let (number, unit) = text.trim().split_at(split);
    let factor = match unit.trim() {
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(format!("{text:?} is no wait: expected a duration such as \"2ms\"")),
    };
    let ns = number.parse::<f64>().map_err(|_| format!("{text:?} is no wait: no number"))? * factor;
    if (1e5..=1e10).contains(&ns) {
        Ok(ns as u64)
    } else {
        Err(format!("{text:?} cannot be promised: 0.1 ms to 10 s can"))
    }
}
