//! Are tenants treated equally? The experiments `tenants-net` and `tenants-cpu`.
//!
//! requirements → [`run`] (writes a [`record::TenantsRecord`], the minimum, after every cell) → [`study`] (from the record
//! alone) → report. A cell is one repetition at one point: a kind of tenant, how many, how set up. Repetitions start
//! everything anew, and the order of points turns from one repetition to the next, so that the host's drift does not
//! favour a point.

pub mod plan;
pub mod record;
pub mod run;
pub mod study;
mod verdict;
