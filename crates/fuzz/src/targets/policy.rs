//! Amounts of CPU, as promises are written.

use evenkeel_policy::guarantee::CpuAmount;

use super::amount::amount;
use crate::Target;

pub const TARGETS: &[Target] = &[Target::text("cpu-amount", |text| {
    if let Ok(promised) = CpuAmount::parse_or_zero(text) {
        amount("a share", promised.pct(1));
        amount("a share of a large host", promised.pct(8192));
        assert!(CpuAmount::parse_or_zero(&promised.to_string()).is_ok(), "{promised}");
    }
    if let Ok(promised) = text.parse::<CpuAmount>() {
        assert!(promised.pct(1) > 0.0);
    }
})];
