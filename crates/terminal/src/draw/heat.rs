//! Cores × tasks.

use ratatui::style::Style;

use super::{Canvas, Page};
use crate::model::Model;

/// Columns of the name: a third, or what few CPUs leave.
fn name_width(model: &Model) -> u16 {
    let width = model.size.0;
    let cells = u16::try_from(6 * model.map.cpus.len()).unwrap_or(u16::MAX);
    let left = width.saturating_sub(cells.saturating_add(TOTAL + 3)).min(48);
    (width / 3).clamp(8, 32).max(left).min(width)
}

/// Columns of the sum.
const TOTAL: u16 = 7;

/// Columns of a CPU: with its number where there is room for all CPUs, else one.
fn cell_width(model: &Model) -> u16 {
    let room = room(model);
    let cpus = model.map.cpus.len().max(1);
    match usize::from(room) / cpus {
        6.. => 6,
        3..=5 => 3,
        _ => 1,
    }
}

fn room(model: &Model) -> u16 {
    model.size.0.saturating_sub(name_width(model) + TOTAL + 3)
}

/// CPUs that the screen has room for.
pub fn columns(model: &Model) -> usize {
    usize::from(room(model) / cell_width(model))
}

/// Lines for the CPUs' numbers.
fn digits(model: &Model) -> u16 {
    let largest = model.map.cpus.last().copied().unwrap_or(0);
    if cell_width(model) > 1 { 1 } else { largest.max(1).ilog10() as u16 + 1 }
}

/// Lines around the list: headings and the CPUs' sums.
pub fn around(model: &Model) -> usize {
    usize::from(digits(model)) + 1
}

pub fn draw(model: &Model, canvas: &mut Canvas<'_>, page: Page) {
    let skin = model.skin;
    let width = canvas.area.width;
    let (name, cell) = (name_width(model), cell_width(model));
    let total = 1 + name + 1;
    let left = total + TOTAL + 1;
    let shown = columns(model);
    let cpus = model.map.cpus.iter().enumerate().skip(model.heat_left).take(shown);
    let isolated = |cpu: u32| model.cores.iter().any(|core| core.cpu == cpu && core.isolated);
    let digits = digits(model);
    let heading = skin.heading();
    let last = page.top + digits - 1;
    let seconds = format!("ran, last {:.0} s", model.map.seconds);
    canvas.put(1, last, name, &seconds, heading);
    canvas.put_right(total, last, TOTAL, "% CPU", heading);
    for (column, (_, cpu)) in cpus.clone().enumerate() {
        let x = left + column as u16 * cell;
        let star = if isolated(*cpu) { "*" } else { "" };
        if cell > 1 {
            canvas.put_right(x, last, cell - 1, &format!("{cpu}{star}"), heading);
        } else {
            // From top to bottom.
            let number = format!("{cpu:>wide$}", wide = usize::from(digits));
            for (row, digit) in number.chars().enumerate() {
                canvas.put(x, page.top + row as u16, 1, digit.encode_utf8(&mut [0; 4]), heading);
            }
        }
    }
    let y = page.top + digits;
    let height = usize::from(page.height).saturating_sub(around(model)).max(1);
    if model.map.rows.is_empty() {
        canvas.put(1, y, width, "nothing ran", Style::new());
    }
    let rows = model.map.rows.iter().enumerate().skip(model.heat_list.top).take(height);
    for (row, (at, who)) in rows.enumerate() {
        let y = y + row as u16;
        let base = canvas.line(y, at == model.heat_list.at, skin);
        let used = canvas.put(1, y, name, &who.name, base);
        if !who.owner.is_empty() && used + 4 < name {
            canvas.put(1 + used + 1, y, name - used - 1, &format!("({})", who.owner), base);
        }
        canvas.put_right(total, y, TOTAL, &format!("{:.1}", who.total), base);
        cells(model, canvas, (left, y), &who.cells, base);
    }
    let sums = page.top + page.height.saturating_sub(1);
    if page.height > digits + 1 {
        canvas.put(1, sums, name, "all, with interrupts", heading);
        let all: f64 = model.map.busy.iter().sum();
        canvas.put_right(total, sums, TOTAL, &format!("{all:.1}"), heading);
        cells(model, canvas, (left, sums), &model.map.busy, Style::new());
        let hidden = model.map.cpus.len().saturating_sub(model.heat_left + shown);
        if hidden > 0 && width > 50 {
            let more = format!(" {hidden} CPUs more: right ");
            let wide = more.len() as u16;
            canvas.put(width.saturating_sub(wide), sums, wide, &more, skin.reverse());
        }
    }
}

fn cells(model: &Model, canvas: &mut Canvas<'_>, (left, y): (u16, u16), cells: &[f64], base: Style) {
    let (skin, cell) = (model.skin, cell_width(model));
    let shown = cells.iter().skip(model.heat_left).take(columns(model));
    for (column, pct) in shown.enumerate() {
        let x = left + column as u16 * cell;
        let style = base.patch(skin.heat(*pct));
        match cell {
            6 => {
                canvas.put(x, y, 2, &skin.shade(*pct).repeat(2), style);
                let number = if *pct >= 0.5 { format!("{pct:.0}") } else { "·".to_owned() };
                let number = if skin.ascii && *pct < 0.5 { ".".to_owned() } else { number };
                canvas.put_right(x + 2, y, 3, &number, style);
            }
            3 => {
                canvas.put(x, y, 2, &skin.shade(*pct).repeat(2), style);
            }
            _ => {
                canvas.put(x, y, 1, skin.shade(*pct), style);
            }
        }
    }
}
