//! The kernel's counts of waits, four buckets to an octave of nanoseconds, as a classic and as a native histogram in seconds.

use evenkeel_base::Histogram;

use super::expose::Distribution;

/// Upper bounds of the classic histogram: every second power of two from 1.024 us to 17.2 s, so that the kernel's counts
/// need no interpolation.
const OCTAVES: std::ops::RangeInclusive<u32> = 10..=34;

/// The native bucket of ours of number 0; the others follow one by one.
///
/// Ours end at `2^o * (1 + q/4)` ns; those of any native schema at powers of two of seconds, and 10^9 is none. So no
/// schema has our edges. With schema 2, four buckets to an octave as ours, each of ours falls onto one of theirs whose upper edge
/// is the next above its own: counts stay whole, and an edge is read 4.4 to 10.8 % too high, never too low.
const FIRST: i32 = -118;

/// Waits with their sum, seconds.
pub fn of_waits(waits: &Histogram, seconds: f64) -> Distribution {
    let counts: Vec<(u8, u64)> = waits.clone().into();
    let below = |octave: u32| {
        counts.iter().filter(|(bucket, _)| u32::from(*bucket) / 4 < octave).map(|(_, count)| count).sum()
    };
    Distribution {
        upto: OCTAVES.step_by(2).map(|octave| ((1_u64 << octave) as f64 / 1e9, below(octave))).collect(),
        all: waits.total(),
        sum: Some(seconds),
        native: Some(counts.iter().map(|(bucket, count)| (FIRST + i32::from(*bucket), *count)).collect()),
    }
}

/// Requests as an endpoint counts them, up to each of its bounds.
pub fn of_requests(upto: &[(f64, f64)], all: f64) -> Distribution {
    let upto = upto.iter().map(|(bound, count)| (*bound, count.round() as u64)).collect();
    Distribution { upto, all: all.round() as u64, sum: None, native: None }
}

#[cfg(test)]
mod tests {
    use super::super::expose::NATIVE_SCHEMA;
    use super::*;

    #[test]
    fn bounds_of_the_classic_histogram_are_exact() {
        let mut waits = Histogram::default();
        // 1.023 us is below the first bound, 1.024 us is not; 20 s is beyond the last.
        for ns in [1023, 1024, 5_000_000, 20_000_000_000] {
            waits.add(ns);
        }
        let counts = of_waits(&waits, 25.0).upto;
        assert_eq!(counts.first(), Some(&(1.024e-6, 1)));
        assert_eq!(counts[1].1, 2);
        assert_eq!(counts.last().map(|(_, count)| *count), Some(3));
        assert!(counts.windows(2).all(|pair| pair[0].1 <= pair[1].1 && pair[0].0 < pair[1].0));
    }

    #[test]
    fn each_bucket_has_a_native_one_of_its_own_whose_edges_are_a_little_higher() {
        let edge = |at: i32| f64::exp2(f64::from(at) / f64::exp2(f64::from(NATIVE_SCHEMA)));
        let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
        // From 1 us to 9 minutes, the least length of each bucket.
        for octave in 10..40_u32 {
            for quarter in 0..4_u64 {
                let ns = (4 + quarter) << (octave - 2);
                let mut waits = Histogram::default();
                waits.add(ns);
                let [(at, 1)] = of_waits(&waits, 0.0).native.unwrap()[..] else { panic!("{ns}") };
                let mut below = Histogram::default();
                below.add(ns - 1);
                assert_eq!(of_waits(&below, 0.0).native.unwrap(), [(at - 1, 1)], "{ns}");
                let high = edge(at - 1) / (ns as f64 / 1e9) - 1.0;
                (least, most) = (least.min(high), most.max(high));
            }
        }
        assert!((0.044..0.0445).contains(&least) && (0.107..0.108).contains(&most), "{least} {most}");
    }
}
