//! Drawing a state into a buffer of any size.

pub(crate) mod cores;
pub(crate) mod heat;
pub(crate) mod help;
pub(crate) mod past;
pub(crate) mod running;
mod tree;
pub(crate) mod why;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Span;

use evenkeel_report::ps::transferred;

use crate::model::{Model, Over, Screen};

/// Most characters that one cell holds: a letter with its accents, not a tower of them.
const CELL: usize = 8;

/// Which lines of the terminal are for what. Small ones have less around.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Line of the title.
    pub title: Option<u16>,
    /// Line of the host's sums.
    pub host: Option<u16>,
    /// First line of the screen.
    pub top: u16,
    /// Its lines.
    pub height: u16,
    /// Line of the keys.
    pub footer: Option<u16>,
}

impl Page {
    /// Of a terminal of so many lines.
    pub fn of(lines: u16) -> Self {
        let title = (lines >= 2).then_some(0);
        let host = (lines >= 6).then_some(1);
        let footer = (lines >= 3).then(|| lines - 1);
        let top = u16::from(title.is_some()) + u16::from(host.is_some());
        let height = lines.saturating_sub(top + u16::from(footer.is_some()));
        Self { title, host, top, height, footer }
    }
}

/// Where things are put: nothing is put outside.
pub(crate) struct Canvas<'a> {
    buffer: &'a mut Buffer,
    /// What may be drawn on.
    pub area: Rect,
}

impl Canvas<'_> {
    /// Puts words on a line, cut to a width with an ellipsis; returns the columns used.
    pub fn put(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) -> u16 {
        let (left, top) = (self.area.x.saturating_add(x), self.area.y.saturating_add(y));
        if x >= self.area.width || y >= self.area.height || width == 0 {
            return 0;
        }
        let width = width.min(self.area.width - x);
        // Far longer texts are not measured to their end.
        let text: String = text.chars().take(4 * usize::from(width) + 4).collect();
        let long = Span::raw(&text).width() > usize::from(width);
        let room = if long { width - 1 } else { width };
        let (end, _) = self.buffer.set_stringn(left, top, &text, usize::from(room), style);
        if long {
            let (end, _) = self.buffer.set_stringn(end, top, "…", 1, style);
            return end - left;
        }
        end - left
    }

    /// Puts words on a line, cut in the middle: the end of a path says as much as its beginning.
    pub fn put_path(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) -> u16 {
        let chars = text.chars().count();
        let room = usize::from(width);
        if room < 8 || chars <= room {
            return self.put(x, y, width, text, style);
        }
        let begin: String = text.chars().take((room - 1) / 2).collect();
        let end: String = text.chars().skip(chars - room / 2).collect();
        self.put(x, y, width, &format!("{begin}…{end}"), style)
    }

    /// Puts words at the right edge of a column.
    pub fn put_right(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) {
        let used = u16::try_from(Span::raw(text).width()).unwrap_or(u16::MAX).min(width);
        self.put(x + (width - used), y, used, text, style);
    }

    /// A line of one style.
    pub fn fill(&mut self, y: u16, style: Style) {
        if y < self.area.height {
            let line = Rect { y: self.area.y + y, height: 1, ..self.area };
            self.buffer.set_style(line, style);
        }
    }
}

/// Draws everything.
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

/// Lines of text from the first one shown.
pub(crate) fn text(lines: &[String], top: usize, canvas: &mut Canvas<'_>, page: Page) {
    for (y, line) in lines.iter().skip(top).take(usize::from(page.height)).enumerate() {
        canvas.put(0, page.top + y as u16, canvas.area.width, line, Style::new());
    }
    // Where there is more, that is reported at the edge.
    let below = lines.len().saturating_sub(top + usize::from(page.height));
    if below > 0 && page.height > 1 {
        let more = format!(" {below} more ");
        let width = more.len() as u16;
        let x = canvas.area.width.saturating_sub(width);
        let style = Style::new().add_modifier(ratatui::style::Modifier::REVERSED);
        canvas.put(x, page.top + page.height - 1, width, &more, style);
    }
}

/// Prose in lines of a width, each but the first indented.
pub(crate) fn wrapped(text: &str, width: usize, indent: usize) -> Vec<String> {
    let room = width.saturating_sub(indent).max(8);
    let text = evenkeel_base::printable(text);
    let lines = evenkeel_report::table::wrap(&text, room);
    let pad = |(at, line): (usize, &str)| {
        if at == 0 { line.to_owned() } else { format!("{}{line}", " ".repeat(indent)) }
    };
    lines.lines().enumerate().map(pad).collect()
}

#[cfg(test)]
mod tests;
