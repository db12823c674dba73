//! What is wrong and what should change: pure decisions on observations, no I/O.

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod audit;
pub mod fair;
pub mod governor;
pub mod guarantee;
pub mod guard;
pub mod levers;
pub mod monitor;
pub mod placement;
pub mod priority;
pub mod protect;
pub mod refine;
pub mod search;
pub mod trial;
pub mod window;
