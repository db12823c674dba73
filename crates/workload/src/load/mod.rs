//! One load in this process: options, threads, the common start, the end, and the report.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Kind;

mod context;
mod error;
mod flows;
mod run;
mod sampler;
mod signals;
mod start;

pub use context::Context;
pub use error::LoadError;
pub use flows::{Counted, Flow, FlowCounts, FlowReport};
pub use run::{EndedBy, LoadReport, StartReport, run};
pub use sampler::{Known, LoadSampler, Reading, WindowTask};
pub use signals::stop_flag_on_signals;
pub use start::{StartAt, StartAtError};

/// Options every kind takes.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default)]
pub struct Common {
    /// End after so many seconds.
    #[arg(long, global = true, value_name = "SECONDS", value_parser = parse_seconds)]
    pub seconds: Option<f64>,
    /// End after so many events, over all threads (what an event is: see the kind).
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub events: Option<u64>,
    /// Number of threads; 1 unless given.
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: Option<u32>,
    /// Start at this instant: RFC 3339 (2026-01-31T12:00:00.5Z) or @seconds since 1970.
    #[arg(long, global = true, value_name = "INSTANT")]
    pub start_at: Option<StartAt>,
    /// Name of the process as `ps` and `top` show it (15 bytes).
    #[arg(long, global = true, value_name = "NAME")]
    pub name: Option<String>,
    /// Page in which progress is reported to whoever started this.
    #[arg(long, global = true, value_name = "FILE")]
    pub progress: Option<PathBuf>,
    /// First slot of that page to use; one a thread.
    #[arg(long, global = true, hide = true, requires = "progress")]
    pub slot: Option<u32>,
    /// Wait until the page's gate opens.
    #[arg(long, global = true, hide = true, requires = "progress")]
    pub gate: bool,
    /// End when the owner of the page has gone (where the kernel cannot tell us: in a container).
    #[arg(long, global = true, hide = true, requires = "progress")]
    pub owned: bool,
}

impl Common {
    /// Number of threads.
    pub fn thread_count(&self) -> u32 {
        self.threads.unwrap_or(1).max(1)
    }

    /// The command-line arguments that give these options again.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut push = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                arguments.push(format!("--{name}={value}"));
            }
        };
        push("seconds", self.seconds.map(|s| s.to_string()));
        push("events", self.events.map(|n| n.to_string()));
        push("threads", self.threads.map(|n| n.to_string()));
        push("start-at", self.start_at.map(|at| at.to_string()));
        push("name", self.name.clone());
        push("progress", self.progress.as_ref().map(|p| p.display().to_string()));
        push("slot", self.slot.map(|n| n.to_string()));
        for (name, flag) in [("gate", self.gate), ("owned", self.owned)] {
            if flag {
                arguments.push(format!("--{name}"));
            }
        }
        arguments
    }
}

/// A load: what it does and for how long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadSpec {
    /// What it does.
    pub kind: Kind,
    /// Options every kind takes.
    #[serde(default)]
    pub common: Common,
}

impl LoadSpec {
    /// A load of one thread that runs until it is ended.
    pub fn new(kind: Kind) -> Self {
        Self { kind, common: Common::default() }
    }

    /// The same with a name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.common.name = Some(name.into());
        self
    }

    /// The same with an end.
    #[must_use]
    pub fn lasting(mut self, time: Duration) -> Self {
        self.common.seconds = Some(time.as_secs_f64());
        self
    }

    /// The arguments of `evenkeel load` that run it.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = self.kind.workload().arguments();
        arguments.extend(self.common.arguments());
        arguments
    }

    /// CPU time all its threads want, percent of ONE CPU; `None` where it takes what it gets.
    pub fn wanted_pct(&self) -> Option<f64> {
        Some(self.kind.workload().wanted_pct()? * f64::from(self.common.thread_count()))
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.strip_suffix('s').unwrap_or(text).parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 1e9 => Ok(seconds),
        _ => Err("expected a number of seconds above 0".into()),
    }
}
