//! `evenkeel plan`: what `run` would try.

use std::io::IsTerminal;

use anyhow::Context;
use evenkeel_agent::guarantee::{Ancestor, OutsideCost};
use evenkeel_agent::predict::told;
use evenkeel_agent::tiers::Derived;
use evenkeel_agent::{Agent, Config, Event, Quiet, Watcher};
use evenkeel_base::text::count;
use evenkeel_base::{GroupView, HostScheduler, Observation, Plan, Setting, Target};
use evenkeel_model::predict::{Prediction, Use};
use evenkeel_policy::placement;
use evenkeel_report::run::{Document, DocumentKind};
use evenkeel_report::table::{Field, Table, printable, width};
use serde::Serialize;
use serde_json::json;

use super::settings::{LoopArgs, config};
use super::{Format, Global, Outcome};

/// Show what `run` would try on a scope: each lever's changes with reasons. Writes nothing.
///
/// Which of them helps is not assumed but measured by `run`, in a trial against the present state.
///
/// Example: evenkeel plan --scope cgroup:/mygroup
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    scope: LoopArgs,
}

pub fn run(global: &Global, args: Args) -> Outcome {
    propose(global, config(global, &args.scope)?)
}

/// One change as shown.
pub(super) struct Row {
    plan: String,
    target: String,
    task: Option<evenkeel_base::TaskId>,
    knob: &'static str,
    from: Option<String>,
    to: String,
    why: String,
    /// What the simulator says, in words.
    effect: Option<String>,
    predicted: Option<TaskPredicted>,
}

pub(super) fn table() -> Table<Row> {
    Table::new(vec![
        Field::text("plan", "LEVER", |r: &Row| r.plan.clone()),
        Field::text("target", "TARGET", |r: &Row| r.target.clone()),
        Field::text("knob", "KNOB", |r: &Row| r.knob),
        Field::text("from", "FROM", |r: &Row| r.from.clone().unwrap_or_else(|| "?".to_owned())),
        Field::text("to", "TO", |r: &Row| r.to.clone()),
        Field::text("why", "WHY", |r: &Row| r.why.clone()),
        Field::text("effect", "PREDICTED", |r: &Row| r.effect.clone().unwrap_or_else(|| "?".to_owned())),
    ])
}

/// Studies the scope as `run` does and prints the proposals.
pub fn propose(global: &Global, mut config: Config) -> Outcome {
    // `run` alone only plans for a whole host.
    let whole_host = super::settings::whole_host(&config.scope)?.is_some();
    let trier = if whole_host { "run --apply" } else { "run" };
    config.apply = false;
    let tiers = super::settings::derived(&config.state_dir, &config.guarantees)?;
    let tiers: Vec<_> = tiers.iter().map(|(name, derived)| TierDocument::of(name, derived)).collect();
    let mut agent = Agent::new(config, &mut Notes).map_err(super::loop_failed)?;
    let studied =
        agent.look(&mut Quiet).map_err(super::loop_failed)?.context("the host's clock stood still")?.0;
    let plans = agent.propose(&studied.observation);
    let predicted = told(&plans, agent.predict(&studied.observation, &plans, &Quiet));
    let mut rows: Vec<Row> = plans
        .iter()
        .zip(&predicted)
        .flat_map(|(plan, p)| plan.changes.iter().map(|c| row(plan, c, &studied.observation, p.as_ref())))
        .collect();
    let promised = Plan { name: PROMISES.to_owned(), changes: agent.promise_changes(), ..Plan::default() };
    rows.extend(promised.changes.iter().filter_map(|change| {
        let row = row(&promised, change, &studied.observation, None);
        (row.from.as_ref() != Some(&row.to)).then_some(row)
    }));
    let beyond = Beyond { ancestors: agent.ancestors(), costs: agent.outside_costs() };
    match global.output {
        Format::Json => {
            let mut of_run = Document::of(agent.record(), DocumentKind::Plan);
            of_run.changes = rows.iter().map(|row| json!(ChangeDocument::of(row))).collect();
            of_run.fulfilment.now = studied.fulfilment;
            let document = json!(PlanDocument {
                of_run,
                dry_run: true,
                plans: plans.iter().zip(&predicted).map(|(p, said)| Proposal::of(p, said.as_ref())).collect(),
                tiers: &tiers,
                ancestors: &beyond.ancestors,
                outside: beyond.costs,
            });
            outln!("{document:#}")?;
        }
        Format::Csv => out!("{}", table().csv(&rows))?,
        Format::Text | Format::Svg => {
            let (scope, terminal) = (agent.scope_in_words(), std::io::stdout().is_terminal());
            let text = text(&plans, &predicted, &rows, &studied.observation, (&scope, trier), terminal);
            out!("{text}{}{}", beyond.text(), tiers_text(&tiers))?;
        }
    }
    Ok(0)
}

