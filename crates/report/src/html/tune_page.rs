//! The page of a search for best settings.

use maud::html;

use super::{figure, page};
use crate::svg::{Trial, convergence, importance};
use crate::table::wrap;

/// A setting before and now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SettingRow {
    pub name: String,
    /// Present value; `None` where none was given.
    pub present: Option<String>,
    /// Best value; `None` where none was found.
    pub best: Option<String>,
    /// Share of the variance it has a part in, and explains alone.
    pub importance: Option<(f64, f64)>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct TunePage {
    pub name: String,
    /// The result in a sentence or two.
    pub answer: String,
    /// Method, trials, time.
    pub how: String,
    /// The objective with its unit.
    pub axis: String,
    pub settings: Vec<SettingRow>,
    /// Quantities with their constraints: name, present, best.
    pub quantities: Vec<(String, Option<String>, Option<String>)>,
    pub trials: Vec<Trial>,
    pub notes: Vec<String>,
}

impl TunePage {
    /// The same for a terminal of this width.
    pub fn text(&self, width: usize) -> String {
        let cell = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
        let mut out = format!("{}: {}\n\n{}\n", self.name, self.how, wrap(&self.answer, width));
        let mut row = |name: &str, [present, best, matters]: [&str; 3]| {
            let line = format!("{name:24} {present:>14} {best:>14} {matters:>10}");
            out += line.trim_end();
            out.push('\n');
        };
        row("SETTING", ["PRESENT", "BEST", "MATTERS"]);
        for setting in &self.settings {
            let matters =
                setting.importance.map_or_else(|| "?".into(), |(_, total)| format!("{:.0} %", 100.0 * total));
            row(&setting.name, [&cell(&setting.present), &cell(&setting.best), &matters]);
        }
        for (name, present, best) in &self.quantities {
            row(name, [&cell(present), &cell(best), ""]);
        }
        for note in &self.notes {
            out += &wrap(&format!("note: {note}"), width);
        }
        out
    }
}

pub fn tune(data: &TunePage) -> String {
    let bars: Vec<(String, f64, f64)> = data
        .settings
        .iter()
        .filter_map(|s| s.importance.map(|(alone, total)| (s.name.clone(), alone, total)))
        .collect();
    let cell = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
    let body = html! {
        h1 { "evenkeel tune: " (data.name) }
        p.sub { (data.how) }
        p.answer id="answer" { (data.answer) }
        @for note in &data.notes { p.note { (note) } }
        h2 { "Settings" }
        table {
            tr { th { "setting" } th.r { "present" } th.r { "best" } }
            @for row in &data.settings { tr { td { (row.name) } td.r { (cell(&row.present)) } td.r { (cell(&row.best)) } } }
            @for (name, present, best) in &data.quantities {
                tr { td { i { (name) } } td.r { (cell(present)) } td.r { (cell(best)) } }
            }
        }
        h2 { "Trials" }
        (figure("Every trial in order; the line is the mean of the best settings known by then. A step back is a leader \
            that did not keep its promise when it was run again.", &convergence(&data.trials, &data.axis)))
        @if !bars.is_empty() {
            h2 { "What matters" }
            (figure("Share of the objective's variance, over the whole space searched, that each setting has a part in \
                (dark: by itself). By the fitted Gaussian process (Sobol indices).", &importance(&bars)))
        }
        details {
            summary { "all trials" }
            table {
                tr { th.r { "trial" } th.r { (data.axis) } th { "settings" } }
                @for (index, trial) in data.trials.iter().enumerate() {
                    tr {
                        td.r { (index + 1) }
                        td.r { @match trial.value { Some(v) => { (crate::significant(v)) } None => { "failed" } } }
                        td { (trial.title) }
                    }
                }
            }
        }
    };
    page(&format!("evenkeel tune: {}", data.name), &body)
}
