//! A restart goes on where a killed run was: what it had proved stays in force, and what it left otherwise is restored.
//!
//! The journal says what is in force, and what was there before; [`Remembered`] says which of it belongs to which decision.
//! A run writes that down *after* a change is in force, and *before* one goes: killed in between, its successor restores.

mod remembered;

use std::time::Duration;

use evenkeel_actuate::{
    ActuateError, Actuator, FileMedium, Kernel, Left, Linux, Medium, Options, Recovery, SetReport, Verdict,
};
use evenkeel_base::run::{Act, Stage, StageName, TakenOver};
use evenkeel_base::text::count;
use evenkeel_base::{CpuSet, Observation, Plan};
use evenkeel_linux::sys::wall_ns;
use evenkeel_observe::Detail;
use evenkeel_policy::trial::Decision;

use crate::agent::Agent;
use crate::config::Config;
use crate::controls::Controls;
use crate::error::AgentError;
use crate::events::{Event, Watcher};
use crate::kept::{self, KeptChange};
use crate::proposals::default_plan;
use crate::runq_latency::RunqLatency;
pub(crate) use remembered::{Proved, Remembered};

/// The first window: by it promises are solved before anything that kept them goes.
const WINDOW: Duration = Duration::from_secs(1);
/// Share of a decision's changes that may be lost: as in a trial.
const MAY_LACK: f64 = 0.2;

/// Controls, and what a predecessor left.
pub(crate) struct Opened {
    pub controls: Controls,
    pub recovery: Recovery,
    pub remembered: Remembered,
    /// What the journal names is still in force: [`Agent::take_over`] comes next.
    pub takes_over: bool,
    /// Why it is not taken over, where there is a predecessor that remembered something.
    pub why_not: Option<String>,
}

/// What the run before had decided, and why nothing of it counts, where that is so.
fn decided_before(
    kernel: &mut Linux,
    medium: &mut FileMedium,
    config: &Config,
) -> Result<(Remembered, Option<String>), AgentError> {
    let mut remembered = Remembered::new(kernel.boot_id()?, config);
    let why_not = match medium.load_decision() {
        Ok(None) => Some("it remembered no decision".to_owned()),
        Ok(Some(line)) => remembered.go_on_from(&line).err(),
        Err(error) => Some(format!("what it remembered of its decisions cannot be read: {error}")),
    };
    Ok((remembered, why_not))
}

/// Takes the lock. What a killed predecessor left goes on, where the same configuration decided it in this boot; else it is
/// restored.
///
/// # Errors
/// Another agent is at work, the journal cannot be written, or the kernel lets nothing be changed.
pub(crate) fn open(config: &Config, options: Options, pulls: bool) -> Result<Opened, AgentError> {
    let mut kernel = Linux::new()?;
    let mut medium = Box::new(FileMedium::open(&config.state_dir).map_err(ActuateError::from)?);
    let (mut remembered, mut why_not) = decided_before(&mut kernel, &mut medium, config)?;
    if !config.takeover && why_not.is_none() {
        why_not = Some("a fresh start was asked for".to_owned());
    }
    let has_promises = !config.guarantees.stated.is_empty() || config.guarantees.labels.is_some();
    let takes_over = why_not.is_none() && (remembered.kept.is_some() || has_promises);
    if !takes_over && why_not.is_none() {
        why_not = Some("it had proved nothing yet".to_owned());
    }
    let (actuator, recovery) = if takes_over {
        (Actuator::resume_on(kernel, medium, options)?, Recovery::default())
    } else {
        // Before anything goes: what is restored is nobody's to take over, but its budget stays spent.
        remembered.kept = None;
        if medium.replace_decision(&remembered.line()).is_err() {
            medium.remove_decision().map_err(|error| ActuateError::Journal {
                path: medium.name().with_file_name("decision"),
                error,
            })?;
        }
        Actuator::open_on(kernel, medium, options)?
    };
    let controls = Controls::of(actuator, &config.state_dir, pulls);
    Ok(Opened { controls, recovery, remembered, takes_over, why_not })
}

