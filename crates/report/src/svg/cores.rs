//! Where each task ran: tasks by CPUs, before and after side by side.

use super::canvas::{Anchor, Canvas, Cells, WIDTH, ink_on, short};
use crate::demo::CoreMap;

const LEFT: f64 = 150.0;
const GAP: f64 = 40.0;
/// Cells at least this wide carry their number.
const NUMBERED: f64 = 26.0;

/// Draws two maps, each row's shades the shares of that task's own CPU time; `titles` head them.
pub fn core_map(map: &CoreMap, tasks: &[String], titles: [&str; 2]) -> String {
    let mut canvas = Canvas::default();
    let cpus = map.cpus.len().max(1);
    let each = (WIDTH - LEFT - GAP - 10.0) / 2.0;
    let cell = (each / cpus as f64).min(64.0);
    let row = if tasks.len() <= 20 { 22.0 } else { 14.0 };
    let top = 52.0;
    // CPU numbers are thinned where columns are narrow.
    let every = (20.0 / cell).ceil().max(1.0) as usize;
    let second = LEFT + (cell * cpus as f64).max(260.0).min(each) + GAP;
    let sides = [(LEFT, &map.before, titles[0]), (second, &map.after, titles[1])];
    let mut cells = Cells::new();
    for (left, rows, title) in sides {
        canvas.text("head", (left, 16.0), Anchor::Start, &short(title, 70));
        canvas.text("dim small", (left, 32.0), Anchor::Start, "CPU");
        for (column, cpu) in map.cpus.iter().enumerate().filter(|(column, _)| column.is_multiple_of(every)) {
            let x = left + cell * (column as f64 + 0.5);
            canvas.text("dim tiny num", (x, top - 6.0), Anchor::Middle, &cpu.to_string());
        }
        for index in 0..tasks.len() {
            let y = top + row * index as f64;
            for column in 0..map.cpus.len() {
                let gap = if cell > 12.0 { 1.0 } else { 0.4 };
                let area = [left + cell * column as f64, y, cell - gap, row - 1.0];
                match share(rows, index, column) {
                    Some(share) => cells.add(share / 100.0, area),
                    None => canvas.rect("unknown", area, None),
                }
            }
        }
    }
    cells.draw(&mut canvas);
    for (side, (left, rows, _)) in sides.into_iter().enumerate() {
        for (index, name) in tasks.iter().enumerate() {
            let y = top + row * index as f64;
            if side == 0 {
                canvas.text("small", (LEFT - 10.0, y + row / 2.0 + 4.0), Anchor::End, &short(name, 21));
            }
            for column in (0..map.cpus.len()).filter(|_| cell >= NUMBERED) {
                let Some(share) = share(rows, index, column) else { continue };
                let class = format!("tiny num {}", ink_on(Cells::shown(share / 100.0)));
                let at = (left + cell * (column as f64 + 0.5), y + row / 2.0 + 3.0);
                canvas.text(&class, at, Anchor::Middle, &format!("{share:.0}"));
            }
            // One tooltip a row: where the task mostly was.
            let most = (0..map.cpus.len())
                .filter_map(|column| Some((column, share(rows, index, column)?)))
                .max_by(|a, b| a.1.total_cmp(&b.1));
            let title = match most {
                Some((column, share)) => {
                    format!("{name}: {share:.0} % of its time on CPU {}", map.cpus[column])
                }
                None => format!("{name}: did not run, or not known"),
            };
            canvas.rect("clear", [left, y, cell * cpus as f64, row], Some(&title));
        }
    }
    let bottom = top + row * tasks.len() as f64;
    let y = bottom + 14.0;
    canvas.text("dim small", (LEFT, y + 10.0), Anchor::Start, "share of the task's own CPU time:");
    let mut legend = Cells::new();
    for step in 0..=10 {
        legend.add(f64::from(step) / 10.0, [LEFT + 200.0 + 16.0 * f64::from(step), y, 15.0, 12.0]);
    }
    legend.draw(&mut canvas);
    canvas.text("dim small", (LEFT + 382.0, y + 10.0), Anchor::Start, "0 to 100 %");
    canvas.finish(bottom + 34.0, "Share of each task's CPU time on each CPU, before and after")
}

fn share(rows: &[Vec<Option<f64>>], task: usize, cpu: usize) -> Option<f64> {
    rows.get(task)?.get(cpu).copied().flatten()
}