/// Says what there is to know beforehand, such as why something that was allowed is not proposed.
struct Notes;

impl Watcher for Notes {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Note(note) = event {
            say!("evenkeel: {note}");
        }
    }
}

/// Name under which the settings that keep promises are listed.
const PROMISES: &str = "promised shares";

/// What the host itself says about who is a service and who may wait.
fn tiers_text(tiers: &[TierDocument<'_>]) -> String {
    if tiers.is_empty() {
        return String::new();
    }
    let fields = vec![
        Field::text("name", "TIER AS THE HOST SAYS", |r: &TierDocument<'_>| printable(r.name)),
        Field::text("tier", "TIER", |r: &TierDocument<'_>| r.tier),
        Field::text("from", "FROM", |r: &TierDocument<'_>| printable(r.from)),
    ];
    format!("\n{}`run --tiers auto` goes by these.\n", Table::new(fields).text(tiers, None))
}

/// What promises need beyond the scope.
struct Beyond<'a> {
    /// Cgroups that hold others, too.
    ancestors: Vec<Ancestor>,
    costs: &'a [OutsideCost],
}

impl Beyond<'_> {
    fn text(&self) -> String {
        let mut out = String::new();
        if !self.ancestors.is_empty() {
            out.push_str("\nAbove promised tasks, and holding others than the scope, too: only their weights may be changed.\n");
        }
        for Ancestor { group, changed } in &self.ancestors {
            let what = if *changed { "weight changed" } else { "left as it is" };
            out.push_str(&format!("    {}: {what}\n", printable(group)));
        }
        if !self.costs.is_empty() {
            out.push_str("\nWhat promises cost those outside the scope, when everybody wants everything:\n");
        }
        for cost in self.costs {
            let named = cost.neighbours.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = cost.neighbours.len().saturating_sub(5);
            let named = match (named.as_str(), more) {
                ("", _) => "whoever comes".to_owned(),
                (named, 0) => named.to_owned(),
                (named, more) => format!("{named} and {more} more"),
            };
            out.push_str(&format!(
                "    in {}: {} have {:.0} % of one CPU instead of {:.0} %\n",
                printable(&cost.node),
                printable(&named),
                cost.after_pct,
                cost.before_pct
            ));
        }
        out
    }
}

/// `evenkeel.plan/v1`.
#[derive(Serialize)]
struct PlanDocument<'a> {
    #[serde(flatten)]
    of_run: Document<'a>,
    dry_run: bool,
    plans: Vec<Proposal<'a>>,
    tiers: &'a [TierDocument<'a>],
    ancestors: &'a [Ancestor],
    outside: &'a [OutsideCost],
}

#[derive(Serialize)]
struct ChangeDocument<'a> {
    plan: &'a str,
    tgid: Option<u32>,
    tid: Option<u32>,
    start_time: Option<u64>,
    target: &'a str,
    knob: &'static str,
    from: Option<&'a str>,
    to: &'a str,
    why: &'a str,
    effect: Option<String>,
    predicted: Option<TaskPredicted>,
}

