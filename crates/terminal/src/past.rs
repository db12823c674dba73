//! The history with a time cursor: which time is shown, where the cursor is, what was then.

use evenkeel_store::moments::{Kind, Moment};

use crate::errand::Period;

/// Moments of a time, about.
pub const POINTS: u64 = 240;
/// Lengths of time that are shown, with their names.
const SPANS: [(u64, &str); 6] = [
    (10 * 60, "10 min"),
    (3600, "1 h"),
    (6 * 3600, "6 h"),
    (86_400, "1 day"),
    (7 * 86_400, "7 days"),
    (31 * 86_400, "31 days"),
];
const SECOND: u64 = 1_000_000_000;

/// What was recorded in a time.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// Its beginning, nanoseconds since 1970.
    pub from_ns: u64,
    pub to_ns: u64,
    /// In order.
    pub moments: Vec<Moment>,
    pub damaged: u64,
    /// The oldest and the newest sample kept; `None` where there is none.
    pub kept_ns: Option<(u64, u64)>,
}

/// The state of the screen.
#[derive(Debug, Clone, PartialEq)]
pub struct Past {
    span: usize,
    /// What was read; `Ok(None)` where there is no history, `None` where it was not read yet.
    pub recorded: Option<Result<Option<Recorded>, String>>,
    /// The cursor, nanoseconds since 1970; `None` follows the end.
    pub at_ns: Option<u64>,
    /// The end of what is shown; `None` is now.
    to_ns: Option<u64>,
}

impl Default for Past {
    fn default() -> Self {
        Self { span: 1, recorded: None, at_ns: None, to_ns: None }
    }
}

/// A column of the charts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Slot {
    /// Busy, percent of one CPU; `None` where nothing was recorded.
    pub busy: Option<f64>,
    /// Waits of all tasks together, percent.
    pub wait: Option<f64>,
    /// The most that happened: `B`egins, `K`ept, `R`efused, `S`et, `P`ut back, `E`nds.
    pub mark: Option<char>,
}

impl Recorded {
    /// Number of the column that an instant is in.
    pub fn slot(&self, at_ns: u64, slots: usize) -> usize {
        let span = self.to_ns.saturating_sub(self.from_ns).max(1);
        let part = u128::from(at_ns.saturating_sub(self.from_ns)) * slots as u128 / u128::from(span);
        (part as usize).min(slots.saturating_sub(1))
    }

    /// The time in equal columns.
    pub fn slots(&self, slots: usize) -> Vec<Slot> {
        let mut columns = vec![Slot::default(); slots];
        if slots == 0 {
            return columns;
        }
        let mut sums = vec![[(0.0, 0.0); 2]; slots];
        for moment in &self.moments {
            let last = self.slot(moment.at_ns, slots);
            if moment.kind == Kind::Rates {
                let seconds = moment.seconds.unwrap_or(0.0).clamp(0.0, 1e9);
                let begin = moment.at_ns.saturating_sub((seconds * 1e9) as u64).max(self.from_ns);
                for sum in &mut sums[self.slot(begin, slots)..=last] {
                    for (sum, value) in sum.iter_mut().zip([moment.cpu_pct, moment.wait_pct]) {
                        if let Some(value) = value {
                            *sum = (sum.0 + value * seconds, sum.1 + seconds);
                        }
                    }
                }
            } else if let Some((mark, rank)) = mark(moment.kind)
                && columns[last].mark.is_none_or(|old| rank_of(old) < rank)
            {
                columns[last].mark = Some(mark);
            }
        }
        for (column, [busy, wait]) in columns.iter_mut().zip(sums) {
            let mean = |(sum, seconds): (f64, f64)| (seconds > 0.0).then(|| sum / seconds);
            (column.busy, column.wait) = (mean(busy), mean(wait));
        }
        columns
    }

