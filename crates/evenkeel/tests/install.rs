//! `scripts/install.sh`: what goes into the unit, and what happens before anything is removed. Nothing is built.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn install(prefix: &str, argument: &str) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install.sh");
    let mut command = Command::new("sh");
    command.arg(script).arg(argument).env("PREFIX", prefix).env_remove("DESTDIR");
    command.output().unwrap()
}

#[test]
fn the_unit_names_the_binary_whatever_the_prefix_is_called() {
    for prefix in ["/usr/local", "/opt/a&b", "/opt/a#b\\c"] {
        let output = install(prefix, "--unit");
        let unit = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(
            unit.contains(&format!("\nExecStart={prefix}/bin/evenkeel run $EVENKEEL_RUN_OPTIONS\n")),
            "{unit}"
        );
        assert_eq!(unit.contains("/usr/local/bin"), prefix == "/usr/local", "{unit}");
    }
}

/// A program in the place of the binary that writes down how it is called, and ends with a status.
fn played(prefix: &Path, status: i32) -> PathBuf {
    let binary = prefix.join("bin/evenkeel");
    fs::create_dir_all(prefix.join("bin")).unwrap();
    let calls = prefix.join("calls");
    fs::write(&binary, format!("#!/bin/sh\necho \"$@\" >>'{}'\nexit {status}\n", calls.display())).unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    binary
}

#[test]
fn what_is_in_force_is_restored_before_the_binary_goes() {
    for (status, removed) in [(0, true), (1, false)] {
        let dir = tempfile::tempdir().unwrap();
        let binary = played(dir.path(), status);
        let output = install(dir.path().to_str().unwrap(), "--remove");
        assert_eq!(output.status.success(), removed, "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(fs::read_to_string(dir.path().join("calls")).unwrap_or_default(), "restore --stop\n");
        assert_eq!(!binary.exists(), removed);
    }
}
