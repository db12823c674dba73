//! The figures of readers of files, reckoned again from the raw record.

use evenkeel_experiment::record::Record;

use super::again::of_point;
use super::records::CPUS;
use crate::printed::{Printed, average, near};

/// A reader at one point, means over its cells.
struct Reader {
    file: &'static str,
    way: &'static str,
    share: f64,
    real_s: f64,
    sys_s: f64,
    cpu_s: f64,
}

/// How a load reads, by the words of its command line; those that say more come first.
const FILES: [(&str, &str, &str); 4] = [
    ("--shared-fd", "through one descriptor for all threads", "one"),
    ("--pread", "a file of its own by pread", "pread"),
    ("--read own", "a file of its own", "own"),
    ("--read same", "the same file", "same"),
];

fn readers(record: &Record) -> Vec<Reader> {
    let mut labels: Vec<&str> = record.cells.iter().map(|cell| cell.point.label.as_str()).collect();
    labels.sort_unstable();
    labels.dedup();
    let mut all = Vec::new();
    for label in labels {
        let cells = of_point(record, label);
        let Some([a, b]) = cells.first().map(|cell| cell.tenants.as_slice()) else { continue };
        let Some((_, _, file)) = FILES.into_iter().find(|(option, ..)| b.workload.contains(option)) else {
            continue;
        };
        let (way, share) = match (b.limits.quota_pct, &b.limits.cpus) {
            (Some(quota), _) => ("quota", quota / 100.0 / f64::from(CPUS)),
            (None, Some(cpus)) => ("cpuset", cpus.len() as f64 / f64::from(CPUS)),
            (None, None) => {
                let (a, b) = (a.limits.weight.unwrap() as f64, b.limits.weight.unwrap() as f64);
                ("shares", b / (a + b))
            }
        };
        let mean = |of: fn(&evenkeel_experiment::record::TenantRecord) -> f64| {
            average(&cells.iter().map(|cell| of(&cell.tenants[1])).collect::<Vec<_>>())
        };
        all.push(Reader {
            file,
            way,
            share,
            real_s: mean(|b| b.runs.last().unwrap().end_s - b.runs[0].start_s),
            sys_s: mean(|b| b.total.sys_s.unwrap()),
            cpu_s: mean(|b| b.total.user_s.unwrap() + b.total.sys_s.unwrap()),
        });
    }
    all
}

/// Least squares of one logarithm against the other.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let x = average(&points.iter().map(|p| p.0.ln()).collect::<Vec<_>>());
    let y = average(&points.iter().map(|p| p.1.ln()).collect::<Vec<_>>());
    let (mut xy, mut xx) = (0.0, 0.0);
    for point in points {
        xy += (point.0.ln() - x) * (point.1.ln() - y);
        xx += (point.0.ln() - x).powi(2);
    }
    (xx > 1e-9).then(|| xy / xx)
}

/// Reckons a figure of readers again; `None` where the verdict is about something else.
pub fn again(record: &Record, p: &Printed) -> Option<Result<(), String>> {
    let all = readers(record);
    let line = |file: &str, way: &str, of: fn(&Reader) -> f64| {
        let own = all.iter().filter(|r| r.file == file && r.way == way).map(|r| (r.share, of(r)));
        slope(&own.collect::<Vec<_>>())
    };
    // Geometric mean over the shares that both have.
    let times =
        |over: &dyn Fn(&Reader) -> bool, under: &dyn Fn(&Reader, &Reader) -> bool, of: fn(&Reader) -> f64| {
            let logs: Vec<f64> = all
                .iter()
                .filter(|r| over(r))
                .filter_map(|r| {
                    let other = all.iter().find(|o| (o.share - r.share).abs() < 0.01 && under(r, o))?;
                    Some((of(r) / of(other)).ln())
                })
                .collect();
            (!logs.is_empty()).then(|| average(&logs).exp())
        };
    let longer = |file: &str, a: &str, b: &str| {
        times(&|r| r.file == file && r.way == a, &|_, o| o.file == file && o.way == b, |r| r.real_s)
    };
    let file = FILES.iter().find(|(_, words, _)| p.text.contains(words)).map(|(.., file)| *file)?;
    let least = |of: &[Option<f64>]| of.iter().flatten().copied().min_by(f64::total_cmp);
    let ours = match p.test.as_str() {
        "slope of log real time against log share" => {
            let way = ["cpuset", "shares", "quota"]
                .into_iter()
                .find(|w| p.text.contains(&format!("under {w}:")))?;
            line(file, way, |r| r.real_s)
        }
        "real time under the faster of shares and quota over that under a cpuset" => {
            least(&[longer(file, "shares", "cpuset"), longer(file, "quota", "cpuset")])
        }
        "real time under shares over that under a cpuset" => longer(file, "shares", "cpuset"),
        "real time under a quota over that under the slower of shares and cpuset" => {
            least(&[longer(file, "quota", "shares"), longer(file, "quota", "cpuset")])
        }
        "factor of system time as the share doubles, where it grows least" => {
            let of = |way| Some((line(file, way, |r| r.sys_s)? * std::f64::consts::LN_2).exp());
            least(&[of("cpuset"), of("shares"), of("quota")])
        }
        "CPU time of the same work over that of reading apart" => {
            let (contended, apart) = if file == "one" { ("one", "pread") } else { ("same", "own") };
            times(&|r| r.file == contended, &|r, o| o.file == apart && o.way == r.way, |r| r.cpu_s)
        }
        _ => return None,
    };
    let printed = p.value?;
    Some(match ours {
        Some(ours) if near(ours, printed) => Ok(()),
        _ => Err(format!("{ours:?} reckoned, {printed} printed: {p:?}")),
    })
}
