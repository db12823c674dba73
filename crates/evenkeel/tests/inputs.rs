//! Files named on the command line, and captured trees, that are no plain files: a message that names the path, at once.

mod program;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use program::{Ended, end};

/// `evenkeel ARGS`, ended after a minute and without memory for an endless file.
fn evenkeel(args: &[&str]) -> Ended {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 8000000; exec timeout 60 \"$@\"", "sh", env!("CARGO_BIN_EXE_evenkeel")]);
    end(command.args(args))
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn pipes_and_endless_devices_are_refused_as_input() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    fifo(&pipe);
    let out = dir.path().join("out");
    for input in [pipe.to_str().unwrap(), "/dev/zero"] {
        let commands: [&[&str]; 7] = [
            &["plan", "--config", input],
            &["sim", input],
            &["price", "--cpu-minutes", "1", "--prices", input],
            &["lab", "run", input, "--out", out.to_str().unwrap()],
            &["lab", "import", input, "--out", out.to_str().unwrap()],
            &["tune", input],
            &["check", "--policy", input],
        ];
        for args in commands {
            let ended = evenkeel(args);
            assert!(matches!(ended.status, Some(1..=3)), "{ended}");
            assert!(ended.stderr.contains(input) && ended.stderr.contains("not a plain file"), "{ended}");
        }
    }
}

#[test]
fn a_tree_with_pipes_devices_and_links_out_of_it_is_read_without_leaving_it() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("proc/7/task/7")).unwrap();
    fs::create_dir_all(tree.join("sys/devices/system/cpu")).unwrap();
    fs::write(dir.path().join("outside"), "0-511\n").unwrap();
    symlink(dir.path().join("outside"), tree.join("sys/devices/system/cpu/online")).unwrap();
    symlink("/dev/zero", tree.join("proc/self")).unwrap();
    for name in ["proc/stat", "proc/mounts", "proc/7/task/7/stat"] {
        fifo(&tree.join(name));
    }
    for command in ["topology", "check"] {
        let ended = evenkeel(&["--root", tree.to_str().unwrap(), command]);
        assert!(matches!(ended.status, Some(0..=3)), "{ended}");
        let said = ended.stderr + &ended.stdout;
        assert!(!said.contains("511") && !said.contains("512"), "{command}: {said}");
    }
}
