//! What is known of one subject's losses.

use evenkeel_base::stats::{SignBets, bets, flips, mean};

use super::{GuardLimits, Use};

/// Pairs in a row without somebody after which he is taken to have ended.
const GONE: u32 = 2;

/// Differences of pairs, positive where the limit is kept, and bets that it is broken.
#[derive(Debug, Clone, Default)]
struct Question {
    room: Vec<f64>,
    broken: SignBets,
}

impl Question {
    fn add(&mut self, room: f64) {
        self.room.push(room);
        self.broken.add(-room);
    }
}

/// What one subject used in pairs of windows.
#[derive(Debug, Clone, Default)]
struct Pairs {
    before: Vec<Use>,
    after: Vec<Use>,
    missed: u32,
}

impl Pairs {
    fn add(&mut self, before: Use, after: Use) {
        self.missed = 0;
        self.before.push(before);
        self.after.push(after);
    }

    /// Who ended is no victim; but who was missed may be asleep. So harm that is shown by itself stays in doubt, also of who ended.
    fn is_gone(&self, question: &Question, enough: f64) -> bool {
        self.missed >= GONE && question.broken.most() < enough
    }

    /// Means before and after, of pairs in which both are known.
    fn means(&self, of: impl Fn(&Use) -> Option<f64>) -> (f64, f64) {
        let pairs = self.before.iter().zip(&self.after);
        let (before, after): (Vec<f64>, Vec<f64>) =
            pairs.filter_map(|(before, after)| of(before).zip(of(after))).unzip();
        (mean(&before).unwrap_or_default(), mean(&after).unwrap_or_default())
    }
}

/// A question that is open or answered with no.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Open {
    /// What it is about, under the baseline: a share, an amount.
    pub before: f64,
    /// The same under the candidate.
    pub after: f64,
    /// The harm itself is shown.
    pub proved: bool,
}

/// One subject's questions: does it get enough CPU, and does it wait no longer than it may?
#[derive(Debug, Clone, Default)]
pub(super) struct Track {
    loss: f64,
    limits: GuardLimits,
    /// For a sum of the small: CPU that is not told apart from none, percent of one CPU.
    small: Option<f64>,
    /// Limits need not be shown to be kept, as part of a sum they are; but the estimate must keep them.
    by_estimate: bool,
    got: Question,
    /// The room of the CPU got of the time in which he was runnable; 0 where waits are not known.
    supply: Vec<f64>,
    /// What is left of the CPU that may be lost, had he lost what he waited longer; 0 where waits are not known.
    not_waited: Vec<f64>,
    wait: Question,
    pairs: Pairs,
    /// Whether limits are shown to be kept: enough CPU is got, waits are short enough.
    cpu_kept: bool,
    wait_kept: bool,
}

impl Track {
    pub fn new(loss: f64, limits: GuardLimits) -> Self {
        Self { loss, limits, ..Self::default() }
    }

    /// Of the small together: what they do from one window to the next differs more than the share of it that they may lose.
    /// They may lose so much more, percent of one CPU, and wait so much longer, as who loses CPU does; their waits are those of a second,
    /// not of a second of work.
    pub fn of_the_small(self, floor_pct: f64) -> Self {
        Self { small: Some(floor_pct), ..self }
    }

    /// Of who waits rarely and is shown to be unhurt together with others.
    pub fn by_estimate(self) -> Self {
        Self { by_estimate: true, ..self }
    }

    /// Seconds waited, per second of work or per second.
    fn wait(&self, used: Use) -> Option<f64> {
        if self.small.is_some() { Some(used.waited? / 100.0) } else { used.wait_per_got() }
    }

    pub fn missed(&mut self) {
        self.pairs.missed += 1;
    }

