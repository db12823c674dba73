//! `evenkeel plan`: what `run` would try.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use evenkeel_agent::guarantee::OutsideCost;
use evenkeel_agent::tiers::Derived;
use evenkeel_agent::{Agent, Config, Quiet};
use evenkeel_base::{Observation, Plan, Setting, Target};
use evenkeel_console as console;
use evenkeel_model::predict::Prediction;
use evenkeel_policy::placement;
use evenkeel_report::table::{Field, Table, printable, width};
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
struct Row {
    plan: String,
    target: String,
    task: Option<evenkeel_base::TaskId>,
    knob: &'static str,
    from: Option<String>,
    to: String,
    why: String,
    /// What the simulator says, in words.
    effect: Option<String>,
    predicted: serde_json::Value,
}

fn table() -> Table<Row> {
    Table::new(vec![
        Field::text("plan", "lever", |r: &Row| r.plan.clone()),
        Field::text("target", "target", |r: &Row| r.target.clone()),
        Field::text("knob", "knob", |r: &Row| r.knob),
        Field::text("from", "from", |r: &Row| r.from.clone().unwrap_or_else(|| "?".to_owned())),
        Field::text("to", "to", |r: &Row| r.to.clone()),
        Field::text("why", "why", |r: &Row| r.why.clone()),
        Field::text("effect", "predicted", |r: &Row| r.effect.clone().unwrap_or_else(|| "?".to_owned())),
    ])
}

/// Studies the scope for a second and prints the proposals.
pub fn propose(global: &Global, mut config: Config) -> Outcome {
    // `run` alone only plans for a whole host.
    let whole_host = super::settings::whole_host(&config.scope)?.is_some();
    let trier = if whole_host { "run --apply" } else { "run" };
    config.apply = false;
    let tiers = super::settings::derived(&config.guarantees)?;
    let mut agent = Agent::new(config, &mut Quiet).map_err(super::loop_failed)?;
    let studied = agent
        .study(Duration::from_secs(1), &mut Quiet)
        .map_err(super::loop_failed)?
        .context("the host's clock stood still")?;
    let plans = agent.propose(&studied.observation);
    let predicted = agent.predict(&studied.observation, &plans, &Quiet);
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
    let mut out = console::results();
    match global.output {
        Format::Json => {
            let changes: Vec<_> = rows
                .iter()
                .map(|r| {
                    json!({
                        "plan": r.plan, "tgid": r.task.map(|t| t.tgid), "tid": r.task.map(|t| t.tid),
                        "start_time": r.task.map(|t| t.start_time), "target": r.target, "knob": r.knob,
                        "from": r.from, "to": r.to, "why": r.why, "effect": r.effect.as_ref().map(|e| format!("predicted: {e}")),
                        "predicted": r.predicted,
                    })
                })
                .collect();
            let mut document =
                evenkeel_report::run::document(agent.record(), evenkeel_report::run::DocumentKind::Plan);
            document["changes"] = json!(changes);
            document["plans"] =
                plans.iter().zip(&predicted).map(|(p, predicted)| plan_json(p, predicted.as_ref())).collect();
            document["fulfilment"]["now"] = json!(studied.fulfilment);
            document["dry_run"] = json!(true);
            document["tiers"] = tiers
                .iter()
                .map(|(name, derived)| json!({"name": name, "tier": derived.tier.name(), "from": derived.from}))
                .collect();
            document["ancestors"] = beyond.ancestors_json();
            document["outside"] = beyond.costs_json();
            writeln!(out, "{document:#}").context("cannot write to stdout")?;
        }
        Format::Csv => write!(out, "{}", table().csv(&rows)).context("cannot write to stdout")?,
        Format::Text | Format::Svg => {
            let text = text(&plans, &predicted, &rows, &studied.observation, trier, out.is_terminal());
            write!(out, "{text}{}{}", beyond.text(), tiers_text(&tiers)).context("cannot write to stdout")?;
        }
    }
    Ok(0)
}

/// Name under which the settings that keep promises are listed.
const PROMISES: &str = "promised shares";

