//! What there is to find is found, and what is not there is not.

use super::made::World;
use super::{count, figure, print};
use crate::shared::Random;
use crate::textbook::average;

#[test]
fn planted_effects_are_found_and_nulls_are_not() {
    let mut random = Random(41);
    let rounds = (count(150) / 10).clamp(100, 400);
    let base = World {
        max: true,
        method: "exhaustive",
        finalists: 3,
        repeats: 5,
        trials: 40,
        scale: 1000.0,
        noise: 0.02,
        present: true,
        ..World::default()
    };
    // With heavy tails the width of an interval varies more than the effect planted by its mean.
    for (name, world, least) in [
        ("final comparison", base.clone(), 95),
        ("heavy tails, min", World { heavy: true, max: false, ..base.clone() }, 90),
        ("no final comparison", World { finalists: 0, trials: 60, wild: true, ..base.clone() }, 95),
    ] {
        let mut answer = |planted: f64| {
            let world = World { planted, ..world.clone() };
            let mut made = world.records(&world.tune(), &mut random);
            if world.finalists == 0 {
                made.iter_mut().for_each(|r| r.reason = "new".into());
            }
            print(&world, &made).answer
        };
        // Half the width of the gain's interval, where there is one.
        let halves = (0..80).filter_map(|_| {
            let text = answer(0.02);
            let at = text.find("rps [")?;
            let (_, ends, _) = figure(text[at + 5..].split_once(": ")?.1)?;
            ends.map(|[low, high]| (high - low) / 2.0 / world.scale)
        });
        let half = average(&halves.collect::<Vec<_>>());
        let found = (0..rounds).filter(|_| answer(2.0 * half).contains("Gain over")).count();
        let absent = (0..rounds).filter(|_| !answer(0.0).contains("Gain over")).count();
        println!("{name}: half width {half:.4}; planted found {found}, null absent {absent}, of {rounds}");
        assert!(
            found * 100 >= least * rounds && absent * 100 >= 95 * rounds,
            "{name}: {found}, {absent} of {rounds}"
        );
    }
}