    pub fn pair(&mut self, before: Use, after: Use) {
        self.pairs.add(before, after);
        let keep = 1.0 - self.loss;
        self.got.add(after.got - keep * before.got + self.small.unwrap_or_default());
        let supply = |used: Use| {
            if self.small.is_some() {
                return None;
            }
            let runnable = used.got + used.waited?;
            (runnable > 0.0).then(|| used.got / runnable)
        };
        // Where waits are not known, the CPU got alone tells: no difference is no news.
        let known = supply(before).zip(supply(after));
        self.supply.push(known.map_or(0.0, |(before, after)| after - keep * before));
        // A share of what both got: had he lost as much as he may, the pair turned round had the same room with the other sign.
        let may_lose = self.loss * f64::midpoint(before.got, after.got);
        let known = before.waited.zip(after.waited).filter(|_| self.small.is_none());
        self.not_waited.push(known.map_or(0.0, |(before, after)| may_lose + before - after));
        self.cpu_kept |= self.shows(&[&self.got.room, &self.supply, &self.not_waited]);
        if let Some((before, after)) = self.wait(before).zip(self.wait(after)) {
            let more = self.small.unwrap_or_default() / 100.0;
            self.wait.add(self.limits.longest_wait(before) + more - after);
            self.wait_kept |= self.shows(&[&self.wait.room]);
        }
    }

    /// Whether a limit is shown to be kept, by one of these. Daemons are so wild that few looks at their sum show nothing: of the small
    /// together bets tell, which take each pair as it comes.
    fn shows(&self, rooms: &[&[f64]]) -> bool {
        let alpha = self.limits.alpha;
        if self.small.is_some() {
            return rooms.iter().any(|room| bets::evidence(room, 0.0, None).evidence() >= 1.0 / alpha);
        }
        let pairs = rooms.iter().map(|room| room.len()).max().unwrap_or_default();
        flips::part_of_look(pairs).is_some_and(|part| flips::shows(rooms, part * alpha))
    }

    /// Whether enough CPU is got, unless that is shown; harm is shown at evidence `enough`, one of so many questions.
    pub fn open_cpu(&self, enough: f64, questions: f64) -> Option<Open> {
        if self.pairs.is_gone(&self.got, enough) {
            return None;
        }
        let (before, after) = self.pairs.means(|used| Some(used.got));
        let open = match self.by_estimate {
            true => after < (1.0 - self.loss) * before,
            false => !self.cpu_kept,
        };
        open.then(|| Open { before, after, proved: self.got.broken.most() >= enough * questions })
    }

