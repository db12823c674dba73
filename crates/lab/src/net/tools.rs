//! Programs for measuring networks that are not ours: netperf and iperf3, how they are called and what they say.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::NetError;
use evenkeel_workload::flow::LatencySummary;

evenkeel_base::named! {
/// What sends and answers in an experiment on the network.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// The built-in request and response of one byte.
    #[default]
    Rr = "rr",
    /// netperf's TCP_RR, one byte each way: a netserver a tenant, a netperf a flow.
    Netperf = "netperf",
    /// iperf3, as fast as it goes: a server a tenant, a client a tenant with its flows as streams.
    Iperf3 = "iperf3",
}
}

impl Traffic {
    /// The program that is not ours, if it is one.
    pub fn tool(self) -> Option<Tool> {
        match self {
            Self::Rr => None,
            Self::Netperf => Some(Tool::Netperf),
            Self::Iperf3 => Some(Tool::Iperf3),
        }
    }
}

/// A program that is not ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// netperf and netserver.
    Netperf,
    Iperf3,
}

/// What a client said when it had ended.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Said {
    /// Transactions a second; `None` from iperf3.
    pub transactions_per_s: Option<f64>,
    /// Payload received, Mbit/s; `None` from netperf's TCP_RR.
    pub mbit_per_s: Option<f64>,
    /// Latency of its transactions.
    pub latency: Option<LatencySummary>,
    /// The same by flow (transactions a second, or Mbit/s).
    pub flows: Vec<f64>,
}

/// What netperf is to print: selectors of its omni output, `-j` for the latencies.
const SELECTED: &str = "THROUGHPUT,MEAN_LATENCY,P50_LATENCY,P90_LATENCY,P99_LATENCY,MAX_LATENCY";

impl Tool {
    /// Its programs, and the package that has them.
    fn programs(self) -> (&'static [&'static str], &'static str) {
        match self {
            Self::Netperf => (&["netperf", "netserver"], "netperf (Debian has it in non-free)"),
            Self::Iperf3 => (&["iperf3"], "iperf3"),
        }
    }

    /// Whether it is installed.
    ///
    /// # Errors
    /// Names the program that is not, and its package.
    pub fn find(self) -> Result<(), NetError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let there = |program: &str| {
            let places: Vec<PathBuf> = std::env::split_paths(&path).collect();
            places.iter().any(|dir| dir.join(program).is_file())
        };
        let (programs, package) = self.programs();
        match programs.iter().find(|program| !there(program)) {
            None => Ok(()),
            Some(program) => {
                Err(NetError::Parameters(format!("{program} is not installed: apt-get install {package}")))
            }
        }
    }

    /// Flows of one client process.
    pub fn flows_of_a_client(self, each: u32) -> u32 {
        match self {
            Self::Netperf => 1,
            Self::Iperf3 => each,
        }
    }

    /// Most flows of a client process: iperf3 refuses more streams.
    pub fn most_flows(self) -> u32 {
        match self {
            Self::Netperf => u32::MAX,
            Self::Iperf3 => 128,
        }
    }

    /// A server in the foreground, for any number of flows.
    pub fn server(self, at: SocketAddr) -> (&'static str, Vec<String>) {
        let (host, port) = (at.ip().to_string(), at.port().to_string());
        match self {
            Self::Netperf => ("netserver", words(&["-D", "-4", "-L", &host, "-p", &port])),
            Self::Iperf3 => ("iperf3", words(&["--server", "--bind", &host, "--port", &port])),
        }
    }

    /// A client of a server with so many flows (see [`Tool::flows_of_a_client`]), for so many whole seconds: neither takes
    /// fractions.
    pub fn client(self, to: SocketAddr, flows: u32, seconds: u32) -> (&'static str, Vec<String>) {
        let (host, port) = (to.ip().to_string(), to.port().to_string());
        let (flows, seconds) = (flows.to_string(), seconds.max(1).to_string());
        match self {
            Self::Netperf => (
                "netperf",
                words(&[
                    "-H", &host, "-p", &port, "-t", "TCP_RR", "-l", &seconds, "-j", "-P", "0", "--", "-r",
                    "1,1", "-o", SELECTED,
                ]),
            ),
            Self::Iperf3 => (
                "iperf3",
                words(&[
                    "--client",
                    &host,
                    "--port",
                    &port,
                    "--time",
                    &seconds,
                    "--parallel",
                    &flows,
                    "--json",
                ]),
            ),
        }
    }

    /// What a client printed.
    pub fn parse(self, text: &str) -> Result<Said, String> {
        match self {
            Self::Netperf => parse_netperf(text),
            Self::Iperf3 => parse_iperf3(text),
        }
    }
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

