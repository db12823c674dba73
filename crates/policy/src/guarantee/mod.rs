//! Promised shares: what is promised ([`amount`]), whether it fits ([`admit`]), by which settings it is kept
//! ([`tree`], [`pack`], [`nice`], [`control`]), whether it was ([`verdict`]), and what raises the rate of a closed loop ([`rate`]).
//!
//! A promise is about supply: whenever its tasks are runnable they get at least their share, whatever the neighbours
//! do. It is work-conserving: weights divide only what several want at the same time, so what a promised task leaves
//! unused is anyone's.
//!
//! # From promises to settings
//!
//! ```text
//!               root                        promise 40 for /docker/a, 50 for /docker/b: the path carries them
//!        /docker      /system.slice         /docker must win 90 against /system.slice (found weight 1024)
//!      a    b    c                          a, b must win 40 and 50 against c
//! ```
//!
//! Each promise has *carriers*: the highest cgroups that hold nothing but its tasks, or single tasks where they share a
//! cgroup with others. At every node of the cgroup tree on the way to a carrier there is a *siblings* between children
//! that carry promises, siblings of the scope that are promised nothing, and *competitors* outside (sum W of the weights
//! found). A child whose found weight gives it its r points even when everybody else wants everything is left as it is.
//! What the others need comes from the siblings of the scope; only what those cannot give raises the sum of weights, by as
//! much as is needed, and [`tree::Solved::outside_pct`] says what that costs the competitors, which are never touched.
//!
//! Single-threaded carriers that share several CPUs are packed onto them when it is needed, so that no promise meets
//! more weight on its CPU than the capacity covers: that is also what makes *infeasible* weights (one thread promised
//! more than its proportional share of several CPUs) harmless.

pub mod admit;
pub mod amount;
pub mod control;
pub mod nice;
pub mod pack;
pub mod rate;
pub mod tree;
pub mod verdict;

pub use admit::{Admission, AdmissionRequest, Admissions};
pub use amount::{CpuAmount, CpuAmountError, Mean, Reservation};
pub use verdict::{Judgement, Verdict, Window};
