//! `evenkeel price`: times and money as arithmetic has them, and what is refused. Needs no privilege.

mod program;

use program::{Ended, end, evenkeel};
use serde_json::Value;

#[track_caller]
fn price(args: &[&str]) -> Ended {
    end(evenkeel(["price"]).args(args))
}

#[track_caller]
fn done(args: &[&str]) -> String {
    let ended = price(args);
    assert!(ended.stderr.is_empty(), "{ended}");
    ended.ok()
}

#[track_caller]
fn refused(args: &[&str], status: i32, reasons: &[&str]) {
    let words = price(args).refused(status, "");
    for reason in reasons {
        assert!(words.contains(reason), "{args:?} should say {reason}: {words}");
    }
}

fn document(args: &[&str]) -> Value {
    let document: Value = serde_json::from_str(&done(&[args, &["-o", "json"]].concat())).unwrap();
    assert_eq!(document["schema"], "evenkeel.price/v1");
    document
}

fn row<'a>(document: &'a Value, name: &str) -> &'a Value {
    let found = document["types"].as_array().unwrap().iter().find(|row| row["type"] == name);
    found.unwrap_or_else(|| panic!("{name} in {document:#}"))
}

#[track_caller]
fn near(value: &Value, expected: f64) {
    let value = value.as_f64().unwrap_or_else(|| panic!("{value} should be {expected}"));
    assert!((value / expected - 1.0).abs() < 0.005, "{value} against {expected}");
}

#[test]
fn without_prices_times_are_sorted_and_it_says_how_to_give_them() {
    let document = document(&["--cpu-minutes", "100"]);
    let types = document["types"].as_array().unwrap();
    assert!(types.len() >= 55 && document["currency"].is_null());
    let times: Vec<f64> = types.iter().map(|row| row["time_s"].as_f64().unwrap_or(f64::INFINITY)).collect();
    assert!(times.is_sorted(), "{times:?}");
    let t2 = row(&document, "t2.micro");
    near(&t2["time_s"], 60.0 * (33.333 + 66.667 * 10.0));
    near(&t2["held_back_after_s"], 2000.0);
    near(&t2["baseline_pct"], 10.0);
    assert_eq!((&t2["money"], &t2["limit_pct"]), (&Value::Null, &Value::Null));
    let text = done(&["--cpu-minutes", "100", "--type", "t2.*"]);
    assert!(text.contains("credits spent after 33 min 20 s") && text.contains("--prices FILE"), "{text}");
}

#[test]
fn money_is_price_by_hours_least_first_and_what_is_beyond_credits_costs_more() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prices.toml");
    std::fs::write(
        &file,
        "currency = 'EUR'\n[[price]]\nname = 't3.micro'\nhour = 0.01\nsurplus_cpu_hour = 0.05\n[[price]]\nname = 't1.micro'\n\
         hour = 0.02\n[[price]]\nname = 'big.one'\nhour = 1.0\ncpus = 4\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let priced = document(&["--cpu-minutes", "120", "--threads", "2", "--prices", file]);
    assert_eq!(priced["currency"], "EUR");
    assert_eq!(priced["types"].as_array().unwrap().len(), 4);
    // A fifth of a CPU: 10 h. Both CPUs for an hour: 108 of 120 minutes are beyond the credits.
    near(&row(&priced, "t3.micro")["money"], 0.10);
    near(&row(&priced, "t3.micro (unlimited)")["money"], 0.01 + 1.8 * 0.05);
    near(&row(&priced, "big.one")["money"], 1.0);
    // The throttled one takes its limit: 33 % fill the bucket in 10,000 s, so it is throttled twice for 167 s, in 6.15 h.
    let t1 = row(&priced, "t1.micro");
    near(&t1["limit_pct"], 33.0);
    near(&t1["money"], 0.02 * 6.15);
    let money: Vec<f64> =
        priced["types"].as_array().unwrap().iter().map(|row| row["money"].as_f64().unwrap()).collect();
    assert!(money.is_sorted(), "{money:?}");
    // A machine that stays on is paid for all the time.
    let hourly = document(&["--cpu-minutes", "6", "--every", "1h", "--prices", file]);
    near(&row(&hourly, "t3.micro")["money"], 0.01);
    near(&row(&hourly, "t3.micro")["time_s"], 360.0);
    let text = done(&["--cpu-minutes", "60", "--every", "1h", "--prices", file]);
    assert!(text.contains("never") && text.contains("falls behind") && text.contains("EUR"), "{text}");
    let csv = done(&["--cpu-minutes", "1", "--prices", file, "-o", "csv"]);
    assert!(csv.starts_with("type,names,cpus") && csv.lines().count() == 5, "{csv}");
}