    /// The rates that cover an instant.
    pub fn rates_at(&self, at_ns: u64) -> Option<&Moment> {
        let covers = |moment: &&Moment| {
            let begin = moment.at_ns.saturating_sub((moment.seconds.unwrap_or(0.0).max(0.0) * 1e9) as u64);
            moment.kind == Kind::Rates && begin <= at_ns && at_ns <= moment.at_ns
        };
        self.moments.iter().find(covers)
    }

    /// What the loop did: the number of the first one at or after an instant, and all.
    pub fn events(&self, at_ns: u64) -> (usize, Vec<&Moment>) {
        let events: Vec<&Moment> =
            self.moments.iter().filter(|moment| !matches!(moment.kind, Kind::Rates | Kind::Window)).collect();
        (events.partition_point(|moment| moment.at_ns < at_ns), events)
    }
}

const MARKS: [char; 6] = ['P', 'R', 'S', 'E', 'B', 'K'];

fn rank_of(mark: char) -> usize {
    MARKS.iter().position(|one| *one == mark).unwrap_or(0)
}

fn mark(kind: Kind) -> Option<(char, usize)> {
    let mark = match kind {
        Kind::Begins => 'B',
        Kind::Kept => 'K',
        Kind::Refused => 'R',
        Kind::Set => 'S',
        Kind::PutBack => 'P',
        Kind::Ends => 'E',
        Kind::Rates | Kind::Window => return None,
    };
    Some((mark, rank_of(mark)))
}

impl Past {
    /// Length of the time shown, nanoseconds.
    pub fn span_ns(&self) -> u64 {
        SPANS[self.span].0 * SECOND
    }

