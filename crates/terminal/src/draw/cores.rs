//! The core map: a picture of all CPUs, and a line for each.

use ratatui::style::Style;

use super::{Canvas, Page};
use crate::census::{Item, Key};
use crate::cores::{Core, OTHERS};
use crate::model::Model;
use crate::tree::Column;

/// Columns of a node's name.
const LABEL: usize = 10;
/// CPU of tasks that are no longer there which is worth a line, percent.
const LEAST_OTHERS: f64 = 1.0;

/// The picture: a node a line, or as many as it takes.
fn picture(model: &Model) -> Vec<(String, &[Core])> {
    // A shade and a star or a blank.
    let in_line = (usize::from(model.size.0).saturating_sub(LABEL) / 2).max(1);
    let mut lines = Vec::new();
    for node in model.cores.chunk_by(|a, b| (a.node, a.socket) == (b.node, b.socket)) {
        for (at, part) in node.chunks(in_line).enumerate() {
            let name = match node.first().and_then(|core| core.node) {
                Some(number) if at == 0 => format!("node {number}"),
                None if at == 0 => "CPUs".to_owned(),
                _ => String::new(),
            };
            lines.push((name, part));
        }
    }
    lines
}

/// Lines of the picture: at most a third of the screen.
fn picture_height(model: &Model) -> usize {
    let page = Page::of(model.size.1);
    picture(model).len().min(usize::from(page.height) / 3)
}

/// Lines of the list.
pub fn height(model: &Model) -> usize {
    let page = Page::of(model.size.1);
    usize::from(page.height).saturating_sub(picture_height(model) + 1).max(1)
}

pub fn draw(model: &Model, canvas: &mut Canvas<'_>, page: Page) {
    let skin = model.skin;
    let width = canvas.area.width;
    let mut y = page.top;
    let drawn = picture_height(model);
    for (name, part) in picture(model).into_iter().take(drawn) {
        canvas.put(1, y, LABEL as u16 - 1, &name, Style::new());
        for (at, core) in part.iter().enumerate() {
            let x = (LABEL + 2 * at) as u16;
            // An idle CPU is a dot, not a hole.
            let shade = match (skin.shade(core.busy), skin.ascii) {
                (" ", true) => "_",
                (" ", false) => "·",
                (shade, _) => shade,
            };
            canvas.put(x, y, 1, shade, skin.heat(core.busy));
            canvas.put(x + 1, y, 1, if core.isolated { "*" } else { " " }, Style::new());
        }
        y += 1;
    }
    let heading = skin.heading();
    let columns = columns(width);
    if page.height > 1 {
        for (column, x, wide) in &columns {
            match column {
                What::Name | What::Most | What::Place => {
                    canvas.put(*x, y, *wide, column.name(), heading);
                }
                _ => canvas.put_right(*x, y, *wide, column.name(), heading),
            }
        }
        y += 1;
    }
    for (row, (at, core)) in
        model.cores.iter().enumerate().skip(model.core_list.top).take(height(model)).enumerate()
    {
        let y = y + row as u16;
        let base = canvas.line(y, at == model.core_list.at, skin);
        for (column, x, wide) in &columns {
            let text = column.text(core, skin);
            match column {
                What::Name | What::Most | What::Place => {
                    canvas.put(*x, y, *wide, &text, base);
                }
                What::Gauge => {
                    canvas.put(*x, y, *wide, &text, base.patch(skin.heat(core.busy)));
                }
                _ => canvas.put_right(*x, y, *wide, &text, base),
            }
        }
    }
    let shown = model.cores.len().saturating_sub(model.core_list.top).min(height(model)) as u16;
    inhabitants(model, canvas, (y + shown, page.top + page.height));
}

/// Who is on the chosen CPU, where few CPUs leave room for it.
fn inhabitants(model: &Model, canvas: &mut Canvas<'_>, (top, end): (u16, u16)) {
    let Some(core) = model.cores.get(model.core_list.at) else { return };
    if top + 2 >= end {
        return;
    }
    let there = |item: &&Item| matches!(item.key, Key::Task(_)) && item.core == Some(core.cpu) && item.busy;
    let mut items: Vec<&Item> = model.census.items.iter().filter(there).collect();
    items.sort_by(|a, b| b.numbers.cpu.total_cmp(&a.numbers.cpu).then_with(|| a.key.cmp(&b.key)));
    let width = canvas.area.width;
    let heading = format!("ON CPU {}", core.name());
    canvas.put(1, top + 1, width, &heading, model.skin.heading());
    if width > 40 {
        canvas.put(32, top + 1, width, "  CPU%  WAIT%  WHOSE", model.skin.heading());
    }
    let mut lines = top + 2..end;
    if core.others >= LEAST_OTHERS
        && let Some(y) = lines.next()
    {
        canvas.put(1, y, 30, OTHERS, Style::new());
        canvas.put_right(32, y, 6, &format!("{:.1}", core.others), Style::new());
    }
    for (item, y) in items.iter().zip(lines) {
        canvas.put(1, y, 30, &item.name, Style::new());
        canvas.put_right(32, y, 6, &Column::Cpu.text(item), Style::new());
        canvas.put_right(39, y, 6, &Column::Wait.text(item), model.skin.lost(item.numbers.wait));
        canvas.put_path(47, y, width.saturating_sub(47), &item.owner, Style::new());
    }
}

evenkeel_base::named! {
/// A column, by its heading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Name = "CPU",
    Busy = "BUSY%",
    Gauge = "",
    Steal = "STEAL%",
    Irq = "IRQ%",
    Queue = "QUEUE",
    Most = "WHO RAN MOST",
    Place = "WHERE",
}
}

/// Columns, where, how wide.
fn columns(width: u16) -> Vec<(What, u16, u16)> {
    let wanted = [
        (What::Name, 6, 0),
        (What::Busy, 6, 0),
        (What::Gauge, 10, 60),
        (What::Steal, 6, 0),
        (What::Irq, 5, 0),
        (What::Queue, 6, 0),
        (What::Most, 22, 50),
        (What::Place, 24, 100),
    ];
    let mut x = 1;
    let mut columns = Vec::new();
    for (what, wide, from) in wanted {
        if width >= from {
            columns.push((what, x, wide));
            x += wide + 1;
        }
    }
    columns
}

impl What {
    fn text(self, core: &Core, skin: crate::skin::Skin) -> String {
        let known = |value: Option<f64>, places: usize| {
            value.map_or_else(|| "?".to_owned(), |v| format!("{v:.places$}"))
        };
        match self {
            Self::Name => core.name(),
            Self::Busy => known(Some(core.busy), 1),
            Self::Gauge => skin.gauge(core.busy, 10),
            Self::Steal => known(core.steal, 1),
            Self::Irq => known(core.irq, 1),
            Self::Queue => known(core.queue, 2),
            Self::Most => core.most.clone().unwrap_or_else(|| "-".to_owned()),
            Self::Place => core.place(),
        }
    }
}
