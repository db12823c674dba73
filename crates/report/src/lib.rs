//! How is it shown? One table of fields feeds every output; documents, pictures and pages for people.
//!
//! Output only: nothing here reads the host or decides.

pub mod demo;
pub mod html;
pub mod lab;
pub mod run;
pub mod svg;
pub mod table;
pub mod time;

pub use table::{Field, Table, Value};
