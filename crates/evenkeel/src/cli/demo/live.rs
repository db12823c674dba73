//! Progress while the demonstration runs.

use std::time::Instant;

use evenkeel_agent::{Event, Watcher};
use evenkeel_report::demo::{Kind, Moment, Scene};

use crate::cli::sink::ConsoleSink;

/// Live progress, and the timeline for the report.
pub(super) struct Live {
    sink: ConsoleSink,
    runs: usize,
    heading: String,
    stage: String,
    clock: Instant,
    timeline: Vec<Moment>,
    pending: Vec<(f64, Vec<f64>)>,
}

/// Moments of the timeline are this long at least, seconds: `/proc/stat` counts in steps of 10 ms.
const MOMENT_S: f64 = 0.5;

impl Live {
    pub fn new(sink: ConsoleSink, runs: usize) -> Self {
        Self {
            sink,
            runs,
            heading: String::new(),
            stage: String::new(),
            clock: Instant::now(),
            timeline: Vec::new(),
            pending: Vec::new(),
        }
    }

    pub fn begin(&mut self, number: usize, scene: Scene, kind: Kind) {
        self.heading = format!("{}/{} {}, {}", number + 1, self.runs, scene.name(), kind.name());
        if self.sink.is_terminal() {
            self.sink.lasting(&self.heading.clone());
        }
    }

    pub fn start_clock(&mut self) {
        self.clock = Instant::now();
        self.timeline.clear();
        self.pending.clear();
    }

    pub fn clock_s(&self) -> f64 {
        self.clock.elapsed().as_secs_f64()
    }

    pub fn stage(&mut self, name: &str) {
        self.stage = name.to_owned();
    }

    pub fn take_timeline(&mut self) -> Vec<Moment> {
        std::mem::take(&mut self.timeline)
    }

    fn moment(&mut self, seconds: f64, per_cpu: Vec<f64>) {
        self.pending.push((seconds, per_cpu));
        let total: f64 = self.pending.iter().map(|p| p.0).sum();
        if total < MOMENT_S {
            return;
        }
        let cpus = self.pending.iter().map(|p| p.1.len()).min().unwrap_or(0);
        let per_cpu_pct: Vec<f64> =
            (0..cpus).map(|i| self.pending.iter().map(|(s, c)| s * c[i]).sum::<f64>() / total).collect();
        self.pending.clear();
        let t_s = self.clock_s();
        self.timeline.push(Moment { t_s, total_pct: per_cpu_pct.iter().sum(), per_cpu_pct });
    }
}

impl Watcher for Live {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Observed { observation, .. } => {
                let per_cpu: Vec<f64> = observation.host.per_cpu.iter().map(|c| c.busy_pct).collect();
                let bars: Vec<String> = per_cpu.iter().take(8).map(|pct| bar(*pct)).collect();
                self.moment(observation.interval_s, per_cpu);
                let text = format!("  {:>4.0} s  {:<28} {}", self.clock_s(), self.stage, bars.join(" "));
                self.sink.passing(&text);
            }
            Event::Window { settings, .. } => self.stage = format!("trial: {settings}"),
            Event::Decided { decision, candidates } => {
                let verdict = &decision.verdicts[decision.winner];
                let text = format!("  {} {}", candidates[decision.winner].name, verdict.why);
                self.sink.lasting(&text);
            }
            Event::Note(_) | Event::Recovered(_) => self.sink.event(event),
            Event::TrialBegins { .. }
            | Event::Stage(_)
            | Event::Interference { .. }
            | Event::StatusChanged(_) => {}
        }
    }

    fn stopping(&self) -> bool {
        self.sink.stopping()
    }
}

/// A CPU's use as a small bar.
fn bar(pct: f64) -> String {
    let full = (pct / 10.0).round().clamp(0.0, 10.0) as usize;
    format!("{}{} {pct:3.0}%", "█".repeat(full), "░".repeat(10 - full))
}
