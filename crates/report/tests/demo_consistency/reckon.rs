//! Figures of a run from its blocks, by this test's own means.

use evenkeel_report::demo::{Arm, Role};

use crate::textbook::sample;

/// Mean with its interval; none of fewer than two values.
fn interval(values: &[f64], alpha: f64) -> Option<(f64, [f64; 2])> {
    let sample = sample(values)?;
    Some((sample.mean, sample.known(alpha)?))
}

pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n == 0 { f64::NAN } else { (values[(n - 1) / 2] + values[n / 2]) / 2.0 }
}

/// What the blocks of one run say.
#[derive(Debug)]
pub struct Reckoned {
    pub default: Option<(f64, [f64; 2])>,
    pub recipe: Option<(f64, [f64; 2])>,
    pub chosen: Option<(f64, [f64; 2])>,
    pub ceiling: Option<(f64, [f64; 2])>,
    /// At the level asked for.
    pub gain: Option<(f64, [f64; 2])>,
    /// Share of the gap that is closed, with half of its interval.
    pub closed: Option<(f64, f64)>,
}

/// Only rounds in which every arm that has at least half of its blocks has one.
pub fn of_blocks(arms: &[Arm], alpha: f64) -> Reckoned {
    let rounds = arms[0].blocks.len();
    let has = |arm: &Arm| arm.blocks.iter().filter(|b| b.is_some()).count() * 2 >= rounds && rounds > 0;
    let used: Vec<usize> =
        (0..rounds).filter(|r| arms.iter().filter(|a| has(a)).all(|a| a.blocks[*r].is_some())).collect();
    let of = |role: Role| -> Vec<f64> {
        let arm = arms.iter().find(|a| a.role == role).filter(|a| has(a));
        arm.map_or_else(Vec::new, |a| used.iter().map(|r| a.blocks[*r].unwrap()).collect())
    };
    let (default, ceiling) = (of(Role::Default), of(Role::Ceiling));
    let changed = arms.iter().any(|a| a.role == Role::Final);
    let chosen = if changed { of(Role::Final) } else { default.clone() };
    let less = |a: &[f64], b: &[f64]| -> Vec<f64> { a.iter().zip(b).map(|(a, b)| a - b).collect() };
    let (gains, gaps) = (less(&chosen, &default), less(&ceiling, &default));
    let seen = interval(&gaps, 0.05).is_some_and(|(_, [low, _])| low > 0.0) && gains.len() == gaps.len();
    let closed = seen.then(|| {
        let n = gains.len();
        let ratio = |without: Option<usize>| {
            let sum = |v: &[f64]| (0..n).filter(|i| Some(*i) != without).map(|i| v[i]).sum::<f64>();
            sum(&gains) / sum(&gaps)
        };
        let all = ratio(None);
        let pseudo: Vec<f64> = (0..n).map(|i| n as f64 * all - (n as f64 - 1.0) * ratio(Some(i))).collect();
        (all, interval(&pseudo, 0.05).map_or(f64::NAN, |(mean, [_, high])| high - mean))
    });
    Reckoned {
        default: interval(&default, 0.05),
        recipe: interval(&of(Role::Recipe), 0.05),
        chosen: interval(&chosen, 0.05),
        ceiling: interval(&ceiling, 0.05),
        gain: interval(&gains, alpha),
        closed,
    }
}
