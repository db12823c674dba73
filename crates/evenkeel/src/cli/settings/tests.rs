//! What keys come to, where it is more than the value itself.

use super::*;

fn read_as(text: &str) -> anyhow::Result<Config> {
    use clap::Parser as _;
    let global = crate::cli::Cli::try_parse_from(["evenkeel", "status"]).unwrap().global;
    of_text(&global, Path::new("file"), text)
}

fn parsed(text: &str) -> Config {
    read_as(text).unwrap()
}

#[test]
fn a_share_of_the_host_is_one_of_all_its_cpus_wherever_evenkeel_may_run() {
    use evenkeel_linux::sys::{getaffinity, setaffinity};
    let text = "[[service]]\nscope = \"cgroup:/a\"\n[[background]]\nscope = \"cgroup:/batch\"\nleast = \"5% of host\"\n";
    let online = host_list("online").len() as f64;
    // Of this thread.
    let all = getaffinity(0).unwrap();
    setaffinity(0, &all.iter().take(1).collect()).unwrap();
    let least_pct = parsed(text).rules.least_pct;
    setaffinity(0, &all).unwrap();
    assert!((least_pct - 5.0 * online).abs() < 1e-9, "{least_pct} of {online} CPUs");
}

fn host_list(name: &str) -> evenkeel_base::CpuSet {
    std::fs::read_to_string(format!("/sys/devices/system/cpu/{name}")).unwrap().trim().parse().unwrap()
}

#[test]
fn background_work_that_is_the_whole_host_is_refused_with_its_line() {
    let text = "[[service]]\nscope = \"cgroup:/a\"\n\n[[background]]\nscope = \"all\"\n";
    let why = read_as(text).unwrap_err().to_string();
    assert!(why.contains("file:5") && why.contains("the whole host is no background work"), "{why}");
}

#[test]
fn what_protects_services_is_held_out_only_on_request_and_for_half_of_the_strictest_error_budget() {
    let share = |run: &str, services: &str| {
        let text = format!("[run]\n{run}\n[[background]]\nscope = \"cgroup:/batch\"\n{services}");
        parsed(&text).monitor.protecting_share
    };
    let service = |name: &str, quantile: &str| {
        let slo = "endpoint = \"http://127.0.0.1:1/metrics\", histogram = \"h\", bound = \"50ms\"";
        format!("[[service]]\nscope = \"cgroup:/{name}\"\nslo = {{ {slo}, quantile = {quantile} }}\n")
    };
    let on = "holdout_services = true";
    let near = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-9, "{value} {expected}");
    near(share("", &service("a", "0.99")), 0.0);
    near(share(on, &service("a", "0.99")), 0.005);
    near(share(on, &(service("a", "0.9") + &service("b", "0.999"))), 0.0005);
    near(share(on, "[[service]]\nscope = \"cgroup:/a\"\n"), 0.005);
}