/// What the host itself says about who is a service and who may wait.
fn tiers_text(tiers: &[(String, Derived)]) -> String {
    if tiers.is_empty() {
        return String::new();
    }
    let fields = vec![
        Field::text("name", "tier as the host says", |r: &(String, Derived)| printable(&r.0)),
        Field::text("tier", "tier", |r: &(String, Derived)| r.1.tier.name()),
        Field::text("from", "from", |r: &(String, Derived)| printable(&r.1.from)),
    ];
    format!("\n{}`run --tiers auto` goes by these.\n", Table::new(fields).text(tiers, None))
}

/// What promises need beyond the scope.
struct Beyond<'a> {
    /// Cgroups that hold others, too, and whether their weight is changed.
    ancestors: Vec<(String, bool)>,
    costs: &'a [OutsideCost],
}

impl Beyond<'_> {
    fn ancestors_json(&self) -> serde_json::Value {
        let all = self.ancestors.iter().map(|(path, changed)| json!({"group": path, "changed": changed}));
        all.collect()
    }

    fn costs_json(&self) -> serde_json::Value {
        let one = |cost: &OutsideCost| json!({"group": cost.node, "neighbours": cost.neighbours, "before_pct": cost.before_pct, "after_pct": cost.after_pct});
        self.costs.iter().map(one).collect()
    }

    fn text(&self) -> String {
        let mut out = String::new();
        if !self.ancestors.is_empty() {
            out.push_str("\nAbove promised tasks, and holding others than the scope, too: only their weights may be changed.\n");
        }
        for (path, changed) in &self.ancestors {
            let what = if *changed { "weight changed" } else { "left as it is" };
            out.push_str(&format!("    {}: {what}\n", printable(path)));
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

fn plan_json(plan: &Plan, predicted: Option<&Prediction>) -> serde_json::Value {
    let predicted = predicted.map(|p| {
        json!({
            "cpu_pct": {"as_found": p.before.got_pct, "plan": p.after.got_pct},
            "cpu_change_pct": p.cpu_change_pct(),
            "wait_per_ran": {"as_found": p.before.wait_per_ran(), "plan": p.after.wait_per_ran()},
        })
    });
    json!({"name": plan.name, "why": plan.why, "predicted": predicted})
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
            (None, group.path.clone(), view.and_then(|g| g.raw_weight).map(|w| format!("weight {w}")))
        }
        Target::Net(knob) => (None, knob.to_string(), None),
    };
    // A task's change is told by what the task would get, a group's by what the scope would.
    let (effect, predicted) = match (predicted, task) {
        (Some(p), Some(id)) => {
            let uses = p.tasks.get(&id).map(|(before, after)| {
                json!({"cpu_pct": {"as_found": before.got_pct, "plan": after.got_pct},
                    "wait_pct": {"as_found": before.wait_pct, "plan": after.wait_pct}})
            });
            (p.task_in_words(id), uses.unwrap_or_default())
        }
        (Some(p), None) => (Some(format!("scope: {}", p.in_words())), serde_json::Value::Null),
        (None, _) => (None, serde_json::Value::Null),
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
    trier: &str,
    terminal: bool,
) -> String {
    if rows.is_empty() {
        return "Nothing to do: no lever can act on the tasks of this scope that are running now.\n"
            .to_owned();
    }
    let busy: Vec<f64> = observation.host.per_cpu.iter().map(|c| c.busy_pct).collect();
    let mut out = String::new();
    for (plan, predicted) in plans.iter().zip(predicted) {
        out.push_str(&format!("{}: {} changes; {}\n", plan.name, plan.changes.len(), plan.why));
        if let Some(predicted) = predicted {
            out.push_str(&format!("    predicted for the scope: {}\n", predicted.in_words()));
        }
    }
    if placement::uneven(&busy, 15.0) {
        out.push_str(
            "CPU utilisations differ by more than 15 points (standard deviation): placement may help.\n",
        );
    }
    out.push('\n');
    out.push_str(&table().text(rows, width(terminal)));
    out.push_str(&format!(
        "\n`{trier}` tries these against the present state and keeps only what measurably helps.\n"
    ));
    out
}
