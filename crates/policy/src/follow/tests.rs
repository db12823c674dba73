use evenkeel_base::Limit;
use proptest::prelude::*;

use super::*;

const QUOTA: CpuQuota = CpuQuota { quota_usec: Limit::Value(100_000), period_usec: 100_000, burst_usec: 0 };

/// A follower with all windows so far, of which the last 127 are remembered as by the programs in the kernel.
struct Host {
    follower: Follower,
    windows: Vec<Window>,
}

impl Host {
    fn new() -> Self {
        Self { follower: Follower::new(&QUOTA, 87.5).unwrap(), windows: Vec::new() }
    }

    /// A window of 10 ms with so many thousandths of one CPU.
    fn window(&mut self, rate: u32) -> Option<f64> {
        self.windows.push(Window { took_us: 10_000, used_us: 10 * rate });
        let from = self.windows.len().saturating_sub(127);
        self.follower.look(self.windows.len() as u64, &self.windows[from..])
    }

    /// One that is a second look, of 5 ms.
    fn second_look(&mut self, rate: u32) -> Option<f64> {
        self.windows.push(Window { took_us: 5_000, used_us: 5 * rate });
        let from = self.windows.len().saturating_sub(127);
        self.follower.look(self.windows.len() as u64, &self.windows[from..])
    }

    /// As many windows; what was said to be left.
    fn windows(&mut self, count: usize, rate: impl Fn(usize) -> u32) -> Vec<f64> {
        (0..count).filter_map(|at| self.window(rate(at))).collect()
    }
}

#[test]
fn a_jump_is_answered_with_its_first_window_and_the_end_of_one_with_its_second() {
    let mut host = Host::new();
    assert_eq!(host.windows(200, |at| 90 + at as u32 % 3 * 10), [], "what was chosen is right");
    assert_eq!(host.window(900), Some(0.0), "all is theirs: 1.25 times 90 of 100 %");
    assert_eq!(host.windows(30, |at| 880 + at as u32 % 3 * 10), [], "and stays theirs");
    assert_eq!(host.window(100), None, "one window may be a breath");
    assert_eq!(host.window(100), Some(85.0), "two are none");
}

#[test]
fn a_second_look_is_enough_for_the_end_of_a_jump_and_says_nothing_of_a_beginning() {
    let mut host = Host::new();
    host.windows(200, |_| 100);
    host.window(900);
    host.windows(30, |_| 900);
    assert_eq!(host.window(100), None);
    assert_eq!(
        host.second_look(100),
        Some(85.0),
        "15 ms after the end at the latest where windows begin with it"
    );
    // Two ticks of a task that always runs are 8 ms of these 5.
    let mut host = Host::new();
    host.windows(200, |_| 600);
    let usual = host.follower.usual();
    assert_eq!((host.window(100), host.second_look(1600)), (None, None));
    assert_eq!(host.follower.usual().most, usual.most, "and it is not the most that is usual");
    assert_eq!(host.window(1200), Some(0.0), "a jump still is one");
}

#[test]
fn what_comes_in_bursts_within_a_period_is_no_jump() {
    let mut host = Host::new();
    // 30 ms of all of a CPU in each 100.
    let said = host.windows(300, |at| if at % 10 < 3 { 1000 } else { 0 });
    assert_eq!(said, [60.0], "1.25 times 30 %, in steps of 5");
    assert_eq!(host.follower.usual().least, 0.0);
    // Nor does a burst after a jump give back what the rest of the period needs.
    let said = host.windows(300, |at| if at % 10 < 6 { 1000 } else { 0 });
    assert_eq!(said.last(), Some(&25.0));
    assert!(said.iter().all(|left| *left <= 60.0), "{said:?}");
}

#[test]
fn one_that_is_held_back_is_left_more_from_period_to_period() {
    let mut host = Host::new();
    let mut left = 60.0;
    host.follower.is_set(left);
    // It wants 80 % and gets what background work leaves, steadily: no window is unusual.
    for _ in 0..200 {
        let gets = (100.0 - left).min(80.0);
        left = host.window((10.0 * gets) as u32).unwrap_or(left);
    }
    assert!(left < 20.0, "{left}");
}

#[test]
fn nothing_is_said_before_a_period_was_seen() {
    let mut host = Host::new();
    assert_eq!(host.windows(9, |_| 900), []);
    assert_eq!(host.window(900), Some(0.0));
    assert!(Follower::new(&CpuQuota::UNLIMITED, 1.0).is_none());
}

proptest! {
    /// Whatever is used: never more is left than the quota, and after a period of steady use what is left is the rest, less the margin,
    /// to within two steps.
    #[test]
    fn what_is_left_follows_what_is_used(
        rates in prop::collection::vec(0_u32..1500, 0..300),
        steady in 0_u32..1500,
    ) {
        let mut host = Host::new();
        let mut left = 87.5;
        for rate in rates {
            left = host.window(rate).unwrap_or(left);
            prop_assert!((0.0..=100.0).contains(&left));
        }
        for _ in 0..150 {
            left = host.window(steady).unwrap_or(left);
        }
        let right = (100.0 - 1.25 * f64::from(steady) / 10.0).max(0.0);
        prop_assert!((left - right).abs() < 10.0, "{left} is not {right}");
    }

    /// Whoever used less than that never has less than it uses: what is left is down with the first window that is unusual.
    #[test]
    fn a_jump_beyond_what_was_seen_is_answered_at_once(usually in 0_u32..600, jump in 900_u32..1000) {
        let mut host = Host::new();
        host.windows(150, |_| usually);
        prop_assert_eq!(host.window(jump), Some(0.0));
    }
}

#[test]
fn more_is_left_at_most_once_in_a_period() {
    let mut host = Host::new();
    host.windows(120, |_| 700);
    // Use falls window by window, so that none is unusual; when those are forgotten, so does the need.
    host.windows(15, |at| 700 - 30 * at as u32);
    let said: Vec<usize> = (0..140).filter(|_| host.window(280).is_some()).collect();
    assert!(said.len() > 1 && said.windows(2).all(|two| two[1] - two[0] >= 10), "{said:?}");
}

#[test]
fn both_windows_that_end_a_jump_count() {
    let mut host = Host::new();
    host.windows(30, |_| 900);
    assert_eq!(host.window(200), None);
    assert_eq!(host.window(100), Some(75.0), "1.25 times the 20 % of the first");
}

#[test]
fn what_is_in_force_is_not_said_again() {
    let mut host = Host::new();
    host.follower.is_set(50.0);
    assert_eq!(host.windows(30, |_| 400), [], "1.25 times 40 %");
    host.follower.is_set(10.0);
    assert_eq!(host.window(400), Some(50.0));
}
