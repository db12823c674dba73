//! Lines with intervals over a number that doubles (tenants), or over any (load): one picture a figure.

use evenkeel_base::text::bracketed;

use super::canvas::{Anchor, Canvas, Scale, WIDTH, role_class, short_within, tick_label, ticks};
use crate::demo::Role;
use crate::significant;

/// A picture of several lines.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LineChart {
    /// What is drawn, for those who cannot see it.
    pub label: String,
    pub x: String,
    /// Name and unit of the vertical axis.
    pub y: String,
    /// What the horizontal axis is like.
    pub across: Across,
    pub lines: Vec<Line>,
}

/// A horizontal axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Across {
    /// Logarithmic, with a mark for each number that occurs.
    #[default]
    Doubling,
    /// From 0, with round marks. Lines share their places there, so their points stand a little apart.
    Linear,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Line {
    pub name: String,
    /// Where, value, and interval if known.
    pub points: Vec<(f64, f64, Option<[f64; 2]>)>,
    /// Whose colour it has; the next in turn unless given.
    pub role: Option<Role>,
}

/// Colours and dashes, in turn: twenty lines can be told apart.
const CLASSES: [&str; 5] = ["final", "recipe", "ceiling", "default", "trial"];
const DASHES: [&str; 4] = ["", "7 4", "2 3", "9 3 2 3"];
const TOP: f64 = 16.0;
const BOTTOM: f64 = 268.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = WIDTH - 300.0;
/// How far points of neighbouring lines stand apart on a linear axis, pixels.
const APART: f64 = 4.0;

/// Draws it. The vertical axis starts at 0. Empty text without a point.
pub fn line_chart(chart: &LineChart) -> String {
    let points = || chart.lines.iter().flat_map(|line| &line.points);
    let linear = chart.across == Across::Linear;
    let xs: Vec<f64> = points().map(|(x, ..)| *x).filter(|x| *x > 0.0 || linear && *x == 0.0).collect();
    if xs.is_empty() {
        return String::new();
    }
    // An interval may be far wider than what it is of: it does not set the scale beyond twice the largest value.
    let largest = points().map(|(_, y, _)| *y).filter(|y| y.is_finite()).fold(0.0, f64::max);
    let reach =
        points().filter_map(|(.., interval)| interval.map(|[_, high]| high)).filter(|y| y.is_finite());
    let high = reach.fold(largest, f64::max).min(2.0 * largest).max(1e-9) * 1.05;
    let place = |x: f64| if linear { x } else { x.max(1e-9).log2() };
    let ends = |(low, high): (f64, f64), x: &f64| (low.min(place(*x)), high.max(place(*x)));
    let span = xs.iter().fold((f64::INFINITY, f64::NEG_INFINITY), ends);
    let span = if linear { (0.0, span.1.max(1e-9) * 1.04) } else { (span.0 - 0.15, span.1 + 0.15) };
    let x = Scale::new(span, (LEFT, RIGHT));
    let y = Scale::new((0.0, high), (BOTTOM, TOP));
    let mut canvas = Canvas::default();
    canvas.ticks_beside(&y, &ticks(0.0, high, 6), (LEFT, RIGHT));
    let marks = if linear {
        ticks(0.0, span.1, 8)
    } else {
        let mut distinct = xs.clone();
        distinct.sort_by(f64::total_cmp);
        distinct.dedup();
        distinct
    };
    for value in &marks {
        let at = x.at(place(*value));
        canvas.line("grid", [at, TOP, at, BOTTOM]);
        let label = if linear { tick_label(*value, &marks) } else { format!("{value}") };
        canvas.text("dim small num", (at, BOTTOM + 16.0), Anchor::Middle, &label);
    }
    canvas.line("axis", [LEFT, BOTTOM, RIGHT, BOTTOM]);
    canvas.text("dim small", ((LEFT + RIGHT) / 2.0, BOTTOM + 34.0), Anchor::Middle, &chart.x);
    canvas.text("dim small", (LEFT, TOP - 4.0), Anchor::Start, &chart.y);
    for (index, line) in chart.lines.iter().enumerate() {
        let class = class_of(index, line);
        let before = chart.lines.iter().enumerate().take(index);
        let alike = before.filter(|(index, line)| class_of(*index, line) == class).count();
        let dash = DASHES[alike % DASHES.len()];
        let apart =
            if linear { (index as f64 - (chart.lines.len() as f64 - 1.0) / 2.0) * APART } else { 0.0 };
        canvas.raw(format_args!("<g class=\"s-{class}\" fill=\"none\" stroke-dasharray=\"{dash}\">"));
        let path: Vec<(f64, f64)> =
            line.points.iter().map(|(at, v, _)| (x.at(place(*at)) + apart, y.at(*v))).collect();
        canvas.path("bar", &path, false);
        canvas.raw("</g>");
        for (at, value, interval) in &line.points {
            let px = x.at(place(*at)) + apart;
            if let Some([low, top]) = interval.filter(|[low, top]| low.is_finite() && top.is_finite()) {
                canvas.line(&format!("s-{class}"), [px, y.at(low.max(0.0)), px, y.at(top.min(high))]);
            }
            let title = match interval {
                Some([low, high]) if low.is_finite() && high.is_finite() => {
                    let [value, low, high] = [*value, *low, *high].map(significant);
                    format!("{}: {value} {} at {at}", line.name, bracketed(low, high))
                }
                _ => format!("{}: {} at {at}", line.name, significant(*value)),
            };
            canvas.circle(&format!("f-{class}"), (px, y.at(*value)), 3.5, Some(&title));
        }
        let row = TOP + 10.0 + 19.0 * index as f64;
        canvas.raw(format_args!("<g class=\"s-{class}\" stroke-dasharray=\"{dash}\">"));
        canvas.line("bar", [RIGHT + 20.0, row - 4.0, RIGHT + 52.0, row - 4.0]);
        canvas.raw("</g>");
        canvas.text("small", (RIGHT + 60.0, row), Anchor::Start, &short_within(&line.name, 40));
    }
    let height = (BOTTOM + 44.0).max(TOP + 24.0 + 19.0 * chart.lines.len() as f64);
    canvas.finish(height, &chart.label)
}

