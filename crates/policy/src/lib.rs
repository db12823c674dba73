//! What should change, and is it proved? Pure decisions on observations, no I/O.
//!
//! * [`levers`] propose changes; [`placement`] and [`priority`] are the arithmetic of some, [`refine`] improves a change in force.
//! * [`trial`] decides between them on measurement windows ([`window`]); [`guard`] asks whether any of them hurts somebody, [`protect`]
//!   by the waits of a service, [`requests`] by its requests.
//! * [`monitor`] watches the change that was kept, and says when it has to go.
//! * Without a trial: [`guarantee`] keeps promised shares, [`governor`] finds the limit under which least is stolen, [`follow`] what
//!   services need of a quota that they share, [`turns`] ends waits of groups that lost their turn.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod follow;
pub mod governor;
pub mod guarantee;
pub mod guard;
pub mod levers;
pub mod monitor;
pub mod placement;
pub mod priority;
pub mod protect;
pub mod refine;
pub mod requests;
pub mod trial;
pub mod turns;
pub mod window;
