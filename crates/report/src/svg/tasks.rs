//! What each task wanted and got in each stage.

use super::canvas::{Anchor, Canvas, Scale, WIDTH, role_class, short};
use crate::demo::Role;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct TaskBars {
    /// Stages, the bars of each task: name and colour.
    pub stages: Vec<(String, Role)>,
    /// Tasks: name, wanted percent (`None` where it is not known), got percent in each stage.
    pub tasks: Vec<(String, Option<f64>, Vec<Option<f64>>)>,
}

const LEFT: f64 = 170.0;
const RIGHT: f64 = WIDTH - 190.0;

/// Draws, for each task, what it wanted as a pale trough and what it got in each stage as bars within.
pub fn task_bars(data: &TaskBars) -> String {
    let mut canvas = Canvas::default();
    let bars = data.stages.len().max(1) as f64;
    let bar = if data.tasks.len() <= 16 { 7.0 } else { 4.0 };
    let row = bars * (bar + 1.0) + if data.tasks.len() <= 16 { 9.0 } else { 5.0 };
    let most = data
        .tasks
        .iter()
        .flat_map(|(_, wanted, got)| wanted.iter().chain(got.iter().flatten()))
        .copied()
        .fold(1.0, f64::max);
    let x = Scale::new((0.0, most), (LEFT, RIGHT));

    let mut legend = LEFT;
    let any_wanted = data.tasks.iter().any(|(_, wanted, _)| wanted.is_some());
    if any_wanted {
        canvas.rect("trough", [legend, 6.0, 22.0, 10.0], None);
        canvas.text("small", (legend + 28.0, 15.0), Anchor::Start, "wanted");
        legend += 90.0;
    }
    for (name, role) in &data.stages {
        canvas.rect(&format!("f-{}", role_class(*role)), [legend, 6.0, 22.0, 10.0], None);
        let name = short(name, 34);
        canvas.text("small", (legend + 28.0, 15.0), Anchor::Start, &name);
        legend += 50.0 + name.chars().count() as f64 * 6.4;
    }

    let top = 30.0;
    let bottom = top + row * data.tasks.len() as f64;
    if any_wanted {
        canvas.text("dim small", (RIGHT + 12.0, top - 5.0), Anchor::Start, "got / wanted, first and last");
    }
    canvas.ticks_below(&x, (0.0, most), (top, bottom));
    for (index, (name, wanted, got)) in data.tasks.iter().enumerate() {
        let y = top + row * index as f64 + 2.0;
        let height = row - 4.0;
        let middle = y + height / 2.0 + 4.0;
        canvas.text("small", (LEFT - 10.0, middle), Anchor::End, &short(name, 24));
        if let Some(wanted) = wanted {
            let title = format!("{name}: wanted {wanted:.1} %");
            canvas.rect("trough", [LEFT, y, x.at(*wanted) - LEFT, height], Some(&title));
        }
        for (stage, (label, role)) in data.stages.iter().enumerate() {
            let Some(Some(pct)) = got.get(stage) else { continue };
            let y = y + (height - bars * (bar + 1.0)) / 2.0 + stage as f64 * (bar + 1.0);
            let title = format!("{name}, {label}: {pct:.1} %");
            canvas.rect(&format!("f-{}", role_class(*role)), [LEFT, y, x.at(*pct) - LEFT, bar], Some(&title));
        }
        if let Some(wanted) = wanted {
            canvas.line("axis", [x.at(*wanted), y - 1.0, x.at(*wanted), y + height + 1.0]);
            if *wanted > 0.0 {
                let share = |pct: Option<Option<f64>>| {
                    pct.flatten().map_or_else(|| "?".to_owned(), |pct| format!("{:.3}", pct / wanted))
                };
                let text = format!(
                    "{} → {}",
                    share(got.first().copied()),
                    share(got.get(data.stages.len().saturating_sub(1)).copied())
                );
                canvas.text("small num", (RIGHT + 12.0, middle), Anchor::Start, &text);
            }
        }
    }
    canvas.line("axis", [LEFT, bottom, RIGHT, bottom]);
    canvas.text(
        "dim small",
        ((LEFT + RIGHT) / 2.0, bottom + 32.0),
        Anchor::Middle,
        "CPU, percent of one CPU",
    );
    canvas.finish(bottom + 40.0, "CPU wanted and got by each task in each stage")
}
