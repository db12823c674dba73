//! Lengths of waits over the last quarter of an hour: a histogram for each slot.

use std::collections::VecDeque;
use std::sync::Arc;

use evenkeel_base::Histogram;
use serde_json::{Value, json};

/// Time of a slot, ms.
const SLOT_MS: u64 = 15_000;
const SLOTS: u64 = 60;

/// Where an octave begins, us, and how many waits were in it.
type Octave = (u32, u32);

/// See the module. What is over is shared by copies.
#[derive(Debug, Clone, Default)]
pub struct Lengths {
    over: VecDeque<(u64, Arc<[Octave]>)>,
    /// Number of the slot that goes on.
    current: Option<(u64, Box<Histogram>)>,
}

impl Lengths {
    /// Adds waits that ended by an instant, ms since 1970. What is older than a quarter of an hour then goes, and what is later: the clock
    /// was set back.
    pub fn add(&mut self, at_ms: u64, waits: &Histogram) {
        let slot = at_ms / SLOT_MS;
        match &mut self.current {
            Some((current, sum)) if *current == slot => sum.merge(waits),
            current => {
                let ended = current.replace((slot, Box::new(waits.clone())));
                self.over.extend(ended.map(|(slot, waits)| (slot * SLOT_MS, octaves(&waits).into())));
                let lately = slot.saturating_sub(SLOTS) * SLOT_MS..=slot * SLOT_MS;
                self.over.retain(|(at, _)| lately.contains(at));
            }
        }
    }

    /// Slots, oldest first: when each begins (ms since 1970), and its octaves: where one begins (us) and its count. `null` where
    /// nothing was counted.
    pub fn json(&self) -> Value {
        let Some((slot, waits)) = &self.current else { return Value::Null };
        let over = self.over.iter().map(|(at, octaves)| json!([at, octaves]));
        let all: Vec<Value> = over.chain(std::iter::once(json!([slot * SLOT_MS, octaves(waits)]))).collect();
        json!({ "slot_ms": SLOT_MS, "slots": all })
    }
}

fn octaves(waits: &Histogram) -> Vec<Octave> {
    let some = waits.octaves_usec().into_iter().filter(|(_, _, count)| *count > 0);
    let fits = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    some.map(|(from, _, count)| (fits(from), fits(count))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_follow_each_other_and_are_bounded() {
        let mut lengths = Lengths::default();
        assert_eq!(lengths.json(), Value::Null, "nothing counted is not nothing waited");
        let mut waits = Histogram::default();
        waits.add_many(5_000_000, 3);
        lengths.add(SLOT_MS + 1, &waits);
        lengths.add(SLOT_MS + 2, &waits);
        lengths.add(2 * SLOT_MS, &waits);
        assert_eq!(lengths.json()["slots"], json!([[SLOT_MS, [[4096, 6]]], [2 * SLOT_MS, [[4096, 3]]]]));
        for slot in 3..200 {
            lengths.add(slot * SLOT_MS, &waits);
        }
        let slots = lengths.json()["slots"].as_array().unwrap().clone();
        assert_eq!((slots.len(), &slots[60][0]), (61, &json!(199 * SLOT_MS)));
        // Who waited last an hour ago, or tomorrow.
        for slot in [500, 490] {
            lengths.add(slot * SLOT_MS, &waits);
            assert_eq!(lengths.json()["slots"], json!([[slot * SLOT_MS, [[4096, 3]]]]));
        }
    }
}
