//! The experiment file: what `evenkeel lab run` runs on this host and `evenkeel sim` simulates.
//!
//! ```toml
//! name = "half-and-half"
//! repetitions = 3
//! [[tenant]]
//! name = "a"
//! units = "64x2"              # two tenants of 64 units
//! load = "primes"             # as after `evenkeel load`; or command = ["sysbench", "cpu", "run"]
//! run_s = 2
//! runs = 5
//! [[tenant]]
//! name = "b"
//! quota_pct = 25
//! command = ["openssl", "speed", "-seconds", "1", "rsa2048"]
//! [[sweep]]
//! field = "tenant.b.quota_pct"
//! values = [25, 50, "none"]
//! ```
//!
//! Or in short, for the simulator: a machine, and tasks by what they demand.
//!
//! ```toml
//! name = "guarantees"
//! duration_s = 20
//! [machine]
//! cpus = 1
//! [[task]]
//! name = "a"
//! kind = "open"
//! percent = 40
//! ```

use evenkeel_base::CpuSet;
use evenkeel_model::credit::Rule;
use serde::{Deserialize, Serialize};

use crate::instance::rule_of;

/// A table of the file: its keys, each with what it is where it is not written (`= ..`; else nothing).
macro_rules! table {
    ($(#[$doc:meta])* pub struct $name:ident { $($fields:tt)* }) => {
        evenkeel_base::defaults! {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $($fields)* }
        }
    };
}

mod check;
mod lines;
mod parts;
mod scenario;
mod sweep;

pub use check::Tenant;
pub use lines::{ExperimentError, Wrong};
pub use parts::{GroupSpec, Kind, MachineSpec, Place, TaskSpec, TenantSpec};
pub use sweep::{PlannedPoint, Point};
/// Values of fields, as a file writes them.
pub use toml::Value;

table! {
/// An experiment as written.
pub struct Experiment {
    /// Name; with tenants letters, digits, `-`, `_`, `.` only.
    pub name: String,
    /// What it shows, one sentence.
    pub title: String,
    /// How often each point of the sweep is repeated, each time with another seed.
    pub repetitions: u32 = 1,
    /// Seed of the order and of the loads.
    pub seed: u64 = 1,
    /// Of tasks: time measured, seconds.
    pub duration_s: f64 = 10.0,
    /// Of tasks: time before it that is not counted, seconds.
    pub warmup_s: f64,
    /// Order of the points within each repetition.
    pub order: Order,
    /// Order in which the tenants are started before they are released together.
    pub activation: Activation,
    /// The first cell is released at this instant (RFC 3339, or `@seconds` since 1970).
    pub start_at: Option<String>,
    /// A cell that takes longer is ended and marked, seconds; unless given, several times what it should take.
    pub time_limit_s: Option<f64>,
    /// Most units one tenant may ask for, as platforms that sell units say.
    pub units_available: Option<u64>,
    /// CPUs all tenants together are confined to.
    pub cpus: Option<CpuSet>,
    /// Fewest CPUs it makes sense on.
    pub needs_cpus: u32 = 1,
    /// The machine simulated; tenants without one are simulated on a machine like this host.
    pub machine: Option<MachineSpec>,
    /// A rule that plays the hypervisor from outside.
    pub enforcer: Option<StealSpec>,
    /// Control groups of tasks, parents first.
    #[serde(rename = "group")]
    pub groups: Vec<GroupSpec>,
    #[serde(rename = "task")]
    pub tasks: Vec<TaskSpec>,
    #[serde(rename = "tenant")]
    pub tenants: Vec<TenantSpec>,
    /// What is varied; several sweeps are crossed.
    #[serde(rename = "sweep")]
    pub sweeps: Vec<Sweep>,
}
}

/// Order of a sweep's points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Drawn again for each repetition, so that drift of the host does not favour a point.
    #[default]
    Shuffled,
    Written,
}

/// Order in which tenants are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    #[default]
    Written,
    /// The last first.
    Reversed,
    /// As written and reversed by turns, from one repetition to the next.
    Both,
}

