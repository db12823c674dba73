//! CPU limits of a command.

use std::time::Duration;

use evenkeel_exec::{CpuLimit, fuzzing, quota};

use super::amount::amount;
use crate::Target;

pub const TARGETS: &[Target] = &[
    Target::text("cpu-limit", |text| {
        if let Ok(limit) = text.parse::<CpuLimit>() {
            amount("a limit", limit.pct());
            let _ = quota(Some(limit), Duration::from_millis(100), Duration::ZERO);
        }
    }),
    Target::bytes("taskstats", fuzzing::taskstats),
];