#[test]
fn memory_and_types_leave_out_what_does_not_fit() {
    let names = |args: &[&str]| -> Vec<String> {
        let document = document(&[&["--cpu-minutes", "1"], args].concat());
        document["types"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["type"].as_str().unwrap().to_owned())
            .collect()
    };
    let large = names(&["--memory", "8", "--type", "t2.*"]);
    assert_eq!(large, ["t2.large", "t2.xlarge", "t2.2xlarge"]);
    // What is not known is no reason to leave it out.
    assert!(names(&["--memory", "100"]).contains(&"m3.medium".to_owned()));
    assert_eq!(names(&["--type", "Standard_B1s"]), ["Standard_B1s"]);
    refused(&["--cpu-minutes", "1", "--type", "t9.*"], 1, &["of the known types"]);
}

#[test]
fn what_is_no_job_and_no_price_is_refused_with_its_place() {
    for minutes in ["0", "-1", "nan", "inf", "1e300"] {
        refused(&["--cpu-minutes", minutes], 2, &["CPU minutes"]);
    }
    refused(&[], 2, &["--cpu-minutes"]);
    refused(&["--cpu-minutes", "1", "--busy", "0"], 2, &["busy 0"]);
    refused(&["--cpu-minutes", "1", "--threads", "0"], 2, &["0 threads"]);
    refused(&["--cpu-minutes", "1", "--memory", "-1"], 2, &["--memory -1"]);
    refused(&["--cpu-minutes", "1", "--every", "0s"], 2, &["at least a second"]);
    refused(&["--cpu-minutes", "1", "-o", "svg"], 2, &["no output svg"]);
    refused(&["--cpu-minutes", "1", "--prices", "/no/such/file"], 2, &["/no/such/file"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.toml");
    let path = file.to_str().unwrap();
    for (content, place) in [
        ("currency = 'EUR'\n\n[[price]]\nname = 't3.micro'\nhour = -2\n", "bad.toml:5:"),
        ("currency = 'EUR'\n[[price]]\nname = 'big.one'\nhour = 2\n", "bad.toml:3:"),
        ("currency = \n", "bad.toml:1:"),
        ("", "bad.toml:1:"),
    ] {
        std::fs::write(&file, content).unwrap();
        refused(&["--cpu-minutes", "1", "--prices", path], 2, &[place]);
    }
}

#[test]
fn a_run_that_was_measured_gives_its_cpu_time_and_share() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.json");
    let path = file.to_str().unwrap();
    let account = |waited_s: f64| {
        let text = format!(
            "{{\"schema\": \"evenkeel.exec/v1\", \"real_s\": 100.0, \"user_s\": 60.0, \"sys_s\": 20.0, \
             \"waited_s\": {waited_s}, \"stolen_s\": null}}"
        );
        std::fs::write(&file, text).unwrap();
    };
    account(0.1);
    let measured = document(&["--measure-from", path]);
    near(&measured["job"]["cpu_minutes"], 80.0 / 60.0);
    near(&measured["job"]["busy"], 0.8);
    near(&row(&measured, "t2.micro")["time_s"], 100.0);
    // `make -j4`, without a word of the four.
    let four = std::fs::read_to_string(&file).unwrap().replace("60.0", "330.0");
    std::fs::write(&file, four).unwrap();
    refused(&["--measure-from", path], 2, &["3.5 CPUs on average", "--threads"]);
    refused(&["--measure-from", path, "--busy", "1"], 2, &["--threads"]);
    near(&document(&["--measure-from", path, "--threads", "4"])["job"]["busy"], 0.875);
    account(50.0);
    refused(&["--measure-from", path], 2, &["--busy"]);
    near(&document(&["--measure-from", path, "--busy", "0.5"])["job"]["busy"], 0.5);
    refused(&["--measure-from", path, "--cpu-minutes", "1"], 2, &["cannot be used with"]);
    std::fs::write(&file, "{\"schema\": \"evenkeel.ps/v1\"}").unwrap();
    refused(&["--measure-from", path], 2, &["run.json", "not an account"]);
    refused(&["--measure-from", "/dev/zero"], 2, &["/dev/zero", "not a plain file"]);
}

#[test]
fn the_longest_job_is_reckoned_at_once() {
    let text = done(&["--cpu-minutes", "1000000", "--threads", "1"]);
    assert!(text.contains("not done in two weeks"), "{text}");
}
