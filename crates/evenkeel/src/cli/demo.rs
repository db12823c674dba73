//! `evenkeel demo`: the whole story on this host.

mod blocks;
mod live;
pub(super) mod quiet;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_actuate::Item;
use evenkeel_agent::{Watcher, default_plan};
use evenkeel_base::Plan;
use evenkeel_lab::builtin::WANTED_PCT;
use evenkeel_lab::tenant::{Layout, Starter};
use evenkeel_linux::Root;
use evenkeel_policy::levers::PUBLISHED_RECIPE;
use evenkeel_report::demo::{
    CoreMap, DemoChange, DemoReport, DemoRun, DemoStage, DemoTask, HostFacts, Kind, Role, Scene, medians,
    split, text_table,
};
use evenkeel_report::{html, time};
use evenkeel_workload::Kind as LoadKind;
use evenkeel_workload::duty::{Duty, DutyKind};
use evenkeel_workload::load::LoadSpec;

use super::global::root_only;
use super::known::{Known, StageResult};
use super::settings::fresh_seed;
use super::sink::ConsoleSink;
use super::{Failure, Format, Global, Outcome};
use blocks::{Arm, compare};
use live::Live;

/// Show the whole story on this host in at most eight minutes: evenkeel decides on loads whose demand is known; then the
/// kernel's default, the published recipe, evenkeel's choice and the real-time ceiling take turns, with a report.
///
/// Starts its own loads (5, 10, 15, 20 and 25 % of a CPU, five per CPU), changes only them, leaves nothing behind. Needs
/// root. Exit status: 0 done, 1 interrupted, 3 if the host does not allow it or is too busy to show anything.
///
/// Example: evenkeel demo --report demo.html
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where the HTML report goes.
    #[arg(long, value_name = "FILE", default_value = "evenkeel-demo.html")]
    report: PathBuf,
    /// Repeat everything so many times and state medians.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// One scene (jittered periods in one cgroup, wall time) in two minutes.
    #[arg(long, conflicts_with_all = ["scene", "kind", "repeat"])]
    quick: bool,
    /// Try it on a host that other programs keep busy, too.
    #[arg(long)]
    anyway: bool,
    /// Only this scene; repeatable.
    #[arg(long, value_name = "SCENE", value_parser = ["one-cgroup-fixed", "one-cgroup-jittered", "cgroup-each"])]
    scene: Vec<String>,
    /// Only this kind of load.
    #[arg(long, value_name = "KIND", value_parser = ["closed", "wall"])]
    kind: Option<String>,
    /// Let evenkeel use SCHED_FIFO, too.
    #[arg(long, value_name = "WHAT", value_parser = ["realtime"])]
    allow: Option<String>,
}

/// Length of a period.
const PERIOD: Duration = Duration::from_millis(100);
/// Jitter of the honest scenes, percent of the period.
const JITTER: f64 = 50.0;
/// Longest time of one repetition. Each run may take what the later ones do not need: most decisions are over sooner.
const ALL: Duration = Duration::from_secs(470);
const QUICK: Duration = Duration::from_secs(110);
/// Time of a decision at first; as long as a candidate is promising, as much more as `run` has, while enough is left.
const DECIDE: Duration = Duration::from_secs(20);
/// What a run needs beside its decision: loads start and are studied, and settings are compared.
const BESIDE: Duration = Duration::from_secs(2).saturating_add(blocks::LONGEST);
/// What is kept for each later run: with a decision of the usual length.
const LATER: Duration = BESIDE.saturating_add(Duration::from_secs(43));
/// Time for settings to take hold before a stage is measured.
const SETTLE: Duration = Duration::from_millis(300);
/// CPU used by others above this many percent of one CPU, in a second of a stage, is noted in the report.
const OUTSIDE_SEEN: f64 = 20.0;
/// Steal above this many percent of one CPU during a stage is noted in the report.
const STEAL_SEEN: f64 = 2.0;

