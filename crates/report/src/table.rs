//! One definition of a row's fields for text, CSV and JSON.
//!
//! ```
//! use evenkeel_report::{Field, Table};
//! struct Row { comm: &'static str, cpu_pct: f64, wait_pct: Option<f64> }
//! let table = Table::new(vec![
//!     Field::text("comm", "COMMAND", |row: &Row| row.comm),
//!     Field::number("cpu_pct", "CPU %", 1, |row: &Row| Some(row.cpu_pct)),
//!     Field::number("wait_pct", "WAIT %", 1, |row: &Row| row.wait_pct),
//! ]);
//! let rows = [Row { comm: "redis", cpu_pct: 12.345, wait_pct: None }];
//! assert_eq!(table.text(&rows, None), "COMMAND  CPU %  WAIT %\nredis     12.3       ?\n");
//! assert_eq!(table.csv(&rows), "comm,cpu_pct,wait_pct\nredis,12.345,\n");
//! assert_eq!(table.json(&rows)[0]["wait_pct"], serde_json::Value::Null);
//! ```

use std::borrow::Cow;

use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Width, presets};
use serde_json::json;

use crate::time;

/// What a column holds, where a form of output has types: each value is of this kind, unknown or absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    Integer,
    Number,
    Bool,
    Instant,
    List,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Not known: `null` in JSON, empty in CSV, `?` in text. Never 0.
    Unknown,
    /// Known not to be there (a task without a container): `null` in JSON, empty in CSV, `-` in text.
    Absent,
    Text(String),
    Integer(i64),
    /// A number; text shows the field's decimals, JSON and CSV all of it (to nine).
    Number(f64),
    Bool(bool),
    /// Nanoseconds since 1970: RFC 3339 in UTC with milliseconds.
    Instant(u64),
    /// Several: an array in JSON, joined by spaces elsewhere.
    List(Vec<String>),
    /// A structure, for JSON only: compact JSON elsewhere.
    Json(serde_json::Value),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Option<String>> for Value {
    /// `None` is absent, not unknown: say [`Value::Unknown`] where that is meant.
    fn from(text: Option<String>) -> Self {
        text.map_or(Self::Absent, Self::Text)
    }
}

impl From<Option<&str>> for Value {
    fn from(text: Option<&str>) -> Self {
        text.map_or(Self::Absent, Self::from)
    }
}

/// Rounds away floating-point noise in documents: nine decimals.
fn tidy(number: f64) -> f64 {
    (number * 1e9).round() / 1e9
}

impl Value {
    fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Unknown | Self::Absent => serde_json::Value::Null,
            Self::Text(text) => json!(text),
            Self::Integer(n) => json!(n),
            Self::Number(n) if n.is_finite() => json!(tidy(*n)),
            Self::Number(_) => serde_json::Value::Null,
            Self::Bool(b) => json!(b),
            Self::Instant(ns) => json!(time::rfc3339(*ns)),
            Self::List(items) => json!(items),
            Self::Json(value) => value.clone(),
        }
    }

    fn to_csv(&self) -> String {
        let text = match self {
            Self::Unknown | Self::Absent => return String::new(),
            Self::Text(text) => text.clone(),
            Self::Integer(n) => n.to_string(),
            Self::Number(n) if n.is_finite() => tidy(*n).to_string(),
            Self::Number(_) => return String::new(),
            Self::Bool(b) => b.to_string(),
            Self::Instant(ns) => time::rfc3339(*ns).unwrap_or_default(),
            Self::List(items) => items.join(" "),
            Self::Json(value) => value.to_string(),
        };
        if text.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", text.replace('"', "\"\""))
        } else {
            text
        }
    }

    fn to_text(&self, decimals: usize) -> String {
        match self {
            Self::Unknown => "?".to_owned(),
            Self::Absent => "-".to_owned(),
            // A cell is one line; names of tasks may hold ends of lines.
            Self::Text(text) => printable(text).replace('\n', "\u{fffd}"),
            Self::Integer(n) => n.to_string(),
            Self::Number(n) if n.is_finite() => format!("{n:.decimals$}"),
            Self::Number(_) => "?".to_owned(),
            Self::Bool(b) => if *b { "yes" } else { "no" }.to_owned(),
            Self::Instant(ns) => time::instant(*ns),
            Self::List(items) => printable(&items.join(" ")),
            Self::Json(value) => value.to_string(),
        }
    }
}

