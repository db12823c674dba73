//! The laboratory's page and tables, in a real browser: complete, self-contained, small, and safe whatever names say.

use evenkeel_experiment::record::{
    Account, Cell, Ended, Host, HostUse, Limits, Point, Predicted, Record, Release, RunRecord, SCHEMA,
    StealPoint, StealRecord, TenantRecord,
};
use evenkeel_experiment::study::compare::Side;
use evenkeel_experiment::study::{compare, platforms, study};
use evenkeel_report::lab;

mod browse;

use browse::browse;

/// A little noise, the same every time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / (1u64 << 31) as f64
    }
}

/// Tenants that do `runs` runs of a second each on two CPUs by their units; those left over speed up.
fn race(units: &[u64], runs: u32, seed: u64) -> Cell {
    let mut noise = Noise(seed);
    let alone = 2000.0;
    let mut tenants: Vec<TenantRecord> = units
        .iter()
        .enumerate()
        .map(|(index, &units)| TenantRecord {
            name: format!("c{}", index + 1),
            units: Some(units),
            place: "cgroup".into(),
            limits: Limits { shares: Some(units * 16), unit_factor: Some(16.0), ..Limits::default() },
            workload: "primes --seconds=1".into(),
            threads: 1,
            runs_planned: runs,
            release: Release { woken_late_usec: Some(120.0), first_instruction_late_usec: Some(8000.0) },
            ended: Ended::Done,
            total: Account::default(),
            runs: Vec::new(),
        })
        .collect();
    let mut at = vec![0.0f64; units.len()];
    while let Some(index) = (0..units.len())
        .filter(|&i| tenants[i].runs.len() < runs as usize)
        .min_by(|&a, &b| at[a].total_cmp(&at[b]))
    {
        let active: u64 =
            (0..units.len()).filter(|&i| tenants[i].runs.len() < runs as usize).map(|i| units[i]).sum();
        let cpu = (2.0 * units[index] as f64 / active as f64).min(1.0);
        // A run ends with the event during which its time is up: late where events are slow.
        let length = 1.013 + (1.0 - cpu) * 0.05 * (0.5 + noise.next()) + (0.002 / cpu).min(0.8);
        let events = (alone * cpu * length * (0.99 + 0.02 * noise.next())).round() as u64;
        let number = tenants[index].runs.len() as u32;
        tenants[index].runs.push(RunRecord {
            number,
            start_s: at[index],
            end_s: at[index] + length,
            events: Some(events),
            events_per_s: Some(events as f64 / length),
            account: Account {
                real_s: length,
                user_s: Some(cpu * length),
                sys_s: Some(0.001),
                waited_s: Some((1.0 - cpu) * length),
                involuntary: Some(30),
                ..Account::default()
            },
            ..RunRecord::default()
        });
        at[index] += length + 0.0005 * noise.next();
    }
    for tenant in &mut tenants {
        let sum =
            |of: fn(&Account) -> Option<f64>| tenant.runs.iter().map(|r| of(&r.account)).sum::<Option<f64>>();
        tenant.total = Account {
            real_s: tenant.runs.last().map_or(0.0, |r| r.end_s),
            user_s: sum(|a| a.user_s),
            sys_s: sum(|a| a.sys_s),
            waited_s: sum(|a| a.waited_s),
            ..Account::default()
        };
    }
    let predicted = units.iter().map(|&u| Predicted {
        by: "simulator".into(),
        events_per_s: Some(alone * (2.0 * u as f64 / units.iter().sum::<u64>() as f64).min(1.0)),
        ..Predicted::default()
    });
    Cell {
        seconds: at.iter().copied().fold(0.0, f64::max),
        activation: (0..units.len()).collect(),
        predicted: Some(predicted.collect()),
        tenants,
        host: HostUse {
            busy_s: Some(1.0),
            steal_s: Some(0.0),
            harness_cpu_pct: Some(0.2),
            ..HostUse::default()
        },
        ..Cell::default()
    }
}

