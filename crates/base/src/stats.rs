//! What every crate computes from a handful of numbers.

/// The median of values in any order; `None` of nothing. Values that are not finite count at their end.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { upper } else { f64::midpoint(values[middle - 1], upper) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_or_the_mean_of_the_two_in_the_middle() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0]), Some(3.0));
        assert_eq!(median([5.0, 1.0, 9.0]), Some(5.0));
        assert_eq!(median(vec![4.0, 1.0, 9.0, 2.0]), Some(3.0));
        assert_eq!(median([1.0, f64::NAN, 2.0]), Some(2.0));
    }
}