pub use evenkeel_base::printable;

type Getter<T> = Box<dyn Fn(&T) -> Value + Send + Sync>;

/// A column: name in documents, heading for people, how to get it.
pub struct Field<T> {
    pub(crate) name: &'static str,
    heading: Cow<'static, str>,
    pub(crate) kind: Kind,
    decimals: usize,
    right: bool,
    in_text: bool,
    pub(crate) get: Getter<T>,
}

impl<T> std::fmt::Debug for Field<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Field({})", self.name)
    }
}

impl<T> Field<T> {
    /// A field of words or, with [`Field::kind`], of any value, aligned left.
    pub fn new(
        name: &'static str,
        heading: impl Into<Cow<'static, str>>,
        get: impl Fn(&T) -> Value + Send + Sync + 'static,
    ) -> Self {
        let heading = heading.into();
        Self { name, heading, kind: Kind::Text, decimals: 0, right: false, in_text: true, get: Box::new(get) }
    }

    pub fn text<V: Into<Value>>(
        name: &'static str,
        heading: impl Into<Cow<'static, str>>,
        get: impl Fn(&T) -> V + Send + Sync + 'static,
    ) -> Self {
        Self::new(name, heading, move |row| get(row).into())
    }

    /// A number, unknown when `None`; text shows `decimals`.
    pub fn number(
        name: &'static str,
        heading: &'static str,
        decimals: usize,
        get: impl Fn(&T) -> Option<f64> + Send + Sync + 'static,
    ) -> Self {
        let mut field = Self::new(name, heading, move |row| get(row).map_or(Value::Unknown, Value::Number));
        field.decimals = decimals;
        field.right = true;
        field.kind(Kind::Number)
    }

    /// A whole number, unknown when `None`.
    pub fn integer(
        name: &'static str,
        heading: &'static str,
        get: impl Fn(&T) -> Option<i64> + Send + Sync + 'static,
    ) -> Self {
        let field = Self::new(name, heading, move |row| get(row).map_or(Value::Unknown, Value::Integer));
        field.kind(Kind::Integer).right()
    }

    /// An instant in nanoseconds since 1970, unknown when `None`.
    pub fn instant(
        name: &'static str,
        heading: &'static str,
        get: impl Fn(&T) -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        let field = Self::new(name, heading, move |row| get(row).map_or(Value::Unknown, Value::Instant));
        field.kind(Kind::Instant)
    }

    /// What its values are, where the constructor does not say.
    #[must_use]
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Only in JSON and CSV: details nobody wants in a terminal's width.
    #[must_use]
    pub fn documents_only(mut self) -> Self {
        self.in_text = false;
        self
    }

    #[must_use]
    pub fn right(mut self) -> Self {
        self.right = true;
        self
    }
}

/// Fields in order, applied to rows.
#[derive(Debug)]
pub struct Table<T> {
    pub(crate) fields: Vec<Field<T>>,
}

impl<T> Table<T> {
    /// A table of these columns.
    pub fn new(fields: Vec<Field<T>>) -> Self {
        Self { fields }
    }

