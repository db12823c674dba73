//! Do tenants get what their weights promise, and if not, could they?

use evenkeel_base::stats::mean;

use super::words::{of, three};
use crate::decide::{Claim, Draft, Figure, Mean, Said, by};
use crate::record::{Account, Cell, Record};
use crate::study::point::{feasible, rates, total};
use crate::study::sample;
use crate::study::window::span;
use crate::study::{PointStudy, Study, TenantStudy, prefix};

/// Largest deviation from proportion on one CPU, percent of the share.
pub const ONE_CPU_PCT: f64 = 2.0;
/// The same on several: the kernel splits a group's weight over CPUs and moves whole threads.
pub const MORE_CPUS_PCT: f64 = 8.0;
/// A feasible share further from the weight's than this is called infeasible weights, percent of the share.
pub const INFEASIBLE_PCT: f64 = 1.0;
/// Most that equal tenants may differ, percent of the mean.
const BIAS_PCT: f64 = 10.0;
/// A mean over all runs misleads when it turns the order by at least this factor.
const MISLEADS: f64 = 1.1;
/// Who runs or waits for less of its time than this wants less than it can get.
const BUSY: f64 = 0.9;
/// With more points than this they are judged together.
const MANY: usize = 6;

pub(super) fn add<'a>(record: &'a Record, study: &'a Study, all: &mut Vec<Draft<'a>>) {
    let (mut equal, mut weighted, mut impossible) = (Vec::new(), Vec::new(), Vec::new());
    for point in study.points.iter().filter(|point| point.tenants.len() > 1) {
        match kind(point).filter(|_| !(0..point.tenants.len()).any(|index| slept(record, point, index))) {
            Some(Kind::Equal) => equal.extend(equal_point(record, point)),
            Some(Kind::Weighted) => weighted.extend(weighted_point(record, study, point)),
            Some(Kind::Infeasible) => impossible.extend(infeasible_point(record, study, point)),
            None => {}
        }
        all.extend(misleading_mean(record, point).map(Draft::question));
    }
    for points in [weighted, impossible, equal] {
        if points.len() > MANY {
            all.extend(together(points));
        } else {
            all.extend(points.into_iter().map(OfPoint::draft));
        }
    }
}

/// What is said of one point.
struct OfPoint<'a> {
    id: &'static str,
    label: &'a str,
    statistic: (&'static str, &'static str),
    figure: Figure,
    bound: f64,
    text: Box<dyn Fn(&crate::decide::Decision) -> String + 'a>,
}

impl<'a> OfPoint<'a> {
    fn draft(self) -> Draft<'a> {
        let text = self.text;
        Draft::new(self.id, self.label, self.statistic, self.figure, Claim::AtMost(self.bound), move |d| {
            text(&d[0])
        })
    }
}

/// Many points would drown the reader: they are decided each, and the worst stands for all.
fn together<'a>(mut points: Vec<OfPoint<'a>>) -> Option<Draft<'a>> {
    // The worst first: its figure is shown.
    let over = |p: &OfPoint<'_>| p.figure.value().unwrap_or(f64::NEG_INFINITY) / p.bound;
    points.sort_by(|a, b| over(b).total_cmp(&over(a)));
    let first = points.first()?;
    let (id, label, statistic) = (first.id, first.label, first.statistic);
    let claims = points.iter().map(|p| (p.figure.clone(), Claim::AtMost(p.bound))).collect();
    Some(Draft::with(id, label, statistic, claims, move |d| {
        let count = |holds: Option<bool>| d.iter().filter(|d| d.holds == holds).count();
        let (held, failed, open) = (count(Some(true)), count(Some(false)), count(None));
        let holds = if failed > 0 { Some(false) } else { (open == 0).then_some(true) };
        // The worst of those that give the answer.
        let shown = d.iter().position(|d| d.holds == holds).unwrap_or(0);
        let text = format!(
            "Of {} points {held} pass, {failed} fail and {open} are undecided; the worst: {}",
            d.len(),
            (points[shown].text)(&d[shown])
        );
        Some(Said { holds, text, shown: Some(shown) })
    }))
}

