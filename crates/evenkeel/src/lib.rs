//! The `evenkeel` program: one file a command under `cli`. It is a library so that `crates/fuzz` reaches what it parses;
//! `main.rs` starts it.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[macro_use]
extern crate evenkeel_console;

mod cli;

#[doc(hidden)]
pub use cli::fuzzing;

/// The program, from its arguments to its exit status.
pub fn main() -> std::process::ExitCode {
    cli::main()
}
