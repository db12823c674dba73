//! What does this kernel file say? One module per file: `parse(&str)` and a read under a root directory.

pub mod sys;