enum Kind {
    Equal,
    Weighted,
    Infeasible,
}

/// What can be said of a point; nothing where shares or possible shares are not known, or something else than weights
/// (a quota, what is wanted) decides.
fn kind(point: &PointStudy) -> Option<Kind> {
    point.tenants.iter().all(|t| t.share_pct.is_some()).then_some(())?;
    if point.tenants.iter().any(|t| t.limits.quota_pct.is_some() || wants_less(&t.workload)) {
        return None;
    }
    let off = |t: &TenantStudy| Some(100.0 * (t.feasible_pct? / t.weight_pct? - 1.0).abs());
    let worst = point.tenants.iter().map(off).collect::<Option<Vec<_>>>()?.into_iter().fold(0.0, f64::max);
    let weights: Vec<f64> = point.tenants.iter().filter_map(|t| t.weight_pct).collect();
    let same = weights.windows(2).all(|w| (w[0] - w[1]).abs() < 1e-9);
    Some(match (same, worst > INFEASIBLE_PCT) {
        (_, true) => Kind::Infeasible,
        (true, false) => Kind::Equal,
        (false, false) => Kind::Weighted,
    })
}

/// Whether a tenant neither ran nor waited for a good part of its time: then its demand decides its share, too. What a
/// hypervisor stole while it ran is neither, and no sleep.
pub(super) fn slept(record: &Record, point: &PointStudy, index: usize) -> bool {
    let busy = sample::each(&sample::tenants(record, point, index), |tenant| {
        let real_s = Some(tenant.total.real_s).filter(|s| *s > 0.0)?;
        let stolen_s = total(tenant, |a| a.stolen_s).unwrap_or(0.0);
        Some((total(tenant, Account::cpu_s)? + total(tenant, |a| a.waited_s)? + stolen_s) / real_s)
    });
    busy.is_some_and(|busy| busy.value < BUSY)
}

/// Whether a load asks for part of a CPU: then demand decides its share, not its weight.
fn wants_less(workload: &str) -> bool {
    matches!(workload.split_ascii_whitespace().next(), Some("duty" | "idle"))
}

fn equal_point<'a>(record: &Record, point: &'a PointStudy) -> Option<OfPoint<'a>> {
    let figure = sample::bias(sample::off_weights(record, point)?);
    let jain = point.together.jain?;
    let rate = point.tenants.iter().map(|t| t.competing_per_s.map(|r| r.value)).collect::<Option<Vec<_>>>();
    let each = rate
        .and_then(|r| evenkeel_base::stats::mean(&r))
        .map_or_else(String::new, |r| format!(" of {} events/s each", three(r)));
    Some(OfPoint {
        id: "equal-weights-equal-shares",
        label: &point.label,
        statistic: ("(max - min) / mean of the shares while all compete", "%"),
        figure,
        bound: BIAS_PCT,
        text: Box::new(move |d| {
            format!(
                "{}{} tenants of equal weight got shares{each} that differ by {} % of the mean (Jain index {jain:.4}).",
                prefix(&point.label),
                point.tenants.len(),
                of(d)
            )
        }),
    })
}

fn weighted_point<'a>(record: &Record, study: &Study, point: &'a PointStudy) -> Option<OfPoint<'a>> {
    let figure = sample::deviation(sample::off_weights(record, point)?);
    let one = cpus(study, point) == Some(1);
    let bound = if one { ONE_CPU_PCT } else { MORE_CPUS_PCT };
    let slope = point.together.proportion.map_or_else(String::new, |line| {
        format!("; as a weight doubles, the rate grows by a factor of {:.3}", 2f64.powf(line.slope))
    });
    let farthest = worst(point)?;
    let (share, due) = (farthest.share_pct?.value, farthest.weight_pct?);
    Some(OfPoint {
        id: "weights-hold",
        label: &point.label,
        statistic: (
            "largest deviation of a share from its weight's share, while all compete",
            "% of the share",
        ),
        figure,
        bound,
        text: Box::new(move |d| {
            let before = prefix(&point.label);
            match d.holds {
                Some(true) => format!("{before}Weights hold within {} % of proportion{slope}.", of(d)),
                Some(false) => format!(
                    "{before}Weights do not hold within {} % of proportion{slope}. Farthest off is {}: {} % of all instead \
                     of {} %.",
                    three(bound),
                    farthest.name,
                    three(share),
                    three(due)
                ),
                None => format!(
                    "{before}Whether weights hold within {} % of proportion is open{slope}; farthest off is {}: {} % of all \
                     instead of {} %.",
                    three(bound),
                    farthest.name,
                    three(share),
                    three(due)
                ),
            }
        }),
    })
}

