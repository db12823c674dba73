//! Are tenants treated equally? The experiments `tenants-net` and `tenants-cpu`.
//!
//! A cell of theirs is one repetition at one point: a kind of tenant, how many, how set up. [`run`] makes and measures it, with
//! everything started again; the loop around the cells is [`crate::runner::bench`]. From the [`record`] alone comes the
//! [`study`], and from that the report.

pub mod plan;
pub mod record;
pub mod run;
pub mod study;
mod verdict;