/// Restores what a killed run left, for one that is not to act: nobody goes on with it, and nobody watches it. Its budget stays spent.
/// A run at work restores what it changes itself, and who may not use the state directory may not restore.
///
/// # Errors
/// The journal is damaged or cannot be written.
pub fn restore_left(config: &Config) -> Result<Option<Recovery>, AgentError> {
    if !FileMedium::journal(&config.state_dir).exists() {
        return Ok(None);
    }
    let Ok(mut medium) = FileMedium::open_existing(&config.state_dir) else { return Ok(None) };
    let mut kernel = Linux::new()?;
    let (mut remembered, why_not) = decided_before(&mut kernel, &mut medium, config)?;
    let recovery = evenkeel_actuate::restore_on(&mut kernel, &mut medium)?;
    if why_not.is_none() {
        remembered.kept = None;
        if let Err(error) = medium.replace_decision(&remembered.line()) {
            tracing::debug!(%error, "what was spent of the budget could not be remembered");
        }
    }
    Ok(recovery.left_behind.then_some(recovery))
}

impl Agent {
    /// Puts in force what the run before had proved and is still as that run left it; restores everything else of it.
    pub(crate) fn take_over(&mut self, watcher: &mut dyn Watcher) -> Result<(), AgentError> {
        let proved = self.remembered.kept.clone();
        let whole = proved.as_ref().map_or_else(default_plan, |proved| proved.plan.clone());
        let (mut plan, mut lost) = self.still_left(&whole);
        // Whatever a component sets again meanwhile is set with it.
        self.plan = plan.clone();
        let before = self.begin_window()?;
        if self.work(WINDOW, watcher) {
            return Ok(());
        }
        let after = self.sample()?;
        let observation = self.observe(&before, &after, &Detail::None)?;
        self.components.latency_slos.meet(&observation);
        self.attend(&observation, watcher);
        if !plan.pull.is_empty() {
            lost.extend(self.controls.start_puller(&observation.topology));
            plan.pull.retain(|id| self.controls.bounds().has_task(*id));
        }
        let mut report = self.set(&plan);
        let not_set = |report: &SetReport, change: &evenkeel_base::Change| {
            report.changes.iter().any(|outcome| {
                outcome.target == change.target
                    && outcome.knob == change.knob()
                    && !matches!(outcome.verdict, Verdict::Applied(_) | Verdict::Unchanged)
            })
        };
        lost.extend(report.problems().map(|(_, why)| why));
        let is_not_moved = self.pull_problem.is_some();
        if let Some(why) = self.pull_problem.take() {
            lost.push(why);
            plan.pull.clear();
        }
        let asked = plan.changes.len();
        plan.changes.retain(|change| !not_set(&report, change));
        let (all, stays) = (whole.changes.len() + whole.pull.len(), plan.changes.len() + plan.pull.len());
        let lacks_much = (all - stays) as f64 > MAY_LACK * all as f64 || is_not_moved;
        if lacks_much {
            plan = default_plan();
        }
        if lacks_much || plan.changes.len() < asked {
            let again = self.set(&plan);
            report.back.append(again.back);
        }
        self.tell_restored(&report, watcher);
        self.tell_promises(watcher);
        match proved.filter(|_| !plan.is_default()) {
            Some(mut proved) => {
                proved.plan = plan;
                self.go_on(proved, &observation, watcher);
            }
            None => {
                self.remembered.kept = None;
                if all > 0 {
                    let why = lost.first().map_or_else(String::new, |why| format!(": {why}"));
                    let note = format!(
                        "{} is not taken over, because {} of its {all} settings are lost{why}; all of it is restored",
                        whole.name,
                        all - stays
                    );
                    watcher.event(&Event::Note(&note));
                }
            }
        }
        self.remember();
        Ok(())
    }

