//! An experiment on its way: what tells how far it is, and what ends it.

use std::cell::Cell;
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_console as console;
use evenkeel_lab::runner::{Progress, Run, RunError};
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::{Failure, stop};

/// Runs an experiment into a folder; signals end it. A line of the terminal tells how far it is; elsewhere each cell that is done has a
/// line.
pub(in crate::cli) fn measured<R>(
    folder: &Path,
    again: bool,
    planned_s: Option<f64>,
    run: impl FnOnce(&mut Run<'_>) -> Result<R, RunError>,
) -> Result<R, Failure> {
    let stop = stop::on_signals()?;
    let bar = Bar::new(planned_s);
    let mut progress = |progress: Progress<'_>| bar.show(progress);
    run(&mut Run { folder, again, stop, progress: &mut progress }).map_err(failure)
}

/// An experiment that makes no sense here is wrong usage.
pub(in crate::cli) fn failure(error: RunError) -> Failure {
    match error {
        RunError::Usage(_) => Failure::Usage(error.into()),
        _ => Failure::Cannot(error.into()),
    }
}

/// Progress with the time left; on a terminal gone when dropped.
struct Bar {
    bar: Option<ProgressBar>,
    begun: Instant,
    /// How long all of it should take, seconds.
    planned_s: Option<f64>,
    /// Cells that were done before.
    before: Cell<Option<f64>>,
    /// Cells that were done at the last look.
    done: Cell<usize>,
}

impl Bar {
    fn new(planned_s: Option<f64>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(1000), console::progress_target());
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, begun: Instant::now(), planned_s, before: Cell::new(None), done: Cell::new(usize::MAX) }
    }

    fn show(&self, progress: Progress<'_>) {
        let at = (progress.done as f64 + progress.part.min(1.0)) / progress.of.max(1) as f64;
        let before = self.before.get().unwrap_or(at);
        self.before.set(Some(before));
        let seconds = if at > before + 0.05 {
            Some(self.begun.elapsed().as_secs_f64() * (1.0 - at) / (at - before))
        } else {
            self.planned_s.map(|seconds| seconds * (1.0 - at))
        };
        let left = seconds.filter(|_| at < 1.0).map_or_else(String::new, |seconds| {
            format!(
                "; about {} left",
                humantime::format_duration(Duration::from_secs(seconds.min(1e7) as u64))
            )
        });
        let Progress { done, of, label, .. } = progress;
        if let Some(bar) = &self.bar {
            bar.set_position((at * 1000.0) as u64);
            bar.set_message(format!("cell {} of {of}: {label}{left}", of.min(done + 1)));
        } else if self.done.replace(done) < done {
            say!("evenkeel: {done} of {of} cells done, the last one {label}{left}");
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