pub fn run(global: &Global, args: Args) -> Outcome {
    global.no_tree("the demo runs on this host; leave out --root")?;
    root_only("the demo makes cgroups and sets priorities of its loads: run it as root")?;
    let began = Instant::now();
    let mut sink = ConsoleSink::new()?;
    let disturbed = quiet::look()?;
    if let Some(disturbance) = &disturbed {
        if disturbance.hopeless && !args.anyway {
            return Err(quiet::refuse(disturbance));
        }
        sink.lasting(&format!("evenkeel: {}", disturbance.text));
    }
    let topology = evenkeel_observe::read_topology(&Root::host()).context("cannot read the machine")?;
    let cpus = topology.online.intersection(&topology.allowed).len() as u32;
    let containers = containers_work();
    let mut report = DemoReport::new();
    report.started = time::rfc3339(evenkeel_linux::sys::wall_ns());
    report.cpus = cpus;
    report.host = host_facts(&topology, containers);
    report.missed.extend(disturbed.map(|disturbance| format!("at the start, {}", disturbance.text)));
    let scenes = [Scene::OneCgroupFixed, Scene::OneCgroupJittered, Scene::CgroupEach];
    let wanted = |scene: &Scene| {
        if args.quick {
            return *scene == Scene::OneCgroupJittered;
        }
        args.scene.is_empty()
            || args.scene.iter().any(|name| serde_json::to_value(scene).is_ok_and(|v| v == name.as_str()))
    };
    let kinds = [Kind::Closed, Kind::Wall];
    let chosen: Vec<(Scene, Kind)> = (0..args.repeat)
        .flat_map(|_| scenes.iter().copied().filter(wanted))
        .flat_map(|scene| kinds.iter().map(move |kind| (scene, *kind)))
        .filter(|(_, kind)| args.kind.as_deref().is_none_or(|k| k == kind.name()))
        .filter(|(_, kind)| !args.quick || *kind == Kind::Wall)
        .collect();
    let whole = scenes.len() * kinds.len();
    let mut left = if args.quick { QUICK } else { ALL * chosen.len() as u32 / whole as u32 };
    let mut watcher = Live::new(sink, chosen.len());
    for (number, (scene, kind)) in chosen.iter().enumerate() {
        watcher.begin(number, *scene, *kind);
        let place = place_of(*scene, containers);
        let later = (chosen.len() - number - 1) as u32;
        let time = (left / (later + 1)).max(left.saturating_sub(LATER * later));
        let begins = Instant::now();
        let run = one_run(
            *scene,
            *kind,
            place,
            cpus,
            (args.allow.is_some(), time),
            number as u64,
            &mut watcher,
            &mut report,
        )?;
        left = left.saturating_sub(begins.elapsed());
        if watcher.stopping() {
            report.missed.push(format!("stopped after {number} of {} runs", chosen.len()));
            break;
        }
        report.runs.push(run);
    }
    report.seconds = Some(began.elapsed().as_secs_f64());
    report.missed.extend(missed_by_all(&mut report.runs));
    let interrupted = report.runs.len() < chosen.len();
    finish(global, &args, report)?;
    Ok(u8::from(interrupted))
}

fn finish(global: &Global, args: &Args, mut report: DemoReport) -> Result<(), Failure> {
    let path = std::path::absolute(&args.report).unwrap_or_else(|_| args.report.clone());
    report.report = Some(path.display().to_string());
    std::fs::write(&path, html::demo(&report)).with_context(|| format!("cannot write {}", path.display()))?;
    match global.output {
        Format::Json => outln!("{:#}", report.json())?,
        Format::Csv => return Err(usage!("the demo's result is text or json")),
        Format::Text | Format::Svg => {
            let mut text = text_table(&report);
            if args.repeat > 1 {
                text.push_str(&medians(&report));
            }
            out!("{text}")?;
        }
    }
    Ok(())
}

/// Loads of a scene, five per CPU.
pub(super) fn specs(scene: Scene, kind: Kind, cpus: u32, seed: u64) -> Vec<LoadSpec> {
    let jitter = if scene == Scene::OneCgroupFixed { 0.0 } else { JITTER };
    (0..cpus)
        .flat_map(|cpu| WANTED_PCT.iter().enumerate().map(move |(i, pct)| (cpu, i as u64, *pct)))
        .map(|(cpu, i, percent)| {
            let duty = Duty {
                percent,
                period: PERIOD,
                jitter,
                kind: if kind == Kind::Wall { DutyKind::Wall } else { DutyKind::Closed },
                seed: seed * 1000 + u64::from(cpu) * 10 + i,
            };
            LoadSpec::new(LoadKind::Duty(duty)).named(format!("{percent:.0}%-{cpu}"))
        })
        .collect()
}

pub(super) fn place_of(scene: Scene, containers: bool) -> Layout {
    match (scene, containers) {
        (Scene::OneCgroupFixed | Scene::OneCgroupJittered, _) => Layout::OneCgroup,
        (Scene::CgroupEach, true) => Layout::ContainerEach,
        (Scene::CgroupEach, false) => Layout::CgroupEach,
    }
}

