//! A test of pairs whose order is drawn at random, valid by that alone, with a few looks settled beforehand.
//!
//! Had the arms of a pair been the other way round, its difference had the other sign. So what was found is compared with
//! what all choices of signs would have given (Fisher 1935). The error probability is one for all looks together: each has
//! a part of it. Where one looks after every pair, [`super::SignBets`] are the means; but they take more
//! pairs, for they must hold after every one of them.

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;

use super::bets::MOST_SIZE;

/// Pairs after which one looks, and the part of the error probability that each look has. They sum to more than 1, for looks share
/// most of their pairs: in simulations of normal, heavy-tailed and equal differences all together err 0.9 times as often as
/// they may at 5 %, and as often at 1 %. Later looks have more, so that many questions are all answered soon.
const LOOKS: [(usize, f64); 7] =
    [(7, 0.16), (9, 0.16), (11, 0.17), (14, 0.2), (19, 0.27), (26, 0.3), (36, 0.3)];
/// With up to so many pairs all choices of signs are tried, with more so many at random.
const ALL: usize = 11;
const CHOICES: u32 = 999;

/// Whether one looks after so many pairs, and if so what part of the error probability that look has.
pub fn part_of_look(pairs: usize) -> Option<f64> {
    LOOKS.iter().find(|look| look.0 == pairs).map(|look| look.1)
}

/// Whether a sum of differences as great as this one is as improbable as `alpha`, were the signs of pairs coins. Of several
/// measures of the same pairs the one that shows most counts, and so it does in what it is compared with.
pub fn shows(measures: &[&[f64]], alpha: f64) -> bool {
    let measures: Vec<Vec<f64>> = measures.iter().filter_map(|differences| scaled(differences)).collect();
    let found = greatest(&measures, 0);
    // Hoeffding's bound on a sum of independent signs.
    let bound = measures.len() as f64 * (-found * found / 2.0).exp();
    found > 0.0 && (bound <= alpha || chance(&measures, found) <= alpha)
}

/// Differences in units of the root of the sum of their squares, none as more than [`MOST_SIZE`] standard deviations, so that a few
/// wild ones do not drown the rest; `None` where nothing differs. What is taken of all sizes leaves signs coins.
fn scaled(differences: &[f64]) -> Option<Vec<f64>> {
    let most = super::robust_scale(differences.iter().copied()).filter(|scale| *scale > 0.0);
    let most = most.map_or(f64::INFINITY, |scale| MOST_SIZE * scale);
    let cut: Vec<f64> = differences.iter().map(|difference| difference.clamp(-most, most)).collect();
    let norm = cut.iter().map(|difference| difference * difference).sum::<f64>().sqrt();
    (norm > 0.0 && norm.is_finite()).then(|| cut.iter().map(|difference| difference / norm).collect())
}

/// The greatest sum of a measure where the pairs of the bits set were the other way round.
fn greatest(measures: &[Vec<f64>], turned: u64) -> f64 {
    let sum = |differences: &Vec<f64>| -> f64 {
        let all = differences.iter().enumerate();
        all.map(|(at, difference)| if (turned >> at) & 1 == 0 { *difference } else { -difference }).sum()
    };
    measures.iter().map(sum).fold(f64::NEG_INFINITY, f64::max)
}

