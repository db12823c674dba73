//! Drawing a state into a buffer of any size.

mod canvas;
pub(crate) mod cores;
pub(crate) mod heat;
pub(crate) mod help;
pub(crate) mod past;
pub(crate) mod running;
mod tree;
pub(crate) mod why;

use ratatui::buffer::Buffer;
use ratatui::style::Style;

use evenkeel_report::ps::transferred;

use crate::model::{Model, Over, Screen};

pub use canvas::Page;
pub(crate) use canvas::{Canvas, text, wrapped};

/// Most characters that one cell holds: a letter with its accents, not a tower of them.
const CELL: usize = 8;

pub fn draw(model: &Model, buffer: &mut Buffer) {
    let area = buffer.area;
    let page = Page::of(area.height);
    let mut canvas = Canvas { buffer, area };
    if let Some(y) = page.title {
        title(model, &mut canvas, y);
    }
    if let Some(y) = page.host {
        host(model, &mut canvas, y);
    }
    match &model.over {
        Some(Over::Help(list)) => help::draw(list, &mut canvas, page),
        Some(Over::Why(asked)) => why::draw(asked, model, &mut canvas, page),
        None if model.look.is_none() && !matches!(model.screen, Screen::Loop | Screen::Past) => {
            canvas.put(0, page.top, area.width, "looking …", Style::new());
        }
        None => match model.screen {
            Screen::Tree => tree::draw(model, &mut canvas, page),
            Screen::Heat => heat::draw(model, &mut canvas, page),
            Screen::Cores => cores::draw(model, &mut canvas, page),
            Screen::Loop => running::draw(model, &mut canvas, page),
            Screen::Past => past::draw(model, &mut canvas, page),
        },
    }
    if let Some(y) = page.footer {
        footer(model, &mut canvas, y);
    }
    clean(buffer, model.skin.ascii);
}

/// The last word: names are whatever somebody gave, and a cell must not hold what moves the cursor.
fn clean(buffer: &mut Buffer, ascii: bool) {
    for cell in &mut buffer.content {
        let symbol = cell.symbol();
        if symbol.is_ascii() && !symbol.contains(|c: char| c.is_ascii_control()) {
            continue;
        }
        let hostile = symbol.contains(char::is_control) || symbol.chars().count() > CELL;
        if ascii {
            let plain = if symbol == "…" { "~" } else { "?" };
            cell.set_symbol(plain);
        } else if hostile {
            cell.set_symbol("\u{fffd}");
        }
    }
}

fn title(model: &Model, canvas: &mut Canvas<'_>, y: u16) {
    let style = model.skin.reverse();
    canvas.fill(y, style);
    let width = canvas.area.width;
    let mut x = 1;
    // On a narrow terminal only the screen that is shown.
    let names = |all: bool| {
        Screen::ALL.into_iter().enumerate().filter(move |(_, screen)| all || *screen == model.screen)
    };
    for (at, screen) in names(width >= 60) {
        let name = if screen == model.screen {
            format!("[{} {}]", at + 1, screen.name())
        } else {
            format!(" {} {} ", at + 1, screen.name())
        };
        let chosen = if screen == model.screen { style.patch(model.skin.heading()) } else { style };
        x += canvas.put(x, y, width.saturating_sub(x), &name, chosen);
    }
    let what = match model.screen {
        Screen::Tree => format!("by {}, ", model.order.grouping.name()),
        Screen::Heat => format!("{}, ", model.heat_lines.name()),
        _ => String::new(),
    };
    let pace = if model.paused { "stopped".to_owned() } else { format!("every {:?}", model.interval) };
    canvas.put(x + 2, y, width.saturating_sub(x + 2), &format!("{what}{pace}"), style);
}

fn host(model: &Model, canvas: &mut Canvas<'_>, y: u16) {
    let width = canvas.area.width;
    if let Some(why) = &model.failed {
        canvas.put(1, y, width, &format!("cannot look: {}", crate::census::shown(why)), model.skin.heading());
        return;
    }
    let Some(look) = &model.look else { return };
    let host = &look.observation.host;
    let known = |value: Option<f64>| value.map_or_else(|| "?".to_owned(), |value| format!("{value:.1}"));
    let queue: Option<f64> = model.cores.iter().map(|core| core.queue).sum();
    let text = format!(
        "{} CPUs  busy {:.1} of {} %  steal {} %  waiting {} tasks  top itself {} %",
        host.cpus,
        host.busy_pct,
        u64::from(host.cpus) * 100,
        known(host.steal_pct),
        known(queue),
        known(look.own_pct)
    );
    let x = 1 + canvas.put(1, y, width, &text, Style::new());
    // Where there is room for it.
    let network = look.networks.host.map(|rate| format!("  net in/out {}/s", transferred(rate)));
    if let Some(network) = network.filter(|text| text.len() < usize::from(width.saturating_sub(x))) {
        canvas.put(x, y, width, &network, Style::new());
    }
}

fn footer(model: &Model, canvas: &mut Canvas<'_>, y: u16) {
    let style = model.skin.reverse();
    canvas.fill(y, style);
    let width = canvas.area.width;
    if let Some(text) = &model.typing {
        // The end of what is typed is what counts.
        let room = usize::from(width).saturating_sub(12);
        let skip = text.chars().count().saturating_sub(room);
        let end: String = text.chars().skip(skip).collect();
        canvas.put(1, y, width, &format!("search: {}_", evenkeel_base::printable(&end)), style);
        return;
    }
    if let Some(note) = &model.note {
        canvas.put(1, y, width, note, style);
        return;
    }
    let keys = match (&model.over, model.screen) {
        (Some(Over::Help(_)), _) => "Esc back  up/down scroll",
        (Some(Over::Why(why)), _) if why.answer.is_none() => "Esc stop and back",
        (Some(Over::Why(_)), _) => "Esc back  w again  up/down scroll",
        (None, Screen::Tree) if !model.order.search.is_empty() => {
            "Esc all again  / search  Enter fold  w why  ? help  q end"
        }
        (None, Screen::Tree) => {
            "? help  q end  w why  / search  Enter fold  < > sort  r reverse  b by  a idle"
        }
        (None, Screen::Heat) => "? help  q end  w why  b what lines are  left/right more CPUs",
        (None, Screen::Cores) => "? help  q end  Enter who is there  * is isolated",
        (None, Screen::Loop) => "? help  q end  up/down scroll",
        (None, Screen::Past) => "? help  q end  left/right time  + - longer, shorter  End now",
    };
    let x = 1 + canvas.put(1, y, width.saturating_sub(1), keys, style);
    if !model.order.search.is_empty() && model.screen == Screen::Tree && model.over.is_none() {
        let search = format!("  only: {}", evenkeel_base::printable(&model.order.search));
        canvas.put(x, y, width.saturating_sub(x), &search, style);
    }
}

#[cfg(test)]
mod tests;