    /// What of a plan is still as it was left, and why the rest is not.
    fn still_left(&mut self, whole: &Plan) -> (Plan, Vec<String>) {
        let mut plan = whole.clone();
        let mut lost = Vec::new();
        let mut left = self.controls.left(&whole.changes).into_iter();
        plan.changes.retain(|change| {
            let left = left.next().unwrap_or(Left::NotJournaled);
            if !left.may_stay() {
                lost.push(format!("{} of {} {}", change.knob().name(), change.target, in_words(&left)));
            }
            left.may_stay()
        });
        (plan, lost)
    }

    /// The change is in force, and watched as if it had been decided here.
    fn go_on(&mut self, proved: Proved, observation: &Observation, watcher: &mut dyn Watcher) {
        let settings = (proved.plan.changes.len() + proved.plan.pull.len()) as u64;
        let rules = kept::rules(self.config.monitor, &self.config.rules);
        let kept = KeptChange::new(
            proved.plan.clone(),
            rules,
            proved.decided(),
            proved.objective.clone(),
            self.now(),
        );
        if kept.is_held_out() && self.decisions.outside.is_none() {
            self.decisions.outside = RunqLatency::start().ok();
        }
        self.kept = Some(kept.proved_at(proved.at_ns));
        self.components.latency_slos.compare_with(&proved.protected_ns, &proved.requests);
        let at_ns = wall_ns();
        let by = format!("proved at {} by the run before (pid {})", clock(proved.at_ns, at_ns), proved.pid);
        let stage = Stage {
            name: StageName { act: Some(Act::TakeOver), settings: proved.plan.name.clone() },
            started_ns: at_ns,
            kept: Some(true),
            why: format!("{by}: {}", proved.why),
            fulfilment_estimated: true,
            ..Stage::default()
        };
        self.add_stage(stage, watcher);
        self.log.record.taken_over =
            Some(TakenOver { settings, pid: proved.pid, proved_ns: proved.at_ns, at_ns });
        self.note_effect();
        self.note_settings(Some(&format!("{}; {by}", proved.why)), observation);
        let note = format!("took over {} ({}) {by}", count(settings as usize, "setting"), proved.plan.name);
        watcher.event(&Event::Note(&note));
        self.remembered.kept = Some(proved);
    }

    fn tell_promises(&self, watcher: &mut dyn Watcher) {
        let settings = self.promise_changes().len();
        if settings > 0 {
            let pid = self.remembered.before.map_or_else(String::new, |pid| format!(" (pid {pid})"));
            let note = format!("promises of the run before{pid} are kept without a gap: {settings} settings");
            watcher.event(&Event::Note(&note));
        }
    }

    fn tell_restored(&self, report: &SetReport, watcher: &mut dyn Watcher) {
        let back = &report.back;
        if !back.put_back.is_empty() {
            let note = format!("{} other values of the run before were restored", back.put_back.len());
            watcher.event(&Event::Note(&note));
        }
        for item in back.conflicts.iter().take(5) {
            let what = "was changed by somebody else and is left as it is";
            watcher.event(&Event::Note(&format!("{} of {} {what}", item.knob.name(), item.target)));
        }
    }

    /// What the present settings were chosen for, where a successor is to know it.
    pub(crate) fn remember_basis(&mut self, load_pct: f64, online: &CpuSet) {
        let Some(proved) = self.remembered.kept.as_mut() else { return };
        proved.basis = Some((load_pct, online.clone()));
        self.remember();
    }

    /// A change was kept, as a decision says.
    pub(crate) fn remember_kept(
        &mut self,
        decision: &Decision,
        default: usize,
        decided: &evenkeel_policy::monitor::Decided,
    ) {
        self.remembered.kept = Some(Proved::new(&self.plan, decision, default, decided, wall_ns()));
        self.log.record.taken_over = None;
    }

