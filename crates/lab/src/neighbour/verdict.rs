//! What the figures mean, in words; decided in one place, see [`evenkeel_experiment::decide`].
//!
//! Claims are made of the heaviest load of each service and batch: what holds there is what one buys a lever for, and each
//! claim more would widen the intervals of all.

use evenkeel_experiment::decide::{Claim, Decision, Draft, Figure, Mean, Said, Verdict, page};

use super::plan::{Arm, Point};
use super::record::{Measured, NeighbourRecord};
use super::study::Place;

/// A service keeps its latency where its 99th percentile is at most this many times that alone.
const KEPT: f64 = 1.5;
/// evenkeel is as good as a lever where its 99th percentile is at most this many times that one's.
const AS_GOOD: f64 = 1.2;
/// Work is conserved where batch work gets at least this part of what it gets by default, percent.
const CONSERVED_PCT: f64 = 90.0;
/// A service is isolated where at most this part of what is asked is not answered, percent.
const UNANSWERED_PCT: f64 = 1.0;
/// Other programs that use more than this may be why a service is slow, percent of ONE CPU.
const OTHERS_PCT: f64 = 10.0;

/// All that may be said of a record.
pub(super) fn verdicts(record: &NeighbourRecord) -> Vec<Verdict> {
    let mut drafts = Vec::new();
    for &service in &record.options.services {
        for &batch in &record.options.batches {
            let here = |point: &&Point| (point.service, point.batch) == (service, Some(batch));
            let Some(heaviest) = record.points.iter().filter(here).max_by_key(|point| point.load_pct) else {
                continue;
            };
            scene(record, heaviest.under(Arm::Default), &mut drafts);
        }
    }
    page(drafts)
}

/// What is said of a service next to a batch, whose point under the kernel's default is given.
fn scene<'a>(record: &'a NeighbourRecord, default: Point, drafts: &mut Vec<Draft<'a>>) {
    drafts.extend(default_keeps(record, default));
    for arm in Arm::BESIDE.into_iter().filter(|arm| arm.by_hand()) {
        drafts.extend(helps(record, Place::of(default.under(arm)), default));
    }
    let evenkeel = default.under(Arm::Evenkeel);
    for from_start in [true, false] {
        drafts.extend(helps(record, Place { point: evenkeel, from_start }, default));
    }
    drafts.extend(beside_best(record, default));
}

/// Whether the service keeps its latency under the kernel's default.
fn default_keeps(record: &NeighbourRecord, default: Point) -> Option<Draft<'_>> {
    let here = Place::of(default);
    let ratio = record.latency_ratio(here, Place::of(Point::alone(default.service)))?;
    let claims =
        vec![(ratio, Claim::AtMost(KEPT)), (record.unanswered(here)?, Claim::AtMost(UNANSWERED_PCT))];
    // Seen in full, not a sample: no part of the page's error.
    let others = record.each(here, Measured::others_pct).and_then(|values| Some(Mean::of(&values)?.value));
    let beside = match others.filter(|pct| *pct > OTHERS_PCT) {
        Some(pct) => format!(" Other programs used {pct:.0} % of a CPU meanwhile."),
        None => String::new(),
    };
    let statistic = ("99th percentile under the kernel's default over that alone", "");
    Some(Draft::with("default-keeps-latency", &default.scene(), statistic, claims, move |d| {
        let scene = default.scene();
        let text = match d[0].holds {
            Some(true) => format!("Under the kernel's default {scene} keeps its latency"),
            Some(false) => format!("Under the kernel's default {scene} does not keep its latency"),
            None => format!("Whether {scene} keeps its latency under the kernel's default is open"),
        };
        let not = d[1].words(1);
        Some(Said {
            holds: d[0].holds,
            text: format!(
                "{text}: its 99th percentile is {} times that alone ({KEPT} would do), and {not} % of requests are not answered.{beside}",
                d[0].words(2)
            ),
            shown: Some(0),
        })
    }))
}