fn record(name: &str, cells: Vec<(&str, Cell)>) -> Record {
    let mut labels: Vec<String> = Vec::new();
    let mut repetitions: Vec<u32> = Vec::new();
    let cells: Vec<Cell> = cells
        .into_iter()
        .map(|(label, mut cell)| {
            let index = labels.iter().position(|l| l == label).unwrap_or_else(|| {
                labels.push(label.into());
                repetitions.push(0);
                labels.len() - 1
            });
            cell.point = Point { index, label: label.into(), ..Point::default() };
            cell.repetition = repetitions[index];
            repetitions[index] += 1;
            cell
        })
        .collect();
    Record {
        schema: SCHEMA.into(),
        name: name.into(),
        title: format!("An experiment called {name}"),
        sources: vec![
            "iox_priority_10_containers".into(),
            "iox_mixed_5_containers".into(),
            "ec2_build_by_cpu_limit".into(),
        ],
        version: "0.1.0".into(),
        began: "2026-11-22T01:00:00.123Z".into(),
        finished: Some("2026-11-22T01:01:00Z".into()),
        host: Host {
            name: Some("keel".into()),
            cpu_model: Some("Made-up CPU".into()),
            cpus: Some(2),
            cores: Some(2),
            threads_per_core: Some(1),
            kernel: Some("6.18.5".into()),
            scheduler: Some("eevdf".into()),
            cgroup: Some("v1".into()),
            primes_per_s: Some(2000.0),
            ..Host::default()
        },
        planned_cells: cells.len(),
        cells,
        ..Record::default()
    }
}

