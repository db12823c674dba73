//! Charts of the laboratory's page, drawn as the other pictures are: many points become few elements.

use std::fmt::Write as _;

use evenkeel_base::run::Estimate;
use evenkeel_base::stats::median;
use evenkeel_experiment::study::stats::Summary;

use crate::svg::{Anchor, Canvas, Scale, WIDTH, short, short_within, tick_label, ticks};

/// Colours of series, after Okabe and Ito; two of each, for light and dark.
pub(crate) const STYLE: &str = "
:root{--k0:#0072b2;--k1:#d98200;--k2:#00795a;--k3:#b5578f;--k4:#4f9bcf;--k5:#b8430b;--k6:#7a828a;--k7:#8a6d00}
@media(prefers-color-scheme:dark){:root{--k0:#58b0e6;--k1:#f0a63a;--k2:#3fbf95;--k3:#dc8cbc;--k4:#8cc4ec;--k5:#f0803c;
--k6:#9aa4af;--k7:#d6b94a}}
.ek .k0{fill:var(--k0)}.ek .k1{fill:var(--k1)}.ek .k2{fill:var(--k2)}.ek .k3{fill:var(--k3)}.ek .k4{fill:var(--k4)}
.ek .k5{fill:var(--k5)}.ek .k6{fill:var(--k6)}.ek .k7{fill:var(--k7)}
.ek .s0{stroke:var(--k0)}.ek .s1{stroke:var(--k1)}.ek .s2{stroke:var(--k2)}.ek .s3{stroke:var(--k3)}
.ek .s4{stroke:var(--k4)}.ek .s5{stroke:var(--k5)}.ek .s6{stroke:var(--k6)}.ek .s7{stroke:var(--k7)}
.ek .dots{fill:none;stroke-width:4;stroke-linecap:round;stroke-opacity:.6}.ek .marks{fill:none;stroke-width:1.6}
.ek .thin{fill:none;stroke-width:1.4}.ek .window{fill:var(--k0);fill-opacity:.08}.ek .edge{stroke:var(--k0);stroke-dasharray:3 3}
.ek .ref{stroke:var(--dim);stroke-width:1.2;stroke-dasharray:5 4;fill:none}.ek .mid{stroke:var(--ink);stroke-width:2}
";

const COLOURS: usize = 8;
/// Points a picture may have; more are thinned out evenly.
const MOST_POINTS: usize = 6000;
const TOP: f64 = 12.0;
const RIGHT: f64 = WIDTH - 24.0;
const NAME: usize = 46; // characters of a name at the left
/// Width of an average character of 12 pixels.
const CHAR: f64 = 6.6;

fn left(names: impl IntoIterator<Item = usize>) -> f64 {
    let longest = names.into_iter().max().unwrap_or(0).min(NAME) as f64;
    (longest * CHAR + 18.0).max(74.0)
}

fn padded(low: f64, high: f64) -> (f64, f64) {
    let margin = if high > low { (high - low) * 0.03 } else { (high.abs() * 0.05).max(1e-6) };
    (low - margin, high + margin)
}

/// Whether an axis can hold a value: the ends of an axis, their margins and their difference must be finite as well.
fn can_be_drawn(value: f64) -> bool {
    value.abs() < f64::MAX / 1e8
}

fn extent(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values.into_iter().filter(|v| can_be_drawn(*v)) {
        low = low.min(value);
        high = high.max(value);
    }
    (low <= high).then_some((low, high))
}

/// Every n-th, so that at most `most` are left.
fn thin<T: Copy>(values: &[T], most: usize) -> Vec<T> {
    let step = values.len().div_ceil(most.max(1)).max(1);
    values.iter().copied().step_by(step).collect()
}

fn below(canvas: &mut Canvas, x: &Scale, range: (f64, f64), span: (f64, f64), label: &str, left: f64) {
    canvas.ticks_below(x, range, span);
    canvas.line("axis", [left, span.1, RIGHT, span.1]);
    canvas.text("dim small", ((left + RIGHT) / 2.0, span.1 + 33.0), Anchor::Middle, label);
}

fn beside(canvas: &mut Canvas, y: &Scale, range: (f64, f64), left: f64, label: &str) {
    let marks = ticks(range.0, range.1, 5);
    for mark in &marks {
        canvas.line("grid", [left, y.at(*mark), RIGHT, y.at(*mark)]);
        canvas.text(
            "dim small num",
            (left - 8.0, y.at(*mark) + 4.0),
            Anchor::End,
            &tick_label(*mark, &marks),
        );
    }
    canvas.text("dim small", (4.0, TOP - 1.0), Anchor::Start, label);
}

/// Names with their colours, and their forms where points have them, wrapped; gives the height used.
fn legend(canvas: &mut Canvas, names: &[(String, usize)], top: f64, left: f64, forms: bool) -> f64 {
    let (mut x, mut y) = (left, top);
    for (name, colour) in names {
        let name = short(name, 40);
        let width = name.chars().count() as f64 * CHAR + 30.0;
        if x > left && x + width > RIGHT {
            x = left;
            y += 17.0;
        }
        let form = if forms { *colour } else { 1 };
        canvas.mark(form, &format!("k{}", colour % COLOURS), (x + 5.0, y - 4.0), 5.0, None);
        canvas.text("small", (x + 15.0, y), Anchor::Start, &name);
        x += width;
    }
    y - top + 12.0
}

/// A row of marks on a time axis.
pub(crate) struct Track {
    pub name: String,
    /// Instants, seconds.
    pub at: Vec<f64>,
    /// The last end.
    pub end: Option<f64>,
}

/// When every run started, a row a tenant; the window in which all compete is shaded, a ring is the last end.
pub(crate) fn starts(tracks: &[Track], window: Option<[f64; 2]>) -> String {
    let mut canvas = Canvas::default();
    let row = (440.0 / tracks.len().max(1) as f64).clamp(9.0, 26.0);
    let l = left(tracks.iter().map(|t| t.name.chars().count()));
    let last = extent(tracks.iter().flat_map(|t| t.at.iter().copied().chain(t.end))).map_or(1.0, |e| e.1);
    let range = (0.0, last.max(1e-6));
    let x = Scale::new(range, (l, RIGHT));
    let top = TOP + 12.0;
    let bottom = top + row * tracks.len() as f64;
    if let Some([from, to]) = window {
        let title = format!("all compete from {from:.2} s to {to:.2} s");
        canvas.rect("window", [x.at(from), top, x.at(to) - x.at(from), bottom - top], Some(&title));
        for at in [from, to] {
            canvas.line("edge", [x.at(at), top, x.at(at), bottom]);
        }
        canvas.text("small dim", ((x.at(from) + x.at(to)) / 2.0, top - 5.0), Anchor::Middle, "all compete");
    }
    below(&mut canvas, &x, range, (top, bottom), "start of a run, seconds from the release", l);
    let room = MOST_POINTS / tracks.len().max(1);
    for (index, track) in tracks.iter().enumerate() {
        let y = top + row * (index as f64 + 0.5);
        canvas.text("small", (l - 8.0, y + 4.0), Anchor::End, &short_within(&track.name, NAME));
        let mut d = String::new();
        for at in thin(&track.at, room) {
            let _ = write!(d, "M{:.1} {:.1}v{:.1}", x.at(at), y - row * 0.32, row * 0.64);
        }
        canvas.raw(format_args!("<path class=\"marks s{}\" d=\"{d}\"/>", index % COLOURS));
        if let Some(end) = track.end {
            canvas.circle(
                &format!("thin s{}", index % COLOURS),
                (x.at(end), y),
                3.0,
                Some(&format!("{} ends at {end:.2} s", track.name)),
            );
        }
    }
    canvas.finish(bottom + 40.0, "Start of every run by tenant")
}

/// Points of one name.
pub(crate) struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Points over two linear axes; `lines` joins them.
pub(crate) fn points(series: &[Series], x_label: &str, y_label: &str, lines: bool) -> String {
    let mut canvas = Canvas::default();
    let all = || series.iter().flat_map(|s| s.points.iter());
    let (Some(xs), Some(ys)) = (extent(all().map(|p| p.0)), extent(all().map(|p| p.1))) else {
        return String::new();
    };
    let l = 74.0;
    let (xr, yr) = (padded(xs.0, xs.1), padded(ys.0, ys.1));
    let (top, bottom) = (TOP + 14.0, TOP + 266.0);
    let (x, y) = (Scale::new(xr, (l, RIGHT)), Scale::new(yr, (bottom, top)));
    beside(&mut canvas, &y, yr, l, y_label);
    below(&mut canvas, &x, xr, (top, bottom), x_label, l);
    let room = MOST_POINTS / series.len().max(1);
    for (index, s) in series.iter().enumerate() {
        let mut d = String::new();
        for (n, (px, py)) in thin(&s.points, room).into_iter().enumerate() {
            let (px, py) = (x.at(px), y.at(py));
            let _ = match (lines, n) {
                (true, 0) => write!(d, "M{px:.1} {py:.1}"),
                (true, _) => write!(d, "L{px:.1} {py:.1}"),
                (false, _) => write!(d, "M{px:.1} {py:.1}h0"),
            };
        }
        let class = if lines { "thin" } else { "dots" };
        canvas.raw(format_args!(
            "<path class=\"{class} s{}\" d=\"{d}\"><title>{}</title></path>",
            index % COLOURS,
            crate::svg::escape(&s.name)
        ));
    }
    let names: Vec<_> = series.iter().enumerate().map(|(i, s)| (s.name.clone(), i)).collect();
    let used = if names.len() > 1 { legend(&mut canvas, &names, bottom + 52.0, l, false) } else { 0.0 };
    canvas.finish(bottom + 48.0 + used, &format!("{y_label} over {x_label}"))
}

/// Distributions below each other on one axis.
pub(crate) fn histograms(groups: &[(String, Vec<f64>)], x_label: &str) -> String {
    let Some((low, high)) = extent(groups.iter().flat_map(|(_, v)| v.iter().copied())) else {
        return String::new();
    };
    let mut canvas = Canvas::default();
    let l = left(groups.iter().map(|(name, _)| name.chars().count()));
    let most = groups.iter().map(|(_, v)| v.len()).max().unwrap_or(1);
    // About the square root of the number of values, as many bars as can be told apart.
    let bins = ((2.0 * (most as f64).sqrt()) as usize).clamp(8, 80);
    let range = padded(low, high);
    let x = Scale::new(range, (l, RIGHT));
    let row = (520.0 / groups.len().max(1) as f64).clamp(34.0, 96.0);
    let top = TOP + 6.0;
    let bottom = top + row * groups.len() as f64;
    below(&mut canvas, &x, range, (top, bottom), x_label, l);
    let width = (range.1 - range.0) / bins as f64;
    for (index, (name, values)) in groups.iter().enumerate() {
        let floor = top + row * (index + 1) as f64;
        let mut counts = vec![0usize; bins];
        for value in values.iter().filter(|v| can_be_drawn(**v)) {
            let bin = ((value - range.0) / width) as usize;
            counts[bin.min(bins - 1)] += 1;
        }
        let highest = counts.iter().copied().max().unwrap_or(1).max(1);
        let y = Scale::new((0.0, highest as f64), (floor, floor - row + 12.0));
        for (bin, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let from = x.at(range.0 + width * bin as f64);
            let to = x.at(range.0 + width * (bin + 1) as f64);
            let title = format!(
                "{name}: {count} of {} runs from {:.4} to {:.4}",
                values.len(),
                range.0 + width * bin as f64,
                range.0 + width * (bin + 1) as f64
            );
            let at = y.at(*count as f64);
            let class = format!("k{}", index % COLOURS);
            canvas.rect(&class, [from + 0.4, at, (to - from - 0.8).max(0.8), floor - at], Some(&title));
        }
        canvas.line("axis", [l, floor, RIGHT, floor]);
        canvas.text("small", (l - 8.0, floor - row / 2.0 + 6.0), Anchor::End, &short_within(name, NAME));
        canvas.text(
            "dim tiny num",
            (RIGHT, floor - row + 14.0),
            Anchor::End,
            &format!("highest bar {highest} of {}", values.len()),
        );
    }
    canvas.finish(bottom + 40.0, &format!("Distribution of {x_label}"))
}

/// Box plots below each other: box from the 25th to the 75th percentile, line at the median, whiskers at the 5th and
/// the 95th, dots at least and greatest.
pub(crate) fn boxes(rows: &[(String, Summary)], x_label: &str) -> String {
    let Some((low, high)) = extent(rows.iter().flat_map(|(_, s)| [s.min, s.max])) else {
        return String::new();
    };
    let mut canvas = Canvas::default();
    let l = left(rows.iter().map(|(name, _)| name.chars().count()));
    let range = padded(low, high);
    let x = Scale::new(range, (l, RIGHT));
    let row = (560.0 / rows.len().max(1) as f64).clamp(14.0, 30.0);
    let top = TOP;
    let bottom = top + row * rows.len() as f64;
    below(&mut canvas, &x, range, (top, bottom), x_label, l);
    for (index, (name, s)) in rows.iter().enumerate() {
        let y = top + row * (index as f64 + 0.5);
        let half = row * 0.3;
        let title = format!(
            "{name}: {} runs, median {:.4}, mean {:.4}, middle half {:.4} to {:.4}, 5 % to 95 % {:.4} to {:.4}, all {:.4} to {:.4}",
            s.n, s.median, s.mean, s.p25, s.p75, s.p5, s.p95, s.min, s.max
        );
        canvas.line("axis", [x.at(s.p5), y, x.at(s.p95), y]);
        for at in [s.p5, s.p95] {
            canvas.line("axis", [x.at(at), y - half * 0.6, x.at(at), y + half * 0.6]);
        }
        canvas.rect(
            "k4",
            [x.at(s.p25), y - half, (x.at(s.p75) - x.at(s.p25)).max(1.0), 2.0 * half],
            Some(&title),
        );
        canvas.line("mid", [x.at(s.median), y - half, x.at(s.median), y + half]);
        for at in [s.min, s.max] {
            canvas.circle("k6", (x.at(at), y), 2.0, Some(&title));
        }
        canvas.text("small", (l - 8.0, y + 4.0), Anchor::End, &short_within(name, NAME));
    }
    canvas.finish(bottom + 40.0, &format!("{x_label}, box plots"))
}

/// One bar of parts, and what they stand against (a line).
pub(crate) struct Bar {
    pub name: String,
    pub parts: Vec<f64>,
    pub against: Option<f64>,
}

/// Stacked bars below each other.
pub(crate) fn bars(rows: &[Bar], parts: &[&str], against: &str, x_label: &str) -> String {
    let mut canvas = Canvas::default();
    let sums = rows.iter().map(|r| r.parts.iter().sum::<f64>());
    let Some((_, high)) = extent(sums.chain(rows.iter().filter_map(|r| r.against))) else {
        return String::new();
    };
    let l = left(rows.iter().map(|r| r.name.chars().count()));
    let range = (0.0, high.max(1e-9) * 1.02);
    let x = Scale::new(range, (l, RIGHT));
    let row = (560.0 / rows.len().max(1) as f64).clamp(13.0, 28.0);
    let bottom = TOP + row * rows.len() as f64;
    below(&mut canvas, &x, range, (TOP, bottom), x_label, l);
    for (index, bar) in rows.iter().enumerate() {
        let y = TOP + row * index as f64 + row * 0.15;
        let mut from = 0.0;
        for (part, value) in bar.parts.iter().enumerate().filter(|(_, v)| **v > 0.0) {
            let title = format!("{}: {} {value:.4} s", bar.name, parts.get(part).unwrap_or(&""));
            let class = format!("k{}", part % COLOURS);
            canvas.rect(&class, [x.at(from), y, x.at(from + value) - x.at(from), row * 0.7], Some(&title));
            from += value;
        }
        if let Some(value) = bar.against {
            canvas.line("mid", [x.at(value), y - 1.0, x.at(value), y + row * 0.7 + 1.0]);
        }
        canvas.text("small", (l - 8.0, y + row * 0.35 + 4.0), Anchor::End, &short_within(&bar.name, NAME));
    }
    let names: Vec<_> = parts.iter().enumerate().map(|(i, p)| ((*p).to_owned(), i)).collect();
    let used = legend(&mut canvas, &names, bottom + 54.0, l, false);
    if rows.iter().any(|r| r.against.is_some()) {
        let y = bottom + 54.0;
        canvas.line("mid", [RIGHT - 130.0, y - 10.0, RIGHT - 130.0, y + 2.0]);
        canvas.text("small", (RIGHT - 122.0, y), Anchor::Start, against);
    }
    canvas.finish(bottom + 48.0 + used, x_label)
}

/// Values with intervals, a row each, one mark a series.
pub(crate) fn marks(rows: &[(String, Vec<Option<Estimate>>)], names: &[&str], x_label: &str) -> String {
    let every = || rows.iter().flat_map(|(_, v)| v.iter().flatten());
    let Some((low, high)) = extent(every().flat_map(|e| [e.low, e.value, e.high])) else {
        return String::new();
    };
    let mut canvas = Canvas::default();
    let l = left(rows.iter().map(|(name, _)| name.chars().count()));
    // Amounts are read from 0, unless that would hide the differences.
    let low = if low > 0.0 && low < 0.7 * high { 0.0 } else { low };
    let range = padded(low, high);
    let range = (if low == 0.0 { 0.0 } else { range.0 }, range.1);
    let x = Scale::new(range, (l, RIGHT));
    let row = (560.0 / rows.len().max(1) as f64).clamp(14.0, 30.0);
    let bottom = TOP + row * rows.len() as f64;
    below(&mut canvas, &x, range, (TOP, bottom), x_label, l);
    for (index, (name, values)) in rows.iter().enumerate() {
        let y = TOP + row * (index as f64 + 0.5);
        canvas.text("small", (l - 8.0, y + 4.0), Anchor::End, &short_within(name, NAME));
        let lanes = values.len().max(1) as f64;
        for (lane, e) in values.iter().enumerate() {
            let Some(e) = e else { continue };
            let y = y + (lane as f64 - (lanes - 1.0) / 2.0) * (row * 0.6 / lanes);
            let colour = lane % COLOURS;
            if e.low < e.high {
                canvas.line(&format!("thin s{colour}"), [x.at(e.low), y, x.at(e.high), y]);
            }
            let title = format!("{name}, {}: {}", names.get(lane).unwrap_or(&""), e.in_words(4));
            canvas.mark(lane, &format!("k{colour}"), (x.at(e.value), y), 4.0, Some(&title));
        }
    }
    let mut used = 0.0;
    if names.len() > 1 {
        let entries: Vec<_> = names.iter().enumerate().map(|(i, n)| ((*n).to_owned(), i)).collect();
        used = legend(&mut canvas, &entries, bottom + 54.0, l, true);
    }
    canvas.finish(bottom + 48.0 + used, x_label)
}

/// A rate at a number of units.
pub(crate) struct ByUnits {
    pub name: String,
    pub points: Vec<(u64, Estimate)>,
}

/// Rates by units, both axes in doublings; the dashed line is proportion through the middle of all points.
pub(crate) fn by_units(series: &[ByUnits], y_label: &str) -> String {
    let all = || {
        series
            .iter()
            .flat_map(|s| s.points.iter())
            .filter(|(units, rate)| *units > 0 && rate.value > 0.0)
            .map(|(units, rate)| ((*units as f64).log2(), rate.value.log2()))
    };
    let (Some(xs), Some(ys)) = (extent(all().map(|p| p.0)), extent(all().map(|p| p.1))) else {
        return String::new();
    };
    let mut canvas = Canvas::default();
    let l = 74.0;
    let (xr, yr) = ((xs.0 - 0.4, xs.1 + 0.4), ((ys.0 - 0.4).floor(), (ys.1 + 0.4).ceil()));
    let (top, bottom) = (TOP + 16.0, TOP + 300.0);
    let (x, y) = (Scale::new(xr, (l, RIGHT)), Scale::new(yr, (bottom, top)));
    let doublings = |(low, high): (f64, f64)| {
        let (low, high) = (low.ceil() as i32, high.floor() as i32);
        let step = ((high - low) / 12 + 1).max(1);
        (low..=high).step_by(step as usize).collect::<Vec<i32>>()
    };
    let number = |exponent: i32| {
        let value = 2f64.powi(exponent);
        if value >= 1.0 { format!("{value:.0}") } else { format!("{value}") }
    };
    for exponent in doublings(yr) {
        let at = y.at(f64::from(exponent));
        canvas.line("grid", [l, at, RIGHT, at]);
        canvas.text("dim small num", (l - 8.0, at + 4.0), Anchor::End, &number(exponent));
    }
    for exponent in doublings(xr) {
        let at = x.at(f64::from(exponent));
        canvas.line("grid", [at, top, at, bottom]);
        canvas.text("dim small num", (at, bottom + 16.0), Anchor::Middle, &number(exponent));
    }
    canvas.line("axis", [l, bottom, RIGHT, bottom]);
    canvas.text("dim small", ((l + RIGHT) / 2.0, bottom + 33.0), Anchor::Middle, "units (each mark doubles)");
    canvas.text("dim small", (4.0, TOP - 1.0), Anchor::Start, y_label);
    for (index, s) in series.iter().enumerate() {
        let colour = index % COLOURS;
        let here: Vec<_> = s
            .points
            .iter()
            .filter(|(units, rate)| *units > 0 && rate.value > 0.0)
            .map(|(units, rate)| ((*units as f64).log2(), rate))
            .collect();
        let middle = median(here.iter().map(|(u, r)| r.value.log2() - u));
        if let (Some(offset), true) = (middle, here.len() > 1) {
            let line = |at: f64| (x.at(at), y.at((at + offset).clamp(yr.0, yr.1)));
            // Only the part inside the frame.
            let (from, to) = (xr.0.max(yr.0 - offset), xr.1.min(yr.1 - offset));
            if from < to {
                canvas.path("ref", &[line(from), line(to)], false);
            }
        }
        for (units, rate) in here {
            let at = x.at(units);
            if rate.low > 0.0 && rate.low < rate.high {
                canvas.line(
                    &format!("thin s{colour}"),
                    [at, y.at(rate.low.log2()), at, y.at(rate.high.log2())],
                );
            }
            let title = format!("{}: {:.0} units, {}", s.name, 2f64.powf(units), rate.in_words(1));
            canvas.mark(index, &format!("k{colour}"), (at, y.at(rate.value.log2())), 4.5, Some(&title));
        }
    }
    let names: Vec<_> = series.iter().enumerate().map(|(i, s)| (s.name.clone(), i)).collect();
    let used = if names.len() > 1 { legend(&mut canvas, &names, bottom + 54.0, l, true) } else { 0.0 };
    canvas.finish(bottom + 48.0 + used, &format!("{y_label} by units"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_is_no_picture_and_one_value_is_one() {
        assert_eq!(histograms(&[("a".into(), vec![])], "s"), "");
        assert_eq!(points(&[], "x", "y", false), "");
        assert_eq!(by_units(&[ByUnits { name: "a".into(), points: vec![] }], "y"), "");
        assert!(histograms(&[("a".into(), vec![1.0])], "s").contains("<rect"));
    }

    #[test]
    fn thousands_of_points_stay_small() {
        let many = Series {
            name: "a".into(),
            points: (0..200_000).map(|n| (f64::from(n), f64::from(n % 97))).collect(),
        };
        assert!(points(&[many], "x", "y", false).len() < 150_000);
        let track = Track { name: "a".into(), at: (0..200_000).map(f64::from).collect(), end: None };
        assert!(starts(&[track], None).len() < 200_000);
    }

    proptest! {
        #[test]
        fn no_values_make_them_panic_or_say_nan(values in proptest::collection::vec(any::<f64>(), 0..20), name in "\\PC{0,8}") {
            let e = |v: f64| Estimate { value: v, low: v - 1.0, high: v + 1.0 };
            let pictures = [
                histograms(&[(name.clone(), values.clone())], "x"),
                points(&[Series { name: name.clone(), points: values.iter().map(|v| (*v, *v)).collect() }], "x", "y", true),
                marks(&[(name.clone(), values.iter().map(|v| Some(e(*v))).collect())], &["a"], "x"),
                by_units(&[ByUnits { name: name.clone(), points: values.iter().map(|v| (v.abs() as u64, e(*v))).collect() }], "y"),
                starts(&[Track { name: name.clone(), at: values.clone(), end: values.first().copied() }], None),
                bars(&[Bar { name, parts: values, against: None }], &["a"], "b", "x"),
            ];
            for picture in pictures {
                prop_assert!(!picture.contains("NaN") && !picture.contains("inf\""), "{picture}");
            }
        }
    }
}
