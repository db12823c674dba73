//! Units that a vendor publishes for whole platforms, and what is measured: do they carry over?
//!
//! ```text
//! A: 1255 units, 1158 events/s      B: 732 units
//! promised for B: 1158 * 732 / 1255 = 675 events/s; measured: 228, a third
//! ```

use evenkeel_base::run::Estimate;
use serde::{Deserialize, Serialize};

use super::{Side, letter};
use crate::decide::{Claim, Decision, Draft, Figure, Mean, Said, short};
use crate::record::{Cell, TenantRecord};
use crate::study::{point, sample, window};

/// Units carry over where what is promised is measured within this, times.
const CARRIES: f64 = 1.05;
/// What published units promise of a host, next to what it does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Promise {
    /// The host: its place in the list.
    pub host: usize,
    /// The host whose rate the promise is made from.
    pub from: usize,
    /// `one-thread` alone, or `threads`: several of them alone, the largest rate.
    pub rate: String,
    /// Units published for both: of the host, and of the one the promise is made from.
    pub units: [f64; 2],
    /// Events a second that units promise: the other's rate times the ratio of units; 95 % interval of that rate.
    pub promised_per_s: Estimate,
    /// Events a second measured, with its 95 % interval.
    pub measured_per_s: Estimate,
    /// Measured over promised, with its 95 % interval.
    pub ratio: Estimate,
}

/// Why `--units` cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnitsError(String);

/// Units published for each of these hosts, from words such as `1255=A` or `A=1255`: a host is named by its letter (A is the
/// first folder) or by its folder.
///
/// # Errors
/// A word of another form, a host that is not there or is named twice, units that are not a number above 0, and units for
/// fewer than two hosts.
pub fn published(words: &[String], names: &[String]) -> Result<Vec<Option<f64>>, UnitsError> {
    let mut all = vec![None; names.len()];
    let hosts = || {
        let each = names.iter().enumerate().map(|(index, name)| format!("{} ({name})", letter(index)));
        each.collect::<Vec<_>>().join(", ")
    };
    let host = |word: &str| {
        let folder = |name: &String| name == word || name.trim_end_matches('/') == word.trim_end_matches('/');
        let by_letter = || (0..names.len()).find(|index| letter(*index).eq_ignore_ascii_case(word));
        names.iter().position(folder).or_else(by_letter)
    };
    for word in words {
        let fail = |what: String| Err(UnitsError(format!("--units {word}: {what}")));
        let Some((left, right)) = word.split_once('=') else {
            return fail("expected UNITS=FOLDER, such as 1255=A (A is the first folder)".into());
        };
        let (left, right) = (left.trim(), right.trim());
        // The number comes first, unless only the other side is one.
        let (number, name) = match (left.parse::<f64>(), right.parse::<f64>()) {
            (Ok(_), Err(_)) => (left, right),
            (Err(_), Ok(_)) => (right, left),
            (Ok(_), Ok(_)) if host(right).is_none() && host(left).is_some() => (right, left),
            (Ok(_), Ok(_)) => (left, right),
            (Err(_), Err(_)) if host(left).is_some() => (right, left),
            (Err(_), Err(_)) => (left, right),
        };
        let Ok(units) = number.parse::<f64>() else {
            return fail(format!("`{number}` is not a number of units, such as 1255"));
        };
        if !(units.is_finite() && units > 0.0) {
            return fail(format!(
                "{number} units: a platform has more than 0; leave out one whose units are not known"
            ));
        }
        let Some(index) = host(name) else {
            return fail(format!("no folder is called `{name}`; there are {}", hosts()));
        };
        if all[index].is_some() {
            return fail(format!("`{name}` has units already; name each folder once"));
        }
        all[index] = Some(units);
    }
    if all.iter().flatten().count() == 1 {
        return Err(UnitsError(format!(
            "--units names one folder; units promise something only of another one: name a second of {}",
            hosts()
        )));
    }
    Ok(all)
}

/// Rates of tenants that had a host to themselves.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Alone {
    /// Events a second of one thread.
    pub one: Option<Mean>,
    /// Of several threads: the number of them with the largest rate.
    pub several: Option<Mean>,
}

/// Tenants of a cell that ran while no other tenant of it did, without a quota or fewer CPUs than there are.
fn undisturbed<'a>(side: &'a Side, cell: &'a Cell) -> impl Iterator<Item = &'a TenantRecord> {
    let host = &side.record.host;
    let free =
        move |t: &&TenantRecord| t.limits.quota_pct.is_none() && !host.is_confined_by(t.limits.cpus.as_ref());
    let apart = move |t: &&TenantRecord| {
        let Some(own) = window::span(t) else { return false };
        cell.tenants.iter().filter(|other| !std::ptr::eq(*other, *t)).all(|other| {
            // One that left no trace of when it ran may have been there.
            window::span(other).is_some_and(|o| o.to_s <= own.from_s || o.from_s >= own.to_s)
        })
    };
    cell.tenants.iter().filter(move |_| cell.enforcer.is_none()).filter(free).filter(apart)
}

