//! A part of an experiment for one of several runs, which may be on several hosts: `1/4` is the second of four.
//!
//! ```text
//! cells, in the order written    repetition 0: a b c   1: a b c   2: a b c   3: a b c
//! simulated, shard 1/4                           b            c            …every fourth cell, whatever it is
//! measured, shard 1/4                                  a b c               whole repetitions, one after the other
//! ```
//!
//! What a cell does to a simulator does not depend on where it is simulated, so cells are dealt out one by one: long points
//! meet all shards. Hosts differ, so what is measured stays whole: every host compares all points with one another.

use std::fmt;
use std::str::FromStr;

use evenkeel_base::text::count;
use serde::{Deserialize, Serialize};

/// Most shards.
pub const MOST: u32 = 10_000;

/// One of `count` shards, by its number from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Which, from 0: `JOB_COMPLETION_INDEX` in a Job of Kubernetes.
    pub index: u32,
    /// Of how many.
    pub count: u32,
}

impl Shard {
    /// Whether a simulation of this shard has the cell of this point and repetition.
    pub fn has_cell(self, points: usize, point: usize, repetition: u32) -> bool {
        let number = u64::from(repetition) * points as u64 + point as u64;
        number % u64::from(self.count) == u64::from(self.index)
    }

    /// Whether a measurement of this shard has this repetition, of so many. Neighbours stay together: settings that change
    /// from one repetition to the next (`activation = "both"`) change on every host that has two.
    pub fn has_repetition(self, repetitions: u32, repetition: u32) -> bool {
        let number = u64::from(repetition) * u64::from(self.count) / u64::from(repetitions.max(1));
        number == u64::from(self.index)
    }

    /// Refuses more shards than there are parts: some would have nothing to do.
    pub fn check(self, parts: usize, what: &str) -> Result<(), String> {
        if self.count as usize <= parts {
            return Ok(());
        }
        let parts_counted = count(parts, what);
        Err(format!("{parts_counted} cannot be split into {} shards: at most {parts}", self.count))
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        let Some((index, count)) = numbers else {
            return Err("write INDEX/COUNT, such as 0/4 for the first of four".to_owned());
        };
        if !(1..=MOST).contains(&count) {
            return Err(format!("1 to {MOST} shards, not {count}"));
        }
        if index >= count {
            return Err(format!("shards count from 0: the last of {count} is {}/{count}", count - 1));
        }
        Ok(Self { index, count })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(count: u32) -> impl Iterator<Item = Shard> {
        (0..count).map(move |index| Shard { index, count })
    }

    proptest! {
        #[test]
        fn every_cell_is_in_one_shard_and_shards_differ_by_one_cell_at_most(
            count in 1..20u32, points in 1..20usize, repetitions in 1..20u32
        ) {
            let mut sizes = vec![0; count as usize];
            for repetition in 0..repetitions {
                for point in 0..points {
                    let mut has = all(count).filter(|shard| shard.has_cell(points, point, repetition));
                    let first = has.next().unwrap();
                    prop_assert_eq!(has.next(), None);
                    sizes[first.index as usize] += 1;
                }
            }
            prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{:?}", sizes);
        }

        #[test]
        fn every_repetition_is_in_one_shard_next_to_its_neighbours(count in 1..20u32, repetitions in 1..40u32) {
            let of = |shard: Shard| (0..repetitions).filter(move |r| shard.has_repetition(repetitions, *r));
            let dealt: Vec<u32> = all(count).flat_map(of).collect();
            prop_assert_eq!(dealt, (0..repetitions).collect::<Vec<_>>());
            if count <= repetitions {
                let sizes: Vec<usize> = all(count).map(|shard| of(shard).count()).collect();
                prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{:?}", sizes);
            }
        }

        #[test]
        fn any_text_is_a_shard_or_refused(text in "[0-9/ -]{0,12}") {
            if let Ok(shard) = text.parse::<Shard>() {
                prop_assert!(shard.index < shard.count);
                prop_assert_eq!(shard.to_string().parse::<Shard>().unwrap(), shard);
            }
        }
    }

    #[test]
    fn wrong_shards_are_refused_in_words() {
        for (text, part) in [
            ("", "INDEX/COUNT"),
            ("1", "INDEX/COUNT"),
            ("1/2/3", "INDEX/COUNT"),
            ("-1/2", "INDEX/COUNT"),
            ("4/4", "the last of 4 is 3/4"),
            ("0/0", "1 to 10000"),
            ("0/10001", "1 to 10000"),
        ] {
            let error = text.parse::<Shard>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        let shard: Shard = "0/3".parse().unwrap();
        assert!(shard.check(3, "cell").is_ok());
        assert_eq!(shard.check(1, "cell").unwrap_err(), "1 cell cannot be split into 3 shards: at most 1");
    }
}