const TEN: [u64; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

fn priority() -> Record {
    record("priority", vec![("up", race(&TEN, 20, 1)), ("up", race(&TEN, 20, 2)), ("up", race(&TEN, 20, 3))])
}

fn mixed() -> Record {
    let lists: [(&str, &[u64]); 3] = [
        ("5 containers", &[16, 16, 32, 64, 128]),
        ("6 containers", &[16, 16, 32, 64, 128, 256]),
        ("7 containers", &[16, 16, 32, 64, 128, 256, 512]),
    ];
    record("mixed", lists.iter().flat_map(|(l, u)| (0..5).map(|n| (*l, race(u, 12, n)))).collect())
}

/// A job under limits, on a host that throttles bursts.
fn limits() -> Record {
    let rule = serde_json::from_value(serde_json::json!({
        "rule": "penalty", "free": 0.33, "burst_s": 10.0, "stolen": 0.97, "penalty_s": 167.0
    }))
    .unwrap();
    let cells = [(None, 18.7, 0.88), (Some(25.0), 9.0, 0.0), (Some(30.0), 7.5, 0.0), (Some(40.0), 8.7, 0.3)];
    // Three of each: one decides nothing.
    let cells = [1.0, 1.004, 0.997]
        .into_iter()
        .flat_map(|wobble| cells.map(|(q, s, stolen)| (q, s * wobble, stolen)));
    let cells = cells.map(|(quota_pct, seconds, stolen)| {
        let cpu = 2.1;
        let mut cell = race(&[100], 1, 9);
        let tenant = &mut cell.tenants[0];
        tenant.workload = "primes --events=9000".into();
        tenant.limits = Limits { quota_pct, period_usec: Some(100_000), ..Limits::default() };
        tenant.runs = vec![RunRecord {
            end_s: seconds,
            account: Account { real_s: seconds, ..Account::default() },
            ..RunRecord::default()
        }];
        tenant.total = Account {
            real_s: seconds,
            user_s: Some(cpu),
            sys_s: Some(0.2),
            waited_s: Some(seconds - cpu),
            throttled_s: quota_pct.map(|_| seconds * 0.4),
            stolen_s: Some(stolen / (1.0 - stolen) * cpu),
            ..Account::default()
        };
        cell.seconds = seconds;
        cell.predicted = None;
        cell.enforcer = Some(StealRecord {
            rule,
            time_scale: 100.0,
            demanded_s: cpu,
            given_s: cpu,
            trace: (0..40)
                .map(|n| StealPoint {
                    at_s: seconds * f64::from(n) / 40.0,
                    demanded_pct: quota_pct.unwrap_or(100.0),
                    given_pct: if n % 8 < 2 { 30.0 } else { 3.0 },
                    level: f64::from(n),
                    punishing: n % 8 >= 2,
                })
                .collect(),
            ..StealRecord::default()
        });
        (
            if quota_pct.is_none() {
                "no limit"
            } else if quota_pct == Some(25.0) {
                "25 %"
            } else if quota_pct == Some(30.0) {
                "30 %"
            } else {
                "40 %"
            },
            cell,
        )
    });
    record("limit-sweep", cells.collect())
}

fn show(name: &str, text: &str) -> (String, String) {
    let dir = tempfile::tempdir().unwrap();
    let target = std::env::var_os("EVENKEEL_PAGES").map_or_else(|| dir.path().to_path_buf(), Into::into);
    let file = target.join(name);
    std::fs::write(&file, text).unwrap();
    browse(&file)
}

#[test]
fn the_page_stands_alone_and_shows_everything() {
    for (record, wanted, pictures) in [
        (priority(), vec!["all compete", "misleads", "Start of every run", "units (each mark doubles)"], 5),
        (mixed(), vec!["5 containers", "Next to published measurements", "predicted", "Weights hold"], 10),
        (limits(), vec!["A limit helps", "The steal emulator", "at or under", "% of one CPU"], 4),
    ] {
        let study = study(&record);
        let text = lab::page(&record, &study);
        assert!(text.len() < 5 << 20, "{} bytes", text.len());
        for reference in ["src=\"", "href=\"http", "url(", "@import", "<script"] {
            assert!(!text.contains(reference), "{reference}");
        }
        let (dom, console) = show(&format!("lab-{}.html", record.name), &text);
        assert_eq!(console, "");
        for wanted in wanted.iter().chain(&["id=\"answer\"", "id=\"verdicts\"", "id=\"method\"", "</html>"]) {
            assert!(dom.contains(wanted), "{}: {wanted} is missing", record.name);
        }
        assert!(
            dom.matches("<svg class=\"ek\"").count() >= pictures,
            "{}: {}",
            record.name,
            dom.matches("<svg class=\"ek\"").count()
        );
        assert!(!dom.contains("NaN") && !dom.contains("undefined"));
    }
}

#[test]
fn hostile_names_do_not_become_markup() {
    let mut record = priority();
    let evil = "</title><script>console.error('in')</script><img src=x onerror=console.error(1)>|`";
    record.name = evil.into();
    record.title = evil.into();
    record.host.cpu_model = Some(evil.into());
    record.cells[0].notes = vec![evil.into()];
    record.cells[0].tenants[0].name = evil.into();
    record.cells[0].tenants[0].workload = evil.into();
    record.cells[0].point.label = evil.into();
    let study = study(&record);
    let (dom, console) = show("lab-hostile.html", &lab::page(&record, &study));
    assert_eq!(console, "");
    assert!(!dom.contains("<script") && !dom.contains("<img"));
    let markdown = lab::markdown(&study);
    assert!(!markdown.contains("<script") && !markdown.contains("<img"));
}

#[test]
fn thousands_of_runs_stay_below_five_megabytes() {
    let record = record("long", (0..4).map(|n| ("many", race(&TEN, 400, n))).collect());
    let text = lab::page(&record, &study(&record));
    assert!(text.len() < 5 << 20, "{} bytes", text.len());
}

#[test]
fn an_empty_record_is_a_page_too() {
    let record = record("nothing", Vec::new());
    let study = study(&record);
    assert!(lab::page(&record, &study).contains("decides nothing by itself"));
    assert!(lab::markdown(&study).starts_with("# nothing"));
    assert!(lab::text(&study, Some(80)).contains("nothing"));
    assert_eq!(lab::csv_files(&record, &study)[0].1.lines().count(), 1);
}

#[test]
fn tables_have_a_row_for_each_and_fit() {
    let record = mixed();
    let study = study(&record);
    let files = lab::csv_files(&record, &study);
    let lines = |name: &str| files.iter().find(|(n, _)| *n == name).unwrap().1.lines().count() - 1;
    assert_eq!((lines("runs.csv"), lines("tenants.csv")), (5 * 12 * (5 + 6 + 7), 5 + 6 + 7));
    assert_eq!(lines("verdicts.csv"), study.verdicts.len());
    assert_eq!(lines("sources.csv"), 5);
    let markdown = lab::markdown(&study);
    // Every row of a table has the columns of its header.
    let mut columns = None;
    for line in markdown.lines() {
        let count = line.replace("\\|", "").matches('|').count();
        if line.starts_with('|') {
            assert_eq!(*columns.get_or_insert(count), count, "{line}");
        } else {
            columns = None;
        }
    }
    for line in lab::text(&study, Some(100)).lines() {
        assert!(line.chars().count() <= 110, "{line}");
    }
}

#[test]
fn comparisons_are_pages_and_tables_too() {
    let studies = [Side::of("old", mixed()), Side::of("new", mixed())];
    let comparison = compare(&studies);
    let (dom, console) = show("lab-compare.html", &lab::compare_html(&comparison));
    assert_eq!(console, "");
    assert!(dom.contains("0 of ") && dom.contains("Change to new"));
    assert!(dom.contains("How runs are distributed") && dom.contains("slowest/fastest"));
    let markdown = lab::compare_markdown(&comparison);
    assert!(markdown.contains("| point | tenant |") && markdown.contains("run, s: p50"), "{markdown}");
    let text = lab::compare_text(&comparison, Some(120));
    assert!(
        text.contains("open") && !text.contains("worse") && text.contains("Length of a run, seconds"),
        "{text}"
    );
    // 60 runs are too few for a hundredth, and that is said.
    assert!(text.contains("of 368") && markdown.contains("of 368 runs"), "{text}");
    let view = platforms(&studies, &[]);
    assert!(lab::platforms_text(&view, Some(140)).contains("worth the same"));
    assert!(lab::platforms_markdown(&view).contains("| result |"));
    // A terminal has room for six.
    let one = || record("one", (0..3).map(|n| ("list", race(&[16, 32], 6, n))).collect());
    let seven: Vec<Side> = ["1", "2", "3", "4", "5", "6", "7"].map(|name| Side::of(name, one())).into();
    for (sides, some) in [(&seven[..6], false), (&seven[..], true)] {
        let (text, view) = (lab::compare_text(&compare(sides), None), platforms(sides, &[]));
        assert_eq!(text.contains("(columns of the first 6; "), some, "{text}");
        assert_eq!(lab::platforms_text(&view, None).contains("buys on the first six (JSON has all)"), some);
    }
}

#[test]
fn other_numbers_of_tenants_are_compared_by_units_and_that_is_said() {
    let cells = |units: &[u64]| (0..5).map(|n| ("", race(units, 12, n))).collect::<Vec<_>>();
    let sides = [
        Side::of("four", record("four", cells(&[256; 4]))),
        Side::of("eight <b>", record("eight", cells(&[256, 256, 256, 256, 256, 256, 256, 64]))),
    ];
    let comparison = compare(&sides);
    let text = lab::compare_text(&comparison, Some(180)).replace('\n', " ");
    for part in ["256 units (4 and 7 tenants)", "The competition differs: A has 4 tenants (256x4)", "worse"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(lab::compare_markdown(&comparison).contains("The competition differs"));
    let (dom, console) = show("lab-compare-units.html", &lab::compare_html(&comparison));
    assert_eq!(console, "");
    assert!(dom.contains("The competition differs") && !dom.contains("eight <b>"), "{dom}");
}

#[test]
fn published_units_are_held_against_rates_in_all_forms() {
    let host = |name: &str, pace: f64| {
        let cells = (0..5).map(|n| {
            let mut cell = race(&[64], 6, n);
            for run in &mut cell.tenants[0].runs {
                run.events_per_s = run.events_per_s.map(|rate| rate * pace);
            }
            ("one", cell)
        });
        Side::of(
            name,
            record(name, cells.chain((0..5).map(|n| ("list", race(&[16, 32, 64], 12, n)))).collect()),
        )
    };
    let view = platforms(&[host("router", 1.0), host("small <i>", 0.2)], &[Some(1255.0), Some(732.0)]);
    assert_eq!((view.promises.len(), view.verdicts.len()), (1, 2), "{view:?}");
    let text = lab::platforms_text(&view, Some(180)).replace('\n', " ");
    for part in [
        "do not carry over from A to B",
        "What published units promise",
        "What a share of units buys",
        "A: router",
        "PROCESSOR",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let markdown = lab::platforms_markdown(&view);
    assert!(
        markdown.contains("| host | alone | units |") && markdown.contains("## What a share"),
        "{markdown}"
    );
    let (dom, console) = show("lab-platforms.html", &lab::platforms_html(&view));
    assert_eq!(console, "");
    assert!(dom.contains("carry over") && !dom.contains("small <i>"), "{dom}");
}
