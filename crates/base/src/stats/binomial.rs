//! Bounds of a share of which a count is known (Clopper and Pearson 1934: exact, so at least as wide as they say).

use statrs::distribution::{Beta, Binomial, ContinuousCDF, DiscreteCDF};

/// Least share that explains `hits` of `n` at error probability `alpha` (one-sided).
pub fn lower(hits: u64, n: u64, alpha: f64) -> f64 {
    if hits == 0 || n == 0 {
        return 0.0;
    }
    Beta::new(hits as f64, (n - hits.min(n) + 1) as f64).map_or(0.0, |beta| beta.inverse_cdf(alpha))
}

/// Greatest share that explains `hits` of `n` at error probability `alpha` (one-sided).
pub fn upper(hits: u64, n: u64, alpha: f64) -> f64 {
    if hits >= n {
        return 1.0;
    }
    Beta::new((hits + 1) as f64, (n - hits) as f64).map_or(1.0, |beta| beta.inverse_cdf(1.0 - alpha))
}

/// Probability of `hits` or more of `n` where each has the probability `share`.
pub fn at_least(hits: u64, n: u64, share: f64) -> f64 {
    match (hits, Binomial::new(share.clamp(0.0, 1.0), n)) {
        (0, _) | (_, Err(_)) => 1.0,
        (hits, Ok(binomial)) => binomial.sf(hits - 1),
    }
}

/// Probability of `hits` or fewer of `n` where each has the probability `share`.
pub fn at_most(hits: u64, n: u64, share: f64) -> f64 {
    Binomial::new(share.clamp(0.0, 1.0), n).map_or(1.0, |binomial| binomial.cdf(hits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_match_the_tables() {
        // Rule of three: none of 100 leaves 1 - 0.05^(1/100) = 2.95 %.
        assert!((upper(0, 100, 0.05) - (1.0 - 0.05f64.powf(0.01))).abs() < 1e-6);
        // 5 of 100, two-sided 95 %: 1.64 to 11.28 %.
        assert!((lower(5, 100, 0.025) - 0.016_431_9).abs() < 1e-6, "{}", lower(5, 100, 0.025));
        assert!((upper(5, 100, 0.025) - 0.112_834_9).abs() < 1e-6, "{}", upper(5, 100, 0.025));
        assert_eq!(
            (lower(0, 10, 0.05), upper(10, 10, 0.05), lower(0, 0, 0.05), upper(0, 0, 0.05)),
            (0.0, 1.0, 0.0, 1.0)
        );
        // Of nothing nothing is known, whatever is said to be in it.
        assert_eq!((lower(3, 0, 0.05), upper(3, 0, 0.05)), (0.0, 1.0));
    }

    #[test]
    fn tails_match_the_tables() {
        // 6 of 40 and 3 of 10 refute 5 % at 2 %, 5 of 40 and 2 of 10 do not.
        assert!(at_least(6, 40, 0.05) < 0.02 && at_least(3, 10, 0.05) < 0.02);
        assert!(at_least(5, 40, 0.05) > 0.02 && at_least(2, 10, 0.05) > 0.02);
        assert_eq!(at_least(0, 10, 0.05), 1.0);
        assert!((at_most(5, 40, 0.05) + at_least(6, 40, 0.05) - 1.0).abs() < 1e-9);
    }
}
