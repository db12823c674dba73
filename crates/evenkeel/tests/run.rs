//! `run` and `plan` refuse what they cannot mean: scopes, configuration files, options. Nothing is touched.

mod program;

use program::{end, evenkeel};

/// Runs `run` and `plan` with these arguments; both must refuse with status 2 and touch nothing. Returns what `run` said.
#[track_caller]
fn refused(args: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let say = |command: &str| {
        let stderr = end(evenkeel([command]).args(args).env("EVENKEEL_STATE_DIR", &state)).refused(2, "");
        assert!(!state.exists(), "{command} {args:?} made a state directory");
        stderr
    };
    say("plan");
    say("run")
}

#[test]
fn what_is_no_scope_is_named_with_what_would_be() {
    for scope in [
        "web",
        "pid:x",
        "pid:0",
        "pid:-1",
        "comm:(",
        "cgroup:a",
        "pod:ns/",
        "volume:x",
        "container:",
        "!",
        "",
    ] {
        let words = refused(&["--scope", scope]);
        assert!(words.contains(&format!("{scope:?}")) && words.contains("cgroup:/PATH"), "{words}");
    }
    // One wrong among right ones.
    assert!(refused(&["--scope", "all", "--scope", "pid:1x"]).contains("1x"));
}

/// What is said about a configuration file.
#[track_caller]
fn refused_file(text: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("evenkeel.toml");
    std::fs::write(&path, text).unwrap();
    refused(&["--scope", "pid:2147483647", "--config", path.to_str().unwrap()])
}

#[test]
fn an_unknown_key_is_refused_with_line_and_nearest_key() {
    let words = refused_file("# comment\n[run]\ninterval = \"1s\"\ndecide_witin = \"5s\"\n");
    assert!(words.contains("decide_witin") && words.contains("decide_within"), "{words}");
    assert!(words.contains("evenkeel.toml") && (words.contains(":4") || words.contains("line 4")), "{words}");
    let words = refused_file("[guard]\ncpu_los = 0.2\n");
    assert!(words.contains("cpu_loss") && (words.contains(":2") || words.contains("line 2")), "{words}");
    // A key of a table without the table's heading.
    let words = refused_file("intervall = \"1s\"\n");
    assert!(words.contains("`intervall`, did you mean `interval` in [run]? (known here: run, "), "{words}");
    let words = refused_file("[rnu]\n");
    assert!(words.contains("`run`") || words.contains("\"run\""), "{words}");
}

#[test]
fn values_that_make_no_sense_are_named() {
    for (text, names) in [
        ("[run]\ndecide_within = \"soon\"\n", "evenkeel.toml:2: decide_within"),
        ("[run]\n\ncloser_look = \"-1s\"\n", "evenkeel.toml:3: closer_look"),
        ("[run]\ndecide_within = \"1s\"\n", "evenkeel.toml:2: decide_within = \"1s\": at least 2s"),
        ("[run]\nrecheck = \"soon\"\n", "evenkeel.toml:2: recheck"),
        ("[run]\nholdout = 0.3\n", "evenkeel.toml:2: holdout = 0.3: a share of the time, 0 (never) to 0.2"),
        ("[run]\ninterval = \"1ms\"\n", "evenkeel.toml:2: interval"),
        ("[run]\ninterval = 3\n", "evenkeel.toml:2"),
        ("[run]\nscope = [\n\"all\",\n\"rack:7\"]\n", "evenkeel.toml:4: "),
        ("[run]\nallow = [\"everything\"]\n", "evenkeel.toml:2: allow \"everything\""),
        ("[run]\nlevers = [\"crowbar\"]\n", "evenkeel.toml:2: no lever is called \"crowbar\""),
        ("[guard]\ncpu_loss = 1.5\n", "evenkeel.toml:1: [guard] cpu_loss"),
        ("[guard]\nwait_factor = 0.5\n", "wait_factor"),
        ("[guard]\nalpha = 0\n", "alpha"),
        ("[guard]\nmin_cpu_pct = -1\n", "min_cpu_pct"),
        ("[run\n", "1"),
    ] {
        let words = refused_file(text);
        assert!(words.contains(names), "{text}: {words}");
    }
}

