//! The laboratory's experiment file: tenants, their limits and loads, and what is varied.
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

use evenkeel_base::{CpuSet, SchedPolicy};
use evenkeel_model::credit::Rule;
use evenkeel_model::units::UnitList;
use serde::{Deserialize, Serialize};

use crate::instance::rule_of;
use crate::simulation::{ExperimentError, line_of, parse_error};

mod check;
mod sweep;

pub use check::Tenant;
pub use sweep::{PlannedPoint, SweepError};
/// Values of fields, as a file writes them.
pub use toml::Value;

/// An experiment as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Name: letters, digits, `-`, `_`, `.`.
    pub name: String,
    /// What it shows, one sentence.
    #[serde(default)]
    pub title: String,
    /// How often each point of the sweep is repeated.
    #[serde(default = "one")]
    pub repetitions: u32,
    /// Seed of the order and of the loads.
    #[serde(default = "one_u64")]
    pub seed: u64,
    /// Order of the points within each repetition.
    #[serde(default)]
    pub order: Order,
    /// Order in which the tenants are started before they are released together.
    #[serde(default)]
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
    #[serde(default = "one")]
    pub needs_cpus: u32,
    /// A rule that plays the hypervisor from outside.
    pub enforcer: Option<StealSpec>,
    /// Tenants.
    #[serde(rename = "tenant")]
    pub tenants: Vec<TenantSpec>,
    /// What is varied; several sweeps are crossed.
    #[serde(default, rename = "sweep")]
    pub sweeps: Vec<Sweep>,
}

/// Order of a sweep's points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Drawn anew for each repetition, so that drift of the host does not favour a point.
    #[default]
    Shuffled,
    /// As written.
    Written,
}

/// Order in which tenants are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// As written.
    #[default]
    Written,
    /// The last first.
    Reversed,
    /// As written and reversed by turns, from one repetition to the next.
    Both,
}

/// A rule about CPU use, enforced on all tenants together from outside, which they cannot see. A file writes the rule or
/// the name of an instance type that has one.
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
    #[serde(default = "one_f64")]
    time_scale: f64,
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
        Ok(Self { rule, instance, time_scale })
    }
}

/// One or several equal tenants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantSpec {
    /// Name; numbered when there are several.
    pub name: Option<String>,
    /// Units of each, see [`UnitList`]; excludes `weight`, `shares` and `count`.
    pub units: Option<UnitList>,
    /// How many of them.
    #[serde(default = "one")]
    pub count: u32,
    /// Where they live.
    #[serde(default)]
    pub place: Place,
    /// cgroup v2 weight, 1 to 10000 (100 is the default); converted on a v1 host.
    pub weight: Option<u64>,
    /// cgroup v1 shares, 2 to 262144 (1024 is the default); converted on a v2 host.
    pub shares: Option<u64>,
    /// Quota, percent of ONE CPU.
    pub quota_pct: Option<f64>,
    /// Quota period, microseconds.
    #[serde(default = "period")]
    pub period_usec: u64,
    /// Burst, microseconds.
    #[serde(default)]
    pub burst_usec: u64,
    /// CPUs, by cpuset (by affinity for plain processes).
    pub cpus: Option<CpuSet>,
    /// Nice value.
    #[serde(default)]
    pub nice: i32,
    /// Scheduling policy: `other`, `batch`, `idle`.
    #[serde(default = "other")]
    pub policy: SchedPolicy,
    /// Own slice, milliseconds (Linux 6.12 and later).
    pub slice_ms: Option<f64>,
    /// Memory, bytes.
    pub memory_bytes: Option<u64>,
    /// A built-in load, as after `evenkeel load`: `primes`, `sieve --read own`.
    pub load: Option<String>,
    /// A command with its arguments; excludes `load`.
    pub command: Option<Vec<String>>,
    /// Threads of a built-in load.
    #[serde(default = "one")]
    pub threads: u32,
    /// Runs, back to back.
    #[serde(default = "one")]
    pub runs: u32,
    /// A run of a built-in load ends after so many seconds of wall clock.
    pub run_s: Option<f64>,
    /// A run of a built-in load ends after so many events.
    pub events: Option<u64>,
    /// It begins so many seconds after the release.
    #[serde(default)]
    pub start_s: f64,
    /// It has no runs of its own to finish: it is ended when all others are done (a load in the background).
    #[serde(default)]
    pub background: bool,
}

