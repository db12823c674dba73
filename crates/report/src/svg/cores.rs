//! Where each task ran: tasks by CPUs, before and after side by side.

use super::{Anchor, Canvas, WIDTH, short};
use crate::demo::CoreMap;

const LEFT: f64 = 150.0;
const GAP: f64 = 40.0;

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
    for (side, (left, rows)) in [(LEFT, &map.before), (second, &map.after)].into_iter().enumerate() {
        canvas.text("head", (left, 16.0), Anchor::Start, &short(titles[side], 70));
        canvas.text("dim small", (left, 32.0), Anchor::Start, "CPU");
        for (column, cpu) in map.cpus.iter().enumerate().filter(|(column, _)| column.is_multiple_of(every)) {
            let x = left + cell * (column as f64 + 0.5);
            canvas.text("dim tiny num", (x, top - 6.0), Anchor::Middle, &cpu.to_string());
        }
        for (index, name) in tasks.iter().enumerate() {
            let y = top + row * index as f64;
            if side == 0 {
                canvas.text("small", (LEFT - 10.0, y + row / 2.0 + 4.0), Anchor::End, &short(name, 21));
            }
            for column in 0..map.cpus.len() {
                let share = rows.get(index).and_then(|row| row.get(column)).copied().flatten();
                let x = left + cell * column as f64;
                let gap = if cell > 12.0 { 1.0 } else { 0.4 };
                let area = [x, y, cell - gap, row - 1.0];
                let Some(share) = share else {
                    canvas.rect("unknown", area, Some(&format!("{name}: did not run, or not known")));
                    continue;
                };
                let v = (share / 100.0).clamp(0.0, 1.0);
                let title = format!("{name} on CPU {}: {share:.0} % of its time", map.cpus[column]);
                canvas.rect_styled("cell", &format!("--v:{v:.2}"), area, Some(&title));
                if cell >= 26.0 {
                    let class = if v > 0.55 { "tiny num on" } else { "tiny num" };
                    canvas.text(
                        class,
                        (x + cell / 2.0, y + row / 2.0 + 3.0),
                        Anchor::Middle,
                        &format!("{share:.0}"),
                    );
                }
            }
        }
    }
    let bottom = top + row * tasks.len() as f64;
    let y = bottom + 14.0;
    canvas.text("dim small", (LEFT, y + 10.0), Anchor::Start, "share of the task's own CPU time:");
    for step in 0..=10 {
        let v = f64::from(step) / 10.0;
        canvas.rect_styled(
            "cell",
            &format!("--v:{v}"),
            [LEFT + 200.0 + 16.0 * f64::from(step), y, 15.0, 12.0],
            None,
        );
    }
    canvas.text("dim small", (LEFT + 382.0, y + 10.0), Anchor::Start, "0 to 100 %");
    canvas.finish(bottom + 34.0, "Share of each task's CPU time on each CPU, before and after")
}
