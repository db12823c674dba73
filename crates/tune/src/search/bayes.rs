//! Bayesian search: a Gaussian process follows what was measured; the next point is where an improvement is expected
//! most, weighed by how likely it keeps the constraints (Jones et al. 1998; Gardner et al. 2014).

use rand::Rng;
use statrs::distribution::{Continuous, ContinuousCDF, Normal};

use super::descent::fresh;
use super::gp::{Datum, Gp, Prediction};
use super::history::{Arm, History};
use super::space::{Point, Space, Value};

/// Points drawn at random among which the best is refined.
const DRAWN: usize = 600;
/// Points drawn about the best measured one.
const NEAR: usize = 200;
/// Of a space with at most this many points every one is looked at.
const ALL_BELOW: u64 = 1500;
/// Points the process is fitted to at most: the best and the latest.
const MOST: usize = 150;

/// First points: evenly spread (Halton's sequence, shifted by a random amount), the warm ones before them.
fn first(space: &Space, history: &History, warm: &[Point], seed: u64) -> Option<Point> {
    let new = |p: &Point| space.holds(p) && history.arm(p).is_none();
    if let Some(point) = warm.iter().find(|p| new(p)) {
        return Some(point.clone());
    }
    const PRIMES: [u64; 24] =
        [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89];
    (1..400u64).find_map(|n| {
        let place: Vec<f64> = (0..space.dim())
            .map(|i| {
                let base = PRIMES[i % PRIMES.len()];
                let (mut rest, mut part, mut x) = (n, 1.0, 0.0);
                while rest > 0 {
                    part /= base as f64;
                    x += part * (rest % base) as f64;
                    rest /= base;
                }
                (x + shift(seed, i)).fract()
            })
            .collect();
        let point = space.at(&place);
        new(&point).then_some(point)
    })
}

