//! Why somebody waits: a question and its answer.

use ratatui::style::Style;

use super::{Canvas, Page, text, wrapped};
use crate::census::shown;
use crate::model::{Model, WHY_TIME, Why};

pub fn draw(why: &Why, model: &Model, canvas: &mut Canvas<'_>, page: Page) {
    let width = canvas.area.width;
    if why.answer.is_some() {
        text(&why.lines, why.list.top, canvas, page);
        return;
    }
    let gone = model.now.saturating_sub(why.asked).as_secs_f64();
    let all = WHY_TIME.as_secs_f64();
    let what = format!("watching {} for {all:.0} s", shown(&why.target));
    canvas.put(1, page.top, width, &what, Style::new());
    let wide = usize::from(width.saturating_sub(2)).min(40);
    let gauge = model.skin.gauge(100.0 * gone / all, wide);
    canvas.put(1, page.top + 1, width, &gauge, Style::new());
    if gone > all + 1.0 {
        canvas.put(1, page.top + 2, width, "putting it together …", Style::new());
    }
}

/// The answer in lines of a width.
pub fn lines(why: &Why, width: usize) -> Vec<String> {
    let width = width.max(20);
    let mut lines = vec![format!(" why {}", shown(&why.target)), String::new()];
    match &why.answer {
        None => {}
        Some(Err(error)) => {
            lines.extend(
                wrapped(&format!("It cannot be told: {error}"), width, 0)
                    .into_iter()
                    .map(|line| format!(" {line}")),
            );
        }
        Some(Ok(answer)) => {
            for line in evenkeel_base::printable(answer).lines() {
                if ratatui::text::Span::raw(line).width() <= width {
                    lines.push(line.to_owned());
                } else {
                    // As far in as the line was.
                    let indent = line.len() - line.trim_start().len();
                    let pad = " ".repeat(indent.min(width / 2));
                    let parts = wrapped(line, width.saturating_sub(pad.len()), 0);
                    lines.extend(parts.into_iter().map(|part| format!("{pad}{part}")));
                }
            }
        }
    }
    lines
}