#[test]
fn a_configuration_that_cannot_be_read_is_named() {
    assert!(refused(&["--config", "/no/such/file.toml"]).contains("/no/such/file.toml"));
    assert!(refused(&["--config", "/"]).contains('/'));
}

#[test]
fn options_that_make_no_sense_are_refused() {
    refused(&["--scope", "all", "--lever", "crowbar"]);
    refused(&["--scope", "all", "--allow", "everything"]);
    refused(&["--scope", "all", "--interval", "1ms"]);
    refused(&["--scope", "all", "--interval", "never"]);
    refused(&["--scope", "all", "--holdout", "0.3"]);
    refused(&["--scope", "all", "-o", "svg"]);
}

/// A service with this SLO.
fn slo(endpoint: &str, histogram: &str, quantile: &str, bound: &str) -> String {
    format!(
        "[[service]]\nscope = \"pid:7\"\nslo = {{ endpoint = \"{endpoint}\", histogram = \"{histogram}\", \
         quantile = {quantile}, bound = \"{bound}\" }}"
    )
}

#[test]
fn wrong_promises_are_named_with_their_line() {
    for (text, words) in [
        (
            "[[guarantee]]\nscope = \"pid:7\"\ncpu = \"40\"",
            "evenkeel.toml:3: \"40\" is no amount of CPU: no unit",
        ),
        ("[[guarantee]]\nscope = \"pid:7\"\ncpu = \"-4%\"", "must not be negative"),
        ("[[guarantee]]\nscope = \"web\"\ncpu = \"40%\"", "evenkeel.toml:2: "),
        ("[[protect]]\nscope = \"web\"", "evenkeel.toml:2: "),
        ("[[protect]]\nscope = \"all\"", "a scope of its own"),
        ("[[protect]]\nscope = \"!pid:7\"", "a scope of its own"),
        ("[[protect]]\nscope = \"pid:7\"\nwait_p99 = \"soon\"", "evenkeel.toml:3: wait_p99"),
        ("[[protect]]\nscope = \"pid:7\"\nwait_p9 = \"2ms\"", "wait_p99"),
        ("[[protect]]\nwait_p99 = \"2ms\"", "scope"),
        (&slo("https://h/", "t", "0.9", "1s"), "evenkeel.toml:3: slo endpoint \"https://h/\": only http://"),
        (&slo("http://h/", "t{a=\\\"b\\\"}", "0.9", "1s"), "evenkeel.toml:3: slo histogram"),
        (&slo("http://h/", "a b", "0.9", "1s"), "the name of a histogram without labels"),
        (
            &slo("http://h/", "t", "1.0", "1s"),
            "evenkeel.toml:3: slo quantile = 1: above 0, and at most 0.99999",
        ),
        (&slo("http://h/", "t", "nan", "1s"), "slo quantile"),
        (&slo("http://h/", "t", "0.9", "soon"), "evenkeel.toml:3: slo bound = \"soon\""),
        (&slo("http://h/", "t", "0.9", "0s"), "longer than nothing"),
        (&slo("http://h/", "t", "0.9", "1s\", unit = \"h"), "evenkeel.toml:3: unknown value `h`"),
        ("[[service]]\nscope = \"pid:7\"\nslo = { endpoint = \"http://h/\" }", "missing field `histogram`"),
        (
            "[[protect]]\nscope = \"pid:7\"\n[[protect]]\nscope = \"pid:7\"",
            "evenkeel.toml:4: \"pid:7\" is named as a service",
        ),
        ("[run]\nwaits = \"yes\"", "evenkeel.toml:2"),
        ("[[guarantee]]\nscope = \"all\"\ncpu = \"40%\"", "a scope of its own"),
        ("[[guarantee]]\nscope = \"pid:7\"", "nothing is promised"),
        (
            "[[guarantee]]\nscope = \"pid:7\"\ncpus = \"40%\"",
            "evenkeel.toml:3: unknown key `cpus`, did you mean `cpu`?",
        ),
        ("[[guarantee]]\nscope = \"pid:7\"\nwait_p99 = \"2\"", "evenkeel.toml:3: wait_p99: \"2\" is no wait"),
        ("[[guarantee]]\nscope = \"pid:7\"\nwait_p99 = \"1us\"", "cannot be promised"),
        (
            "[[guarantee]]\nscope = \"pid:7\"\ncpu = \"40%\"\nmean = \"mean\"",
            "unknown value `mean`, did you mean `rate`?",
        ),
        (
            "[[guarantee]]\nscope = \"pid:7\"\nwait_p99 = \"2ms\"\nmean = \"rate\"",
            "evenkeel.toml:4: mean says what a promise of CPU means",
        ),
        ("[run]\nown_nice = -21", "evenkeel.toml:2: own_nice = -21: a nice value, from -20 to 19"),
        ("[run]\nreserved = \"some\"", "evenkeel.toml:2: reserved: \"some\" is no amount of CPU"),
        (
            "[[guarantee]]\nscope = \"pid:7\"\ncpu = \"40%\"\n[[guarantee]]\nscope = \"pid:7\"\ncpu = \"50%\"",
            "evenkeel.toml:5: contradiction: \"pid:7\" is promised 40% further up and 50% here",
        ),
    ] {
        let said = refused_file(text);
        assert!(said.contains(words), "{text:?}: {said}");
    }
}