    /// For people: a heading, columns two spaces apart; long words wrap where `width` columns are given, otherwise
    /// lines are as long as they are.
    pub fn text<'a>(&self, rows: impl IntoIterator<Item = &'a T>, width: Option<u16>) -> String
    where
        T: 'a,
    {
        let fields: Vec<_> = self.fields.iter().filter(|field| field.in_text).collect();
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        if let Some(width) = width {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        } else {
            table.set_content_arrangement(ContentArrangement::Disabled);
        }
        table.set_header(fields.iter().map(|field| &*field.heading));
        for row in rows {
            table.add_row(fields.iter().map(|field| Cell::new((field.get)(row).to_text(field.decimals))));
        }
        let last = fields.len().saturating_sub(1);
        let widest = table.column_max_content_widths();
        for (index, field) in fields.iter().enumerate() {
            if let Some(column) = table.column_mut(index) {
                let apart = if index == last { 0 } else { 2 };
                column.set_padding((0, apart));
                if field.right {
                    column.set_cell_alignment(CellAlignment::Right);
                    if width.is_some() {
                        // Numbers are never wrapped, and take no more room than they need.
                        let least = (field.heading.len().max(6) as u16).min(widest[index]) + apart;
                        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
                    }
                }
            }
        }
        let mut text = String::new();
        for line in table.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// RFC 4180 with a header line, lines ended by a newline.
    pub fn csv<'a>(&self, rows: impl IntoIterator<Item = &'a T>) -> String
    where
        T: 'a,
    {
        let mut text = self.fields.iter().map(|field| field.name).collect::<Vec<_>>().join(",");
        text.push('\n');
        for row in rows {
            let cells: Vec<_> = self.fields.iter().map(|field| (field.get)(row).to_csv()).collect();
            text.push_str(&cells.join(","));
            text.push('\n');
        }
        text
    }

    pub fn json<'a>(&self, rows: impl IntoIterator<Item = &'a T>) -> Vec<serde_json::Value>
    where
        T: 'a,
    {
        rows.into_iter()
            .map(|row| {
                let object =
                    self.fields.iter().map(|field| (field.name.to_owned(), (field.get)(row).to_json()));
                serde_json::Value::Object(object.collect())
            })
            .collect()
    }
}

/// Width of the terminal on stdout, columns: `COLUMNS`, else what the terminal says, else 120; `None` asks for no wrapping.
pub fn width(is_terminal: bool) -> Option<u16> {
    if !is_terminal {
        return None;
    }
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    // Shells seldom export `COLUMNS`. A terminal that does not know its size says 0.
    let asked = || rustix::termios::tcgetwinsize(std::io::stdout()).ok().map(|size| size.ws_col);
    let columns: Option<u16> = columns.or_else(asked).filter(|columns| *columns > 0);
    Some(columns.unwrap_or(120).max(60))
}

/// Breaks prose into lines of at most `width` characters (a longer word stands alone); ends with a line end.
pub fn wrap(text: &str, width: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        let len = word.chars().count();
        if column > 0 && column + 1 + len > width {
            out.push('\n');
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += len;
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn csv_quotes_what_needs_it() {
        let table = Table::new(vec![Field::text("a", "A", |s: &String| s.clone())]);
        assert_eq!(table.csv(&["x,\"y\"\n".to_owned()]), "a\n\"x,\"\"y\"\"\n\"\n");
    }

    #[test]
    fn numbers_are_not_wrapped_and_leave_the_room_to_words() {
        let core = Field::integer("core", "CORE", |_: &&str| Some(1));
        let table = Table::new(vec![core, Field::text("owner", "WHOSE", |owner: &&str| *owner)]);
        let long = "container of the team that bakes bread every morning";
        let text = table.text(&[long], Some(60));
        assert_eq!(text, format!("CORE  WHOSE\n   1  {long}\n"));
        let wide = Table::new(vec![Field::integer("n", "N", |_: &&str| Some(1_234_567))]);
        assert_eq!(wide.text(&[""], Some(60)), "      N\n1234567\n");
    }

    #[test]
    fn what_is_not_finite_is_unknown() {
        let table = Table::new(vec![Field::number("a", "A", 1, |n: &f64| Some(*n))]);
        assert_eq!(table.csv(&[f64::NAN]), "a\n\n");
        assert_eq!(table.json(&[f64::INFINITY])[0]["a"], serde_json::Value::Null);
    }

    proptest! {
        #[test]
        fn csv_has_one_record_a_row(cells in proptest::collection::vec(any::<String>(), 0..20)) {
            let table = Table::new(vec![Field::text("a", "A", |s: &String| s.clone())]);
            let csv = table.csv(&cells);
            // Newlines inside quotes are not record ends.
            let mut quoted = false;
            let records = csv.chars().filter(|&c| { quoted ^= c == '"'; c == '\n' && !quoted }).count();
            prop_assert_eq!(records, cells.len() + 1);
        }

        #[test]
        fn text_carries_no_control_characters(cell in any::<String>()) {
            let table = Table::new(vec![Field::text("a", "A", |s: &String| s.clone())]);
            prop_assert!(!table.text(&[cell], Some(80)).chars().any(|c| c.is_control() && c != '\n'));
        }
    }
}
