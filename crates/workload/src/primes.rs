//! `primes`: an event is one pass over the numbers 3..10,000 by trial division with every integer up to the square
//! root: the algorithm of `sysbench cpu`, so that events a second can be compared with its "events per second".

use std::hint::black_box;

use serde::{Deserialize, Serialize};

use super::Workload;
use crate::load::{Context, LoadError};

/// Parameters.
#[derive(Debug, Clone, PartialEq, clap::Args, Serialize, Deserialize)]
pub struct Primes {
    /// Upper limit of the numbers tested (sysbench: --cpu-max-prime).
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(3..=10_000_000))]
    pub max_prime: u64,
}

/// Number of primes in `3..max`. Divisor and square root are compared as floating point, as the original does.
pub fn pass(max: u64) -> u64 {
    let mut primes = 0;
    for candidate in 3..max {
        let root = (candidate as f64).sqrt();
        let mut divisor = 2u64;
        // black_box: 64-bit divisions as written, not the narrower ones a compiler may prove sufficient.
        while divisor as f64 <= root {
            if black_box(candidate) % divisor == 0 {
                break;
            }
            divisor += 1;
        }
        if divisor as f64 > root {
            primes += 1;
        }
    }
    primes
}

impl Workload for Primes {
    fn wanted_pct(&self) -> Option<f64> {
        Some(100.0)
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), LoadError> {
        while context.claim() {
            black_box(pass(black_box(self.max_prime)));
            context.done(1);
        }
        Ok(())
    }

    fn arguments(&self) -> Vec<String> {
        vec!["primes".into(), format!("--max-prime={}", self.max_prime)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_finds_the_primes() {
        // 4 primes below 10 and 1229 below 10,000; 2 is not looked at.
        assert_eq!(pass(10), 3);
        assert_eq!(pass(10_000), 1228);
    }
}