    pub fn span_name(&self) -> &'static str {
        SPANS[self.span].1
    }

    /// The time that is shown.
    pub fn period(&self) -> Period {
        Period { span_ns: self.span_ns(), to_ns: self.to_ns }
    }

    /// Whether it goes on with the time.
    pub fn follows(&self) -> bool {
        self.at_ns.is_none() && self.to_ns.is_none()
    }

    /// What was recorded, where anything was read.
    pub fn known(&self) -> Option<&Recorded> {
        self.recorded.as_ref()?.as_ref().ok()?.as_ref()
    }

    /// Where the cursor is, of what was read.
    pub fn cursor(&self) -> Option<u64> {
        let known = self.known()?;
        // The newest samples may lie beyond the last step that has rates.
        let rates = known.moments.iter().filter(|moment| moment.kind == Kind::Rates).map(|m| m.at_ns).max();
        let newest = || rates.or(known.kept_ns.map(|(_, newest)| newest)).unwrap_or(known.to_ns);
        Some(self.at_ns.unwrap_or_else(|| newest().max(known.from_ns).min(known.to_ns)))
    }

    /// Moves the cursor by columns; beyond the edge the time shown moves along. Whether to read again.
    pub fn go(&mut self, by: i64, slots: usize) -> bool {
        let (Some(at), Some(known)) = (self.cursor(), self.known()) else { return false };
        let (from, to) = (known.from_ns, known.to_ns);
        let step = (self.span_ns() / slots.max(1) as u64).max(SECOND);
        let by = i128::from(by) * i128::from(step);
        let at = (i128::from(at) + by).clamp(0, i128::from(u64::MAX / 2)) as u64;
        // A longer or shorter time may be on its way.
        let is_whole = to.saturating_sub(from) == self.span_ns();
        if is_whole && at >= from && at <= to {
            self.at_ns = Some(at);
            // What is looked at must not move away under the cursor.
            self.to_ns = Some(to);
            return false;
        }
        let half = self.span_ns() / 2;
        if at > to && self.to_ns.is_none() {
            return false;
        }
        self.at_ns = Some(at);
        self.to_ns = Some(at.saturating_add(half));
        true
    }

    /// Shows a longer or a shorter time around the cursor. Whether to read again.
    pub fn zoom(&mut self, longer: bool) -> bool {
        let before = self.span;
        self.span = if longer { (self.span + 1).min(SPANS.len() - 1) } else { self.span.saturating_sub(1) };
        if let Some(at) = self.at_ns.filter(|_| self.span != before) {
            self.to_ns = Some(at.saturating_add(self.span_ns() / 2));
        }
        self.span != before
    }

    pub fn now(&mut self) {
        (self.at_ns, self.to_ns) = (None, None);
    }

    pub fn take(&mut self, recorded: Result<Option<Recorded>, String>) {
        self.recorded = Some(recorded);
        // What was asked for may be later than what there is.
        if let (Some(known), Some(at)) = (self.known(), self.at_ns) {
            let at = at.max(known.from_ns).min(known.to_ns);
            self.at_ns = Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn moment(at_s: u64, kind: Kind) -> Moment {
        Moment {
            at_ns: at_s * SECOND,
            kind,
            settings: "kernel default".into(),
            seconds: Some(10.0),
            cpu_pct: Some(at_s as f64),
            per_cpu_pct: vec![(0, at_s as f64)],
            steal_pct: None,
            wait_pct: None,
            busiest: vec![("web".into(), 5.0, Some(1.0))],
            text: "text".into(),
        }
    }

    fn recorded() -> Recorded {
        let moments = vec![
            moment(1010, Kind::Rates),
            moment(1020, Kind::Rates),
            moment(1021, Kind::Set),
            moment(1022, Kind::Kept),
            moment(1023, Kind::Refused),
        ];
        Recorded { from_ns: 1000 * SECOND, to_ns: 1100 * SECOND, moments, damaged: 0, kept_ns: None }
    }

    #[test]
    fn columns_are_means_and_what_was_not_recorded_is_blank() {
        let slots = recorded().slots(10);
        assert_eq!(slots[0].busy, Some(1010.0));
        assert_eq!((slots[3].busy, slots[9].busy, slots[0].wait), (None, None, None));
        // What is kept says more than what is set or refused.
        assert_eq!(slots[2].mark, Some('K'));
    }

    #[test]
    fn the_cursor_is_on_what_covers_it() {
        let recorded = recorded();
        assert_eq!(recorded.rates_at(1015 * SECOND).map(|moment| moment.at_ns), Some(1020 * SECOND));
        assert_eq!(recorded.rates_at(1050 * SECOND), None);
        assert_eq!(recorded.events(1022 * SECOND).0, 1);
    }

    #[test]
    fn the_cursor_begins_on_the_newest_rates() {
        let mut past = Past::default();
        past.take(Ok(Some(Recorded { kept_ns: Some((1000 * SECOND, 1027 * SECOND)), ..recorded() })));
        let at = past.cursor().unwrap();
        assert_eq!(past.known().unwrap().rates_at(at).map(|moment| moment.at_ns), Some(1020 * SECOND));
    }

    #[test]
    fn beyond_the_edge_the_time_moves_along() {
        let mut past = Past::default();
        assert!(!past.go(-1, 10), "nothing was read");
        past.take(Ok(Some(recorded())));
        assert!(past.follows());
        assert!(!past.go(1, 10), "there is no later than now");
        assert!(past.go(-1000, 10));
        assert!(!past.follows());
        past.now();
        assert!(past.follows() && past.zoom(true) && past.span_name() == "6 h");
        while past.zoom(true) {}
        past.at_ns = Some(5 * SECOND);
        let asked = past.period();
        assert!(!past.zoom(true) && past.period() == asked, "it is the longest");
    }

    proptest! {
        #[test]
        fn any_way_through_time_is_fine(
            moves in proptest::collection::vec((any::<i64>(), 0usize..200, any::<bool>()), 1..20),
            ends in (any::<u64>(), any::<u64>())
        ) {
            let mut past = Past::default();
            let recorded = Recorded { from_ns: ends.0, to_ns: ends.1, ..recorded() };
            past.take(Ok(Some(recorded)));
            for (by, slots, longer) in moves {
                past.go(by, slots);
                past.zoom(longer);
                let slots = past.known().map(|known| known.slots(slots).len());
                prop_assert!(slots.is_some());
                past.cursor();
            }
        }
    }
}