/// Rates alone on each host, of the first load that all of them ran alone.
pub(super) fn alone(sides: &[Side]) -> Vec<Alone> {
    let all: Vec<Vec<&TenantRecord>> = sides
        .iter()
        .map(|side| side.record.cells.iter().flat_map(|cell| undisturbed(side, cell)).collect())
        .collect();
    let ran =
        |tenants: &[&TenantRecord], load: &[&str]| tenants.iter().any(|t| point::kind(&t.workload) == load);
    let loads = || all.iter().flatten().map(|t| point::kind(&t.workload));
    let common = loads().find(|load| all.iter().all(|tenants| ran(tenants, load)));
    let Some(load) = common.or_else(|| loads().next()) else {
        return vec![Alone::default(); sides.len()];
    };
    let of = |tenants: &[&TenantRecord], threads: u32| {
        let like = tenants.iter().filter(|t| t.threads == threads && point::kind(&t.workload) == load);
        let groups: Vec<Vec<f64>> =
            like.map(|t| t.runs.iter().filter_map(sample::events_per_s).collect()).collect();
        Mean::of_groups(&groups).filter(|m| m.value > 0.0)
    };
    all.iter()
        .map(|tenants| {
            let mut threads: Vec<u32> = tenants.iter().map(|t| t.threads).filter(|n| *n > 1).collect();
            threads.sort_unstable();
            threads.dedup();
            let several = threads.into_iter().filter_map(|n| of(tenants, n));
            Alone { one: of(tenants, 1), several: several.max_by(|a, b| a.value.total_cmp(&b.value)) }
        })
        .collect()
}

/// What units promise, from the first host that has units and a rate, of each other one.
pub(super) fn promises(
    rates: &[Alone],
    published: &[Option<f64>],
    drafts: &mut Vec<Draft<'_>>,
    missing: &mut Vec<String>,
) -> Vec<Promise> {
    let mut promises = Vec::new();
    let with_units: Vec<(usize, f64)> =
        published.iter().enumerate().filter_map(|(index, units)| Some((index, (*units)?))).collect();
    type Of = fn(&Alone) -> Option<Mean>;
    let kinds: [(&str, &str, Of); 2] = [
        ("one-thread", "one thread alone", |rate| rate.one),
        ("threads", "several threads alone (the largest rate)", |rate| rate.several),
    ];
    for (rate, words, of) in kinds {
        let known: Vec<(usize, f64, Mean)> = with_units
            .iter()
            .filter_map(|(index, units)| Some((*index, *units, of(rates.get(*index)?)?)))
            .collect();
        if rate == "one-thread" {
            let lack = with_units.iter().filter(|(index, _)| !known.iter().any(|(k, ..)| k == index));
            missing.extend(lack.map(|(index, _)| {
                format!(
                    "{} has no run of one thread alone (no other tenant at that time, no quota) of the same load: its \
                     published units promise nothing that can be checked. Run or import one, such as `evenkeel lab run \
                     platforms`.",
                    letter(*index)
                )
            }));
        }
        let Some((&(from, from_units, base), others)) = known.split_first() else { continue };
        for &(host, units, measured) in others {
            let promised = base.times(units / from_units);
            let Some(ratio) = measured.over(promised) else { continue };
            let [Some(promised_per_s), Some(measured_per_s), Some(found)] =
                [Figure::Mean(promised), Figure::Mean(measured), ratio.clone()].map(|f| f.estimate(0.05))
            else {
                continue;
            };
            promises.push(Promise {
                host,
                from,
                rate: rate.into(),
                units: [units, from_units],
                promised_per_s,
                measured_per_s,
                ratio: found,
            });
            drafts.push(carries(
                (host, units),
                (from, from_units),
                (base.value, measured.value),
                words,
                ratio,
            ));
        }
    }
    promises
}

/// Whether units carry over from one host to another.
fn carries<'a>(
    (host, units): (usize, f64),
    (from, from_units): (usize, f64),
    (base, measured): (f64, f64),
    words: &'a str,
    ratio: Figure,
) -> Draft<'a> {
    let claims = vec![(ratio.clone(), Claim::AtLeast(1.0 / CARRIES)), (ratio, Claim::AtMost(CARRIES))];
    let statistic = ("events/s measured over those that the published units promise", "x");
    let text = move |d: &[Decision]| {
        let holds = match (d[0].holds, d[1].holds) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            _ => None,
        };
        let (here, there) = (letter(host), letter(from));
        let says = match holds {
            Some(true) => "the published units carry over",
            Some(false) => "the published units do not carry over",
            None => "whether the published units carry over is open",
        };
        let text = format!(
            "By {words}, {says} from {there} to {here}: {there} has {} units and does {} events/s, so the {} units of {here} \
             promise {} * {} / {} = {}; measured are {}, {} times that (1 within {:.0} % would do).",
            short(from_units),
            short(base),
            short(units),
            short(base),
            short(units),
            short(from_units),
            short(base * units / from_units),
            short(measured),
            d[0].words(3),
            100.0 * (CARRIES - 1.0)
        );
        // The end that decides is shown.
        let shown = if d[1].no() || (d[0].yes() && !d[1].yes()) { 1 } else { 0 };
        Some(Said { holds, text, shown: Some(shown) })
    };
    Draft::with("published-units-carry-over", &format!("{}, {words}", letter(host)), statistic, claims, text)
}

