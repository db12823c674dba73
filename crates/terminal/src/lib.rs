//! What is happening, live, on a terminal? The screens of `top`.
//!
//! * `census` makes of an observation one list of pods, containers, machines, services, processes and threads, with
//!   their numbers and whose they are; `trend` keeps the last minute of each.
//! * `model` is the state of the screens: keys and observations in, state and errands out. It does no I/O.
//! * `draw` draws a state into a buffer of any size, and changes nothing.
//! * `app` is the loop around them: threads that look at the host, ask `why`, read the history.
//!
//! Whatever is drawn passes `draw::draw`'s last step, after which no cell holds a control character; without UTF-8 none
//! holds anything but ASCII. Nothing is told by colour alone.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod app;
mod census;
mod cores;
mod draw;
mod errand;
mod heat;
mod keys;
mod list;
mod model;
mod past;
mod skin;
#[cfg(test)]
mod testing;
mod tree;
mod trend;
mod update;

pub use app::{Options, TerminalError, run};
pub use errand::{Host, Running};
pub use model::MIN_INTERVAL;
pub use skin::Skin;
pub use tree::Grouping;
