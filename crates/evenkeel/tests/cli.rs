//! What every command promises, whatever it does: help with an example, exit statuses, where output goes.

mod program;

use std::collections::BTreeSet;
use std::process::Command;

use assert_cmd::assert::OutputAssertExt;
use program::{Ended, end};

/// Runs the program with a state directory of its own.
#[track_caller]
fn evenkeel(args: &[&str]) -> Ended {
    let state = tempfile::tempdir().unwrap();
    end(program::evenkeel(args).env("EVENKEEL_STATE_DIR", state.path()))
}

#[track_caller]
fn stdout(args: &[&str]) -> String {
    evenkeel(args).ok()
}

/// Every command, as `--help` lists them.
fn commands() -> BTreeSet<String> {
    let help = stdout(&["--help"]);
    let list = help.split_once("\nCommands:\n").expect("a list of commands").1;
    list.lines()
        .take_while(|line| !line.is_empty())
        // Continued descriptions are indented further.
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
        .filter_map(|line| line.split(' ').next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_command_of_the_contract_is_there() {
    let commands = commands();
    for name in [
        "topology",
        "check",
        "ps",
        "plan",
        "run",
        "status",
        "restore",
        "history",
        "replay",
        "why",
        "exec",
        "load",
        "sim",
        "price",
        "capture",
        "demo",
        "prove",
        "completions",
        "man",
    ] {
        assert!(commands.contains(name), "{name} is missing among {commands:?}");
    }
}

#[test]
fn every_help_has_an_example_that_starts_the_command_itself() {
    for command in commands() {
        let help = stdout(&[&command, "--help"]);
        let example = help.split_once("Example").map(|(_, rest)| rest).unwrap_or_default();
        assert!(example.contains(&format!("evenkeel {command}")), "{command} --help has no example:\n{help}");
        let (own, everywhere) =
            help.split_once("Options of every command:").expect("options of every command");
        assert!(!own.contains("--state-dir <DIR>") && everywhere.contains("--state-dir <DIR>"), "{help}");
    }
}

#[test]
fn wrong_usage_is_status_2() {
    let wrong: [&[&str]; 5] = [
        &[],
        &["no-such-command"],
        &["--no-such-option"],
        &["topology", "-o", "no-such-format"],
        &["completions", "no-such-shell"],
    ];
    for args in wrong {
        evenkeel(args).refused(2, "");
    }
    for command in commands() {
        // `exec` has the command's status: what is its own must be told from it.
        let status = if command == "exec" { 125 } else { 2 };
        evenkeel(&[&command, "--no-such-option"]).refused(status, "--no-such-option");
    }
}

#[test]
fn decisions_about_nothing_are_at_least_two_and_go_with_nothing_else() {
    evenkeel(&["prove", "--aa", "1"]).refused(2, "--aa");
    for other in [&["--mixes", "3"][..], &["--margin", "0.1"], &["--promises", "fixed"]] {
        evenkeel(&[&["prove", "--aa", "2"], other].concat()).refused(2, "cannot be used with");
    }
}

#[test]
fn version_and_help_go_to_stdout() {
    assert_eq!(stdout(&["--version"]), concat!("evenkeel ", env!("CARGO_PKG_VERSION"), "\n"));
    assert!(stdout(&["--help"]).contains("Usage: evenkeel"));
}

#[test]
fn completions_know_every_command_and_are_valid_for_the_shell() {
    let commands = commands();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = stdout(&["completions", shell]);
        for command in &commands {
            assert!(script.contains(command.as_str()), "{shell}: {command} is not completed");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("evenkeel.bash");
    std::fs::write(&file, stdout(&["completions", "bash"])).unwrap();
    Command::new("bash").arg("-n").arg(&file).assert().success();
}

#[test]
fn manual_pages_are_roff_and_need_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    stdout(&["man", dir.path().to_str().unwrap()]);
    for command in commands() {
        let page = std::fs::read_to_string(dir.path().join(format!("evenkeel-{command}.1"))).unwrap();
        assert!(page.contains(".TH ") && page.contains(".SH SYNOPSIS"), "{command}:\n{page}");
    }
    let missing = dir.path().join("not/there");
    evenkeel(&["man", missing.to_str().unwrap()]).refused(3, "not/there");
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let script = format!("{} completions bash | true", env!("CARGO_BIN_EXE_evenkeel"));
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_tree_that_is_not_there_is_named() {
    for command in [["topology"].as_slice(), &["check"], &["ps"], &["net", "show"]] {
        evenkeel(&[command, &["--root", "/no/such/tree"]].concat()).refused(2, "/no/such/tree");
    }
}

#[test]
fn a_configuration_that_is_not_there_or_wrong_is_named_by_commands_that_ask_nothing_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = dir.path().join("wrong.toml");
    std::fs::write(&wrong, "[run]\nscop = []\n").unwrap();
    for command in [&["topology"][..], &["status"], &["lab", "list"], &["completions", "bash"]] {
        evenkeel(&[command, &["--config", "/no/such/file.toml"]].concat()).refused(2, "/no/such/file.toml");
        evenkeel(&[command, &["--config", wrong.to_str().unwrap()]].concat()).refused(2, "wrong.toml:2: ");
    }
    evenkeel(&["--config", "/no/such/file.toml", "exec", "--", "true"]).refused(125, "/no/such/file.toml");
}

#[test]
fn rules_are_listed_in_every_form() {
    let list = |form: &str| stdout(&["check", "--list", "-o", form]);
    let csv = list("csv");
    let rules: serde_json::Value = serde_json::from_str(&list("json")).unwrap();
    assert_eq!(csv.lines().next(), Some("rule,severity,about"));
    assert_eq!(csv.lines().count() - 1, rules["rules"].as_array().unwrap().len());
    assert_eq!(list("text").lines().count(), csv.lines().count() - 1);
    assert!(csv.contains("\nquota-throttled,warning,") && list("json").contains("\"severity\": \"warning\""));
}

#[test]
fn why_a_file_cannot_be_written_is_said_once() {
    let said = evenkeel(&["capture", "/proc/no/such"]).refused(3, "No such file");
    assert_eq!(said.matches("No such file").count(), 1, "{said}");
}

#[test]
fn a_tree_is_never_changed() {
    let tree = tempfile::tempdir().unwrap();
    for command in ["plan", "run", "restore"] {
        evenkeel(&[command, "--root", tree.path().to_str().unwrap()]).refused(2, "--root");
    }
}

#[test]
fn lines_in_the_journal_have_a_level_and_others_have_none() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let said = |journal: bool| {
        let path = dir.path().join("stderr");
        let file = std::fs::File::create(&path).unwrap();
        let facts = file.metadata().unwrap();
        // Of another stream, as when a service's stderr is turned elsewhere.
        let inode = facts.ino() + u64::from(!journal);
        let mut command = program::evenkeel(["history", "--run", "3", "--state-dir"]);
        command.arg(dir.path()).env("JOURNAL_STREAM", format!("{}:{inode}", facts.dev())).stderr(file);
        assert_eq!(command.status().unwrap().code(), Some(2));
        std::fs::read_to_string(&path).unwrap()
    };
    let (plain, levelled) = (said(false), said(true));
    assert!(plain.starts_with("evenkeel: "), "{plain}");
    assert_eq!(levelled, format!("<3>{plain}"));
}
