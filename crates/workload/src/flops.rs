//! `flops`: solves a dense system of linear equations by Gaussian elimination with partial pivoting, as linpack
//! does; an event is one solution, 2/3 n^3 + 2 n^2 floating-point operations.

use std::hint::black_box;

use serde::{Deserialize, Serialize};

use super::Workload;
use crate::load::{Context, LoadError};

/// Parameters.
#[derive(Debug, Clone, PartialEq, clap::Args, Serialize, Deserialize)]
pub struct Flops {
    /// Number of equations.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(2..=4000))]
    pub size: u32,
}

/// A matrix without structure and its row sums, so that the solution is all ones.
fn system(n: usize) -> (Vec<f64>, Vec<f64>) {
    let mut state = 1325u64;
    let mut next = || {
        state = state * 3125 % 65536;
        (state as f64 - 32768.0) / 16384.0
    };
    let matrix: Vec<f64> = (0..n * n).map(|_| next()).collect();
    let sums = matrix.chunks(n).map(|row| row.iter().sum()).collect();
    (matrix, sums)
}

/// Solves in place; the solution replaces the right-hand side.
fn solve(matrix: &mut [f64], rhs: &mut [f64]) {
    let n = rhs.len();
    for column in 0..n {
        let pivot = (column..n)
            .max_by(|a, b| matrix[a * n + column].abs().total_cmp(&matrix[b * n + column].abs()))
            .unwrap_or(column);
        if pivot != column {
            let (upper, lower) = matrix.split_at_mut(pivot * n);
            upper[column * n..column * n + n].swap_with_slice(&mut lower[..n]);
            rhs.swap(column, pivot);
        }
        let (upper, lower) = matrix.split_at_mut((column + 1) * n);
        let top = &upper[column * n..];
        for (row, values) in lower.chunks_mut(n).enumerate() {
            let factor = values[column] / top[column];
            for (value, above) in values[column..].iter_mut().zip(&top[column..]) {
                *value -= factor * above;
            }
            rhs[column + 1 + row] -= factor * rhs[column];
        }
    }
    for row in (0..n).rev() {
        let known: f64 = (row + 1..n).map(|c| matrix[row * n + c] * rhs[c]).sum();
        rhs[row] = (rhs[row] - known) / matrix[row * n + row];
    }
}

impl Workload for Flops {
    fn wanted_pct(&self) -> Option<f64> {
        Some(100.0)
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), LoadError> {
        let (matrix, rhs) = system(self.size as usize);
        let (mut work, mut solution) = (matrix.clone(), rhs.clone());
        while context.claim() {
            work.copy_from_slice(&matrix);
            solution.copy_from_slice(&rhs);
            solve(black_box(&mut work), black_box(&mut solution));
            context.done(1);
        }
        Ok(())
    }

    fn arguments(&self) -> Vec<String> {
        vec!["flops".into(), format!("--size={}", self.size)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_solution_is_right() {
        for n in [2, 3, 10, 60] {
            let (mut matrix, mut rhs) = system(n);
            solve(&mut matrix, &mut rhs);
            assert!(rhs.iter().all(|x| (x - 1.0).abs() < 1e-6), "{n}: {rhs:?}");
        }
    }
}