/// Whether real containers can be started here; tried once with a small one.
fn containers_work() -> bool {
    let Ok(binary) = std::env::current_exe() else { return false };
    let duty = Duty { percent: 1.0, period: PERIOD, jitter: 0.0, kind: DutyKind::Closed, seed: 1 };
    Starter::new(binary, Layout::ContainerEach).hold(&[LoadSpec::new(LoadKind::Duty(duty))]).is_ok()
}

#[expect(clippy::too_many_arguments, reason = "one call; a struct would only rename them")]
fn one_run(
    scene: Scene,
    kind: Kind,
    place: Layout,
    cpus: u32,
    (realtime, time): (bool, Duration),
    seed: u64,
    watcher: &mut Live,
    report: &mut DemoReport,
) -> Result<DemoRun, Failure> {
    let specs = specs(scene, kind, cpus, seed + 1);
    let luck = fresh_seed();
    let edit = |config: &mut evenkeel_agent::Config| {
        config.decide_within = DECIDE;
        config.closer_look = config.closer_look.min(time.saturating_sub(BESIDE + DECIDE));
        config.realtime = realtime;
        config.rules.seed = luck;
    };
    let mut known = Known::start(&specs, place, edit, watcher)?;
    let mut run = DemoRun { scene, kind, wanted_pct: known.tenants.wanted_pct(), ..DemoRun::default() };
    run.tasks = known
        .tenants
        .members
        .iter()
        .map(|m| DemoTask { name: m.name.clone(), wanted_pct: m.wanted_pct.unwrap_or(0.0), got_pct: vec![] })
        .collect();
    watcher.start_clock();
    known.settle(SETTLE, watcher);
    // The recipe is computed from what is seen under the kernel's default, as its authors do.
    let studied = known.agent.study(Duration::from_secs(1), watcher).map_err(super::loop_failed)?;
    let recipe = studied.and_then(|s| known.agent.propose_named(PUBLISHED_RECIPE, &s.observation));

    let trial_from = watcher.clock_s();
    let outcome = known.agent.decide(watcher).map_err(super::loop_failed)?;
    run.seconds_to_settle = Some(watcher.clock_s() - trial_from);
    note_trial(&known, &mut run, &outcome, trial_from, watcher);
    let choice = known.agent.plan().clone();
    run.changes = changes(&known);
    report.put_back.changes += run.changes.len() as u64;

    let mut arms = arms(recipe, choice);
    compare(&mut known, &mut run, &mut arms, luck, watcher)?;
    let arm = |role: Role| arms.iter().find(|arm| arm.role == role);
    let default = arm(Role::Default);
    // Where nothing was changed, the choice is the kernel's default.
    let chosen = arm(Role::Final).or(default);
    run.compare(&arms.iter().map(Arm::fulfilment).collect::<Vec<_>>());
    note_disturbances(&mut run, &arms);
    if let Some((before, after)) =
        default.and_then(|d| d.blocks.last()).zip(chosen.and_then(|c| c.blocks.last()))
    {
        run.core_map = Some(core_map(before, after));
    }
    run.timeline = watcher.take_timeline();
    let Known { agent, tenants, .. } = known;
    let back = agent.close("demo");
    drop(tenants);
    let failed = back.failed.len() + back.conflicts.len();
    report.put_back.verified += run.changes.len().saturating_sub(failed) as u64;
    let left = back.failed.iter().chain(&back.conflicts).map(Item::in_words);
    report.put_back.left.extend(left.chain(back.unseen));
    Ok(run)
}

/// Who takes turns. The published recipe is left out where it changes nothing, evenkeel's choice where that is the default.
fn arms(recipe: Option<Plan>, choice: Plan) -> Vec<Arm> {
    let mut arms = vec![Arm::new(Role::Default, "kernel default", Some(default_plan()))];
    if let Some(recipe) = recipe {
        arms.push(Arm::new(Role::Recipe, "published recipe", Some(recipe)));
    }
    if !choice.is_default() {
        let name = choice.name.clone();
        arms.push(Arm::new(Role::Final, &name, Some(choice)));
    }
    arms.push(Arm::new(Role::Ceiling, "real-time ceiling", None));
    arms
}

/// What else took CPU during the comparison.
fn note_disturbances(run: &mut DemoRun, arms: &[Arm]) {
    let blocks = || arms.iter().flat_map(|arm| &arm.blocks);
    let steal = blocks().map(|block| block.steal_pct).fold(0.0, f64::max);
    let worst = blocks().max_by(|a, b| a.outside_pct.total_cmp(&b.outside_pct));
    if let Some(worst) = worst.filter(|block| block.outside_pct > OUTSIDE_SEEN) {
        let names = worst.outside.largest(worst.steps.max(1.0));
        run.missed.push(format!(
            "other programs used up to {:.0} % of a CPU during this run: {names}",
            worst.outside_pct
        ));
    }
    if steal > STEAL_SEEN {
        run.missed.push(format!("the hypervisor stole up to {steal:.0} % of a CPU during this run"));
    }
}

