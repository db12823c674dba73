//! What the packages hold, and what the services and manifests ask for. Installing them is `make test-packages`.

use std::path::{Path, PathBuf};
use std::process::Command;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

#[track_caller]
fn stdout(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn packages_hold_the_program_and_enable_only_what_watches() {
    let dir = tempfile::tempdir().unwrap();
    let made = stdout(
        Command::new(repository().join("scripts/make-packages.sh"))
            .args(["--binary", env!("CARGO_BIN_EXE_evenkeel"), "--version", "1.2.3", "--fast", "--out"])
            .arg(dir.path()),
    );
    let made: Vec<&str> = made.lines().collect();
    let [deb, rpm, oci] = made.as_slice() else { panic!("{made:?}") };
    let deb_files = stdout(Command::new("dpkg-deb").args(["-c", deb]));
    let rpm_files = stdout(Command::new("rpm").args(["-qlp", rpm]));
    for file in [
        "/usr/bin/evenkeel",
        "/usr/lib/systemd/system/evenkeel.service",
        "/usr/lib/systemd/system/evenkeel-restore.service",
        "/usr/lib/systemd/system/evenkeel-serve.service",
        "/etc/evenkeel/config.toml",
        "/etc/default/evenkeel",
        "/usr/share/man/man1/evenkeel-fleet.1.gz",
        "/usr/share/bash-completion/completions/evenkeel",
    ] {
        assert!(deb_files.contains(&format!(" .{file}\n")), "{file} is not in the deb:\n{deb_files}");
        assert!(rpm_files.lines().any(|line| line == file), "{file} is not in the rpm:\n{rpm_files}");
    }
    assert_eq!(stdout(Command::new("dpkg-deb").args(["-f", deb, "Version"])), "1.2.3\n");
    let control = dir.path().join("control");
    stdout(Command::new("dpkg-deb").args(["-e", deb]).arg(&control));
    let scripts = stdout(Command::new("rpm").args(["-qp", "--scripts", rpm]));
    let deb_scripts: Vec<String> = ["postinst", "prerm", "postrm"]
        .map(|name| {
            stdout(Command::new("sh").arg("-n").arg(control.join(name)));
            std::fs::read_to_string(control.join(name)).unwrap()
        })
        .into();
    for script in deb_scripts.iter().chain([&scripts]) {
        assert!(!script.contains("enable \"$acting\""), "the acting service must not be enabled:\n{script}");
    }
    assert!(deb_scripts[0].contains("enable \"$watching\"") && scripts.contains("enable \"$watching\""));
    assert!(
        deb_scripts[1].contains("evenkeel restore --stop") && scripts.contains("evenkeel restore --stop")
    );

    let image = dir.path().join("image");
    std::fs::create_dir(&image).unwrap();
    stdout(Command::new("tar").args(["-xf", oci, "-C"]).arg(&image));
    let read =
        |path: &Path| -> serde_json::Value { serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap() };
    let blob = |digest: &serde_json::Value| {
        let digest = digest.as_str().unwrap().strip_prefix("sha256:").unwrap().to_owned();
        let path = image.join("blobs/sha256").join(&digest);
        let sum = stdout(Command::new("sha256sum").arg(&path));
        assert!(sum.starts_with(&digest), "{sum}");
        path
    };
    let index = read(&image.join("index.json"));
    let manifest = read(&blob(&index["manifests"][0]["digest"]));
    let config = read(&blob(&manifest["config"]["digest"]));
    assert_eq!(config["config"]["Cmd"], serde_json::json!(["serve"]));
    let layer = blob(&manifest["layers"][0]["digest"]);
    let plain = stdout(Command::new("sh").args(["-c", "gzip -dc \"$0\" | sha256sum"]).arg(&layer));
    let diff_id = config["rootfs"]["diff_ids"][0].as_str().unwrap();
    assert!(plain.starts_with(diff_id.strip_prefix("sha256:").unwrap()), "{plain} {diff_id}");
    let files = stdout(Command::new("tar").arg("-tzf").arg(&layer));
    assert!(files.lines().any(|file| file == "usr/bin/evenkeel"), "{files}");
}

/// A maintainer script: of the .deb, or a section of the rpm's.
fn maintainer_script(name: &str) -> String {
    let read = |path: &str| std::fs::read_to_string(repository().join("packaging").join(path)).unwrap();
    let common = read("maintainer/common.sh");
    if !name.starts_with('%') {
        return format!("set -e\n{common}{}", read(&format!("maintainer/{name}")));
    }
    let spec = read("evenkeel.spec");
    let (_, section) = spec.split_once(&format!("\n{name}\n")).unwrap();
    let section = section.split("\n%p").next().unwrap();
    section.replace("%{expand:%(cat %{maintainer}/common.sh)}", &common)
}

/// What a maintainer script asks of systemd and the program while the acting agent runs. Nothing of this host is asked.
fn asked(name: &str, arg: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let booted = "[ -d /run/systemd/system ] && command -v systemctl >/dev/null 2>&1; }";
    let script = maintainer_script(name);
    assert!(script.contains(booted) || !script.contains("booted"), "{script}");
    let stub = ":; }\nsleep() { :; }\nsystemctl() {\n    echo \"$*\" >>asked\n    \
                case \"$*\" in *ActiveState*) echo active ;; *is-active*) return 1 ;; esac\n}";
    let script = script.replace(booted, stub).replace("/usr/bin/evenkeel", "systemctl evenkeel");
    let script = script.replace("/var/lib/evenkeel", dir.path().to_str().unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, name, arg, "1.0"]).env_remove("DPKG_MAINTSCRIPT_PACKAGE");
    stdout(shell.current_dir(dir.path()));
    let asked = std::fs::read_to_string(dir.path().join("asked")).unwrap_or_default();
    asked.lines().map(str::to_owned).collect()
}

