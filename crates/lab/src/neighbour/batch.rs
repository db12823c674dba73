//! Batch work as processes: what asks for so much CPU.

use std::io;
use std::path::Path;
use std::time::Duration;

use evenkeel_workload::Kind;
use evenkeel_workload::duty::{Duty, DutyKind};
use evenkeel_workload::load::LoadSpec;
use evenkeel_workload::spin::Spin;
use evenkeel_workload::stream::Stream;

use super::plan::Batch;
use crate::launch::Launch;

/// Memory of a stream, MiB: beyond the caches of one CPU, and many of them fit into a host.
const STREAM_MIB: u32 = 48;
/// Functions of the source that is compiled: a second or so.
const FUNCTIONS: usize = 600;

/// The processes of a batch that asks for so much, percent of ONE CPU: one for each CPU, and one for the rest. `binary` runs
/// `load ..`; a compiler's files go to `dir`.
pub(super) fn launches(batch: Batch, load_pct: u32, binary: &Path, dir: &Path) -> io::Result<Vec<Launch>> {
    let load = |kind: Kind| {
        let spec = LoadSpec::new(kind).named("batch");
        Launch::new(binary, std::iter::once("load".to_owned()).chain(spec.arguments()).collect())
    };
    let whole = 0..load_pct / 100;
    Ok(match batch {
        Batch::Loops => {
            let rest = f64::from(load_pct % 100);
            let rest = (rest > 0.0).then(|| {
                load(Kind::Duty(Duty {
                    percent: rest,
                    period: Duration::from_millis(20),
                    jitter: 50.0,
                    kind: DutyKind::Closed,
                    seed: 1,
                }))
            });
            whole.map(|_| load(Kind::Spin(Spin {}))).chain(rest).collect()
        }
        Batch::Stream => whole.map(|_| load(Kind::Stream(Stream::through(STREAM_MIB)))).collect(),
        Batch::Compile => {
            std::fs::write(dir.join("source.c"), source())?;
            let script = "cd \"$0\" && while :; do cc -O2 -c -o $$.o source.c; done";
            let words = ["-c", script, &dir.display().to_string()].map(str::to_owned);
            whole.map(|_| Launch::new("sh", words.to_vec())).collect()
        }
    })
}

/// A source that takes a compiler a while.
fn source() -> String {
    let function = |n: usize| {
        format!(
            "double f{n}(double x) {{ double s = {n}; for (int i = 0; i < 9; i++) s += x * i / (i + {n}.5); return s * s; }}\n"
        )
    };
    (0..FUNCTIONS).map(function).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cpu_asked_for_is_a_process_and_the_rest_one_more() {
        let dir = tempfile::tempdir().unwrap();
        let of = |batch, load| launches(batch, load, Path::new("/evenkeel"), dir.path()).unwrap();
        let words =
            |load| of(Batch::Loops, load).iter().map(|l| l.arguments[..3].join(" ")).collect::<Vec<_>>();
        assert_eq!(words(50), ["load duty --percent=50"]);
        assert_eq!(words(250).len(), 3);
        assert!(words(200).iter().all(|words| words == "load spin --name=batch"), "{:?}", words(200));
        assert_eq!(of(Batch::Stream, 300).len(), 3);
        assert_eq!((of(Batch::Compile, 100).len(), dir.path().join("source.c").exists()), (1, true));
    }
}