/// Whether a lever shortens the service's latency, and what batch work keeps.
fn helps(record: &NeighbourRecord, place: Place, default: Point) -> Option<Draft<'_>> {
    let ratio = record.latency_ratio(place, Place::of(default))?;
    let work = record.work_conserved(place)?;
    let claims = vec![(ratio, Claim::AtMost(1.0)), (work, Claim::AtLeast(CONSERVED_PCT))];
    let decide_s = record.options.decide_s;
    let name = match (place.point.arm, place.from_start) {
        (Arm::Evenkeel, true) => {
            format!("evenkeel, in its first {decide_s} s, trial included,")
        }
        (Arm::Evenkeel, false) => format!("evenkeel, after {decide_s} s{},", settings(record, place.point)),
        (arm, _) => arm.to_string(),
    };
    let id = match (place.point.arm, place.from_start) {
        (Arm::Evenkeel, true) => "evenkeel-helps-from-start",
        (Arm::Evenkeel, false) => "evenkeel-helps",
        _ => "lever-helps",
    };
    let about = format!("{}, {name}", default.scene());
    let statistic = ("99th percentile over that under the kernel's default", "");
    Some(Draft::with(id, &about, statistic, claims, move |d| {
        let scene = default.scene();
        let (holds, equal) = d[0].unless_equal();
        let what = match holds {
            Some(true) => format!("{name} helps {scene}"),
            Some(false) => format!("{name} makes {scene} worse"),
            None => format!("Whether {name} helps {scene} is open"),
        };
        let text = format!(
            "{what}: its 99th percentile is {} times that under the kernel's default; {}.{equal}",
            d[0].words(2),
            conserved(&d[1])
        );
        Some(Said { holds, text, shown: Some(0) })
    }))
}

fn conserved(work: &Decision) -> String {
    let kept = match work.holds {
        Some(true) => "batch work is conserved",
        Some(false) => "batch work is not conserved",
        None => "whether batch work is conserved is open",
    };
    format!("{kept} ({} % of its CPU time there, {CONSERVED_PCT:.0} would do)", work.words(1))
}

/// Whether evenkeel's choice is as good as the best lever that somebody sets by hand.
fn beside_best(record: &NeighbourRecord, default: Point) -> Option<Draft<'_>> {
    let evenkeel = Place::of(default.under(Arm::Evenkeel));
    let levers: Vec<(Arm, Figure)> = Arm::BESIDE
        .into_iter()
        .filter(|arm| arm.by_hand())
        .filter_map(|arm| Some((arm, record.latency_ratio(evenkeel, Place::of(default.under(arm)))?)))
        .collect();
    let tried = levers.len();
    // The lever that evenkeel compares worst with is the one of the shortest latency.
    let (best, ratio) = levers
        .into_iter()
        .max_by(|a, b| a.1.value().unwrap_or(0.0).total_cmp(&b.1.value().unwrap_or(0.0)))?;
    let chosen = settings(record, evenkeel.point);
    // Of one there is no best.
    let the = if tried == 1 { "the one lever by hand that was tried" } else { "the best lever by hand" };
    let statistic = ("99th percentile over that under the best lever by hand", "");
    let claims = vec![(ratio, Claim::AtMost(AS_GOOD))];
    let draft = Draft::with("evenkeel-as-good", &default.scene(), statistic, claims, move |d| {
        let scene = default.scene();
        let text = match d[0].holds {
            Some(true) => format!("For {scene} evenkeel{chosen} is as good as {the}"),
            Some(false) => format!("For {scene} evenkeel{chosen} is behind {the}"),
            None => format!("For {scene} it is open whether evenkeel{chosen} is as good as {the}"),
        };
        let times = d[0].words(2);
        Some(Said {
            holds: d[0].holds,
            text: format!(
                "{text} ({best}): its 99th percentile is {times} times that one's ({AS_GOOD} would do)."
            ),
            shown: Some(0),
        })
    });
    Some(draft.picked_from(tried))
}

