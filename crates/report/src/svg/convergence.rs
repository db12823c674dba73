//! How a search went: every trial's value and the best known after it; and how much each parameter matters.

use super::canvas::{Anchor, Canvas, Scale, WIDTH, ticks};

#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// What it gave; `None` when it failed.
    pub value: Option<f64>,
    /// Whether it kept the constraints.
    pub kept: bool,
    /// The best value known after it.
    pub best: Option<f64>,
    /// Its settings, for the tooltip.
    pub title: String,
}

const LEFT: f64 = 76.0;
const RIGHT: f64 = WIDTH - 24.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 330.0;

/// The range of the values without far outliers: those beyond three times the middle half's width are drawn at the rim.
fn range(values: &[f64]) -> (f64, f64) {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let (Some(&first), Some(&last)) = (sorted.first(), sorted.last()) else { return (0.0, 1.0) };
    let at = |q: f64| sorted[((sorted.len() - 1) as f64 * q).round() as usize];
    let wide = (3.0 * (at(0.75) - at(0.25))).max(1e-9 * last.abs().max(first.abs()));
    let (low, high) = (first.max(at(0.25) - wide), last.min(at(0.75) + wide));
    let margin = ((high - low) * 0.05).max(1e-9);
    (low - margin, high + margin)
}

/// Draws the trials in order; `axis` names the objective with its unit.
pub fn convergence(trials: &[Trial], axis: &str) -> String {
    let mut canvas = Canvas::default();
    let values: Vec<f64> = trials.iter().flat_map(|t| [t.value, t.best]).flatten().collect();
    let (low, high) = range(&values);
    let x = Scale::new((0.5, trials.len() as f64 + 0.5), (LEFT, RIGHT));
    let y = Scale::new((low, high), (BOTTOM, TOP));
    canvas.ticks_beside(&y, &ticks(low, high, 6), (LEFT, RIGHT));
    let numbers: Vec<f64> =
        ticks(1.0, trials.len().max(2) as f64, 12).into_iter().filter(|n| n.fract() == 0.0).collect();
    for number in numbers {
        canvas.text("dim small num", (x.at(number), BOTTOM + 17.0), Anchor::Middle, &format!("{number:.0}"));
    }
    canvas.line("axis", [LEFT, BOTTOM, RIGHT, BOTTOM]);
    let mut line = Vec::new();
    for (index, trial) in trials.iter().enumerate() {
        if let Some(best) = trial.best {
            let from = if line.is_empty() { index as f64 + 1.0 } else { index as f64 + 0.5 };
            line.push((x.at(from), y.at(best)));
            line.push((x.at(index as f64 + 1.5), y.at(best)));
        }
    }
    canvas.path("curve", &line, false);
    for (index, trial) in trials.iter().enumerate() {
        let at = x.at(index as f64 + 1.0);
        let title = format!("trial {}: {}", index + 1, trial.title);
        match trial.value {
            Some(value) => {
                let (shape, class) = if trial.kept { (0, "f-final") } else { (2, "f-recipe") };
                canvas.mark(shape, class, (at, y.at(value)), 3.6, Some(&title));
            }
            None => {
                canvas.rect("f-ceiling", [at - 2.5, BOTTOM - 7.0, 5.0, 7.0], Some(&title));
            }
        }
    }
    let mut legend = LEFT;
    for (shape, class, text) in
        [(0, "f-final", "a trial"), (2, "f-recipe", "misses a constraint"), (1, "f-ceiling", "failed")]
    {
        canvas.mark(shape, class, (legend + 6.0, 12.0), 4.5, None);
        canvas.text("small", (legend + 16.0, 16.0), Anchor::Start, text);
        legend += 40.0 + text.len() as f64 * 6.6;
    }
    canvas.line("curve", [legend, 12.0, legend + 24.0, 12.0]);
    canvas.text("small", (legend + 30.0, 16.0), Anchor::Start, "best so far (mean of its runs)");
    canvas.text("dim small", (LEFT, BOTTOM + 36.0), Anchor::Start, &format!("{axis}, by trial"));
    canvas.finish(BOTTOM + 44.0, &format!("{axis} of every trial, and the best so far"))
}

/// One bar a parameter: the share of the objective's variance it has a part in, and what it explains alone.
pub fn importance(rows: &[(String, f64, f64)]) -> String {
    let mut canvas = Canvas::default();
    let (left, right, row) = (200.0, WIDTH - 120.0, 28.0);
    let x = Scale::new((0.0, 1.0), (left, right));
    for (index, (name, alone, total)) in rows.iter().enumerate() {
        let top = 6.0 + row * index as f64;
        canvas.text("small", (left - 10.0, top + 15.0), Anchor::End, &super::canvas::short(name, 28));
        canvas.rect("trough", [left, top + 4.0, right - left, 14.0], None);
        let title = format!("{name}: {:.0} % with others, {:.0} % alone", 100.0 * total, 100.0 * alone);
        canvas.rect("f-trial", [left, top + 4.0, x.at(*total) - left, 14.0], Some(&title));
        canvas.rect("f-final", [left, top + 4.0, x.at(*alone) - left, 14.0], Some(&title));
        let label = format!("{:.0} %", 100.0 * total);
        canvas.text("small num", (right + 10.0, top + 15.0), Anchor::Start, &label);
    }
    canvas.finish(12.0 + row * rows.len() as f64, "Importance of each parameter")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_outlier_does_not_flatten_the_rest() {
        let mut values: Vec<f64> = (0..20).map(f64::from).collect();
        values.push(1e9);
        let (low, high) = range(&values);
        assert!(low < 0.0 && low > -10.0 && high > 19.0 && high < 100.0, "{low} {high}");
    }

    proptest! {
        #[test]
        fn anything_can_be_drawn(
            values in proptest::collection::vec(proptest::option::of(any::<f64>()), 0..30),
            title in any::<String>(),
        ) {
            let trials: Vec<Trial> = values
                .iter()
                .map(|v| Trial { value: *v, kept: v.is_some(), best: *v, title: title.clone() })
                .collect();
            let picture = convergence(&trials, &title);
            prop_assert!(picture.starts_with("<svg") && picture.ends_with("</svg>"));
            prop_assert!(!picture.contains("NaN") || title.contains("NaN"));
        }
    }
}
