use crate::decide::{Kind, Verdict};
use crate::record::{Account, Ended, Limits, Record, TenantRecord};
use crate::study::testing::{cell, record, tenant};
use crate::study::{Study, study};

/// What a planted host makes of a reader: how many times `1 / share` seconds it takes, and its system time.
type World = fn(&str, &str, f64) -> (f64, f64);

const OWN: &str = "--read own";
const SAME: &str = "--read same";
const FD: &str = "--read same --shared-fd";
const PREAD: &str = "--read own --pread";

fn reader(read: &str, limits: Limits, (real_s, sys_s): (f64, f64)) -> TenantRecord {
    let mut reader = tenant("b", None, &[(0.0, real_s, 1000.0)]);
    reader.workload = format!("sieve --from 1 --to 9 {read}");
    reader.limits = limits;
    reader.threads = 3;
    reader.total = Account { real_s, user_s: Some(0.2), sys_s: Some(sys_s), ..Account::default() };
    reader
}

fn burner(limits: Limits, real_s: f64) -> TenantRecord {
    let mut burner = tenant("a", None, &[(0.0, real_s, 5.0)]);
    burner.workload = "spin".into();
    (burner.limits, burner.runs_planned, burner.threads) = (limits, 0, 2);
    burner
}

/// Quarters of so many CPUs under each way, a cpuset where it is whole CPUs, so often; with what differs from cell to
/// cell.
fn planted(cpus: u32, repetitions: u32, reads: &[&str], world: World) -> Record {
    let mut cells = Vec::new();
    let mut noise = 0;
    for _ in 0..repetitions {
        for read in reads {
            for quarter in 1..4u32 {
                let share = f64::from(quarter) / 4.0;
                for way in ["cpuset", "shares", "quota"] {
                    let whole = (cpus * quarter).is_multiple_of(4);
                    let none = Limits::default();
                    let quota = |part: f64| Some(100.0 * part * f64::from(cpus));
                    let (b, a) = match way {
                        "cpuset" if !whole => continue,
                        "cpuset" => {
                            let first = cpus * quarter / 4;
                            let set = |from: u32, to: u32| format!("{from}-{to}").parse().ok();
                            (
                                Limits { cpus: set(0, first - 1), ..none.clone() },
                                Limits { cpus: set(first, cpus - 1), ..none },
                            )
                        }
                        "shares" => {
                            let of = |quarters: u32| Some(u64::from(quarters) * 1024);
                            (
                                Limits { shares: of(quarter), ..none.clone() },
                                Limits { shares: of(4 - quarter), ..none },
                            )
                        }
                        _ => (
                            Limits { quota_pct: quota(share), ..none.clone() },
                            Limits { quota_pct: quota(1.0 - share), ..none },
                        ),
                    };
                    noise = (noise * 5 + 3) % 16;
                    let jitter = 1.0 + 0.0004 * (f64::from(noise) - 7.5);
                    let (times, sys_s) = world(read, way, share);
                    let real_s = times / share * jitter;
                    let tenants = vec![burner(a, real_s), reader(read, b, (real_s, sys_s * jitter))];
                    cells.push((format!("{read}, {way} {quarter}/4"), cell(tenants)));
                }
            }
        }
    }
    let mut record = record(cells.iter().map(|(label, cell)| (label.as_str(), cell.clone())).collect());
    record.host.cpus = Some(cpus);
    record
}

/// The source's claims, all true: the same file contends, and the ways differ there.
fn as_claimed(read: &str, way: &str, share: f64) -> (f64, f64) {
    let times = match (read, way) {
        (OWN | PREAD, _) | (_, "cpuset") => 1.0,
        (_, "shares") => 1.1,
        _ => 1.4,
    };
    (times, if read == OWN || read == PREAD { 0.4 } else { 0.7 } * share.powf(0.15))
}

/// The opposite of all three.
fn refuted(read: &str, way: &str, share: f64) -> (f64, f64) {
    // Own files under a quota hardly get faster with more share.
    (if (read, way) == (OWN, "quota") { share.powf(0.7) } else { 1.0 }, 0.4 * share.powf(-0.1))
}