#[cfg(test)]
mod tests {
    use super::super::platforms;
    use super::*;
    use crate::study::testing::{cell, record, steady};

    fn words(text: &str) -> Vec<String> {
        text.split(',').map(str::to_owned).collect()
    }

    fn names() -> Vec<String> {
        vec!["results/first".into(), "results/second/".into(), "7".into()]
    }

    #[test]
    fn units_are_read_either_way_round() {
        let of = |text: &str| published(&words(text), &names()).unwrap();
        assert_eq!(of("732=A,1255=B"), [Some(732.0), Some(1255.0), None]);
        assert_eq!(of("b=1255,732.5 = a"), [Some(732.5), Some(1255.0), None]);
        assert_eq!(of("732=results/first,results/second=1255"), [Some(732.0), Some(1255.0), None]);
        // A folder whose name is a number.
        assert_eq!(of("100=7,A=3"), [Some(3.0), None, Some(100.0)]);
        assert_eq!(of("7=100,3=A"), [Some(3.0), None, Some(100.0)]);
        assert_eq!(published(&[], &names()), Ok(vec![None; 3]));
    }

    #[test]
    fn mistakes_say_what_to_do() {
        for (text, part) in [
            ("732=D,1=A", "no folder is called `D`; there are A (results/first), B (results/second/)"),
            ("0=A,1=B", "a platform has more than 0"),
            ("-5=A,1=B", "more than 0"),
            ("inf=A,1=B", "more than 0"),
            ("732=A,1255=A", "name each folder once"),
            ("many=A,1=B", "`many` is not a number of units, such as 1255"),
            ("=A,1=B", "not a number"),
            ("732,1=B", "expected UNITS=FOLDER, such as 1255=A"),
            ("732=A", "name a second of A (results/first)"),
        ] {
            let error = published(&words(text), &names()).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    /// A host whose one thread does about this many events a second alone.
    fn host(name: &str, per_s: f64) -> Side {
        let cells =
            (0..5).map(|n| ("alone", cell(vec![steady("t", 64, 5, per_s * (1.0 + 0.002 * f64::from(n)))])));
        Side::of(name, record(cells.collect()))
    }

    #[test]
    fn what_published_units_promise_stands_beside_what_is_measured() {
        let sides = [host("router", 1158.0), host("small", 228.0)];
        let view = platforms(&sides, &[Some(1255.0), Some(732.0)]);
        let [promise] = view.promises.as_slice() else { panic!("{:?}", view.promises) };
        // 1158 * 732 / 1255 = 675.4, and 0.4 % for the mean of the five.
        assert!((promise.promised_per_s.value / 1.004 - 675.42).abs() < 0.1, "{promise:?}");
        assert!((promise.ratio.value - 228.0 / 675.42).abs() < 1e-3, "{promise:?}");
        assert!(promise.ratio.low < promise.ratio.value && promise.ratio.high < 0.36, "{promise:?}");
        let verdict = &view.verdicts[0];
        assert_eq!((verdict.holds, verdict.id.as_str()), (Some(false), "published-units-carry-over"));
        assert!(verdict.text.contains("do not carry over from A to B"), "{}", verdict.text);
        // Units in proportion to the rates do carry over; and where one repetition shows no interval, it is open.
        let fair = platforms(&sides, &[Some(1158.0), Some(228.0)]);
        assert_eq!(fair.verdicts[0].holds, Some(true), "{:?}", fair.verdicts);
        assert!(fair.missing[0].contains("No list of units"), "{:?}", fair.missing);
    }

    #[test]
    fn without_a_run_alone_a_promise_cannot_be_checked() {
        let busy = cell(vec![steady("a", 64, 5, 100.0), steady("b", 64, 5, 100.0)]);
        let sides = [host("a", 1000.0), Side::of("b", record(vec![("2", busy)]))];
        let view = platforms(&sides, &[Some(2.0), Some(1.0)]);
        assert!(view.promises.is_empty() && view.verdicts.is_empty());
        assert!(view.missing[0].starts_with("B has no run of one thread alone"), "{:?}", view.missing);
    }
}
