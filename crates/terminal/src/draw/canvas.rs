//! Where things are put on a screen, and how long texts are cut.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Span;

use crate::skin::Skin;

/// Which lines of the terminal are for what. Small ones have less around.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    pub title: Option<u16>,
    /// Line of the host's sums.
    pub host: Option<u16>,
    /// First line of the screen.
    pub top: u16,
    pub height: u16,
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
    pub buffer: &'a mut Buffer,
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

    /// Begins a line of a list, marked where it is the chosen one; gives the line's style.
    pub fn line(&mut self, y: u16, is_chosen: bool, skin: Skin) -> Style {
        if !is_chosen {
            return Style::new();
        }
        let base = skin.reverse();
        self.fill(y, base);
        self.put(0, y, 1, ">", base);
        base
    }

    pub fn fill(&mut self, y: u16, style: Style) {
        if y < self.area.height {
            let line = Rect { y: self.area.y + y, height: 1, ..self.area };
            self.buffer.set_style(line, style);
        }
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
