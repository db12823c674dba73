//! `stream`: memory bandwidth, the triad of the STREAM benchmark, a = b + s * c, over arrays larger than the caches;
//! an event is one pass (24 bytes moved an element, not counting write allocation).

use std::hint::black_box;

use serde::{Deserialize, Serialize};

use super::Workload;
use crate::load::{Context, LoadError};

/// Elements between two looks at the clock.
const PIECE: usize = 1 << 16;

/// Parameters.
#[derive(Debug, Clone, PartialEq, clap::Args, Serialize, Deserialize)]
pub struct Stream {
    /// Memory of each thread, MiB: three arrays of a third each.
    #[arg(long, value_name = "MIB", default_value_t = 96, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub memory: u32,
}

impl Workload for Stream {
    fn wanted_pct(&self) -> Option<f64> {
        Some(100.0)
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), LoadError> {
        let elements = (self.memory as usize * (1 << 20) / 24).max(1);
        let array = |value: f64| -> Result<Vec<f64>, LoadError> {
            let mut array = Vec::new();
            array.try_reserve_exact(elements).map_err(|e| {
                LoadError::system(
                    format!("cannot get {} MiB of memory", self.memory),
                    std::io::Error::other(e),
                )
            })?;
            array.resize(elements, value);
            Ok(array)
        };
        let (mut a, b, c) = (array(0.0)?, array(1.0)?, array(2.0)?);
        while context.claim() {
            for ((a, b), c) in a.chunks_mut(PIECE).zip(b.chunks(PIECE)).zip(c.chunks(PIECE)) {
                triad(a, b, c, black_box(3.0));
                if context.over() {
                    return Ok(());
                }
            }
            context.done(1);
        }
        black_box(&a);
        Ok(())
    }

    fn arguments(&self) -> Vec<String> {
        vec!["stream".into(), format!("--memory={}", self.memory)]
    }
}

/// a = b + s * c
fn triad(a: &mut [f64], b: &[f64], c: &[f64], s: f64) {
    for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
        *a = b + s * c;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_triad_adds_and_multiplies() {
        let mut a = [0.0; 3];
        triad(&mut a, &[1.0, 2.0, 3.0], &[10.0, 20.0, 30.0], 0.5);
        assert_eq!(a, [6.0, 12.0, 18.0]);
    }
}
