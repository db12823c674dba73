//! `evenkeel capture`: a host's facts as a tree that `--root` reads.

use std::path::PathBuf;
use std::time::Duration;

use evenkeel_observe::Endpoints;
use evenkeel_observe::capture::{CaptureError, CaptureOptions, capture};

use super::{Failure, Format, Global, Outcome};

/// Write this host's /proc and /sys facts, two samples apart, as a tree that --root reads.
///
/// For looking at a machine from elsewhere, and for tests. Arguments of commands are not written; names of tasks,
/// cgroups and containers, and labels of containers, are.
///
/// Example: evenkeel capture /tmp/host && evenkeel ps --root /tmp/host
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory to write; where it exists it must be empty.
    dir: PathBuf,
    /// Time between the two samples.
    #[arg(long, default_value = "1s", value_parser = super::duration)]
    interval: Duration,
    /// Leave kernel threads out.
    #[arg(long)]
    no_kernel_threads: bool,
}

pub fn run(global: &Global, args: Args) -> Outcome {
    global.no_tree("capture reads this host; --root has no meaning here")?;
    let options = CaptureOptions {
        interval: args.interval,
        kernel_threads: !args.no_kernel_threads,
        runtimes: Endpoints::well_known(),
    };
    let written = capture(&args.dir, &options).map_err(|error| match error {
        CaptureError::NotEmpty(_) => Failure::Usage(error.into()),
        other => Failure::Cannot(other.into()),
    })?;
    match global.output {
        Format::Json => outln!(
            "{:#}",
            serde_json::json!({
                "schema": "evenkeel.capture/v1",
                "dir": args.dir,
                "files": written.files,
                "bytes": written.bytes,
                "tasks": written.tasks,
            })
        )?,
        Format::Text | Format::Svg => outln!(
            "{}: {} threads, {} files, {} KiB",
            args.dir.display(),
            written.tasks,
            written.files,
            written.bytes.div_ceil(1024)
        )?,
        Format::Csv => return Err(super::show::no_such_output(global.output, "capture")),
    }
    Ok(0)
}