    /// The same of waits.
    pub fn open_wait(&self, enough: f64, questions: f64) -> Option<Open> {
        if self.pairs.is_gone(&self.wait, enough) || self.wait.room.is_empty() {
            return None;
        }
        let got = self.pairs.means(|used| used.waited.map(|_| used.got));
        let waited = self.pairs.means(|used| used.waited);
        let wait = |got, waited| self.wait(Use { got, waited: Some(waited) }).unwrap_or_default();
        let (before, after) = (wait(got.0, waited.0), wait(got.1, waited.1));
        let open = match self.by_estimate {
            true => after > self.limits.longest_wait(before),
            false => !self.wait_kept,
        };
        open.then(|| Open { before, after, proved: self.wait.broken.most() >= enough * questions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(got: f64, waited: f64) -> Use {
        Use { got, waited: Some(waited) }
    }

    #[test]
    fn among_many_questions_harm_must_be_shown_so_much_better() {
        let mut track = Track::new(0.1, GuardLimits::default());
        // Evidence about doubles with each sure loss: it is some 60 after seven, more than 20 and less than 20 * 20.
        for _ in 0..7 {
            track.pair(used(20.0, 2.0), used(10.0, 12.0));
        }
        for questions in [1.0, 20.0] {
            let proved = questions == 1.0;
            assert_eq!(track.open_cpu(20.0, questions), Some(Open { before: 20.0, after: 10.0, proved }));
            assert_eq!(track.open_wait(20.0, questions), Some(Open { before: 0.1, after: 1.2, proved }));
        }
    }

    /// A program that does now much, now little, and waits for a moment each time, whatever it then does.
    #[test]
    fn what_somebody_happens_to_want_does_not_hide_that_he_waits_no_longer() {
        let wanted =
            [5.7, 9.2, 8.9, 3.5, 0.7, 5.7, 3.4, 9.9, 0.8, 0.3, 1.0, 4.7, 0.9, 6.2, 2.5, 8.5, 0.5, 7.4];
        let pairs_until_cleared = |lost: f64| {
            let mut track = Track::new(0.05, GuardLimits::default());
            let pair = |at: usize| {
                let waits = |at: usize| 0.4 + 0.1 * (at % 3) as f64;
                let (before, after) = (wanted[at % 18], wanted[(5 * at + 3) % 18]);
                (used(before, waits(at)), used(after * (1.0 - lost), waits(at + 1) + after * lost))
            };
            (1..=40).find(|pairs| {
                let (before, after) = pair(pairs - 1);
                track.pair(before, after);
                track.open_cpu(20.0, 1.0).is_none()
            })
        };
        assert_eq!(pairs_until_cleared(0.0), Some(9));
        assert_eq!([0.05, 0.1, 0.3].map(pairs_until_cleared), [None; 3]);
    }

    /// What daemons do varies, and once in a while by much: that must not keep a change that hurts none of them from being
    /// cleared, and one that is starved must show.
    #[test]
    fn of_the_small_only_what_is_material_counts() {
        let windows = |waits: f64| -> Vec<(Use, Use)> {
            let got = [
                (0.7, 0.8),
                (0.6, 0.9),
                (1.1, 2.5),
                (0.9, 0.5),
                (4.5, 0.7),
                (0.8, 1.0),
                (0.6, 12.1),
                (1.0, 0.8),
            ];
            let waited = [
                (0.1, 1.2),
                (1.0, 1.5),
                (0.7, 0.4),
                (1.6, 0.9),
                (8.8, 1.2),
                (0.1, 0.5),
                (0.9, 6.2),
                (0.4, 0.3),
            ];
            let pairs = got.iter().zip(&waited);
            pairs.map(|(got, waited)| (used(got.0, waited.0), used(got.1, waited.1 + waits))).collect()
        };
        let open = |waits: f64, small: bool| -> (bool, bool) {
            let mut track = Track::new(0.05, GuardLimits::default());
            if small {
                track = track.of_the_small(1.0);
            }
            (0..2).flat_map(|_| windows(waits)).for_each(|(before, after)| track.pair(before, after));
            (track.open_cpu(20.0, 1.0).is_some(), track.open_wait(20.0, 1.0).is_some())
        };
        assert_eq!(open(0.0, false), (true, true));
        assert_eq!(open(0.0, true), (false, false));
        assert_eq!(open(2.0, true), (false, false), "two in a hundred seconds");
        assert_eq!(
            open(5.0, true),
            (false, true),
            "20 seconds of 400 in which one of them did not get its turn"
        );
    }

    #[test]
    fn of_waits_that_are_not_known_nothing_is_asked() {
        let mut track = Track::new(0.1, GuardLimits::default());
        let used = Use { got: 20.0, waited: None };
        // Seven are enough by the CPU got alone.
        (0..7).for_each(|_| track.pair(used, used));
        assert_eq!((track.open_cpu(20.0, 1.0), track.open_wait(20.0, 1.0)), (None, None));
    }

    #[test]
    fn waits_that_are_not_known_in_some_windows_are_not_none_there() {
        let mut track = Track::new(0.1, GuardLimits::default()).by_estimate();
        track.pair(used(20.0, 4.0), used(20.0, 9.0));
        let unknown = Use { got: 20.0, waited: None };
        (0..4).for_each(|_| track.pair(used(20.0, 4.0), unknown));
        track.pair(unknown, used(20.0, 1.0));
        let open = track.open_wait(20.0, 1.0).map(|open| (open.before, open.after));
        assert_eq!(open, Some((0.2, 0.45)));
    }

    #[test]
    fn who_waits_rarely_is_in_doubt_by_estimate_only() {
        let mut cpu = Track::new(0.1, GuardLimits::default()).by_estimate();
        cpu.pair(used(20.0, 4.0), used(18.1, 4.0));
        assert_eq!(cpu.open_cpu(20.0, 1.0), None);
        cpu.pair(used(20.0, 4.0), used(17.8, 4.0));
        assert_eq!(cpu.open_cpu(20.0, 1.0).map(|open| open.proved), Some(false));
        let mut wait = Track::new(0.1, GuardLimits::default()).by_estimate();
        wait.pair(used(20.0, 4.0), used(20.0, 5.0));
        assert_eq!(
            wait.open_wait(20.0, 1.0),
            None,
            "one pair proves nothing, but the estimate keeps the limit"
        );
        wait.pair(used(20.0, 4.0), used(20.0, 9.0));
        let open = wait.open_wait(20.0, 1.0).unwrap();
        assert!(!open.proved && open.after > 1.5 * open.before, "{open:?}");
        (0..8).for_each(|_| wait.pair(used(20.0, 4.0), used(20.0, 9.0)));
        assert!(wait.open_wait(20.0, 1.0).unwrap().proved);
    }

    #[test]
    fn whose_estimate_is_just_the_limit_keeps_it() {
        let mut track = Track::new(0.1, GuardLimits::default()).by_estimate();
        // 18 of 20, and 1.5 times 0.25.
        track.pair(used(20.0, 5.0), used(18.0, 6.75));
        assert_eq!((track.open_cpu(20.0, 1.0), track.open_wait(20.0, 1.0)), (None, None));
        let mut track = Track::new(0.1, GuardLimits::default()).by_estimate();
        track.pair(used(20.0, 5.0), used(18.0f64.next_down(), 6.75f64.next_up()));
        assert!(track.open_cpu(20.0, 1.0).is_some() && track.open_wait(20.0, 1.0).is_some());
    }

    #[test]
    fn who_is_missing_in_two_pairs_in_a_row_ended() {
        let mut track = Track::new(0.1, GuardLimits::default());
        let doubts =
            |track: &Track| (track.open_cpu(20.0, 1.0).is_some(), track.open_wait(20.0, 1.0).is_some());
        track.pair(used(20.0, 5.0), used(20.0, 5.0));
        track.missed();
        assert_eq!(doubts(&track), (true, true));
        track.pair(used(20.0, 5.0), used(20.0, 5.0));
        track.missed();
        assert_eq!(doubts(&track), (true, true), "there again in between");
        track.missed();
        assert_eq!(doubts(&track), (false, false));
    }

    /// Who sleeps through two pairs is not seen in them, as if it had ended.
    #[test]
    fn harm_that_was_shown_is_no_less_for_a_nap() {
        let napped = |after: Use, pairs: usize| {
            let mut track = Track::new(0.1, GuardLimits::default());
            (0..pairs).for_each(|_| track.pair(used(20.0, 2.0), after));
            track.missed();
            track.missed();
            // One of many questions: harm is shown for each by itself only.
            let proved = |open: Option<Open>| open.map(|open| open.proved);
            (proved(track.open_cpu(20.0, 20.0)), proved(track.open_wait(20.0, 20.0)))
        };
        assert_eq!(napped(used(10.0, 12.0), 7), (Some(false), Some(false)));
        assert_eq!(napped(used(20.0, 8.0), 7), (None, Some(false)));
        assert_eq!(napped(used(10.0, 12.0), 3), (None, None), "too few to tell");
        assert_eq!(napped(used(20.0, 2.0), 5), (None, None), "unhurt, though it is not shown yet");
    }

    #[test]
    fn evidence_that_there_once_was_stays() {
        let mut track = Track::new(0.1, GuardLimits::default());
        (0..8).for_each(|_| track.pair(used(20.0, 4.0), used(20.0, 4.0)));
        assert_eq!(track.open_cpu(20.0, 1.0), None);
        (0..2).for_each(|_| track.pair(used(20.0, 4.0), used(10.0, 14.0)));
        assert_eq!(track.open_cpu(20.0, 1.0), None, "as a look that was had is");
        // Of the CPU got and the CPU got of the time in which he was runnable either may show it: half of the second is lost here.
        let mut track = Track::new(0.1, GuardLimits::default());
        (0..12).for_each(|_| track.pair(used(20.0, 0.0), used(20.0, 20.0)));
        assert!(track.open_cpu(20.0, 1.0).is_none(), "{track:?}");
        let mut less = Track::new(0.1, GuardLimits::default());
        (0..8).for_each(|_| less.pair(used(20.0, 0.0), used(20.0, 20.0)));
        assert!(
            less.open_cpu(20.0, 1.0).is_some(),
            "turned round as a whole the second would show it: two choices of 128"
        );
    }

    #[test]
    fn what_may_be_lost_is_a_share_of_what_both_windows_got() {
        let mut track = Track::new(0.1, GuardLimits::default());
        track.pair(used(20.0, 4.0), used(10.0, 4.5));
        assert_eq!(track.not_waited, [0.1 * 15.0 + 4.0 - 4.5]);
    }

    #[test]
    fn of_the_small_bets_tell_at_the_error_probability_of_a_question() {
        let small = Track::new(0.05, GuardLimits::default()).of_the_small(1.0);
        // Five sure wins are evidence of 18.8, six of more than 20.
        assert!(!small.shows(&[&[1.0; 5]]) && small.shows(&[&[1.0; 6]]));
    }
}
