//! The history with its cursor.

use evenkeel_report::time;
use evenkeel_store::moments::Moment;
use ratatui::style::Style;

use super::{Canvas, Page, wrapped};
use crate::census::shown;
use crate::model::Model;
use crate::past::Recorded;

/// Columns of the names at the left.
const LABEL: u16 = 7;

/// Columns of the charts.
pub fn slots(width: u16) -> usize {
    usize::from(width.saturating_sub(LABEL + 1)).max(1)
}

pub fn draw(model: &Model, canvas: &mut Canvas<'_>, page: Page) {
    let width = canvas.area.width;
    let say = |canvas: &mut Canvas<'_>, text: &str| {
        for (y, line) in wrapped(text, usize::from(width).saturating_sub(2), 0).iter().enumerate() {
            if (y as u16) < page.height {
                canvas.put(1, page.top + y as u16, width, line, Style::new());
            }
        }
    };
    match &model.past.recorded {
        None => say(canvas, "reading …"),
        Some(Err(why)) => say(canvas, &format!("The history cannot be read: {why}")),
        Some(Ok(None)) => say(
            canvas,
            "No history on this host. `evenkeel serve` and `evenkeel run` write one while they are at work, into the \
             directory that --state-dir names.",
        ),
        Some(Ok(Some(recorded))) => charts(model, recorded, canvas, page),
    }
}

fn charts(model: &Model, recorded: &Recorded, canvas: &mut Canvas<'_>, page: Page) {
    let skin = model.skin;
    let width = canvas.area.width;
    let count = slots(width);
    let slots = recorded.slots(count);
    let cursor = model.past.cursor().unwrap_or(recorded.to_ns);
    let at = recorded.slot(cursor, count) as u16;
    // The lines there are, most important first; small terminals have the first of them.
    let mut y = page.top;
    let end = page.top + page.height;
    let (first, from) = day_and_time(recorded.from_ns);
    let (day, time) = day_and_time(cursor);
    // The cursor's time first: narrow terminals cut the end.
    let heading = format!(
        "cursor {day} {time} of {first} {from} to {} UTC ({})",
        day_and_time(recorded.to_ns).1,
        model.past.span_name(),
    );
    canvas.put(1, y, width.saturating_sub(1), &heading, skin.heading());
    y += 1;
    let most =
        |pick: fn(&crate::past::Slot) -> Option<f64>| slots.iter().filter_map(pick).fold(100.0, f64::max);
    let (busy, wait) = (most(|slot| slot.busy), most(|slot| slot.wait));
    for (name, most, pick) in [
        ("busy", busy, (|slot| slot.busy) as fn(&crate::past::Slot) -> Option<f64>),
        ("wait", wait, |slot| slot.wait),
    ] {
        if y + 1 >= end {
            break;
        }
        canvas.put(1, y, LABEL, name, Style::new());
        for (x, slot) in slots.iter().enumerate() {
            let bar = pick(slot).map_or(" ", |value| skin.height(value / most));
            let style = if x as u16 == at { skin.reverse() } else { Style::new() };
            canvas.put(LABEL + x as u16, y, 1, bar, style);
        }
        y += 1;
    }
    if y + 1 < end {
        canvas.put(1, y, LABEL, "loop", Style::new());
        for (x, slot) in slots.iter().enumerate() {
            if let Some(mark) = slot.mark {
                canvas.put(LABEL + x as u16, y, 1, mark.encode_utf8(&mut [0; 4]), Style::new());
            }
        }
        y += 1;
    }
    if y + 1 < end {
        canvas.put(LABEL + at, y, 1, "^", skin.heading());
        let room = width.saturating_sub(LABEL + at + 2);
        let scale = format!("bars: busy to {busy:.0} %, wait to {wait:.0} %");
        // Next to the cursor, where there is room.
        if usize::from(room) > scale.len() {
            canvas.put(LABEL + at + 2, y, room, &scale, Style::new());
        } else if usize::from(LABEL + at) > scale.len() + 2 {
            canvas.put(1, y, LABEL + at - 2, &scale, Style::new());
        }
        y += 1;
    }
    let lines = details(recorded, cursor, usize::from(width));
    for (line, y) in lines.iter().zip(y..end) {
        canvas.put(1, y, width.saturating_sub(1), line, Style::new());
    }
}

fn day_and_time(ns: u64) -> (String, String) {
    let text = time::short(ns);
    let (day, time) = text.split_once(' ').unwrap_or(("", &text));
    (day.to_owned(), time.to_owned())
}

/// What was at the cursor: who had the CPU, and what the loop did about then.
fn details(recorded: &Recorded, cursor: u64, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    match recorded.rates_at(cursor) {
        Some(moment) => rates(moment, &mut lines),
        None => {
            let kept = recorded.kept_ns.map_or_else(
                || "no samples are kept".to_owned(),
                |(first, last)| {
                    format!("samples are kept from {} to {} UTC", time::short(first), time::short(last))
                },
            );
            lines.push(format!("nothing was recorded at {} UTC", time::short(cursor)));
            lines.push(kept);
        }
    }
    if recorded.damaged > 0 {
        lines.push(format!("{} damaged blocks of samples were passed over", recorded.damaged));
    }
    let (next, events) = recorded.events(cursor);
    if !events.is_empty() {
        lines.push(String::new());
        lines.push("what the loop did about then".to_owned());
        let mut day = day_and_time(cursor).0;
        // Two before, the rest after: what came of what is under the cursor.
        for event in events.iter().skip(next.saturating_sub(2)).take(12) {
            // Wrapped apart: wrapping would close up the column.
            let mut text = wrapped(&shown(&event.text), width.saturating_sub(2), 19).into_iter();
            let first = text.next().unwrap_or_default();
            let (on, time) = day_and_time(event.at_ns);
            if on != day {
                lines.push(format!("{on}:"));
                day = on;
            }
            lines.push(format!("{time}  {:<8} {first}", event.kind.name()));
            lines.extend(text);
        }
    }
    lines
}

fn rates(moment: &Moment, lines: &mut Vec<String>) {
    let known = |value: Option<f64>| value.map_or_else(|| "?".to_owned(), |value| format!("{value:.1}"));
    // Without a loop no one knows which settings were in force.
    let under = match moment.settings.as_str() {
        "" | "?" => String::new(),
        settings => format!(", under {}", shown(settings)),
    };
    lines.push(format!(
        "{} UTC, over {}: busy {} %, steal {} %, waits {} %{under}",
        day_and_time(moment.at_ns).1,
        time::length(moment.seconds.unwrap_or(f64::NAN)),
        known(moment.cpu_pct),
        known(moment.steal_pct),
        known(moment.wait_pct)
    ));
    lines.push("  CPU%  WAIT%  WHO".to_owned());
    for (name, cpu, wait) in moment.busiest.iter().take(12) {
        lines.push(format!("{cpu:>6.1} {:>6}  {}", known(*wait), shown(name)));
    }
}