fn class_of(index: usize, line: &Line) -> &'static str {
    line.role.map_or(CLASSES[index % CLASSES.len()], role_class)
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
            role: None,
        };
        let lines: Vec<Line> = (0..12).map(|i| line(&format!("line <{i}>"))).collect();
        let chart = LineChart {
            label: "l".into(),
            x: "tenants".into(),
            y: "1/s".into(),
            lines,
            ..LineChart::default()
        };
        let svg = line_chart(&chart);
        assert_eq!(svg.matches("<circle").count(), 36);
        assert!(svg.contains("line &lt;11&gt;") && svg.contains("tenants") && !svg.contains("inf"), "{svg}");
        assert_eq!(line_chart(&LineChart::default()), "");
        // What tells long names apart is their end.
        let long = line("cgroup, 1 thread, equal weights, all CPUs");
        let svg = line_chart(&LineChart { lines: vec![long], ..LineChart::default() });
        assert!(svg.contains("ts, all CPUs</text>"), "{svg}");
    }

    #[test]
    fn a_linear_axis_begins_at_0_and_lines_of_one_colour_differ() {
        let line = |name: &str, role| Line {
            name: name.into(),
            points: vec![(0.0, 1.0, None), (210.0, 2.0, None)],
            role,
        };
        let lines =
            vec![line("a", Some(Role::Final)), line("b", Some(Role::Default)), line("c", Some(Role::Final))];
        let across = Across::Linear;
        let chart = LineChart { label: "l".into(), x: "load, %".into(), y: "us".into(), across, lines };
        let svg = line_chart(&chart);
        assert_eq!(svg.matches("<circle").count(), 6);
        for mark in [">0<", ">50<", ">200<"] {
            assert!(svg.contains(mark), "{mark}: {svg}");
        }
        let dashed = |class: &str, dash: &str| {
            svg.matches(&format!("s-{class}\" fill=\"none\" stroke-dasharray=\"{dash}\"")).count()
        };
        assert_eq!((dashed("final", ""), dashed("final", "7 4"), dashed("default", "")), (1, 1, 1), "{svg}");
    }
}
