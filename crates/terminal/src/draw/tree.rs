//! The tree.

use ratatui::style::Style;

use super::{Canvas, Page};
use crate::census::{Item, Key};
use crate::model::Model;
use crate::tree::{Column, Line};
use crate::trend::Of;

/// Cells of a sparkline: the last minute, six seconds each.
const SPARK: u16 = 10;

/// What stands in a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    Value(Column),
    Spark(Of),
}

/// A column: what, where, how wide.
type Place = (Cell, u16, u16);

/// Columns right of the name, in the order in which they get room, and the room that the name keeps.
const WANTED: [(Cell, u16, u16); 10] = [
    (Cell::Value(Column::Cpu), 6, 1),
    (Cell::Value(Column::Wait), 6, 10),
    (Cell::Value(Column::Throttled), 6, 12),
    (Cell::Spark(Of::Wait), SPARK, 20),
    (Cell::Spark(Of::Throttled), SPARK, 20),
    (Cell::Value(Column::Core), 5, 24),
    (Cell::Value(Column::Voluntary), 7, 40),
    (Cell::Value(Column::Involuntary), 7, 40),
    (Cell::Value(Column::Class), 10, 40),
    (Cell::Value(Column::Network), 11, 40),
];

/// The order in which they stand.
const ORDER: [Cell; 10] = [
    Cell::Value(Column::Core),
    Cell::Value(Column::Cpu),
    Cell::Value(Column::Wait),
    Cell::Spark(Of::Wait),
    Cell::Value(Column::Throttled),
    Cell::Spark(Of::Throttled),
    Cell::Value(Column::Voluntary),
    Cell::Value(Column::Involuntary),
    Cell::Value(Column::Class),
    Cell::Value(Column::Network),
];

/// Places of the columns for a width; the name's width first.
fn places(width: u16, flat: bool) -> (u16, Vec<Place>) {
    let mut left = width.saturating_sub(1);
    let mut taken = Vec::new();
    for (cell, wide, keeps) in WANTED {
        if left >= wide + 1 + keeps {
            left -= wide + 1;
            taken.push((cell, wide));
        }
    }
    // The last column is words: whose it is where no line above says it, else what the cgroup may use.
    let (last, name) = match (flat, left) {
        (true, 30..) => (Some(Column::Owner), 20.max(left / 2)),
        (false, 60..) => (Some(Column::Limits), left - 26),
        _ => (None, left),
    };
    let mut x = 1 + name;
    let mut places = Vec::new();
    for cell in ORDER {
        if let Some((_, wide)) = taken.iter().find(|(one, _)| *one == cell) {
            places.push((cell, x + 1, *wide));
            x += wide + 1;
        }
    }
    if let Some(last) = last {
        places.push((Cell::Value(last), x + 1, width.saturating_sub(x + 1)));
    }
    (name, places)
}

pub fn draw(model: &Model, canvas: &mut Canvas<'_>, page: Page) {
    let width = canvas.area.width;
    let order = &model.order;
    let (name, places) = places(width, order.grouping.is_flat());
    let mut y = page.top;
    let mut height = page.height;
    if height >= 2 {
        headings(model, canvas, y, name, &places);
        (y, height) = (y + 1, height - 1);
    }
    if model.lines.is_empty() {
        let found = order.search.trim().is_empty();
        let why = if found { order.grouping.nothing() } else { "no name matches (Esc shows all again)" };
        canvas.put(1, y, width, why, Style::new());
        return;
    }
    let lines = model.lines.iter().enumerate().skip(model.tree.top).take(usize::from(height));
    for (row, (at, line)) in lines.enumerate() {
        let Some(item) = model.census.items.get(line.at) else { continue };
        self::line(model, canvas, y + row as u16, (item, line), at == model.tree.at, name, &places);
    }
}

fn headings(model: &Model, canvas: &mut Canvas<'_>, y: u16, name: u16, places: &[Place]) {
    let order = &model.order;
    let arrow = model.skin.arrow(order.column.rises(order.reversed));
    let style = model.skin.heading();
    let heading = |column: Column| {
        let arrow = if column == order.column { arrow } else { "" };
        format!("{column}{arrow}")
    };
    let mut first = heading(Column::Name);
    // What cannot be seen is told.
    let shown = |(cell, ..): &Place| *cell == Cell::Value(order.column);
    if order.column != Column::Name && !places.iter().any(shown) {
        first.push_str(&format!(" (sorted by {}{arrow})", order.column));
    }
    canvas.put(1, y, name, &first, style);
    for (cell, x, wide) in places {
        match cell {
            Cell::Value(column @ (Column::Owner | Column::Limits | Column::Class)) => {
                canvas.put(*x, y, *wide, &heading(*column), style);
            }
            Cell::Value(column) => canvas.put_right(*x, y, *wide, &heading(*column), style),
            Cell::Spark(_) => {
                canvas.put(*x, y, *wide, "60 s  now", style);
            }
        }
    }
}

fn line(
    model: &Model,
    canvas: &mut Canvas<'_>,
    y: u16,
    (item, line): (&Item, &Line),
    chosen: bool,
    name: u16,
    places: &[Place],
) {
    let skin = model.skin;
    let base = if chosen { skin.reverse() } else { Style::new() };
    if chosen {
        canvas.fill(y, base);
        canvas.put(0, y, 1, ">", base);
    }
    let label = format!("{}{} {}", "  ".repeat(line.depth), skin.fold(line.open), item.name);
    if matches!(item.key, Key::Service(_)) {
        canvas.put_path(1, y, name, &label, base);
    } else {
        canvas.put(1, y, name, &label, base);
    }
    for (cell, x, wide) in places {
        let lost = match cell {
            Cell::Value(Column::Wait) | Cell::Spark(Of::Wait) => item.numbers.wait,
            Cell::Value(Column::Throttled) | Cell::Spark(Of::Throttled) => item.numbers.throttled,
            _ => None,
        };
        let style = base.patch(skin.lost(lost));
        match cell {
            Cell::Value(column @ (Column::Owner | Column::Limits | Column::Class)) => {
                canvas.put(*x, y, *wide, &column.text(item), style);
            }
            Cell::Value(column) => canvas.put_right(*x, y, *wide, &column.text(item), style),
            Cell::Spark(of) => {
                let cells = model.trends.last_minute(&item.key, *of, usize::from(*wide));
                let bars: String = cells.into_iter().map(|pct| skin.bar(pct)).collect();
                canvas.put(*x, y, *wide, &bars, style);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_into_any_width_and_do_not_overlap() {
        for width in 0..400 {
            for flat in [false, true] {
                let (name, places) = places(width, flat);
                let mut end = 1 + name;
                for (_, x, wide) in places {
                    assert!(x > end && x + wide <= width.max(1), "{width}: {x}+{wide}");
                    end = x + wide - 1;
                }
            }
        }
    }

    #[test]
    fn a_usual_terminal_has_waits_and_throttling_with_their_last_minute() {
        let cells: Vec<Cell> = places(80, false).1.into_iter().map(|(cell, ..)| cell).collect();
        let wanted = [
            Cell::Value(Column::Wait),
            Cell::Spark(Of::Wait),
            Cell::Value(Column::Throttled),
            Cell::Spark(Of::Throttled),
        ];
        assert!(wanted.iter().all(|cell| cells.contains(cell)));
        assert!(places(80, true).1.iter().any(|(cell, ..)| *cell == Cell::Value(Column::Owner)));
    }
}
