//! All runs at a glance: fulfilment with its interval under each setting.

use evenkeel_base::text::bracketed;

use super::canvas::{Anchor, Canvas, Scale, WIDTH, role_class};
use crate::demo::Role;

/// One measured point of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mark {
    pub role: Role,
    pub value: f64,
    /// Its 95 % interval.
    pub interval: Option<[f64; 2]>,
}

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub struct SummaryRow {
    pub title: String,
    /// Points, drawn in order.
    pub marks: Vec<Mark>,
    pub note: String,
}

const LEFT: f64 = 250.0;
const RIGHT: f64 = WIDTH - 130.0;
const ROW: f64 = 34.0;

/// Draws one row a run, a point with its interval for each setting. The axis does not start at 0, and says so.
pub fn summary(rows: &[SummaryRow]) -> String {
    let mut canvas = Canvas::default();
    let values = rows.iter().flat_map(|row| &row.marks).flat_map(|mark| {
        let [low, high] = mark.interval.unwrap_or([mark.value; 2]);
        [low, high]
    });
    let lowest = values.clone().fold(1.0, f64::min);
    let highest = values.fold(1.0, f64::max);
    let low = ((lowest - 0.01) * 20.0).floor() / 20.0;
    let x = Scale::new((low, highest), (LEFT, RIGHT));
    let mut legend = LEFT;
    for role in [Role::Default, Role::Recipe, Role::Final, Role::Ceiling] {
        canvas.mark(form(role), &format!("f-{}", role_class(role)), (legend + 6.0, 11.0), 5.0, None);
        canvas.text("small", (legend + 17.0, 15.0), Anchor::Start, role.name());
        legend += 44.0 + role.name().len() as f64 * 6.6;
    }
    let top = 32.0;
    let bottom = top + ROW * rows.len() as f64;
    canvas.ticks_below(&x, (low, highest), (top, bottom));
    canvas.text("dim small", (RIGHT + 18.0, top - 6.0), Anchor::Start, "gap closed");
    for (index, row) in rows.iter().enumerate() {
        let y = top + ROW * (index as f64 + 0.5);
        canvas.line("grid", [LEFT, y, RIGHT, y]);
        canvas.text("small", (LEFT - 12.0, y + 4.0), Anchor::End, &row.title);
        canvas.text("small num head", (RIGHT + 18.0, y + 4.0), Anchor::Start, &row.note);
        let count = row.marks.len() as f64;
        for (order, mark) in row.marks.iter().enumerate() {
            // A little apart vertically, so that intervals on top of each other can be read.
            let y = y + (order as f64 - (count - 1.0) / 2.0) * 6.0;
            let class = role_class(mark.role);
            let mut title = format!("{}, {}: {:.3}", row.title, mark.role.name(), mark.value);
            if let Some([low, high]) = mark.interval {
                title.push_str(&format!(
                    " {}",
                    bracketed(format_args!("{low:.3}"), format_args!("{high:.3}"))
                ));
                canvas.line(&format!("bar s-{class}"), [x.at(low), y, x.at(high), y]);
            }
            let r = if mark.role == Role::Final { 5.5 } else { 4.2 };
            canvas.mark(form(mark.role), &format!("f-{class}"), (x.at(mark.value), y), r, Some(&title));
        }
    }
    canvas.line("axis", [LEFT, bottom, RIGHT, bottom]);
    let caption =
        format!("fulfilment: CPU got / CPU wanted (axis starts at {low:.2}); bars are 95 % intervals");
    canvas.text("dim small", ((LEFT + RIGHT) / 2.0, bottom + 33.0), Anchor::Middle, &caption);
    canvas.finish(bottom + 42.0, "Fulfilment of every run under each setting, with intervals")
}

/// The form of a setting's points.
fn form(role: Role) -> usize {
    match role {
        Role::Default | Role::Trial => 0,
        Role::Recipe => 1,
        Role::Ceiling => 2,
        Role::Final => 3,
    }
}
