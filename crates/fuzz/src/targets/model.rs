//! Lists of CPU units, and the table of instance families.

use evenkeel_model::families;
use evenkeel_model::units::{self, UnitList};

use super::amount::amount;
use crate::Target;

pub const TARGETS: &[Target] = &[
    Target::text("units", |text| {
        if let Ok(list) = text.parse::<UnitList>() {
            assert!((1..=10_000).contains(&list.units().len()));
            assert_eq!(list.to_string().parse::<UnitList>().as_ref(), Ok(&list));
            for v2 in [false, true] {
                if let Ok(factor) = units::factor(list.units(), v2) {
                    amount("a factor", factor);
                    let least = if v2 { 1 } else { 2 };
                    assert!(list.units().iter().all(|units| units::weight(*units, factor) >= least));
                }
            }
        }
    }),
    Target::text("families", |text| {
        let _ = families::parse(text);
        let _ = families::of(text);
    })
    .samples(&["crates/model/data/families.toml"]),
];
