//! Instants at which loads start.

use evenkeel_workload::load::StartAt;

use crate::Target;

pub const TARGETS: &[Target] = &[Target::text("start-at", |text| {
    if let Ok(at) = text.parse::<StartAt>() {
        assert_eq!(at.to_string().parse::<StartAt>().as_ref(), Ok(&at));
    }
})];