#[test]
fn an_upgrade_restores_nothing_and_the_new_program_goes_on_with_what_is_in_force() {
    // A stop would restore: who acts is killed, and its successor takes over.
    for (name, arg) in [("deb-postinst", "configure"), ("%post", "2")] {
        let asked = asked(name, arg);
        let of_acting: Vec<&str> =
            asked.iter().filter_map(|line| line.strip_suffix(" evenkeel.service")).collect();
        let expected = ["show --value --property ActiveState", "kill --kill-who=main --signal=KILL"];
        assert_eq!(of_acting, [&expected[..], &["--quiet is-active", "start"]].concat(), "{name}");
        assert!(asked.iter().any(|line| line == "restart evenkeel-serve.service"), "{name}: {asked:?}");
        assert!(!asked.iter().any(|line| line.contains("restore")), "{name}: {asked:?}");
    }
    for (name, arg) in
        [("deb-prerm", "upgrade"), ("deb-postrm", "upgrade"), ("%preun", "1"), ("%postun", "1")]
    {
        assert_eq!(asked(name, arg), Vec::<String>::new(), "{name}");
    }
    for (name, arg) in [("deb-prerm", "remove"), ("%preun", "0")] {
        let asked = asked(name, arg);
        let place = |what: &str| asked.iter().position(|line| line == what).expect(what);
        assert!(
            place("stop evenkeel-serve.service evenkeel.service") < place("evenkeel restore --stop"),
            "{asked:?}"
        );
    }
}

#[test]
fn services_ask_for_what_they_need_and_no_more() {
    let unit = |name: &str| {
        let text = std::fs::read_to_string(repository().join("packaging").join(name)).unwrap();
        let value = |key: &str| -> Vec<String> {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key}=")));
            line.unwrap_or_default().split(' ').map(str::to_owned).collect()
        };
        (value("CapabilityBoundingSet"), text.clone())
    };
    let (watching, text) = unit("evenkeel-serve.service");
    assert_eq!(watching, ["CAP_DAC_READ_SEARCH", "CAP_BPF", "CAP_PERFMON"]);
    assert!(text.contains("/evenkeel serve $EVENKEEL_SERVE_OPTIONS\n"));
    for line in ["ProtectControlGroups=yes", "ProtectKernelTunables=yes", "PrivateDevices=yes"] {
        assert!(text.lines().any(|l| l == line), "{line}:\n{text}");
    }
    let (acting, text) = unit("evenkeel.service");
    assert!(!acting.iter().any(|c| c == "CAP_SYS_ADMIN"), "{acting:?}");
    for line in [
        "Type=notify",
        "WatchdogSec=60",
        "ExecStopPost=-systemctl --no-block start evenkeel-restore.service",
        "Restart=on-failure",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}:\n{text}");
    }
    let (restoring, other) = unit("evenkeel-restore.service");
    assert!(restoring.iter().all(|c| acting.contains(c)), "{restoring:?}");
    for text in [&text, &other] {
        let read_only = text.lines().find_map(|line| line.strip_prefix("ReadOnlyPaths=")).unwrap_or_default();
        for path in ["/sys", "-/proc/sys", "-/proc/irq", "-/proc/sysrq-trigger"] {
            assert!(read_only.split(' ').any(|one| one == path), "{path}: {read_only}");
        }
        assert!(text.contains("\nDevicePolicy=closed\n"), "{text}");
    }
    for name in ["evenkeel.service", "evenkeel-restore.service", "evenkeel-serve.service"] {
        for line in ["ProtectSystem=strict", "NoNewPrivileges=yes", "StateDirectory=evenkeel"] {
            assert!(unit(name).1.lines().any(|l| l == line), "{name}: {line}");
        }
    }
}

#[test]
fn manifests_observe_only_and_ask_for_little() {
    let script = repository().join("scripts/check-manifests.py");
    stdout(Command::new(script).arg("observes").arg(repository().join("packaging/kubernetes/evenkeel.yaml")));
}