    /// Before anything else than what is proved comes in force: killed from here on, a successor restores.
    pub(crate) fn forget_unless(&mut self, wanted: &Plan) {
        if self.remembered.kept.as_ref().is_some_and(|proved| proved.plan != *wanted) {
            self.remembered.kept = None;
            self.log.record.taken_over = None;
            self.remember();
        }
    }

    /// Writes down what a successor is to know.
    pub(crate) fn remember(&mut self) {
        if !self.acts() || self.config.as_found {
            return;
        }
        let decisions = &self.decisions;
        self.remembered.control = decisions.control.clone();
        self.remembered.trials = decisions.trials;
        self.remembered.barred.clone_from(&decisions.barred);
        self.controls.remember(&self.remembered.line());
    }
}

/// Why a change does not go on.
fn in_words(left: &Left) -> String {
    match left {
        Left::InForce | Left::Original | Left::OnTrial(_) => "may stay".to_owned(),
        Left::Gone => "ended with its task or cgroup".to_owned(),
        Left::Exec => "is of a task that runs another program now".to_owned(),
        Left::Foreign(now) => format!("was changed by somebody else to {now}"),
        Left::NotJournaled => "is not in the journal".to_owned(),
        Left::Unknown(error) => format!("cannot be looked at: {error}"),
    }
}

/// A time of day, for people, with its day where that is not the last one.
fn clock(ns: u64, now_ns: u64) -> String {
    let minutes = ns / 60_000_000_000;
    let time = format!("{:02}:{:02} UTC", minutes / 60 % 24, minutes % 60);
    match now_ns.saturating_sub(ns) / 86_400_000_000_000 {
        0 => time,
        1 => format!("{time} (a day ago)"),
        days => format!("{time} ({days} days ago)"),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use evenkeel_base::Topology;
    use evenkeel_policy::monitor::Decided;
    use evenkeel_policy::trial::Objective;

    use super::*;
    use crate::testing;

    #[derive(Default)]
    struct Told(Vec<String>);

    impl Watcher for Told {
        fn event(&mut self, event: &Event<'_>) {
            if let Event::Note(text) = event {
                self.0.push((*text).to_owned());
            }
        }
    }

    #[test]
    fn who_cannot_be_moved_any_more_is_one_of_the_settings_that_are_lost() {
        let directory = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let mut agent = testing::agent(&format!("pid:{}", child.id()), |config| {
            (config.apply, config.state_dir) = (true, directory.path().to_owned());
        });
        let sample = agent.sample().unwrap();
        let id = sample.tasks.iter().find(|task| task.id.tid == child.id()).unwrap().id;
        // A single CPU: nothing moves.
        agent.controls.start_puller(&Topology::synthetic(1, 1, 1, 1));
        let plan = Plan { name: "pull".into(), pull: vec![id], ..Plan::default() };
        let objective = Objective::new(0.1, false);
        let decision =
            Decision { winner: 0, verdicts: Vec::new(), confirmed: true, pairs: Vec::new(), objective };
        agent.remembered.kept = Some(Proved::new(&plan, &decision, 0, &Decided::default(), 7));
        let mut told = Told::default();
        agent.take_over(&mut told).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let wanted = "pull is not taken over, because 1 of its 1 settings are lost: waiting work cannot be moved here;";
        assert!(told.0.iter().any(|note| note.starts_with(wanted)), "{:?}", told.0);
        assert!(agent.close("done").is_clean());
    }

    #[test]
    fn a_time_is_told_with_its_day_where_that_matters() {
        let now = 1_764_103_980_000_000_000; // 2025-11-25 20:53
        let hours = |n: u64| n * 3_600_000_000_000;
        assert_eq!(clock(now, now), "20:53 UTC");
        assert_eq!(clock(now - hours(23), now), "21:53 UTC");
        assert_eq!(clock(now - hours(25), now), "19:53 UTC (a day ago)");
        assert_eq!(clock(now - hours(72), now), "20:53 UTC (3 days ago)");
    }
}