/// A rule about CPU use, enforced from outside on the experiment's only tenant, which cannot see it. A file writes the rule
/// or the name of an instance type that has one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "StealFields")]
pub struct StealSpec {
    /// The rule, in the source's time.
    pub rule: Rule,
    /// The instance type it was taken from, such as `t2.micro`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// How much faster it is played: 50 makes 2 s of the source's 100 s.
    pub time_scale: f64,
}

/// As written. A record has both rule and instance: the rule is the one that was in force, whatever is known of the
/// instance today.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StealFields {
    rule: Option<Rule>,
    instance: Option<String>,
    time_scale: Option<f64>,
}

impl TryFrom<StealFields> for StealSpec {
    type Error = String;

    fn try_from(fields: StealFields) -> Result<Self, String> {
        let StealFields { rule, instance, time_scale } = fields;
        let rule = match (rule, &instance) {
            (Some(rule), _) => rule,
            (None, Some(name)) => rule_of(name).map_err(|e| format!("enforcer: {e}"))?,
            (None, None) => {
                return Err(
                    "enforcer: give a rule, or an instance type such as instance = \"t2.micro\"".into()
                );
            }
        };
        Ok(Self { rule, instance, time_scale: time_scale.unwrap_or(1.0) })
    }
}

/// What is varied: either `field` and `values`, or `point`s that set several fields each.
///
/// A field is named by its path: `cpus`, `enforcer.rule`, `tenant.NAME.quota_pct`, `tenant.*.runs`. The value
/// `"none"` removes the field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// What it is called in tables; unless given, the field.
    pub name: Option<String>,
    pub field: Option<String>,
    #[serde(default)]
    pub values: Vec<toml::Value>,
    /// Points that set several fields together.
    #[serde(default, rename = "point")]
    pub points: Vec<SweepPoint>,
}

/// A point of a [`Sweep`] that sets several fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepPoint {
    /// What it is called in tables.
    pub label: String,
    /// Fields by path, with their values.
    #[serde(default)]
    pub set: std::collections::BTreeMap<String, toml::Value>,
    /// The host cannot give this point, and why: it is recorded as such, not run.
    pub unavailable: Option<String>,
}

impl Experiment {
    /// An experiment without tenants, once, with the defaults of the file.
    pub fn new(name: impl Into<String>, title: impl Into<String>) -> Self {
        Self { name: name.into(), title: title.into(), ..Self::default() }
    }

    /// Reads an experiment and checks it at every point of its sweep.
    ///
    /// # Errors
    /// The line, what is wrong with it, and the nearest known key where one is misspelt.
    pub fn parse(text: &str) -> Result<Self, ExperimentError> {
        let experiment: Self = toml::from_str(text).map_err(|error| {
            let (line, message) = evenkeel_base::file_error::explain(text, &error);
            ExperimentError { line, message }
        })?;
        experiment.verify().map_err(|wrong| wrong.in_text(text))?;
        Ok(experiment)
    }

    /// All points of the sweeps, crossed, each without sweeps. Without sweeps there is one, with an empty label.
    pub fn points(&self) -> Result<Vec<PlannedPoint>, Wrong> {
        let plain = Self { sweeps: Vec::new(), ..self.clone() };
        sweep::crossed(&plain, &self.sweeps)
    }
}

impl Sweep {
    pub fn of(field: impl Into<String>, values: impl IntoIterator<Item = impl Into<toml::Value>>) -> Self {
        let values = values.into_iter().map(Into::into).collect();
        Self { name: None, field: Some(field.into()), values, points: Vec::new() }
    }

    pub fn points(name: impl Into<String>, points: Vec<SweepPoint>) -> Self {
        Self { name: Some(name.into()), field: None, values: Vec::new(), points }
    }
}

impl SweepPoint {
    /// A point without settings yet.
    pub fn new(label: impl Into<String>) -> Self {
        Self { label: label.into(), set: Default::default(), unavailable: None }
    }

    #[must_use]
    pub fn set(mut self, field: impl Into<String>, value: impl Into<toml::Value>) -> Self {
        self.set.insert(field.into(), value.into());
        self
    }
}