/// ` (in force: idle groups in 2, kernel default in 1 of 3)`.
fn settings(record: &NeighbourRecord, point: Point) -> String {
    let cells =
        (0..record.options.repetitions).filter_map(|r| record.cell(&point, r)?.measured.evenkeel.as_ref());
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for chosen in cells {
        match counts.iter_mut().find(|(name, _)| *name == chosen.settings) {
            Some((_, count)) => *count += 1,
            None => counts.push((&chosen.settings, 1)),
        }
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let all: usize = counts.iter().map(|(_, count)| count).sum();
    let part = |(name, count): &(&str, usize)| format!("{name} in {count}");
    match counts.as_slice() {
        [] => String::new(),
        several => {
            format!(" (in force: {} of {all})", several.iter().map(part).collect::<Vec<_>>().join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Options;
    use super::super::record::Measured;
    use super::super::testing::{measured, record_of};
    use super::*;

    /// Ten repetitions of the short form with nice added, each figure 1 % off the one before.
    fn of(p99: impl Fn(Arm, bool) -> f64, batch: impl Fn(Arm) -> f64) -> Vec<Verdict> {
        let mut options = Options { repetitions: 10, ..Options::defaults(true, 2) };
        options.arms.push(Arm::Nice);
        let record = record_of(options, |point: &Point, repetition, from_start| -> Measured {
            let wobble = 1.0 + 0.01 * f64::from((repetition + point.arm as u32) % 3);
            measured(p99(point.arm, from_start) * wobble, batch(point.arm) * wobble, (1000, 1000))
        });
        verdicts(&record)
    }

    fn one<'a>(verdicts: &'a [Verdict], id: &str, part: &str) -> &'a Verdict {
        let mut found = verdicts.iter().filter(|v| v.id == id && v.about.contains(part));
        let verdict = found.next().unwrap_or_else(|| panic!("no {id} about {part}: {verdicts:#?}"));
        assert!(found.next().is_none(), "several {id} about {part}");
        verdict
    }

    #[test]
    fn a_lever_that_helps_one_that_does_not_and_one_that_harms_are_told_apart() {
        let all = of(
            |arm, from_start| match (arm, from_start) {
                (Arm::Alone, _) => 100.0,
                (Arm::Default, _) => 1000.0,
                (Arm::CpuIdle, _) => 110.0,
                (Arm::Evenkeel, true) => 400.0,
                (Arm::Evenkeel, false) => 112.0,
                _ => 3000.0,
            },
            |arm| if arm == Arm::CpuIdle { 100.0 } else { 180.0 },
        );
        let default = one(&all, "default-keeps-latency", "");
        assert_eq!(default.holds, Some(false));
        assert!(default.text.starts_with("Under the kernel's default wakeup next to loops of 400 % does not keep its latency: its 99th percentile is 10."), "{}", default.text);
        let idle = one(&all, "lever-helps", "cpu.idle");
        assert_eq!(idle.holds, Some(true));
        // 100 of 180 %: that is the price, and it is reported.
        assert!(
            idle.text.contains("is 0.11 [") && idle.text.contains("batch work is not conserved (55."),
            "{}",
            idle.text
        );
        let nice = one(&all, "lever-helps", "nice 19");
        assert_eq!(nice.holds, Some(false));
        assert!(
            nice.text
                .starts_with("nice 19 makes wakeup next to loops of 400 % worse: its 99th percentile is 3."),
            "{}",
            nice.text
        );
        assert_eq!(one(&all, "evenkeel-helps-from-start", "").holds, Some(true));
        let after = one(&all, "evenkeel-helps", "after 8 s");
        assert!(
            after.text.starts_with("evenkeel, after 8 s (in force: idle groups in 10 of 10), helps wakeup"),
            "{}",
            after.text
        );
        let best = one(&all, "evenkeel-as-good", "");
        assert_eq!(best.holds, Some(true));
        assert!(
            best.text.contains("the best lever by hand (cpu.idle): its 99th percentile is 1.02 ["),
            "{}",
            best.text
        );
    }

    #[test]
    fn what_makes_no_difference_is_open_and_a_quiet_default_is_kept() {
        let all = of(|_, _| 100.0, |_| 180.0);
        let default = one(&all, "default-keeps-latency", "");
        assert_eq!(default.holds, Some(true));
        assert!(
            default.text.contains(" keeps its latency: ")
                && default.text.contains("0.0 % of requests are not answered"),
            "{}",
            default.text
        );
        // Not the same in each repetition: an interval, and 1 in it.
        let idle = one(&all, "lever-helps", "cpu.idle");
        assert!(
            idle.holds.is_none() && idle.text.contains("Undecided: the bound of 1 lies within"),
            "{}",
            idle.text
        );
        let nice = one(&all, "lever-helps", "nice 19");
        assert_eq!(nice.holds, None);
        assert!(
            nice.text.starts_with("Whether nice 19 helps wakeup next to loops of 400 % is open: "),
            "{}",
            nice.text
        );
        assert!(
            nice.text.contains("batch work is conserved") && nice.text.ends_with("equal to half a percent."),
            "{}",
            nice.text
        );
    }

    /// The short form tries cpu.idle alone of those by hand.
    #[test]
    fn one_lever_that_was_tried_is_not_the_best_of_them() {
        let p99 = |arm| if arm == Arm::Alone { 100.0 } else { 110.0 };
        let record = record_of(Options::defaults(true, 2), |point: &Point, _, _| -> Measured {
            measured(p99(point.arm), 180.0, (1000, 1000))
        });
        let all = verdicts(&record);
        let best = one(&all, "evenkeel-as-good", "");
        assert!(best.text.contains("the one lever by hand that was tried (cpu.idle)"), "{}", best.text);
    }
}
