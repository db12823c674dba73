//! The result of `evenkeel demo`: the document `evenkeel.demo/v1`, and the table that ends it on the terminal.

use evenkeel_base::run::Estimate;
use serde::{Deserialize, Serialize};

use crate::time;

mod compare;
mod text;

pub use compare::{Arm, Verdict};
pub use text::{medians, text_table};

/// Name of the document's form.
pub const SCHEMA: &str = "evenkeel.demo/v1";

evenkeel_base::named! {
/// How the loads of a run are arranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scene {
    /// All in one cgroup, equal fixed periods: the published case; it flatters.
    #[default]
    OneCgroupFixed = "One cgroup, fixed periods",
    /// All in one cgroup, every period drawn within ±50 %: the honest case.
    OneCgroupJittered = "One cgroup, jittered periods",
    /// One cgroup or container a load: only weights act between them.
    CgroupEach = "One cgroup per load",
}
}

impl Scene {
    /// What this scene shows, in a sentence.
    pub fn about(self) -> &'static str {
        match self {
            Self::OneCgroupFixed => {
                "All loads are processes of one pod and wake at equal, fixed periods. This is the case the published \
                 recipe was made for. Equal periods fall into step, which flatters every setting."
            }
            Self::OneCgroupJittered => {
                "The same loads, but every period is drawn at random within ±50 %. This is the honest case: demands \
                 collide at random, and even a real-time class cannot give everyone all of it."
            }
            Self::CgroupEach => {
                "Each load is in a cgroup or container of its own, as on a container host. Nice values do not act \
                 between cgroups; only weights and the tasks' own slices do."
            }
        }
    }
}

evenkeel_base::named! {
/// What the loads do when they have to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Each period needs a fixed amount of CPU time; waiting stretches the period.
    #[default]
    Closed = "closed",
    /// Each period computes until a wall-clock deadline; time lost to others is lost.
    Wall = "wall",
}
}

evenkeel_base::named! {
/// What a stage is there for; decides its colour and whether it appears in summaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Default = "kernel default",
    /// The published recipe: greedy placement and nice in proportion to load.
    Recipe = "published recipe",
    #[default]
    Trial = "trial",
    /// The settings evenkeel chose, held.
    Final = "evenkeel",
    /// SCHED_FIFO: the ceiling to compare with.
    Ceiling = "real-time ceiling",
}
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DemoReport {
    pub schema: String,
    /// Start, RFC 3339.
    pub started: Option<String>,
    pub seconds: Option<f64>,
    pub version: String,
    /// CPUs used.
    pub cpus: u32,
    pub host: HostFacts,
    /// Scenes in order, each with each kind of load.
    pub runs: Vec<DemoRun>,
    /// Whether the host is as it was.
    pub put_back: PutBack,
    /// What the results may not be taken for: steal seen, frequency changed, a requirement unmet. Empty is good.
    pub missed: Vec<String>,
    pub report: Option<String>,
}

/// The host, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostFacts {
    pub kernel: String,
    /// `cfs`, `eevdf` or `scx`.
    pub scheduler: String,
    /// `v1`, `v2` or `hybrid`.
    pub cgroup: String,
    pub model: Option<String>,
    /// Sockets, nodes, cores, threads in words.
    pub topology: Option<String>,
    /// Container runtime used for containers, if any.
    pub runtime: Option<String>,
    pub more: Vec<(String, String)>,
}

/// Putting back at the end.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PutBack {
    /// Changes made on the host in all.
    pub changes: u64,
    /// Changes put back and verified by reading.
    pub verified: u64,
    /// What could not be restored, in words.
    pub left: Vec<String>,
}

/// One scene with one kind of load.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DemoRun {
    pub scene: Scene,
    pub kind: Kind,
    /// CPU wanted by all loads together, percent of one CPU.
    pub wanted_pct: f64,
    /// Stages in the order they ran.
    pub stages: Vec<DemoStage>,
    /// Fulfilment (CPU got / CPU wanted, all loads) under the kernel's default.
    pub default_fulfilment: Option<f64>,
    /// 95 % interval of it.
    pub default_interval: Option<[f64; 2]>,
    /// Fulfilment under the published recipe.
    pub published_recipe_fulfilment: Option<f64>,
    /// 95 % interval of it.
    pub published_recipe_interval: Option<[f64; 2]>,
    /// Fulfilment under evenkeel's choice.
    pub final_fulfilment: Option<f64>,
    /// 95 % interval of it.
    pub final_interval: Option<[f64; 2]>,
    /// Fulfilment under SCHED_FIFO.
    pub realtime_ceiling: Option<f64>,
    /// 95 % interval of it.
    pub realtime_ceiling_interval: Option<[f64; 2]>,
    /// Gain of fulfilment over the kernel's default: mean of the differences between blocks of the same round.
    pub gain: Option<f64>,
    /// 95 % interval of it, over rounds.
    pub gain_interval: Option<[f64; 2]>,
    /// The gain of each round, from which verdicts on all runs together are made.
    pub gain_rounds: Vec<f64>,
    /// (final - default) / (ceiling - default); `None` when no gap was seen beyond its interval.
    pub gap_closed: Option<f64>,
    /// 95 % interval of it, over rounds.
    pub gap_closed_interval: Option<[f64; 2]>,
    /// From the loop's start to its final choice.
    pub seconds_to_settle: Option<f64>,
    pub choice: String,
    pub why: String,
    pub timeline: Vec<Moment>,
    pub tasks: Vec<DemoTask>,
    /// Where each load ran, before and after.
    pub core_map: Option<CoreMap>,
    /// Changes made in this run, in force at its end.
    pub changes: Vec<DemoChange>,
    /// As [`DemoReport::missed`], of this run.
    pub missed: Vec<String>,
}

