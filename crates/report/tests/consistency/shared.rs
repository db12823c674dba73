//! What the tests of consistency share, those of other crates included: numbers that look random, what is counted, Student's t.
//! Nothing of the tested code is used.

#![allow(dead_code)]

use std::collections::BTreeMap;

/// Numbers that look random, the same every time.
pub struct Random(pub u64);

impl Random {
    pub fn uniform(&mut self) -> f64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[((self.uniform() * of.len() as f64) as usize).min(of.len() - 1)]
    }

    pub fn normal(&mut self) -> f64 {
        let (u, v) = (self.uniform().max(1e-12), self.uniform());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }
}

/// How many records: what the environment says, else a few.
pub fn count(short: usize) -> usize {
    std::env::var("EVENKEEL_CONSISTENCY_RECORDS").ok().and_then(|n| n.parse().ok()).unwrap_or(short)
}

/// What is counted while a record is checked.
#[derive(Default)]
pub struct Tally {
    pub sentences: usize,
    pub reckoned: usize,
    pub kinds: BTreeMap<&'static str, usize>,
    pub wrong: Vec<String>,
}

impl Tally {
    pub fn hold(&mut self, right: bool, what: impl FnOnce() -> String) {
        self.reckoned += 1;
        if !right {
            self.wrong.push(what());
        }
    }

    pub fn seen(&mut self, kind: &'static str) {
        self.sentences += 1;
        *self.kinds.entry(kind).or_default() += 1;
    }
}

/// Integral of sin^(v-1) from 0 to phi: Simpson's rule in the square root of the angle.
fn tail(v: f64, phi: f64) -> f64 {
    let (n, to) = (240, phi.sqrt());
    let h = to / f64::from(n);
    let f = |w: f64| if w == 0.0 { 0.0 } else { 2.0 * w * (w * w).sin().powf(v - 1.0) };
    let inner = (1..n).map(|i| f64::from(if i % 2 == 1 { 4 } else { 2 }) * f(f64::from(i) * h)).sum::<f64>();
    (f(0.0) + inner + f(to)) * h / 3.0
}

/// The t that a Student-t variable with `v` degrees of freedom exceeds in size with probability `alpha`: with
/// t = sqrt(v) cot(phi) that probability is the part of the angle's density up to phi.
pub fn t_two_sided(alpha: f64, v: f64) -> f64 {
    let right = std::f64::consts::FRAC_PI_2;
    let all = tail(v, right);
    let (mut low, mut high) = (0.0, right);
    for _ in 0..60 {
        let phi = (low + high) / 2.0;
        if tail(v, phi) < alpha * all { low = phi } else { high = phi }
    }
    v.sqrt() / low.tan()
}
