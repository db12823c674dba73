//! What measuring tools print, and loads as they are written.

use evenkeel_lab::fuzzing;
use evenkeel_lab::net::tools::Tool;
use evenkeel_lab::runner::parse_load;

use super::amount::amount;
use crate::Target;

fn tool(tool: Tool, text: &str) {
    if let Ok(told) = tool.parse(text) {
        let latency = told.latency.map(|l| [l.mean_usec, l.p50_usec, l.p90_usec, l.p99_usec, l.max_usec]);
        let all = told.flows.iter().copied().chain(told.transactions_per_s).chain(told.mbit_per_s);
        all.chain(latency.into_iter().flatten()).for_each(|figure| amount("a figure", figure));
    }
}

pub const TARGETS: &[Target] = &[
    Target::text("netperf", |text| tool(Tool::Netperf, text)),
    Target::text("iperf", |text| tool(Tool::Iperf3, text)),
    Target::text("tool-output", fuzzing::output),
    Target::text("answers", fuzzing::answers),
    Target::text("small-files", fuzzing::small),
    Target::text("cri-info", fuzzing::cri),
    Target::text("load", |text| {
        if let Ok(load) = parse_load(text) {
            let again = serde_json::to_string(&load).unwrap_or_default();
            assert_eq!(serde_json::from_str(&again).ok(), Some(load));
        }
    })
    // A word that is no option is compared with all there are, letter by letter.
    .heavy(10),
];