#[test]
fn wrong_rules_on_labels_are_named_with_their_line() {
    for (text, words) in [
        (
            "[run]\nlabels = true",
            "evenkeel.toml:2: labels = true: say whose count and how much they may promise",
        ),
        ("[labels]\nmax = \"50%\"", "evenkeel.toml:1: [labels]: name namespaces, runtimes or both"),
        ("[labels]\nnamespaces = [\"prod\"]", "max"),
        ("[labels]\nnamespaces = [\"prod\", \"a/b\"]\nmax = \"50%\"", "evenkeel.toml:2: namespaces \"a/b\""),
        ("[labels]\nnamespaces = [\"\"]\nmax = \"50%\"", "evenkeel.toml:2: namespaces \"\""),
        ("[labels]\nruntimes = [\"dockre\"]\nmax = \"50%\"", "runtimes \"dockre\": there are docker"),
        ("[labels]\nruntimes = [\"docker\"]\nmax = \"50\"", "evenkeel.toml:3: \"50\" is no amount of CPU"),
        ("[labels]\nruntimes = [\"docker\"]\nmax = \"50%\"\ntotal = \"x\"", "evenkeel.toml:4: \"x\""),
        ("[labels]\nruntimes = [\"docker\"]\nmax = \"50%\"\nwait_p99 = \"1\"", "evenkeel.toml:4: wait_p99"),
        (
            "[labels]\nruntime = [\"docker\"]\nmax = \"50%\"",
            "unknown key `runtime`, did you mean `runtimes`?",
        ),
    ] {
        let said = refused_file(text);
        assert!(said.contains(words), "{text:?}: {said}");
    }
}

#[test]
fn services_and_background_work_belong_together() {
    assert!(refused(&["--service", "cgroup:/a"]).contains("who may wait for it?"));
    assert!(refused(&["--background", "cgroup:/a"]).contains("name a service"));
    assert!(refused(&["--service", "cgroup:/a", "--background", "all"]).contains("is no background work"));
    assert!(
        refused(&["--service", "all", "--background", "cgroup:/a"])
            .contains("a service needs a scope of its own")
    );
    let twice = ["--service", "cgroup:/a", "--service", "cgroup:/a", "--background", "cgroup:/b"];
    assert!(refused(&twice).contains("already"));
    refused(&["--tiers", "auto", "--scope", "cgroup:/a"]);
    refused(&["--tiers", "some"]);
    let service = "[[service]]\nscope = \"cgroup:/a\"\n";
    let words = refused_file(&format!("{service}[[background]]\nscope = \"cgroup:/b\"\n"));
    assert!(words.contains("--scope pid:2147483647 goes without [[background]]"), "{words}");
    let words = refused_file(&format!("{service}[[background]]\nscope = \"cgroup:/b\"\nleast = \"much\"\n"));
    assert!(words.contains("evenkeel.toml:5") && words.contains("much"), "{words}");
}
