//! What every command promises, whatever it does: help with an example, exit statuses, where output goes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::process::{Command, Output, Stdio};

use assert_cmd::assert::OutputAssertExt;

/// Runs the binary with a state directory of its own.
fn evenkeel(args: &[&str]) -> Output {
    let state = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(args)
        .env("EVENKEEL_STATE_DIR", state.path())
        .env_remove("EVENKEEL_LOG")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn stdout(args: &[&str]) -> String {
    let output = evenkeel(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
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

/// Fails with the command's words when the status is another, when it panicked, or when it failed silently or on
/// stdout.
#[track_caller]
fn refused(args: &[&str], status: i32) -> String {
    let output = evenkeel(args);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{args:?}: {stderr}");
    assert!(!stderr.trim().is_empty(), "{args:?} failed without a word");
    assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{args:?} failed, yet wrote to stdout");
    stderr
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
    }
}

#[test]
fn wrong_usage_is_status_2() {
    refused(&[], 2);
    refused(&["no-such-command"], 2);
    refused(&["--no-such-option"], 2);
    refused(&["topology", "-o", "no-such-format"], 2);
    refused(&["completions", "no-such-shell"], 2);
    for command in commands() {
        // `exec` has the command's status: what is its own must be told from it.
        let status = if command == "exec" { 125 } else { 2 };
        let stderr = refused(&[&command, "--no-such-option"], status);
        assert!(stderr.contains("--no-such-option"), "{command}: {stderr}");
    }
}

#[test]
fn decisions_about_nothing_are_at_least_two_and_go_with_nothing_else() {
    assert!(refused(&["prove", "--aa", "1"], 2).contains("--aa"));
    for other in [&["--mixes", "3"][..], &["--margin", "0.1"], &["--promises", "fixed"]] {
        let stderr = refused(&[&["prove", "--aa", "2"], other].concat(), 2);
        assert!(stderr.contains("cannot be used with"), "{stderr}");
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
    let stderr = refused(&["man", missing.to_str().unwrap()], 3);
    assert!(stderr.contains("not/there"), "{stderr}");
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let script = format!("{} completions bash | true", env!("CARGO_BIN_EXE_evenkeel"));
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_tree_that_is_not_there_is_named() {
    for command in ["topology", "check", "ps"] {
        let output = evenkeel(&[command, "--root", "/no/such/tree"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(2 | 3)), "{command}: {} {stderr}", output.status);
        assert!(stderr.contains("/no/such/tree"), "{command}: {stderr}");
        assert!(!stderr.contains("panicked"), "{command}: {stderr}");
    }
}

#[test]
fn a_tree_is_never_changed() {
    let tree = tempfile::tempdir().unwrap();
    for command in ["plan", "run", "restore"] {
        let stderr = refused(&[command, "--root", tree.path().to_str().unwrap()], 2);
        assert!(stderr.contains("--root"), "{command}: {stderr}");
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
        let status = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
            .args(["history", "--run", "3", "--state-dir"])
            .arg(dir.path())
            .env("JOURNAL_STREAM", format!("{}:{inode}", facts.dev()))
            .stderr(file)
            .stdin(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(2));
        std::fs::read_to_string(&path).unwrap()
    };
    let (plain, levelled) = (said(false), said(true));
    assert!(plain.starts_with("evenkeel: "), "{plain}");
    assert_eq!(levelled, format!("<3>{plain}"));
}