fn worst(point: &PointStudy) -> Option<&TenantStudy> {
    let off = |t: &TenantStudy| Some((t.share_pct?.value / t.weight_pct? - 1.0).abs());
    point.tenants.iter().max_by(|a, b| off(a).unwrap_or(0.0).total_cmp(&off(b).unwrap_or(0.0)))
}

fn cpus(study: &Study, point: &PointStudy) -> Option<usize> {
    let mut union = evenkeel_base::CpuSet::new();
    for tenant in &point.tenants {
        match &tenant.limits.cpus {
            Some(cpus) => union = union.union(cpus),
            None => return study.host.cpus.map(|n| n as usize),
        }
    }
    Some(union.len())
}

fn infeasible_point<'a>(record: &Record, study: &Study, point: &'a PointStudy) -> Option<OfPoint<'a>> {
    let figure = sample::deviation(sample::off_feasible(record, point)?);
    let cpus = cpus(study, point)? as f64;
    // Who cannot use what its weight promises.
    let (index, capped) = point
        .tenants
        .iter()
        .enumerate()
        .filter(|(_, t)| {
            t.feasible_pct.zip(t.weight_pct).is_some_and(|(f, w)| f < w * (1.0 - INFEASIBLE_PCT / 100.0))
        })
        .max_by(|(_, a), (_, b)| a.weight_pct.unwrap_or(0.0).total_cmp(&b.weight_pct.unwrap_or(0.0)))?;
    let weight = capped.weight_pct?;
    // Not a part of all CPUs: where there is not work for all of them, shares are of less.
    let most = *feasible(&study.host, &sample::cells(record, point).first()?.tenants)?.get(index)?;
    let promised = weight / 100.0 * cpus;
    let threads =
        if capped.threads == 1 { "one thread".to_owned() } else { format!("{} threads", capped.threads) };
    // Fewer CPUs than threads hold it back before those do.
    let by_what = match &capped.limits.cpus {
        Some(own) if own.len() < capped.threads as usize => format!("{threads} on CPUs {own}"),
        _ => threads,
    };
    Some(OfPoint {
        id: "weights-infeasible",
        label: &point.label,
        statistic: (
            "largest deviation of a share from the feasible one (exact weighted max-min), while all compete",
            "% of the share",
        ),
        figure,
        bound: MORE_CPUS_PCT,
        text: Box::new(move |d| {
            format!(
                "{}These weights cannot be in proportion: {} has {weight:.1} % of the weight, which is {promised:.2} of {cpus:.0} \
                 CPUs, but its {by_what} can use no more than {most:.2}. What it cannot use goes to those of the others \
                 that can, by their weights; shares {} of that: the farthest off differs by {} %.",
                prefix(&point.label),
                capped.name,
                by(
                    d.holds,
                    &format!("are within {MORE_CPUS_PCT} %"),
                    &format!("are not within {MORE_CPUS_PCT} %"),
                    &format!("may or may not be within {MORE_CPUS_PCT} %")
                ),
                of(d)
            )
        }),
    })
}

/// One tenant's rate over another's, given a value a repetition, and the mean of each. What one gets in a repetition the other may
/// lack: each repetition gives a ratio. Of one repetition, the runs of each tell how sure it is.
fn ratio([small, large]: [&[Option<f64>]; 2], [of_small, of_large]: [Mean; 2]) -> Option<Figure> {
    let log = |(small, large): (&Option<f64>, &Option<f64>)| Some(((*small)? / (*large)?).ln());
    match small.iter().zip(large).map(log).collect::<Option<Vec<f64>>>()?.as_slice() {
        [_] => of_small.over(of_large),
        logs => Mean::of(logs).map(Figure::Ratio),
    }
}

