//! Niceness in proportion to load.
//!
//! The fair class divides a CPU by weight, and nice maps to weight one-to-one ([`evenkeel_base::sched::NICE_TO_WEIGHT`]).
//! Giving each task a weight in proportion to what it wants makes its time slices proportional to its load.

use evenkeel_base::Nice;

/// Nice values for all at once: weights in proportion to the loads, the geometric middle of the loads keeping its
/// nice value. `base` are the present nice values: a difference the user set on purpose stays as a factor.
pub fn proportional(loads_pct: &[f64], base: &[Nice]) -> Vec<Nice> {
    let known: Vec<f64> = loads_pct.iter().copied().filter(|l| *l > 0.0).collect();
    if known.is_empty() {
        return base.to_vec();
    }
    let middle = (known.iter().map(|l| l.ln()).sum::<f64>() / known.len() as f64).exp();
    loads_pct
        .iter()
        .zip(base)
        .map(
            |(&load, &nice)| {
                if load > 0.0 { Nice::nearest(f64::from(nice.weight()) * load / middle) } else { nice }
            },
        )
        .collect()
}

/// One refinement step for the tasks of one core (or one cgroup): the task held furthest below what it wants goes one
/// step up, the one with the most to spare one step down. `None` when every task is within `tolerance` of its want
/// (a ratio, such as 0.01) or nobody can give.
pub fn refine(fulfilment: &[f64], nice: &[Nice], tolerance: f64) -> Option<Vec<Nice>> {
    let worst = (0..fulfilment.len()).min_by(|&a, &b| fulfilment[a].total_cmp(&fulfilment[b]))?;
    if fulfilment[worst] >= 1.0 - tolerance || nice[worst].get() == -20 {
        return None;
    }
    let mut next = nice.to_vec();
    next[worst] = Nice::new(nice[worst].get() - 1);
    if let Some(best) = (0..fulfilment.len())
        .filter(|&i| i != worst && fulfilment[i] > fulfilment[worst] + tolerance && nice[i].get() < 19)
        .max_by(|&a, &b| fulfilment[a].total_cmp(&fulfilment[b]))
    {
        next[best] = Nice::new(nice[best].get() + 1);
    }
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn weights_follow_the_loads() {
        let nice = proportional(&[5.0, 10.0, 20.0], &[Nice::default(); 3]);
        assert_eq!(nice[1].get(), 0, "the middle keeps its value");
        let ratio = f64::from(nice[2].weight()) / f64::from(nice[0].weight());
        assert!((3.2..=5.0).contains(&ratio), "4:1 wanted, steps are 1.25: {ratio}");
    }

    #[test]
    fn equal_loads_change_nothing() {
        assert_eq!(proportional(&[20.0; 4], &[Nice::default(); 4]), [Nice::default(); 4]);
        assert_eq!(proportional(&[0.0; 2], &[Nice::new(3); 2]), [Nice::new(3); 2]);
    }

    #[test]
    fn refinement_lifts_the_one_held_back() {
        let next = refine(&[0.8, 1.0, 0.95], &[Nice::default(); 3], 0.01).unwrap();
        assert_eq!(next.iter().map(|n| n.get()).collect::<Vec<_>>(), [-1, 1, 0]);
        assert_eq!(refine(&[0.995, 1.0], &[Nice::default(); 2], 0.01), None);
        assert_eq!(refine(&[], &[], 0.01), None);
    }

    proptest! {
        #[test]
        fn heavier_is_never_nicer(loads in proptest::collection::vec(0.01f64..200.0, 1..30)) {
            let nice = proportional(&loads, &vec![Nice::default(); loads.len()]);
            for i in 0..loads.len() {
                for j in 0..loads.len() {
                    if loads[i] >= loads[j] {
                        prop_assert!(nice[i] <= nice[j]);
                    }
                }
            }
        }
    }
}