fn push_stage(run: &mut DemoRun, name: &str, role: Role, start_s: f64, result: &StageResult) {
    let (fulfilment, fulfilment_interval) = split(result.estimate());
    run.stages.push(DemoStage {
        name: name.to_owned(),
        role,
        start_s,
        seconds: result.seconds,
        fulfilment: fulfilment.or(result.fulfilment),
        fulfilment_interval,
        cpu_pct: Some(result.cpu_pct),
        kept: None,
        note: String::new(),
    });
    for (task, got) in run.tasks.iter_mut().zip(&result.got_pct) {
        task.got_pct.push(*got);
    }
}

/// Adds the trial as one stage, and what was chosen and why.
fn note_trial(
    known: &Known,
    run: &mut DemoRun,
    outcome: &Result<evenkeel_policy::trial::Decision, evenkeel_agent::NoTrial>,
    from: f64,
    watcher: &Live,
) {
    run.choice = known.agent.plan().name.clone();
    let verdicts: Vec<String> =
        known.agent.record().stages.iter().map(|s| format!("{}: {}", s.name.settings, s.why)).collect();
    run.why = match outcome {
        Ok(decision) => decision.verdicts[decision.winner].why.clone(),
        Err(no) => no.why(),
    };
    run.stages.push(DemoStage {
        name: "trial".to_owned(),
        role: Role::Trial,
        start_s: from,
        seconds: watcher.clock_s() - from,
        // Where nothing was tried, nothing was undone.
        kept: outcome.as_ref().ok().map(|d| d.winner != 0),
        note: verdicts.join("; "),
        ..DemoStage::default()
    });
    for task in &mut run.tasks {
        task.got_pct.push(None);
    }
}

fn changes(known: &Known) -> Vec<DemoChange> {
    let names: BTreeMap<u32, &str> = known.tenants.members.iter().map(|m| (m.tid, m.name.as_str())).collect();
    known
        .agent
        .record()
        .changes
        .iter()
        .map(|change| DemoChange {
            target: match (change.task, &change.group) {
                (Some(id), _) => names.get(&id.tid).map_or_else(|| id.to_string(), |name| (*name).to_owned()),
                (None, Some(group)) => group.clone(),
                (None, None) => String::new(),
            },
            knob: change.knob.clone(),
            from: change.from.clone(),
            to: change.to.clone(),
            why: change.why.clone(),
            effect: change.effect.clone(),
        })
        .collect()
}

fn core_map(before: &StageResult, after: &StageResult) -> CoreMap {
    let mut cpus: Vec<u32> =
        before.on_cpu.iter().chain(&after.on_cpu).flat_map(|m| m.keys().copied()).collect();
    cpus.sort_unstable();
    cpus.dedup();
    let rows = |stage: &StageResult| {
        stage
            .on_cpu
            .iter()
            .map(|times| {
                let sum: f64 = times.values().sum();
                cpus.iter()
                    .map(|cpu| (sum > 0.0).then(|| 100.0 * times.get(cpu).copied().unwrap_or(0.0) / sum))
                    .collect()
            })
            .collect()
    };
    CoreMap { before: rows(before), after: rows(after), cpus }
}

/// A remark that every run shares is made once for all.
fn missed_by_all(runs: &mut [DemoRun]) -> Vec<String> {
    let Some(first) = runs.first() else { return Vec::new() };
    let shared: Vec<String> =
        first.missed.iter().filter(|m| runs.iter().all(|run| run.missed.contains(m))).cloned().collect();
    for run in runs {
        run.missed.retain(|m| !shared.contains(m));
    }
    shared
}

fn host_facts(topology: &evenkeel_base::Topology, containers: bool) -> HostFacts {
    let host = evenkeel_lab::runner::facts(Some(topology));
    HostFacts {
        kernel: host.kernel.unwrap_or_default(),
        scheduler: host.scheduler.unwrap_or_default(),
        cgroup: host.cgroup.unwrap_or_default(),
        model: host.cpu_model,
        topology: Some(format!(
            "{} CPUs online, {} cores, {} NUMA nodes",
            topology.online.len(),
            topology.cores(),
            topology.nodes.len()
        )),
        runtime: containers.then(|| "Docker Engine".to_owned()),
        more: Vec::new(),
    }
}
