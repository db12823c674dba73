//! What keys come to, where it is more than the value itself.

use super::*;

fn parsed(text: &str) -> Config {
    use clap::Parser as _;
    let global = crate::cli::Cli::try_parse_from(["evenkeel", "status"]).unwrap().global;
    of_text(&global, Path::new("file"), text).unwrap()
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