/// A number from 0 to 1 that depends on seed and axis (SplitMix64's mixing).
fn shift(seed: u64, axis: usize) -> f64 {
    let mut z = seed.wrapping_add((axis as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as f64 / u64::MAX as f64
}

/// Points measured before the process is asked.
pub(super) fn first_points(dim: usize, warm: usize) -> usize {
    (2 * dim).clamp(3, 10).max(warm.min(dim + 2))
}

/// Losses for fitting: those far above the best part are drawn together, so that a few very bad ones do not hide the
/// differences among the good; failures count as the worst seen.
fn levelled(arms: &[&Arm]) -> Vec<f64> {
    let mut known: Vec<f64> = arms.iter().filter(|a| !a.fails()).filter_map(|a| a.mean()).collect();
    known.sort_by(f64::total_cmp);
    let (Some(&best), Some(&middle)) = (known.first(), known.get(known.len() / 2)) else {
        return vec![0.0; arms.len()];
    };
    let span = middle - best;
    let level = |y: f64| {
        if span > 0.0 && y > middle { middle + span * ((y - middle) / span).ln_1p() } else { y }
    };
    let worst = known.last().map_or(0.0, |y| level(*y));
    arms.iter().map(|a| if a.fails() { worst } else { a.mean().map_or(worst, level) }).collect()
}

/// The processes of the loss and of each constraint.
pub struct Fitted {
    /// Of the (levelled) loss.
    pub loss: Gp,
    limits: Vec<Gp>,
    /// Smallest expected loss among the points that keep the constraints.
    best: Option<f64>,
}

/// Fits to what was measured; `None` while there is too little.
pub fn fit(space: &Space, history: &History) -> Option<Fitted> {
    let mut arms: Vec<&Arm> = history.arms().iter().collect();
    if arms.len() > MOST {
        let loss = |a: &Arm| a.mean().unwrap_or(f64::INFINITY);
        let last = arms.split_off(arms.len() - MOST / 3);
        arms.sort_by(|a, b| loss(a).total_cmp(&loss(b)));
        arms.truncate(MOST - MOST / 3);
        arms.extend(last);
    }
    let categorical = space.categorical();
    let data = |ys: &[f64]| -> Vec<Datum> {
        let one = |(arm, y): (&&Arm, &f64)| Datum {
            x: space.place(&arm.point),
            y: *y,
            runs: arm.runs.len() as f64,
        };
        arms.iter().zip(ys).map(one).collect()
    };
    let noise = history.noise().filter(|(_, freedom)| *freedom >= 4).map(|(sd, _)| sd);
    let loss = Gp::fit(&data(&levelled(&arms)), &categorical, noise)?;
    let constraints = arms.iter().flat_map(|a| a.runs.iter().map(|r| r.excess.len())).max().unwrap_or(0);
    let mut limits = Vec::new();
    for c in 0..constraints {
        let known: Vec<f64> = arms.iter().filter_map(|a| a.excess(c)).collect();
        let worst = known.iter().copied().fold(0.0, f64::max);
        let ys: Vec<f64> = arms.iter().map(|a| a.excess(c).unwrap_or(worst)).collect();
        limits.extend(Gp::fit(&data(&ys), &categorical, None));
    }
    let best = arms.iter().filter(|a| a.feasible()).map(|a| loss.mean(&space.place(&a.point)));
    let best = best.min_by(f64::total_cmp);
    Some(Fitted { loss, limits, best })
}

impl Fitted {
    /// Logarithm of expected improvement times the probability that the constraints are kept.
    fn gain(&self, x: &[f64]) -> f64 {
        let Ok(normal) = Normal::new(0.0, 1.0) else { return f64::NEG_INFINITY };
        let kept: f64 = self
            .limits
            .iter()
            .map(|gp| {
                let Prediction { mean, sd } = gp.predict(x);
                normal.cdf(-mean / sd).max(1e-30).ln()
            })
            .sum();
        let Some(best) = self.best else { return kept };
        let Prediction { mean, sd } = self.loss.predict(x);
        let z = (best - mean) / sd;
        // phi(z) + z Phi(z), for z far below 0 by its expansion phi(z) / z^2.
        let improvement = if z > -6.0 {
            (normal.pdf(z) + z * normal.cdf(z)).max(1e-300).ln()
        } else {
            -0.5 * z * z - 0.919 - 2.0 * (-z).ln()
        };
        sd.ln() + improvement + kept
    }
}

/// The next point.
pub(super) fn propose(
    space: &Space,
    history: &History,
    warm: &[Point],
    seed: u64,
    rng: &mut impl Rng,
) -> Option<Point> {
    if history.arms().len() < first_points(space.dim(), warm.len())
        && let Some(point) = first(space, history, warm, seed)
    {
        return Some(point);
    }
    let Some(fitted) = fit(space, history) else { return fresh(space, history, rng) };
    let new = |p: &Point| history.arm(p).is_none();
    let mut candidates: Vec<Point> = match space.count() {
        Some(count) if count <= ALL_BELOW => space.grid(u64::MAX).filter(new).collect(),
        _ => {
            let mut drawn: Vec<Point> = (0..DRAWN).map(|_| space.draw(rng)).collect();
            if let Some(best) = history.best().or_else(|| history.least_bad()) {
                drawn.extend((0..NEAR).map(|_| near(space, &best.point, rng)));
            }
            drawn.retain(new);
            drawn
        }
    };
    let all = space.count().is_some_and(|c| c <= ALL_BELOW);
    let mut scored: Vec<(f64, Point)> = candidates
        .drain(..)
        .map(|p| (fitted.gain(&space.place(&p)), p))
        .filter(|(g, _)| !g.is_nan())
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    if !all {
        scored.truncate(4);
        for (gain, point) in &mut scored {
            refine(space, history, &fitted, gain, point, rng);
        }
        scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    }
    match scored.into_iter().next() {
        Some((_, point)) => Some(point),
        None => fresh(space, history, rng),
    }
}

/// A point about another: each parameter is moved a little, far, or not at all.
fn near(space: &Space, centre: &Point, rng: &mut impl Rng) -> Point {
    let spread = 10f64.powf(rng.random_range(-2.5..-0.5));
    let mut place = space.place(centre);
    for x in &mut place {
        if rng.random_bool(0.7) {
            *x = (*x + spread * (rng.random::<f64>() + rng.random::<f64>() - 1.0)).clamp(0.0, 1.0);
        }
    }
    let mut point = space.at(&place);
    for (axis, value) in point.iter_mut().enumerate() {
        if let Value::Choice(_) = value {
            let keep = rng.random_bool(0.8);
            let domain = &space.parameters()[axis].domain;
            *value = if keep { centre[axis] } else { domain.at(rng.random()) };
        }
    }
    point
}

/// Small random steps uphill of the gain.
fn refine(
    space: &Space,
    history: &History,
    fitted: &Fitted,
    gain: &mut f64,
    point: &mut Point,
    rng: &mut impl Rng,
) {
    let mut spread = 0.1;
    let mut failures = 0;
    for _ in 0..80 {
        let mut place = space.place(point);
        for (x, categorical) in place.iter_mut().zip(space.categorical()) {
            if !categorical && rng.random_bool(0.6) {
                *x = (*x + spread * (2.0 * rng.random::<f64>() - 1.0)).clamp(0.0, 1.0);
            }
        }
        let other = space.at(&place);
        let better = fitted.gain(&space.place(&other));
        if better > *gain && history.arm(&other).is_none() {
            (*gain, *point) = (better, other);
            failures = 0;
        } else {
            failures += 1;
            if failures % 6 == 0 {
                spread *= 0.6;
            }
        }
    }
}