/// A lever's plan, and what the simulator says of it.
#[derive(Serialize)]
struct Proposal<'a> {
    name: &'a str,
    why: &'a str,
    predicted: Option<ScopePredicted>,
}

#[derive(Serialize)]
struct ScopePredicted {
    cpu_pct: Versus<f64>,
    cpu_change_pct: Option<f64>,
    wait_per_ran: Versus<Option<f64>>,
}

#[derive(Clone, Copy, Serialize)]
struct TaskPredicted {
    cpu_pct: Versus<f64>,
    wait_pct: Versus<f64>,
}

/// A figure as found and under the plan.
#[derive(Clone, Copy, Serialize)]
struct Versus<T> {
    as_found: T,
    plan: T,
}

#[derive(Serialize)]
struct TierDocument<'a> {
    name: &'a str,
    tier: &'static str,
    from: &'a str,
}

impl<'a> ChangeDocument<'a> {
    fn of(row: &'a Row) -> Self {
        Self {
            plan: &row.plan,
            tgid: row.task.map(|t| t.tgid),
            tid: row.task.map(|t| t.tid),
            start_time: row.task.map(|t| t.start_time),
            target: &row.target,
            knob: row.knob,
            from: row.from.as_deref(),
            to: &row.to,
            why: &row.why,
            effect: row.effect.as_ref().map(|effect| format!("predicted: {effect}")),
            predicted: row.predicted,
        }
    }
}

impl<'a> Proposal<'a> {
    fn of(plan: &'a Plan, predicted: Option<&Prediction>) -> Self {
        let of_scope = |p: &Prediction| ScopePredicted {
            cpu_pct: Versus { as_found: p.before.got_pct, plan: p.after.got_pct },
            cpu_change_pct: p.cpu_change_pct(),
            wait_per_ran: Versus { as_found: p.before.wait_per_ran(), plan: p.after.wait_per_ran() },
        };
        Self { name: &plan.name, why: &plan.why, predicted: predicted.map(of_scope) }
    }
}

impl<'a> TierDocument<'a> {
    fn of(name: &'a str, derived: &'a Derived) -> Self {
        Self { name, tier: derived.tier.name(), from: &derived.from }
    }
}

/// What a group has of what a change sets; `None` where that is not observed.
fn now(group: &GroupView, to: &Setting) -> Option<Setting> {
    match to {
        Setting::Weight(_) => group.raw_weight.map(Setting::Weight),
        Setting::Quota(_) => group.quota.map(Setting::Quota),
        Setting::Cpuset(_) => group.cpuset.clone().map(Setting::Cpuset),
        _ => None,
    }
}

fn row(
    plan: &Plan,
    change: &evenkeel_base::Change,
    observation: &Observation,
    predicted: Option<&Prediction>,
) -> Row {
    let (task, target, from) = match &change.target {
        Target::Task(id) => {
            let view = observation.task(*id);
            let name = view.map_or_else(String::new, |t| format!(" {}", t.comm));
            let from = view.and_then(|t| match &change.to {
                Setting::Affinity(_) => t.affinity.as_ref().map(|cpus| format!("cpus {cpus}")),
                _ => t.sched.map(|attr| attr.to_string()),
            });
            (Some(*id), format!("{id}{name}"), from)
        }
        Target::Group(group) => {
            let view = observation.groups.iter().find(|g| g.path == group.path);
            (None, group.path.clone(), view.and_then(|view| now(view, &change.to)).map(|now| now.to_string()))
        }
        Target::Net(knob) => (None, knob.to_string(), None),
        Target::Host => (None, change.target.to_string(), Some(HostScheduler::Kernel.to_string())),
    };
    // A task's change is told by what the task would get, a group's by what the scope would.
    let (effect, predicted) = match (predicted, task) {
        (Some(p), Some(id)) => {
            let of_task = |(before, after): &(Use, Use)| TaskPredicted {
                cpu_pct: Versus { as_found: before.got_pct, plan: after.got_pct },
                wait_pct: Versus { as_found: before.wait_pct, plan: after.wait_pct },
            };
            (p.task_in_words(id), p.tasks.get(&id).map(of_task))
        }
        (Some(p), None) => (Some(format!("scope: {}", p.in_words())), None),
        (None, _) => (None, None),
    };
    Row {
        effect,
        predicted,
        plan: plan.name.clone(),
        target,
        task,
        knob: change.knob().name(),
        from,
        to: change.to.to_string(),
        why: change.why.clone(),
    }
}