/// Where a tenant lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// A plain cgroup of its own.
    #[default]
    Cgroup,
    /// A plain process without limits of a cgroup.
    Process,
    /// A container of a Docker Engine.
    Docker,
    /// A pod of a CRI runtime.
    Pod,
}

impl Place {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Process => "process",
            Self::Docker => "docker",
            Self::Pod => "pod",
        }
    }
}

/// What is varied: either `field` and `values`, or `point`s that set several fields each.
///
/// A field is named by its path: `repetitions`, `enforcer.rule`, `tenant.NAME.quota_pct`, `tenant.*.runs`. The value
/// `"none"` removes the field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// What it is called in tables; unless given, the field.
    pub name: Option<String>,
    /// The field varied.
    pub field: Option<String>,
    /// Its values.
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

fn one() -> u32 {
    1
}
fn one_u64() -> u64 {
    1
}
fn one_f64() -> f64 {
    1.0
}
fn period() -> u64 {
    100_000
}
fn other() -> SchedPolicy {
    SchedPolicy::Other
}

impl Experiment {
    /// An experiment without tenants, once, with the defaults of the file.
    pub fn new(name: impl Into<String>, title: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            title: title.into(),
            repetitions: 1,
            seed: 1,
            order: Order::default(),
            activation: Activation::default(),
            start_at: None,
            time_limit_s: None,
            units_available: None,
            cpus: None,
            needs_cpus: 1,
            enforcer: None,
            tenants: Vec::new(),
            sweeps: Vec::new(),
        }
    }

    /// Checks an experiment made or changed by a program, at every point of its sweep; the message says what is wrong.
    pub fn verify(&self) -> Result<(), String> {
        self.check().map_err(|(_, message)| message)?;
        for point in self.points().map_err(|e| e.to_string())? {
            point.experiment.check().map_err(|(_, message)| format!("at {}: {message}", point.label))?;
        }
        Ok(())
    }

    /// Whether a text is such a file rather than one for the simulator alone: it has tenants.
    pub fn is_laboratory(text: &str) -> bool {
        toml::from_str::<toml::Table>(text).is_ok_and(|table| table.contains_key("tenant"))
    }

    /// Reads an experiment and checks every point of its sweep.
    pub fn parse(text: &str) -> Result<Self, ExperimentError> {
        let experiment: Self = toml::from_str(text).map_err(|error| parse_error(text, &error))?;
        let line_of = |header: &str, index: usize| line_of(text, header, index);
        let refuse = |(place, message): (Option<usize>, String)| ExperimentError::Value {
            line: place.map_or(1, |index| line_of("[[tenant]]", index)),
            message,
        };
        experiment.check().map_err(refuse)?;
        let points = experiment.points().map_err(|e| ExperimentError::Value {
            line: line_of("[[sweep]]", e.sweep),
            message: e.to_string(),
        })?;
        for point in points {
            point.experiment.check().map_err(|(_, message)| ExperimentError::Value {
                line: line_of("[[sweep]]", 0),
                message: format!("at {}: {message}", point.label),
            })?;
        }
        Ok(experiment)
    }
}

impl TenantSpec {
    /// One tenant in a cgroup of its own with nothing to do, with the defaults of the file.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: Some(name.into()),
            units: None,
            count: 1,
            place: Place::default(),
            weight: None,
            shares: None,
            quota_pct: None,
            period_usec: period(),
            burst_usec: 0,
            cpus: None,
            nice: 0,
            policy: other(),
            slice_ms: None,
            memory_bytes: None,
            load: None,
            command: None,
            threads: 1,
            runs: 1,
            run_s: None,
            events: None,
            start_s: 0.0,
            background: false,
        }
    }
}

impl Sweep {
    /// A sweep of one field.
    pub fn of(field: impl Into<String>, values: impl IntoIterator<Item = impl Into<toml::Value>>) -> Self {
        let values = values.into_iter().map(Into::into).collect();
        Self { name: None, field: Some(field.into()), values, points: Vec::new() }
    }

    /// A sweep over named points.
    pub fn points(name: impl Into<String>, points: Vec<SweepPoint>) -> Self {
        Self { name: Some(name.into()), field: None, values: Vec::new(), points }
    }
}

impl SweepPoint {
    /// A point without settings yet.
    pub fn new(label: impl Into<String>) -> Self {
        Self { label: label.into(), set: Default::default(), unavailable: None }
    }

    /// Sets a field.
    #[must_use]
    pub fn set(mut self, field: impl Into<String>, value: impl Into<toml::Value>) -> Self {
        self.set.insert(field.into(), value.into());
        self
    }
}