/// The share of choices of signs under which as much is found; the choice that was made counts among those drawn at random.
fn chance(measures: &[Vec<f64>], found: f64) -> f64 {
    // As much but for rounding is as much.
    let as_much = |turned: u64| greatest(measures, turned) >= found - 1e-9;
    let pairs = measures.iter().map(Vec::len).max().unwrap_or_default();
    if pairs <= ALL {
        let choices = 1u64 << pairs;
        return (0..choices).filter(|turned| as_much(*turned)).count() as f64 / choices as f64;
    }
    let mut rng = Pcg32::seed_from_u64(pairs as u64);
    let others = (0..CHOICES).filter(|_| as_much(rng.random())).count();
    (others as f64 + 1.0) / (f64::from(CHOICES) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::super::bets::tests::{coins, normal};
    use super::*;

    #[test]
    fn the_probability_is_the_share_of_choices_of_signs() {
        let of = |differences: &[f64]| {
            let measures = [scaled(differences).unwrap()];
            chance(&measures, greatest(&measures, 0))
        };
        // Of 2^6 choices only the one found is as great; where the least is on the other side, one more.
        assert_eq!(of(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 1.0 / 64.0);
        assert_eq!(of(&[-1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 2.0 / 64.0);
        assert!(shows(&[&[1.0; 6]], 1.0 / 64.0) && !shows(&[&[1.0; 6]], 0.0156));
        assert!(!shows(&[&[1.0, 1.0, 1.0, 1.0, 1.0, -0.1]], 1.0 / 64.0));
        // In any unit, and where nothing differs or the sum is on the other side.
        assert!(shows(&[&[1e-9; 6]], 1.0 / 64.0) && shows(&[&[1e9; 6]], 1.0 / 64.0));
        for nothing in [[0.0; 6], [-1.0; 6], [f64::NAN; 6]] {
            assert!(!shows(&[&nothing], 0.5), "{nothing:?}");
        }
        assert!(!shows(&[], 0.5) && !shows(&[&[]], 0.5));
        assert!(!shows(&[&[1.0, -1.0]], 0.9), "nothing is found, though three of four choices find as much");
        assert!(shows(&[&[0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]], 1.0 / 8.0), "most do not differ at all");
        assert_eq!((scaled(&[0.0; 6]), scaled(&[f64::INFINITY; 6])), (None, None));
        // So many that they are drawn: of 15 and 40 of the same sign the choice that was made is the only one of 1000.
        assert_eq!((of(&[1.0; 15]), of(&[1.0; 40])), (0.001, 0.001));
        assert!(of(&[1.0, -1.0, 1.0].repeat(5)) > 0.1);
        // So clear that none need be drawn.
        assert!(shows(&[&[1.0; 40]], 1e-8));
    }

    #[test]
    fn a_wild_difference_does_not_drown_the_rest() {
        for unit in [1e-3, 1.0, 1e3] {
            let mut differences =
                [1.0, 1.2, 0.8, 1.1, 0.9, 1.3, 0.7, 1.0, 1.1, 0.9].map(|d| unit * d).repeat(2);
            differences[3] = -1000.0 * unit;
            assert!(shows(&[&differences], 0.05), "{unit}");
            differences.truncate(10);
            assert!(!shows(&[&differences], 0.05), "it counts all the same: {unit}");
        }
    }

    #[test]
    fn of_two_measures_the_better_one_counts_and_is_held_against_the_better_of_each_choice() {
        let (clear, not) = ([1.0; 8], [-0.3, 0.2, -0.5, 0.3, -0.2, 0.4, -0.1, -0.3]);
        assert!(shows(&[&not, &clear], 1.0 / 256.0) && shows(&[&clear, &not], 1.0 / 256.0));
        // Turned round as a whole the other one is as clear: two choices of 2^8.
        assert!(!shows(&[&[-1.0; 8], &clear], 1.0 / 256.0) && shows(&[&[-1.0; 8], &clear], 2.0 / 256.0));
    }

    #[test]
    fn one_looks_seldom() {
        let looks: Vec<usize> = (0..200).filter(|pairs| part_of_look(*pairs).is_some()).collect();
        assert_eq!(looks, LOOKS.map(|look| look.0));
        assert_eq!((part_of_look(7), part_of_look(36)), (Some(0.16), Some(0.3)));
    }

    /// Whether anything is shown at one of the looks.
    fn ever_shown(alpha: f64, mut difference: impl FnMut() -> f64) -> bool {
        let differences: Vec<f64> = (0..LOOKS[LOOKS.len() - 1].0).map(|_| difference()).collect();
        LOOKS.iter().any(|(pairs, part)| shows(&[&differences[..*pairs]], part * alpha))
    }

    #[test]
    fn all_looks_together_err_as_often_as_they_may_and_no_more() {
        for (alpha, wild) in [(0.05, false), (0.05, true), (0.2, false)] {
            let mut coin = coins(7);
            let mut draw = || {
                let difference = normal(&mut coin);
                // Wild: a tenth of the pairs is a hundred times as large.
                if wild && coin() < 0.1 { 100.0 * difference } else { difference }
            };
            let shown = (0..2000).filter(|_| ever_shown(alpha, &mut draw)).count() as u64;
            let least = super::super::binomial::lower(shown, 2000, 0.01);
            assert!(least <= alpha, "{shown} of 2000 at {alpha}");
            assert!(shown as f64 > 0.7 * alpha * 2000.0, "it does show: {shown} at {alpha}");
        }
    }
}