/// A pair whose order over all runs is the opposite of that in the window.
fn misleading_mean<'a>(record: &Record, point: &'a PointStudy) -> Option<Draft<'a>> {
    let of_tenant = |i: usize| -> Option<(f64, Mean, Mean)> {
        let all = sample::runs(&sample::tenants(record, point, i), sample::events_per_s)?;
        Some((point.tenants[i].weight_pct?, all, sample::competing_per_s(record, point, i)?))
    };
    let known: Vec<Option<(f64, Mean, Mean)>> = (0..point.tenants.len()).map(of_tenant).collect();
    let mut worst: Option<(f64, usize, usize)> = None;
    let mut pairs = 0;
    for (small, of_small) in known.iter().enumerate() {
        for (large, of_large) in known.iter().enumerate() {
            let (Some((ws, all_s, in_s)), Some((wl, all_l, in_l))) = (of_small, of_large) else { continue };
            if ws >= wl {
                continue;
            }
            pairs += 1;
            let factor = all_s.value / all_l.value;
            if factor > MISLEADS && in_s.value < in_l.value && worst.is_none_or(|(w, ..)| factor > w) {
                worst = Some((factor, small, large));
            }
        }
    }
    let (_, small, large) = worst?;
    let ((ws, all_s, in_s), (wl, all_l, in_l)) = (known[small]?, known[large]?);
    let cells = sample::cells(record, point);
    // Whether the small one really went on when the large one was done, in every repetition.
    let end = |cell: &Cell, i: usize| cell.tenants.get(i).and_then(span).map(|s| s.to_s);
    let later = |cell: &&Cell| end(cell, small).zip(end(cell, large)).is_some_and(|(s, l)| s > l);
    let goes_on = cells.iter().all(later);
    let of_runs = |cell: &&Cell, i: usize| {
        mean(&cell.tenants.get(i)?.runs.iter().filter_map(sample::events_per_s).collect::<Vec<_>>())
    };
    let (rates, _) = rates(&cells);
    let all_runs = [small, large].map(|i| cells.iter().map(|cell| of_runs(cell, i)).collect::<Vec<_>>());
    let in_window = [small, large].map(|i| rates.iter().map(|cell| *cell.get(i)?).collect::<Vec<_>>());
    let over = |[a, b]: &[Vec<Option<f64>>; 2], means| ratio([a, b], means);
    let ratios = (over(&all_runs, [all_s, all_l])?, over(&in_window, [in_s, in_l])?);
    let because = if goes_on { ": in every repetition it went on when the other was done" } else { "" };
    let (small, large) = (&point.tenants[small].name, &point.tenants[large].name);
    Some(
        Draft::with(
            "mean-over-all-runs-misleads",
            &point.label,
            ("rate of the smaller over the larger, mean of all runs; while all compete it is below 1", ""),
            vec![
                (ratios.0, Claim::AtLeast(MISLEADS)),
                (ratios.1, Claim::AtMost(1.0)),
            ],
            move |d| {
                // Only what is decided is worth the warning.
                (d[0].yes() && d[1].yes()).then(|| Said {
                    holds: Some(true),
                    shown: Some(0),
                    text: format!(
                        "{}The mean over all runs misleads: it gives {small} ({ws:.2} % of the weight) {} events/s, {} times \
                         {large}'s ({wl:.2} %){because}. While all compete it is {} against {} events/s.",
                        prefix(&point.label),
                        three(all_s.value),
                        d[0].words(2),
                        three(in_s.value),
                        three(in_l.value),
                    ),
                })
            },
        )
        .picked_from(pairs),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::study;
    use crate::study::testing::{cell, record, steady, tenant};

    fn ids(study: &Study) -> Vec<&str> {
        study.verdicts.iter().map(|v| v.id.as_str()).collect()
    }

    #[test]
    fn infeasible_weights_are_explained_and_not_called_a_failure() {
        let tenants =
            (0..4).map(|i| steady(&format!("t{i}"), 1 << i, 5, [100.0, 200.0, 400.0, 700.0][i])).collect();
        let study = study(&record(vec![("1248", cell(tenants))]));
        let v = study.verdicts.iter().find(|v| v.id == "weights-infeasible").unwrap();
        assert_eq!(v.holds, Some(true));
        assert!(v.text.contains("1.07 of 2") && v.text.contains("one thread"), "{}", v.text);
    }

    #[test]
    fn one_thread_uses_one_cpu_however_few_work() {
        // 3:1 on four CPUs: each has a CPU, half of what is used, and two are idle.
        for (threads, cpus, by_what) in [(1, "0-3", "one thread"), (3, "2", "3 threads on CPUs 2")] {
            let mut tenants = vec![steady("a", 3, 5, 100.0), steady("b", 1, 5, 100.0)];
            (tenants[0].threads, tenants[0].limits.cpus) = (threads, cpus.parse().ok());
            let mut record = record(vec![("x", cell(tenants))]);
            record.host.cpus = Some(4);
            let said =
                study(&record).verdicts.into_iter().find(|v| v.id == "weights-infeasible").unwrap().text;
            let wanted = format!("3.00 of 4 CPUs, but its {by_what} can use no more than 1.00.");
            assert!(said.contains(&wanted), "{said}");
        }
    }

    #[test]
    fn weights_that_hold_and_weights_that_do_not() {
        // Two threads each, so that everybody can use its share of two CPUs.
        let make = |rates: [f64; 2]| {
            let mut tenants = vec![steady("a", 1, 5, rates[0]), steady("b", 2, 5, rates[1])];
            tenants.iter_mut().for_each(|t| t.threads = 2);
            study(&record(vec![("x", cell(tenants))]))
        };
        let held = make([100.0, 201.0]);
        let v = held.verdicts.iter().find(|v| v.id == "weights-hold").unwrap();
        assert!(v.holds == Some(true) && v.text.contains("hold within 0.3"), "{}", v.text);
        let broken = make([100.0, 150.0]);
        let v = broken.verdicts.iter().find(|v| v.id == "weights-hold").unwrap();
        assert!(v.holds == Some(false) && v.text.contains("40.0 % of all instead of 33.3 %"), "{}", v.text);
    }

    #[test]
    fn of_one_that_sleeps_weights_are_not_judged() {
        let of = |cpu_s: f64, waited_s: f64, stolen_s: Option<f64>| {
            let mut tenants = vec![steady("a", 1, 5, 100.0), steady("b", 1, 5, 10.0)];
            let total = &mut tenants[1].total;
            (total.user_s, total.sys_s) = (Some(cpu_s), Some(0.0));
            (total.waited_s, total.stolen_s) = (Some(waited_s), stolen_s);
            let study = study(&record(vec![("x", cell(tenants))]));
            ids(&study).contains(&"equal-weights-equal-shares")
        };
        // Five seconds, as a command has them that sleeps, and as one that others keep waiting, the hypervisor among them.
        assert_eq!((of(0.5, 0.1, None), of(0.5, 0.1, Some(0.0)), of(0.5, 4.4, None)), (false, false, true));
        assert!(of(2.0, 2.0, Some(1.0)));
    }

    #[test]
    fn of_those_who_ran_by_turns_weights_are_not_judged() {
        // Commands of a CPU second each; the second begins with the first, or when that is done.
        let of = |start_s: f64| {
            let mut tenants = [("a", 1, 0.0), ("b", 4, start_s)]
                .map(|(name, units, from)| tenant(name, Some(units), &[(from, from + 2.0, 0.0)]));
            for tenant in &mut tenants {
                let run = &mut tenant.runs[0];
                (run.events, run.events_per_s) = (None, None);
                (run.account.user_s, run.account.sys_s) = (Some(1.0), Some(0.0));
                tenant.total = Account { real_s: 2.0, waited_s: Some(1.0), ..run.account };
            }
            let study = study(&record(vec![("x", cell(tenants.into())); 3]));
            (
                ids(&study).iter().any(|id| id.starts_with("weights-")),
                study.points[0].tenants[0].share_pct.is_some(),
            )
        };
        assert_eq!((of(0.0), of(2.5)), ((true, true), (false, false)));
    }

    #[test]
    fn equal_tenants_are_judged_by_their_bias() {
        let even = study(&record(vec![("64x3", cell((0..3).map(|_| steady("t", 64, 5, 100.0)).collect()))]));
        assert!(ids(&even).contains(&"equal-weights-equal-shares"), "{:?}", ids(&even));
        assert!(even.verdicts.iter().all(|v| v.holds != Some(false)));
    }

    #[test]
    fn the_misleading_mean_is_named() {
        // b is done after 3 s; a then runs ten times as fast for long.
        let a_runs: Vec<_> = (0..3)
            .map(|n| (n as f64, n as f64 + 1.0, 10.0))
            .chain((3..12).map(|n| (n as f64, n as f64 + 1.0, 300.0)))
            .collect();
        let b_runs: Vec<_> = (0..3).map(|n| (n as f64, n as f64 + 1.0, 100.0)).collect();
        let study = study(&record(vec![(
            "p",
            cell(vec![tenant("a", Some(1), &a_runs), tenant("b", Some(10), &b_runs)]),
        )]));
        let v = study.verdicts.iter().find(|v| v.id == "mean-over-all-runs-misleads").unwrap();
        assert!(v.text.contains("gives a") && v.text.contains("10.0 against 100 events/s"), "{}", v.text);
    }

    #[test]
    fn what_one_gains_in_a_repetition_the_other_loses() {
        let (up, down) = ([Some(1.0), Some(2.0), Some(4.0)], [Some(4.0), Some(2.0), Some(1.0)]);
        let mean = |value| Mean { error: Some(0.1), ..Mean::of(&[value]).unwrap() };
        let error = |large: &[Option<f64>]| match ratio([&up, large], [mean(2.0), mean(2.0)]) {
            Some(Figure::Ratio(log)) => log.error.unwrap(),
            other => panic!("{other:?}"),
        };
        // Logarithms of the ratios are -ln 4, 0 and ln 4.
        assert!((error(&down) - 4f64.ln() / 3f64.sqrt()).abs() < 1e-9 && error(&up) == 0.0);
        assert_eq!(ratio([&up, &[Some(1.0), None, Some(1.0)]], [mean(2.0), mean(2.0)]), None);
        // One repetition says by its runs how sure it is.
        let of_runs = ratio([&up[..1], &down[..1]], [mean(2.0), mean(2.0)]);
        assert_eq!(of_runs, mean(2.0).over(mean(2.0)));
    }

    #[test]
    fn unlike_loads_are_compared_by_cpu_time_never_by_events() {
        // Weights 1:9; CPU time is in proportion, events of a burner and a reader of files are not.
        let unlike = |wobble: f64| {
            let mut burner = steady("a", 9, 5, 100_000.0);
            burner.workload = "spin".into();
            let mut reader = steady("b", 1, 5, 7.0);
            reader.workload = "sieve --from 1 --to 99 --read own".into();
            for (tenant, cpu) in [(&mut burner, 0.9), (&mut reader, 0.1 + wobble)] {
                tenant.limits.cpus = "0".parse().ok();
                for run in &mut tenant.runs {
                    (run.account.user_s, run.account.sys_s) = (Some(cpu), Some(0.0));
                }
            }
            ("10 %", cell(vec![burner, reader]))
        };
        let study = study(&record([0.0, 0.0003, -0.0003].map(unlike).into()));
        let v = study.verdicts.iter().find(|v| v.id == "weights-hold").unwrap();
        assert_eq!(v.holds, Some(true), "{v:?}");
        assert!((study.points[0].tenants[1].share_pct.unwrap().value - 10.0).abs() < 0.1);
        assert_eq!(study.points[0].tenants[1].competing_per_s, None);
    }
}