fn find(study: &Study, id: &str) -> Verdict {
    let all = || study.verdicts.iter().map(|v| &v.id).collect::<Vec<_>>();
    study.verdicts.iter().find(|v| v.id == id).cloned().unwrap_or_else(|| panic!("{id}: {:?}", all()))
}

fn answers(study: &Study, ids: &[&str]) -> Vec<Option<bool>> {
    ids.iter().map(|id| find(study, id).holds).collect()
}

const ALL: [&str; 8] = [
    "source-claims",
    "own-file-all-scale",
    "same-file-cpuset-best",
    "same-file-shares-acceptable",
    "same-file-quota-worst",
    "own-file-sys-rises",
    "same-file-sys-rises",
    "same-file-contends",
];

#[test]
fn claims_that_are_true_hold() {
    let study = study(&planted(4, 4, &[OWN, SAME], as_claimed));
    assert_eq!(answers(&study, &ALL), [Some(true); 8], "{:#?}", study.verdicts);
    let text = find(&study, "source-claims").text;
    assert!(text.contains("left its tables empty") && text.contains("3 of 3 are decided"), "{text}");
    assert!(text.matches(": holds").count() == 3, "{text}");
    // The figures are those that were planted.
    for (id, value) in [
        ("same-file-cpuset-best", 1.1),
        ("same-file-shares-acceptable", 1.1),
        ("same-file-quota-worst", 1.4 / 1.1),
        ("own-file-all-scale", -1.0),
        ("own-file-sys-rises", 2f64.powf(0.15)),
    ] {
        let test = find(&study, id).test;
        assert!((test.value.unwrap() / value - 1.0).abs() < 0.01, "{id}: {test:?}");
        assert!(test.margin.is_some_and(|margin| margin > 0.0), "{id}: {test:?}");
    }
    assert!(find(&study, "same-file-quota-worst").text.contains("3 rows at 25 to 75 %"));
    assert!(study.verdicts.iter().filter(|v| ALL.contains(&v.id.as_str())).all(|v| v.kind == Kind::Question));
}

