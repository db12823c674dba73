//! Containers of a real Docker Engine through the binary: `why` by name and by id, `ps --scope`, and lengths of their waits
//! in `ps` and in the history. Needs root, and Debian's docker.io, containerd, runc, busybox-static.

#[path = "../../observe/tests/common/docker.rs"]
#[allow(dead_code)]
mod docker;
mod program;

use std::path::Path;

use docker::{Docker, IMAGE};
use serde_json::Value;

const SPIN: &str = "while :; do :; done";

/// A container that spins on CPU 0; its id.
fn spinner(docker: &Docker, name: &str, limits: &[&str]) -> String {
    let name = format!("--name={name}");
    let mut args = vec!["run", "-d", "--network=none", &name, "--cpuset-cpus=0"];
    args.extend(limits);
    args.extend([IMAGE, "/bin/sh", "-c", SPIN]);
    docker.run(&args)
}

/// Runs a command that is to find the engine, and returns its document.
#[track_caller]
fn document(docker: &Docker, state: &Path, args: &[&str]) -> Value {
    let mut command = program::evenkeel(args);
    command.args(["-o", "json"]).env("EVENKEEL_STATE_DIR", state);
    program::end(command.env("DOCKER_HOST", format!("unix://{}", docker.socket().display()))).json()
}

fn share(document: &Value, name: &str) -> f64 {
    document["shares"][name].as_f64().unwrap()
}

fn names(list: &Value, field: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|item| item[field].as_str().unwrap_or("-").to_owned()).collect()
}

#[test]
fn containers_are_targets_scopes_and_lines() {
    let docker = Docker::start("why");
    let web = spinner(&docker, "web", &["--cpu-shares=1024"]);
    spinner(&docker, "hog", &["--cpu-shares=2048"]);
    let state = tempfile::tempdir().unwrap();
    let say = |args: &[&str]| document(&docker, state.path(), args);

    // By name and by a part of the id: the other one had its CPU, twice as long as itself.
    for target in ["container:web".to_owned(), format!("container:{}", &web[..12])] {
        let why = say(&["why", &target, "--for", "3s", "--source", "bpf"]);
        assert_eq!((&why["source"], &why["lost"]), (&"bpf".into(), &0.into()), "{why:#}");
        let (ran, waited) = (share(&why, "ran"), share(&why, "waited"));
        assert!(waited > ran && ran > 0.0, "{target}: ran {ran} waited {waited}");
        assert!(share(&why, "throttled") < 1.0, "{why:#}");
        // Whatever else this host runs: of the containers it is the one, and it had twice what the target got.
        let mut blamed =
            why["blame"].as_array().unwrap().iter().filter(|blame| blame["container"].is_string());
        let first = blamed.next().unwrap();
        assert_eq!((&first["container"], &first["name"]), (&"hog".into(), &"sh".into()), "{why:#}");
        let ratio = first["seconds"].as_f64().unwrap() / why["ran_s"].as_f64().unwrap();
        assert!((1.4..2.8).contains(&ratio), "{ratio}: {why:#}");
    }

    // A quota of its own is named. What it leaves unused the others take.
    let small = spinner(&docker, "small", &["--cpu-quota=5000", "--cpu-period=100000", "--cpu-shares=16384"]);
    let why = say(&["why", "container:small", "--for", "3s", "--source", "bpf"]);
    assert!(share(&why, "throttled") > share(&why, "waited"), "{why:#}");
    let by = why["throttled_by"][0]["cgroup"].as_str().unwrap();
    assert!(by.contains(&small), "{by}");

    // Everybody's waits in `ps`, one alone with a scope.
    let ps = say(&["ps", "--by", "container", "--interval", "1s"]);
    let mut found = names(&ps["containers"], "name");
    found.sort();
    // Containers that are not of this test may run here as well.
    found.retain(|name| ["hog", "small", "web"].contains(&name.as_str()));
    assert_eq!(found, ["hog", "small", "web"]);
    for container in
        ps["containers"].as_array().unwrap().iter().filter(|c| c["name"] == "hog" || c["name"] == "web")
    {
        let usec = |field: &str| container[field].as_f64().unwrap();
        assert!(
            usec("wait_p50_usec") > 0.0 && usec("wait_p50_usec") <= usec("wait_p99_usec"),
            "{container:#}"
        );
        assert!(usec("wait_p99_usec") <= usec("wait_max_usec"), "{container:#}");
    }
    let alone = say(&["ps", "--scope", "container:web", "--interval", "300ms"]);
    assert_eq!(names(&alone["containers"], "name"), ["web"]);
    assert!(names(&alone["tasks"], "container").iter().all(|name| name == "web"), "{alone:#}");
    assert!(
        names(&say(&["ps", "--scope", "!container:web"])["tasks"], "container").contains(&"hog".to_owned())
    );

    // The loop writes them down where it is told to, once it watches: after the decision.
    let config = state.path().join("waits.toml");
    std::fs::write(
        &config,
        "[run]\nwaits = true\ndecide_within = \"2s\"\ncloser_look = \"1s\"\ninterval = \"500ms\"\n",
    )
    .unwrap();
    let config = config.to_str().unwrap();
    say(&["--config", config, "run", "--scope", "container:web", "--for", "9s"]);
    let history = say(&["history", "--since", "5m", "--by", "container"]);
    let rows = history["rates"]["rows"].as_array().unwrap();
    for name in ["web", "hog"] {
        let row = rows.iter().find(|row| row["container"] == name).unwrap_or_else(|| panic!("{history:#}"));
        let ms = |field: &str| row[field].as_f64().unwrap();
        assert!(row["waits"].as_u64().unwrap() > 10 && ms("wait_p50_ms") > 0.0, "{history:#}");
        assert!(ms("wait_p99_ms") <= ms("wait_max_ms"), "{history:#}");
    }
}
