//! What was planned, recorded and concluded: experiment files, their records, and studies of these. Nothing is run here.
//!
//! * [`file`]: the experiment file of `evenkeel lab` and `evenkeel sim`; [`validation`]: such experiments drawn at random,
//!   to compare the simulator with a kernel; [`instance`]: rules by the names of instance types, as files write them.
//! * [`record`]: what was measured, on disk; [`import`]: logs of others as a record; [`shard`]: a part of an experiment, and
//!   [`merge`]: the record of all parts.
//! * [`study`]: what a record shows; [`decide`]: which sentences follow from its figures; [`sources`]: the figures of others
//!   shown alongside.
//!
//! Everything but reading logs and keeping a record on disk takes plain values and gives plain values.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod decide;
pub mod file;
pub mod import;
pub mod instance;
pub mod manifest;
pub mod merge;
pub mod record;
pub mod shard;
pub mod sources;
pub mod study;
pub mod validation;