#[test]
fn claims_that_are_false_do_not_hold() {
    let study = study(&planted(4, 4, &[OWN, SAME], refuted));
    let expected = ALL.map(|id| Some(id == "source-claims" || id == "same-file-shares-acceptable"));
    assert_eq!(answers(&study, &ALL), expected, "{:#?}", study.verdicts);
    let text = find(&study, "source-claims").text;
    for part in [
        "3 of 3 are decided",
        "all three ways scale well: does not hold (not so: quota)",
        "does not hold (not so: a cpuset is best, a quota is worst)",
        "does not hold (not so: separate files, same file)",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let v = find(&study, "own-file-all-scale");
    assert!((v.test.value.unwrap() + 0.3).abs() < 0.01, "the one that does not: {:?}", v.test);
    let text = find(&study, "same-file-contends").text;
    assert!(text.contains("Threads do not contend") && text.contains("lab run isolation-fd"), "{text}");
}

#[test]
fn what_two_cpus_cannot_show_stays_open_and_what_would_show_it_is_named() {
    let study = study(&planted(2, 4, &[OWN, SAME], as_claimed));
    // Half of two CPUs is one row of cpusets: no slope, but an order.
    let v = find(&study, "own-file-all-scale");
    assert_eq!((v.holds, v.test.bound.as_str()), (None, ""), "{v:?}");
    assert!(
        v.text.contains("one share under cpuset") && v.text.contains("a host of 3 CPUs or more"),
        "{v:?}"
    );
    assert_eq!(find(&study, "same-file-cpuset-best").holds, Some(true));
    assert!(find(&study, "same-file-cpuset-best").text.contains("at 50 % of the machine"));
    let all = find(&study, "source-claims");
    assert!(all.holds.is_none() && all.text.contains("2 of 3 are decided"), "{all:?}");
    // A way that fails refutes the claim, whatever the others do.
    let study = crate::study::study(&planted(2, 4, &[OWN, SAME], refuted));
    assert_eq!(find(&study, "own-file-all-scale").holds, Some(false));
}

#[test]
fn one_repetition_decides_nothing_and_figures_at_the_bound_name_the_sample() {
    let single = study(&planted(4, 1, &[OWN, SAME], as_claimed));
    assert_eq!(answers(&single, &ALL), [None; 8]);
    let text = find(&single, "same-file-quota-worst").text;
    assert!(text.contains("is open here") && text.contains("at least 3 are needed"), "{text}");
    // Between what would hold and what would not.
    let at_the_bound: World = |read, way, share| {
        let (_, sys_s) = as_claimed(read, way, share);
        (if (read, way) == (SAME, "quota") { 1.0505 } else { 1.0 }, sys_s)
    };
    let v = find(&study(&planted(4, 4, &[OWN, SAME], at_the_bound)), "same-file-quota-worst");
    assert!(v.holds.is_none() && v.test.margin.is_some_and(|margin| margin < 0.0), "{v:?}");
    assert!(v.test.needs_repetitions.is_some_and(|n| n > 4) && v.text.contains("would settle it"), "{v:?}");
}

#[test]
fn one_descriptor_stands_against_pread_and_is_not_the_same_file() {
    let fd = study(&planted(4, 4, &[FD, PREAD], as_claimed));
    let ids = [
        "source-claims-one-descriptor",
        "one-descriptor-quota-worst",
        "one-descriptor-contends",
        "own-pread-all-scale",
    ];
    assert_eq!(answers(&fd, &ids), [Some(true); 4], "{:#?}", fd.verdicts);
    assert!(!fd.verdicts.iter().any(|v| v.id.starts_with("same-file") || v.id.starts_with("own-file")));
    // All four: two tables that do not mix.
    let both = study(&planted(4, 4, &[OWN, SAME, FD, PREAD], as_claimed));
    assert_eq!(answers(&both, &ids), [Some(true); 4]);
    assert_eq!(answers(&both, &ALL), [Some(true); 8]);
    assert_eq!(both.readings.len(), 4 * 9);
}

#[test]
fn events_do_not_count_and_only_the_same_work_is_compared() {
    let plain = planted(4, 4, &[OWN, SAME], as_claimed);
    let mut counted = plain.clone();
    for cell in &mut counted.cells {
        if cell.point.label.contains("quota") {
            for run in &mut cell.tenants[1].runs {
                run.events = run.events.map(|n| 10 * n);
            }
        }
    }
    let texts = |record: &Record| ALL.map(|id| find(&study(record), id).text);
    assert_eq!(texts(&counted), texts(&plain));
    // Runs of a given length are no given work.
    let mut timed = plain.clone();
    timed.cells.iter_mut().for_each(|cell| cell.tenants[1].workload += " --seconds 2");
    assert!(!study(&timed).verdicts.iter().any(|v| v.id.starts_with("source-claims")));
    // The same file sieved further is other work: it stands alongside, and is not held against the rest.
    let mut other = plain.clone();
    for cell in &mut other.cells {
        if cell.point.label.contains("quota") {
            cell.tenants[1].workload = cell.tenants[1].workload.replace("--to 9", "--to 99");
        }
    }
    let v = find(&study(&other), "source-claims");
    assert!(v.about.contains("--to 9") && v.text.contains("no row has both a quota and a cpuset"), "{v:?}");
    // What was cut off took longer; its system time is not known.
    let mut cut = plain;
    for cell in &mut cut.cells {
        if cell.point.label.contains("quota") {
            cell.tenants[1].ended = Ended::TimeLimit("9 s".into());
        }
    }
    let cut = study(&cut);
    assert_eq!(find(&cut, "same-file-quota-worst").holds, Some(true));
    assert!(find(&cut, "same-file-sys-rises").text.contains("(cpuset 1.11, shares 1.11)"));
}
