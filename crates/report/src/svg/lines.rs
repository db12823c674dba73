//! Lines over a number that doubles (tenants), with intervals: one picture a figure.

use super::{Anchor, Canvas, Scale, WIDTH, short, tick_label, ticks};

/// A picture of several lines.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LineChart {
    /// What is drawn, for those who cannot see it.
    pub label: String,
    /// Name of the horizontal axis.
    pub x: String,
    /// Name and unit of the vertical axis.
    pub y: String,
    /// The lines.
    pub lines: Vec<Line>,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Where, value, and interval if known.
    pub points: Vec<(f64, f64, Option<[f64; 2]>)>,
}

/// Colours and dashes, in turn: twenty lines can be told apart.
const CLASSES: [&str; 5] = ["final", "recipe", "ceiling", "default", "trial"];
const DASHES: [&str; 4] = ["", "7 4", "2 3", "9 3 2 3"];
const TOP: f64 = 16.0;
const BOTTOM: f64 = 268.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = WIDTH - 300.0;

/// Draws it. The horizontal axis is logarithmic (base 2), the vertical one starts at 0. Empty text without a point.
pub fn line_chart(chart: &LineChart) -> String {
    let points = || chart.lines.iter().flat_map(|line| &line.points);
    let xs: Vec<f64> = points().map(|(x, ..)| *x).filter(|x| *x > 0.0).collect();
    if xs.is_empty() {
        return String::new();
    }
    // An interval may be far wider than what it is of: it does not set the scale beyond twice the largest value.
    let largest = points().map(|(_, y, _)| *y).filter(|y| y.is_finite()).fold(0.0, f64::max);
    let reach =
        points().filter_map(|(.., interval)| interval.map(|[_, high]| high)).filter(|y| y.is_finite());
    let high = reach.fold(largest, f64::max).min(2.0 * largest).max(1e-9) * 1.05;
    let log = |x: f64| x.max(1e-9).log2();
    let span = xs
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(log(*x)), high.max(log(*x))));
    let x = Scale::new((span.0 - 0.15, span.1 + 0.15), (LEFT, RIGHT));
    let y = Scale::new((0.0, high), (BOTTOM, TOP));
    let mut canvas = Canvas::default();
    let marks = ticks(0.0, high, 6);
    for mark in &marks {
        let at = y.at(*mark);
        canvas.line("grid", [LEFT, at, RIGHT, at]);
        canvas.text("dim small num", (LEFT - 8.0, at + 4.0), Anchor::End, &tick_label(*mark, &marks));
    }
    let mut distinct = xs.clone();
    distinct.sort_by(f64::total_cmp);
    distinct.dedup();
    for value in &distinct {
        let at = x.at(log(*value));
        canvas.line("grid", [at, TOP, at, BOTTOM]);
        canvas.text("dim small num", (at, BOTTOM + 16.0), Anchor::Middle, &format!("{value}"));
    }
    canvas.line("axis", [LEFT, BOTTOM, RIGHT, BOTTOM]);
    canvas.text("dim small", ((LEFT + RIGHT) / 2.0, BOTTOM + 34.0), Anchor::Middle, &chart.x);
    canvas.text("dim small", (LEFT, TOP - 4.0), Anchor::Start, &chart.y);
    for (index, line) in chart.lines.iter().enumerate() {
        let class = CLASSES[index % CLASSES.len()];
        let dash = DASHES[(index / CLASSES.len()) % DASHES.len()];
        canvas.raw(format_args!("<g class=\"s-{class}\" fill=\"none\" stroke-dasharray=\"{dash}\">"));
        let path: Vec<(f64, f64)> = line.points.iter().map(|(at, v, _)| (x.at(log(*at)), y.at(*v))).collect();
        canvas.path("bar", &path, false);
        canvas.raw("</g>");
        for (at, value, interval) in &line.points {
            let px = x.at(log(*at));
            if let Some([low, top]) = interval.filter(|[low, top]| low.is_finite() && top.is_finite()) {
                canvas.line(&format!("s-{class}"), [px, y.at(low.max(0.0)), px, y.at(top.min(high))]);
            }
            let title = match interval {
                Some([low, high]) if low.is_finite() && high.is_finite() => {
                    format!("{}: {value:.1} ({low:.1} to {high:.1}) at {at}", line.name)
                }
                _ => format!("{}: {value:.1} at {at}", line.name),
            };
            canvas.circle(&format!("f-{class}"), (px, y.at(*value)), 3.5, Some(&title));
        }
        let row = TOP + 10.0 + 19.0 * index as f64;
        canvas.raw(format_args!("<g class=\"s-{class}\" stroke-dasharray=\"{dash}\">"));
        canvas.line("bar", [RIGHT + 20.0, row - 4.0, RIGHT + 52.0, row - 4.0]);
        canvas.raw("</g>");
        canvas.text("small", (RIGHT + 60.0, row), Anchor::Start, &short(&line.name, 40));
    }
    let height = (BOTTOM + 44.0).max(TOP + 24.0 + 19.0 * chart.lines.len() as f64);
    canvas.finish(height, &chart.label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_drawn_and_named() {
        let line = |name: &str| Line {
            name: name.into(),
            points: vec![
                (1.0, 5.0, None),
                (16.0, 9.0, Some([8.0, f64::INFINITY])),
                (2.0, 7.0, Some([6.0, 8.0])),
            ],
        };
        let lines: Vec<Line> = (0..12).map(|i| line(&format!("line <{i}>"))).collect();
        let chart = LineChart { label: "l".into(), x: "tenants".into(), y: "1/s".into(), lines };
        let svg = line_chart(&chart);
        assert_eq!(svg.matches("<circle").count(), 36);
        assert!(svg.contains("line &lt;11&gt;") && svg.contains("tenants") && !svg.contains("inf"), "{svg}");
        assert_eq!(line_chart(&LineChart::default()), "");
    }
}
