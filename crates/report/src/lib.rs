//! How is it shown? One table of fields feeds every output; documents, pictures and pages for people.
//!
//! Output only: nothing here reads the host or decides.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod demo;
pub mod effect;
pub mod figure;
pub mod html;
pub mod lab;
mod parquet;
pub mod ps;
pub mod run;
pub mod svg;
pub mod table;
pub mod time;
pub mod why;

pub use table::{Field, Kind, Table, Value};

/// A measured number for people: four significant digits, no exponent.
pub fn significant(value: f64) -> String {
    if value == 0.0 { value.to_string() } else { evenkeel_base::text::significant(value, 4, 9) }
}
