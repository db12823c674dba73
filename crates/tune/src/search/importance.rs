//! How much each parameter matters: its share of the variance of the loss over the whole space, by Sobol's indices of
//! the fitted process (Saltelli et al. 2010, estimators of table 2, c and f), together with what it does along its range.

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use serde::{Deserialize, Serialize};

use super::gp::Gp;
use super::space::Space;

/// Points drawn for the estimate.
const DRAWN: usize = 400;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Importance {
    pub name: String,
    /// Share of the variance it explains by itself, 0..1.
    pub alone: f64,
    /// Share of the variance it has a part in, together with others.
    pub total: f64,
}

/// Importances, in the parameters' order; `None` when the process is flat.
pub fn of(space: &Space, gp: &Gp) -> Option<Vec<Importance>> {
    let dim = space.dim();
    let mut rng = Pcg32::seed_from_u64(5);
    // Through the space's own values, so that whole numbers and choices stay what they are.
    let mut draw = || -> Vec<f64> {
        let unit: Vec<f64> = (0..dim).map(|_| rng.random()).collect();
        space.place(&space.at(&unit))
    };
    let (a, b): (Vec<_>, Vec<_>) = (0..DRAWN).map(|_| (draw(), draw())).unzip();
    let at_a: Vec<f64> = a.iter().map(|x| gp.mean(x)).collect();
    let at_b: Vec<f64> = b.iter().map(|x| gp.mean(x)).collect();
    let all: Vec<f64> = at_a.iter().chain(&at_b).copied().collect();
    let variance = evenkeel_base::stats::variance(&all);
    let largest = all.iter().fold(0.0f64, |m, y| m.max(y.abs()));
    if variance.is_nan() || variance.sqrt() <= 1e-9 * largest.max(1e-300) {
        return None;
    }
    let one = |axis: usize| {
        let (mut alone, mut total) = (0.0, 0.0);
        for i in 0..DRAWN {
            let mut mixed = a[i].clone();
            mixed[axis] = b[i][axis];
            let y = gp.mean(&mixed);
            alone += (at_b[i] - y).powi(2);
            total += (at_a[i] - y).powi(2);
        }
        let n = 2.0 * DRAWN as f64 * variance;
        let total = (total / n).clamp(0.0, 1.0);
        Importance {
            name: space.parameters()[axis].name.clone(),
            alone: (1.0 - alone / n).clamp(0.0, total),
            total,
        }
    };
    Some((0..dim).map(one).collect())
}
