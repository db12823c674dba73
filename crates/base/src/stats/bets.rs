//! Evidence from pairs whose order is drawn at random, valid by that alone and at every stopping time.
//!
//! Two arms are measured in pairs, and a fair coin decides for each pair which comes first. If the arms do not differ,
//! the sign of a pair's difference is a fair coin, too, whatever its size, whatever came before, however the host drifts,
//! and however wild the noise is. So bet on the sign, given the size: stake the share `2p - 1` on "positive", where
//! `p = 1 / (1 + e^-u)` and `u = 2 d |x| / s`, which is the likelihood ratio of a normal effect of `d` standard deviations
//! `s`. Wealth then is a martingale that starts at 1, so that it ever reaches `1/alpha` with probability `alpha` at most
//! (Ville 1939). `d` is not known: evidence is the mean of the wealth for several; `s` is learnt from the pairs before.
//!
//! Whether an effect is above a margin is the same question of differences less that margin. All margins that can be
//! refuted at once give a lower bound that holds at every stopping time ([`lower_bound`]).

use super::robust_scale;

/// Effects, in standard deviations of a pair's difference, that wealth is staked on.
const EFFECTS: [f64; 4] = [0.7, 1.4, 2.2, 3.0];
/// A difference counts as at most this many standard deviations.
pub(super) const MOST_SIZE: f64 = 3.0;
/// Probability given to the likelier sign, at most: one surprise must not ruin.
const MOST_SURE: f64 = 0.96;

/// Wealth from betting on positive differences.
#[derive(Debug, Clone, PartialEq)]
pub struct SignBets {
    sizes: Vec<f64>,
    wealth: [f64; EFFECTS.len()],
    scale: Option<f64>,
    most: f64,
}

impl Default for SignBets {
    fn default() -> Self {
        Self::new(None)
    }
}

impl SignBets {
    /// Before any pair. `scale` is what is known of the standard deviation of a difference from elsewhere: it is used until
    /// a few pairs tell. It must not come from the pairs themselves.
    pub fn new(scale: Option<f64>) -> Self {
        let scale = scale.filter(|scale| scale.is_finite() && *scale > 0.0);
        Self { sizes: Vec::new(), wealth: [1.0; EFFECTS.len()], scale, most: 1.0 }
    }

    /// Takes in a pair's difference. One that is not finite says nothing.
    pub fn add(&mut self, difference: f64) {
        if !difference.is_finite() {
            return;
        }
        let size = difference.abs();
        let scale = self.scale();
        self.sizes.push(size);
        if difference == 0.0 {
            return;
        }
        let size = scale.map_or(1.0, |scale| (size / scale).min(MOST_SIZE));
        for (wealth, effect) in self.wealth.iter_mut().zip(EFFECTS) {
            let sure = (1.0 / (1.0 + (-2.0 * effect * size).exp())).min(MOST_SURE);
            *wealth *= 2.0 * if difference > 0.0 { sure } else { 1.0 - sure };
        }
        self.most = self.most.max(self.evidence());
    }

    /// Evidence now that differences tend to be positive: `1/alpha` or more refutes at `alpha` that they do not.
    pub fn evidence(&self) -> f64 {
        self.wealth.iter().sum::<f64>() / self.wealth.len() as f64
    }

    /// The most evidence there ever was; it refutes as well.
    pub fn most(&self) -> f64 {
        self.most
    }

    pub fn pairs(&self) -> usize {
        self.sizes.len()
    }

    /// Standard deviation of a difference as far as the pairs so far tell; what was known before counts as two of them.
    fn scale(&self) -> Option<f64> {
        let known = self.scale.map(|scale| scale * 0.6745);
        let found = robust_scale(self.sizes.iter().copied().chain(known).chain(known))?;
        (found > 0.0).then_some(found)
    }
}

/// Evidence that the differences' typical value is above `margin`.
pub fn evidence(differences: &[f64], margin: f64, scale: Option<f64>) -> SignBets {
    let mut bets = SignBets::new(scale);
    differences.iter().for_each(|difference| bets.add(difference - margin));
    bets
}