fn text(
    plans: &[Plan],
    predicted: &[Option<Prediction>],
    rows: &[Row],
    observation: &Observation,
    (scope, trier): (&str, &str),
    terminal: bool,
) -> String {
    // Moving waiting work is no change.
    if rows.is_empty() && plans.iter().all(Plan::is_default) {
        let scope = printable(scope);
        return format!("Nothing to do: no lever can act on tasks that are running now ({scope}).\n");
    }
    let mut out = String::new();
    for (plan, predicted) in plans.iter().zip(predicted) {
        out.push_str(&format!("{}: {}; {}\n", plan.name, count(plan.changes.len(), "change"), plan.why));
        if let Some(predicted) = predicted {
            let moves =
                if plan.pull.is_empty() { "" } else { ", by its settings alone: moves are not simulated" };
            out.push_str(&format!("    predicted for the scope: {}{moves}\n", predicted.in_words()));
        }
    }
    if placement::is_uneven(observation) {
        out.push_str(&format!(
            "CPU utilisations differ by more than {} points (standard deviation): placement may help.\n",
            placement::UNEVEN_POINTS
        ));
    }
    if !rows.is_empty() {
        out.push('\n');
        out.push_str(&table().text(rows, width(terminal)));
    }
    out.push_str(&format!(
        "\n`{trier}` tries these against the present state and keeps only what measurably helps.\n"
    ));
    out
}

#[cfg(test)]
mod tests {
    use evenkeel_base::{CpuQuota, Limit};

    use super::*;

    fn group() -> GroupView {
        GroupView {
            path: "/batch".into(),
            load_weight: Some(1024),
            raw_weight: Some(100),
            v2: true,
            quota: Some(CpuQuota::UNLIMITED),
            ..GroupView::default()
        }
    }

    #[test]
    fn a_change_is_shown_against_the_value_that_it_replaces() {
        let quota = |quota_usec, burst_usec| {
            Setting::Quota(CpuQuota { quota_usec, period_usec: 100_000, burst_usec })
        };
        let half = quota(Limit::Value(50_000), 0);
        assert_eq!(now(&group(), &half).unwrap().to_string(), "no quota");
        assert_eq!(now(&group(), &Setting::Weight(300)).unwrap().to_string(), "weight 100");
        assert_eq!(now(&group(), &Setting::GroupIdle(true)), None);
        // What saves up is another quota.
        assert_ne!(half.to_string(), quota(Limit::Value(50_000), 50_000).to_string());
    }

    #[test]
    fn a_plan_that_only_moves_waiting_work_is_something_to_do() {
        let observation = Observation::of(evenkeel_base::Topology::synthetic(1, 1, 2, 1));
        let pulls = Plan {
            name: "pull".to_owned(),
            pull: vec![evenkeel_base::TaskId { tgid: 7, tid: 7, start_time: 0 }],
            ..Plan::default()
        };
        let said = |plans: &[Plan]| {
            text(plans, &vec![None; plans.len()], &[], &observation, ("cgroup:/a, !pid:7", "run"), false)
        };
        assert!(said(&[]).starts_with("Nothing to do") && said(&[]).ends_with(" (cgroup:/a, !pid:7).\n"));
        assert!(said(&[pulls]).contains("pull: 0 changes"), "{}", said(&[]));
    }
}
