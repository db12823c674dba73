//! The laboratory's results for people: one page, GitHub tables, CSV, a few lines of text. All from a record and its
//! study; nothing is computed here.

mod charts;
mod compare;
mod csv;
pub(crate) mod figures;
pub(crate) mod markdown;
mod page;
mod platforms;
mod text;

pub use compare::{compare_html, compare_markdown, compare_text};
pub use csv::files as csv_files;
pub use figures::{begun_line, host_line};
pub use markdown::markdown;
pub use page::page;
pub use platforms::{platforms_html, platforms_markdown, platforms_text};
pub use text::text;

use crate::time;

/// A study for people: its name, when it was begun, its table, what it means, what was missing, and points without a result.
pub fn study_text(
    (name, began): (&str, &str),
    table: &str,
    verdicts: &[String],
    missed: &[String],
    failed: &[(String, String)],
) -> String {
    let mut out = format!("{name}, begun {}\n\n{table}\n", time::to_the_second(began));
    verdicts.iter().for_each(|verdict| out += &format!("* {verdict}\n"));
    missed.iter().for_each(|missed| out += &format!("! {missed}\n"));
    for (point, why) in failed {
        out += &format!("x {point}: {}\n", why.lines().next().unwrap_or(""));
    }
    out
}