/// One line of [`SELECTED`], comma-separated; latencies in microseconds, negative where unknown.
fn parse_netperf(text: &str) -> Result<Said, String> {
    let not = || format!("netperf printed {:?}, not {SELECTED}", text.chars().take(200).collect::<String>());
    let line = text.lines().rev().find(|line| line.contains(',')).ok_or_else(not)?;
    let numbers: Option<Vec<f64>> = line.split(',').map(|word| word.trim().parse().ok()).collect();
    let numbers = numbers.filter(|numbers| numbers.iter().all(|n| n.is_finite())).ok_or_else(not)?;
    let [rate, mean, p50, p90, p99, max] = <[f64; 6]>::try_from(numbers).map_err(|_| not())?;
    if rate < 0.0 {
        return Err(not());
    }
    let known = mean > 0.0 && [p50, p90, p99, max].iter().all(|usec| *usec >= 0.0);
    let latency = LatencySummary {
        mean_usec: mean,
        p50_usec: p50,
        p90_usec: p90,
        p99_usec: p99,
        p999_usec: None,
        max_usec: max,
    };
    Ok(Said {
        transactions_per_s: Some(rate),
        mbit_per_s: None,
        latency: known.then_some(latency),
        flows: vec![rate],
    })
}

/// The document of `--json`: `end.streams[].receiver` and `end.sum_received`, or `error`.
fn parse_iperf3(text: &str) -> Result<Said, String> {
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|error| format!("iperf3 printed no JSON document: {error}"))?;
    if let Some(error) = value["error"].as_str() {
        return Err(format!("iperf3: {error}"));
    }
    let mbit = |side: &serde_json::Value| {
        side["bits_per_second"].as_f64().filter(|bits| *bits >= 0.0).map(|bits| bits / 1e6)
    };
    let streams = value["end"]["streams"].as_array().map(Vec::as_slice).unwrap_or_default();
    let flows: Option<Vec<f64>> = streams.iter().map(|stream| mbit(&stream["receiver"])).collect();
    let flows = flows.filter(|flows| !flows.is_empty()).ok_or("iperf3 told of no stream received")?;
    let sum = mbit(&value["end"]["sum_received"]).unwrap_or_else(|| flows.iter().sum());
    Ok(Said { transactions_per_s: None, mbit_per_s: Some(sum), latency: None, flows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netperfs_line_is_read() {
        // As netperf 2.7.0 prints it.
        let said = Tool::Netperf.parse("110949.02,8.98,4,4,5,19822\n").unwrap();
        assert_eq!((said.transactions_per_s, said.mbit_per_s), (Some(110_949.02), None));
        let latency = said.latency.unwrap();
        assert_eq!((latency.mean_usec, latency.p99_usec, latency.max_usec), (8.98, 5.0, 19822.0));
        let without = Tool::Netperf.parse("10.5,-1,-1,-1,-1,-1").unwrap();
        assert_eq!((without.flows, without.latency), (vec![10.5], None));
        for bad in ["", "netperf: cannot connect", "1,2,3", "x,1,1,1,1,1", "nan,1,1,1,1,1", "-1,1,1,1,1,1"] {
            assert!(Tool::Netperf.parse(bad).unwrap_err().contains("netperf printed"), "{bad:?}");
        }
    }

    #[test]
    fn iperf3s_document_is_read() {
        let text = r#"{"end":{"streams":[{"receiver":{"bits_per_second":10e6}},{"receiver":{"bits_per_second":5e6}}],
            "sum_received":{"bits_per_second":15e6}}}"#;
        let said = Tool::Iperf3.parse(text).unwrap();
        assert_eq!((said.mbit_per_s, said.flows), (Some(15.0), vec![10.0, 5.0]));
        let error = Tool::Iperf3.parse(r#"{"end":{},"error":"unable to connect"}"#).unwrap_err();
        assert!(error.contains("unable to connect"), "{error}");
        let negative = r#"{"end":{"streams":[{"receiver":{"bits_per_second":-1.0}}]}}"#;
        for bad in ["", "{}", "[1]", r#"{"end":{"streams":[{}]}}"#, "iperf3: error", negative] {
            assert!(Tool::Iperf3.parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn fractions_of_a_second_do_not_become_for_ever() {
        // Zero means without an end to iperf3.
        let (_, words) = Tool::Iperf3.client("10.0.0.1:5".parse().unwrap(), 3, 0);
        assert!(words.join(" ").contains("--time 1 --parallel 3"), "{words:?}");
    }
}
