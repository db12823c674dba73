//! Utilisation over time, with the stages as bands.

use super::canvas::{Anchor, Canvas, Cells, Scale, WIDTH, role_class, short, tick_label, ticks};
use crate::demo::{Moment, Role};

/// A stage on the time axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Band {
    pub name: String,
    pub role: Role,
    pub start_s: f64,
    pub seconds: f64,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Timeline<'a> {
    /// Utilisation, ascending in time.
    pub moments: &'a [Moment],
    /// Stages, ascending in time.
    pub bands: Vec<Band>,
    /// CPU wanted in all, percent of one CPU: a dashed line.
    pub wanted_pct: Option<f64>,
    /// Numbers of the CPUs, in the order of [`Moment::per_cpu_pct`]; 0, 1, ... when empty.
    pub cpus: Vec<u32>,
}

const LEFT: f64 = 64.0;
const RIGHT: f64 = WIDTH - 16.0;
/// Up to this many CPUs each have a curve of their own; more are rows of a heat map.
const MAX_CURVES: usize = 8;

/// Draws total utilisation above, each CPU's below, stages as labelled bands behind.
pub fn timeline(data: &Timeline<'_>) -> String {
    let mut canvas = Canvas::default();
    let end_of_bands = data.bands.iter().map(|b| b.start_s + b.seconds).fold(0.0, f64::max);
    let first =
        data.moments.first().map_or(0.0, |m| m.t_s).min(data.bands.first().map_or(0.0, |b| b.start_s));
    let last = data.moments.last().map_or(1.0, |m| m.t_s).max(end_of_bands);
    let x = Scale::new((first, last.max(first + 1e-6)), (LEFT, RIGHT));
    let cpus = data.moments.iter().map(|m| m.per_cpu_pct.len()).max().unwrap_or(0);
    let top = 100.0 * cpus.max(1) as f64;

    // Labels of bands: a name where it fits, else its number; the numbers are explained below the picture.
    let labels_y = 16.0;
    let total_top = 30.0;
    let total_bottom = total_top + 190.0;
    let per_cpu_top = total_bottom + 34.0;
    let row = if cpus <= MAX_CURVES { 46.0 } else { (420.0 / cpus as f64).clamp(5.0, 16.0) };
    let per_cpu_bottom = per_cpu_top + row * cpus as f64;
    let bottom = if cpus == 0 { total_bottom } else { per_cpu_bottom };

    let mut numbered = Vec::new();
    for (index, band) in data.bands.iter().enumerate() {
        let (from, to) = (x.at(band.start_s), x.at(band.start_s + band.seconds));
        let class = role_class(band.role);
        let title = format!("{}: {:.1} s to {:.1} s", band.name, band.start_s, band.start_s + band.seconds);
        canvas.rect(
            &format!("band f-{class}"),
            [from, total_top, to - from, bottom - total_top],
            Some(&title),
        );
        canvas.rect(&format!("f-{class}"), [from + 0.5, total_top - 5.0, to - from - 1.0, 4.0], Some(&title));
        let room = ((to - from) / 6.4) as usize;
        let middle = (from + to) / 2.0;
        if band.name.chars().count() <= room {
            canvas.text("small", (middle, labels_y), Anchor::Middle, &band.name);
        } else {
            let number = (index + 1).to_string();
            if number.len() <= room {
                canvas.text("small", (middle, labels_y), Anchor::Middle, &number);
            }
            numbered.push(format!("{number} {}", band.name));
        }
    }

    let y = Scale::new((0.0, top), (total_bottom, total_top));
    canvas.ticks_beside(&y, &ticks(0.0, top, 4), (LEFT, RIGHT));
    canvas.text("dim small", (LEFT - 8.0, total_top - 12.0), Anchor::End, "total %");
    let points: Vec<_> = data.moments.iter().map(|m| (x.at(m.t_s), y.at(m.total_pct))).collect();
    area(&mut canvas, &points, total_bottom);
    canvas.path("curve", &points, false);
    if let Some(wanted) = data.wanted_pct {
        canvas.line("wanted", [LEFT, y.at(wanted), RIGHT, y.at(wanted)]);
        canvas.text(
            "small halo",
            (RIGHT - 4.0, y.at(wanted) - 5.0),
            Anchor::End,
            &format!("wanted {wanted:.0} %"),
        );
    }
    canvas.line("axis", [LEFT, total_bottom, RIGHT, total_bottom]);

    if cpus > 0 {
        canvas.text(
            "dim small",
            (LEFT, per_cpu_top - 8.0),
            Anchor::Start,
            if cpus <= MAX_CURVES {
                "each CPU, 0 to 100 %"
            } else {
                "each CPU; the stronger the colour, the busier (0 to 100 %)"
            },
        );
    }
    let mut cells = Cells::new();
    for cpu in 0..cpus {
        let number = data.cpus.get(cpu).copied().unwrap_or(cpu as u32);
        let low = per_cpu_top + row * (cpu + 1) as f64;
        let label = || format!("CPU {number}");
        if cpus <= MAX_CURVES {
            let y = Scale::new((0.0, 100.0), (low - 2.0, low - row + 6.0));
            canvas.text("dim small", (LEFT - 8.0, low - row / 2.0 + 5.0), Anchor::End, &label());
            let points: Vec<_> = data
                .moments
                .iter()
                .filter_map(|m| Some((x.at(m.t_s), y.at(*m.per_cpu_pct.get(cpu)?))))
                .collect();
            area(&mut canvas, &points, low - 2.0);
            canvas.path("curve", &points, false);
            canvas.line("grid", [LEFT, low - 2.0, RIGHT, low - 2.0]);
        } else {
            let every = (11.0 / row).ceil() as usize;
            if cpu.is_multiple_of(every.max(1)) {
                canvas.text("dim tiny num", (LEFT - 8.0, low - row / 2.0 + 3.5), Anchor::End, &label());
            }
            heat_row(&mut cells, data.moments, cpu, &x, first, [low - row, row - 0.6]);
        }
    }

    cells.draw(&mut canvas);

    let marks = ticks(first, last, 12);
    for mark in &marks {
        canvas.line("axis", [x.at(*mark), bottom, x.at(*mark), bottom + 4.0]);
        canvas.text(
            "dim small num",
            (x.at(*mark), bottom + 17.0),
            Anchor::Middle,
            &tick_label(*mark, &marks),
        );
    }
    canvas.text("dim small", ((LEFT + RIGHT) / 2.0, bottom + 33.0), Anchor::Middle, "time, seconds");
    let mut height = bottom + 40.0;
    if !numbered.is_empty() {
        let mut column = 0.0;
        height += 14.0;
        for entry in &numbered {
            let entry = short(entry, 60);
            let width = entry.chars().count() as f64 * 6.4 + 18.0;
            if column > 0.0 && LEFT + column + width > RIGHT {
                column = 0.0;
                height += 15.0;
            }
            canvas.text("small dim", (LEFT + column, height), Anchor::Start, &entry);
            column += width;
        }
        height += 8.0;
    }
    canvas.finish(height, "Total and per-CPU utilisation over time, stages marked")
}

fn area(canvas: &mut Canvas, points: &[(f64, f64)], floor: f64) {
    if let (Some(first), Some(last)) = (points.first(), points.last()) {
        let mut outline = Vec::with_capacity(points.len() + 2);
        outline.push((first.0, floor));
        outline.extend_from_slice(points);
        outline.push((last.0, floor));
        canvas.path("area", &outline, true);
    }
}

/// One CPU as a row of cells; neighbours of the same shade are merged.
fn heat_row(cells: &mut Cells, moments: &[Moment], cpu: usize, x: &Scale, first: f64, [y, height]: [f64; 2]) {
    let mut from = first;
    let mut merged: Vec<(f64, f64, f64)> = Vec::new();
    for moment in moments {
        let share = moment.per_cpu_pct.get(cpu).map_or(0.0, |pct| pct / 100.0);
        match merged.last_mut() {
            Some((_, end, last)) if Cells::shade(*last) == Cells::shade(share) => *end = moment.t_s,
            _ => merged.push((from, moment.t_s, share)),
        }
        from = moment.t_s;
    }
    for (from, to, share) in merged {
        let (left, right) = (x.at(from), x.at(to));
        cells.add(share, [left, y, right - left, height]);
    }
}