/// A stage of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DemoStage {
    /// Such as `kernel default`, `trial batch+slice`.
    pub name: String,
    pub role: Role,
    /// Start on the timeline's clock, seconds.
    pub start_s: f64,
    pub seconds: f64,
    /// CPU got / CPU wanted.
    pub fulfilment: Option<f64>,
    /// 95 % interval of it.
    pub fulfilment_interval: Option<[f64; 2]>,
    /// CPU got by all loads, percent of one CPU.
    pub cpu_pct: Option<f64>,
    /// Whether the settings were kept; `None` where nothing was to be decided.
    pub kept: Option<bool>,
    pub note: String,
}

/// Utilisation at a moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Moment {
    /// Seconds since the run's start: end of the interval the percentages are for.
    pub t_s: f64,
    /// All CPUs together, percent of one CPU.
    pub total_pct: f64,
    pub per_cpu_pct: Vec<f64>,
}

/// One load.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DemoTask {
    /// Name, such as `duty 15 %`.
    pub name: String,
    /// CPU wanted, percent.
    pub wanted_pct: f64,
    /// CPU got in each stage, percent, in the order of [`DemoRun::stages`].
    pub got_pct: Vec<Option<f64>>,
}

/// Share of each task's CPU time on each CPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CoreMap {
    pub cpus: Vec<u32>,
    /// Before, a row for each of [`DemoRun::tasks`]: percent of the task's own time; `None` for a task that did not
    /// run.
    pub before: Vec<Vec<Option<f64>>>,
    /// After, likewise.
    pub after: Vec<Vec<Option<f64>>>,
}

/// A change in force at a run's end.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DemoChange {
    pub target: String,
    pub knob: String,
    pub from: String,
    pub to: String,
    pub why: String,
    pub effect: Option<String>,
}

/// Splits an estimate into the document's two fields.
pub fn split(estimate: Option<Estimate>) -> (Option<f64>, Option<[f64; 2]>) {
    (estimate.map(|e| e.value), estimate.map(|e| [e.low, e.high]))
}

/// (now - default) / (ceiling - default); `None` when something is unknown or the gap is below 0.002, which is noise.
pub fn gap_closed(default: Option<f64>, now: Option<f64>, ceiling: Option<f64>) -> Option<f64> {
    let (default, now, ceiling) = (default?, now?, ceiling?);
    let gap = ceiling - default;
    (gap >= 0.002).then(|| (now - default) / gap)
}

impl DemoReport {
    /// Default with the schema's name and this program's version.
    pub fn new() -> Self {
        Self { schema: SCHEMA.to_owned(), version: env!("CARGO_PKG_VERSION").to_owned(), ..Self::default() }
    }

    pub fn json(&self) -> serde_json::Value {
        let mut document = serde_json::to_value(self).unwrap_or_default();
        document["schema"] = SCHEMA.into();
        document
    }
}

impl DemoRun {
    /// The gap closed in percent with the half-width of its interval, such as `77±12 %`; `-` where no gap was seen.
    pub fn gap_closed_text(&self) -> String {
        let Some(gap) = self.gap_closed.map(|gap| 100.0 * gap) else { return "-".to_owned() };
        match self.gap_closed_interval {
            Some([low, high]) => format!("{gap:.0}±{:.0} %", 50.0 * (high - low)),
            None => format!("{gap:.0} %"),
        }
    }

    pub fn title(&self) -> String {
        format!("{}, {} loads", self.scene.name(), self.kind.name())
    }

    /// CPU a task got in the stages of a role, percent: the mean weighted by their length. `None` without such a stage.
    pub fn got_pct(&self, task: &DemoTask, role: Role) -> Option<f64> {
        let of_role = self.stages.iter().zip(&task.got_pct).filter(|(stage, _)| stage.role == role);
        let (sum, seconds) = of_role
            .filter_map(|(stage, got)| Some(((*got)? * stage.seconds, stage.seconds)))
            .fold((0.0, 0.0), |(sum, seconds), (got, length)| (sum + got, seconds + length));
        (seconds > 0.0).then(|| sum / seconds)
    }
}

impl PutBack {
    pub fn sentence(&self) -> String {
        match (self.changes, self.left.len()) {
            (0, 0) => "No change was in force at the end, and nothing is left of what was tried.".to_owned(),
            (changes, 0) if self.verified >= changes => {
                format!("All {changes} changes were restored and verified by reading.")
            }
            (changes, 0) => format!("{} of {changes} changes were verified as restored.", self.verified),
            // What is left may be of a trial, which is none of the changes counted.
            (_, left) => {
                let changes = if left == 1 { "change" } else { "changes" };
                format!("{left} {changes} could NOT be restored: {}.", self.left.join("; "))
            }
        }
    }
}

/// For captions: length of the whole.
pub(crate) fn took(report: &DemoReport) -> Option<String> {
    report.seconds.map(time::length)
}