/// The greatest margin that is refuted at `alpha`: the effect is at least this, whenever one stops. `-inf` where pairs are
/// too few to refute any.
pub fn lower_bound(differences: &[f64], alpha: f64, scale: Option<f64>) -> f64 {
    let refuted = |margin: f64| evidence(differences, margin, scale).most() >= 1.0 / alpha;
    let finite = || differences.iter().copied().filter(|difference| difference.is_finite());
    let (mut low, mut high) =
        finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), d| (a.min(d), b.max(d)));
    if low > high {
        return f64::NEG_INFINITY;
    }
    // Far below everything seen nothing is a surprise; how many pairs it takes does not depend on how far. Where all are the
    // same and no scale is known it is the next number.
    low = low.next_down() - 4.0 * (high - low).max(scale.unwrap_or(0.0));
    if !refuted(low) {
        return f64::NEG_INFINITY;
    }
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if refuted(middle) { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Chances, uniform from 0 to 1.
    pub fn coins(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    pub fn normal(coin: &mut impl FnMut() -> f64) -> f64 {
        super::super::normal_of(coin().max(1e-300), coin())
    }

    #[test]
    fn five_sure_wins_are_just_short_of_one_in_twenty_and_a_loss_costs_dear() {
        let mut bets = SignBets::default();
        assert_eq!(bets.evidence(), 1.0);
        for _ in 0..5 {
            bets.add(1.0);
        }
        assert!(bets.evidence() < 20.0 && bets.evidence() > 10.0, "{}", bets.evidence());
        let before = bets.evidence();
        bets.add(f64::NAN);
        bets.add(0.0);
        assert_eq!(bets.evidence(), before, "no sign, no bet");
        bets.add(-1.0);
        assert!(bets.evidence() < 0.5 * before && bets.most() == before);
    }

    #[test]
    fn a_bet_is_the_likelihood_ratio_at_the_scale_that_is_known() {
        let mut bets = SignBets::new(Some(0.5));
        // Half a standard deviation: 1 / (1 + e^-0.7), e^-1.4, e^-2.2, e^-3 for the four effects, doubled, and their mean.
        bets.add(0.25);
        let expected = 2.0 * (0.668_188 + 0.802_184 + 0.900_250 + 0.952_574) / 4.0;
        assert!((bets.evidence() - expected).abs() < 1e-5 && bets.pairs() == 1, "{bets:?}");
        bets.add(0.25);
        assert_eq!(bets.pairs(), 2);
        // Where pairs so far did not differ at all there is no scale: the next one is of one standard deviation.
        let (mut after_none, mut first) = (SignBets::default(), SignBets::default());
        after_none.add(0.0);
        after_none.add(7.0);
        first.add(7.0);
        assert_eq!(after_none.evidence(), first.evidence());
    }

    #[test]
    fn among_equals_wealth_reaches_one_over_alpha_no_more_often_than_alpha() {
        for (alpha, wild) in [(0.05, false), (0.05, true), (0.2, false)] {
            let reached = (0..4000u64)
                .filter(|seed| {
                    let mut coin = coins(seed + 1);
                    let mut bets = SignBets::new(Some(0.3));
                    for _ in 0..40 {
                        let d = normal(&mut coin);
                        // Wild: a tenth of the pairs is a hundred times as large.
                        bets.add(if wild && coin() < 0.1 { 100.0 * d } else { d });
                    }
                    bets.most() >= 1.0 / alpha
                })
                .count() as u64;
            let least = super::super::binomial::lower(reached, 4000, 0.01);
            assert!(least <= alpha, "{reached} of 4000 at {alpha}");
            assert!(reached > 40, "it does bet: {reached} at {alpha}");
        }
    }

    #[test]
    fn the_lower_bound_is_seldom_above_the_truth_and_comes_near_it() {
        let (mut above, mut sum) = (0, 0.0);
        for seed in 0..400u64 {
            let mut coin = coins(seed + 77);
            let differences: Vec<f64> = (0..25).map(|_| 3.0 + normal(&mut coin)).collect();
            let low = lower_bound(&differences, 0.05, None);
            above += u64::from(low > 3.0);
            sum += low;
        }
        assert!(super::super::binomial::lower(above, 400, 0.01) <= 0.05, "{above}");
        assert!((2.0..2.8).contains(&(sum / 400.0)), "{}", sum / 400.0);
        assert_eq!(lower_bound(&[1.0, 1.1, 0.9], 0.05, None), f64::NEG_INFINITY);
        assert_eq!(lower_bound(&[], 0.05, None), f64::NEG_INFINITY);
    }

    #[test]
    fn pairs_that_all_differ_alike_bound_the_effect_at_their_difference() {
        for value in [0.0, 1.0, -3.0, 1e9] {
            for scale in [None, Some(0.5)] {
                let low = lower_bound(&[value; 10], 0.05, scale);
                assert!((low - value).abs() <= 1e-9 * f64::max(value.abs(), 1.0), "{value} {scale:?}: {low}");
            }
        }
    }

    #[test]
    fn a_lower_bound_is_one_in_every_unit() {
        let differences = [3.0, 2.5, 4.0, 3.5, 1.0, 2.0, 5.0, 3.0, 2.2, 4.1];
        let low = lower_bound(&differences, 0.05, Some(1.0));
        assert!((1.0..2.5).contains(&low), "{low}");
        for unit in [1e-12, 1e-3, 1e12] {
            let scaled = lower_bound(&differences.map(|d| unit * d), 0.05, Some(unit));
            assert!((scaled / unit - low).abs() < 1e-6, "{unit}: {} and not {low}", scaled / unit);
        }
    }

    #[test]
    fn the_fewest_pairs_that_bound_an_effect_do_so_wherever_it_is() {
        let pairs = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0];
        let low = lower_bound(&pairs, 0.05, None);
        assert!(low.is_finite() && lower_bound(&pairs[1..], 0.05, None) == f64::NEG_INFINITY, "{low}");
        for to in [-10.0, -1.0, 10.0] {
            let there = lower_bound(&pairs.map(|d| d + to), 0.05, None);
            assert!((there - to - low).abs() < 1e-6, "{to}: {there} and not {low} more");
        }
    }

    proptest! {
        #[test]
        fn no_unit_matters(differences in proptest::collection::vec(-10.0f64..10.0, 1..30), unit in 0.01f64..100.0) {
            let scaled: Vec<f64> = differences.iter().map(|d| d * unit).collect();
            let (a, b) = (evidence(&differences, 0.0, Some(2.0)), evidence(&scaled, 0.0, Some(2.0 * unit)));
            prop_assert!((a.evidence() - b.evidence()).abs() <= 1e-6 * a.evidence().max(1.0));
        }

        #[test]
        fn one_sign_is_evidence_and_the_other_is_against(sizes in proptest::collection::vec(0.1f64..10.0, 1..30)) {
            let minus: Vec<f64> = sizes.iter().map(|size| -size).collect();
            prop_assert!(evidence(&sizes, 0.0, None).evidence() >= 1.0);
            prop_assert!(evidence(&minus, 0.0, None).evidence() <= 1.0);
        }
    }
}
