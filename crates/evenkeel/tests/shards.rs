//! One experiment in parts: `sim --shard`, `lab merge`, and the manifest of `lab job`. Needs no privilege.

mod program;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

const FILE: &str = "name = 'Half_x'\nrepetitions = 2\n[[tenant]]\nname = 'a'\nunits = '64x2'\nload = 'primes'\nrun_s = 0.2\nruns = 2\n\
    # Prüfung: \"quotes\", $(NODE_NAME) and\ttabs\n\n  \n\
    [[sweep]]\nfield = 'tenant.a.quota_pct'\nvalues = [25, 50, 'none']\n";
const MACHINE: [&str; 6] = ["--cpus", "2", "--kernel", "6.12", "--events-per-s", "1000"];

#[track_caller]
fn ends(dir: &Path, args: &[&str], status: i32) -> String {
    let ended = program::end_in(dir, args).with(status);
    if status == 0 { ended.stdout } else { ended.stderr }
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A folder with [`FILE`], simulated whole and in three shards.
fn simulated() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("x.toml"), FILE).unwrap();
    let sim = |more: &[&str]| ends(dir.path(), &[&["sim", "x.toml"], &MACHINE[..], more].concat(), 0);
    sim(&["--out", "whole"]);
    for index in 0..3 {
        sim(&["--shard", &format!("{index}/3"), "--out", &format!("parts/{index}")]);
    }
    dir
}

#[test]
fn all_shards_of_a_simulation_together_are_the_simulation() {
    let dir = simulated();
    let dir = dir.path();
    ends(dir, &["lab", "merge", "parts/2", "parts/0", "parts/1", "--out", "merged"], 0);
    let without_times = |name: &str| {
        let mut study = json(&dir.join(name).join("study.json"));
        for time in ["began", "finished"] {
            assert!(study[time].is_string(), "{name}: {time}");
            study[time] = Value::Null;
        }
        study
    };
    assert_eq!(without_times("merged"), without_times("whole"));
    let cells = |name: &str| json(&dir.join(name).join("record.json"))["cells"].clone();
    assert_eq!(cells("merged"), cells("whole"));
    let record = json(&dir.join("merged/record.json"));
    assert_eq!(record["merged"].as_array().unwrap().len(), 3);
    assert!(
        record["merged"].as_array().unwrap().iter().all(|part| part["cells"] == serde_json::json!([2, 2]))
    );
    // The folder that holds the shards stands for all of them, and what is there is not written over.
    assert!(ends(dir, &["lab", "merge", "parts", "--out", "merged"], 2).contains("--again"));
    ends(dir, &["lab", "merge", "parts", "--out", "merged", "--again"], 0);
    ends(dir, &["lab", "report", "merged", "--dry-run"], 0);
    ends(dir, &["lab", "compare", "parts/0", "merged"], 0);
}

#[test]
fn a_missing_shard_is_unknown_and_named() {
    let dir = simulated();
    let dir = dir.path();
    let said = ends(dir, &["lab", "merge", "parts/0", "parts/2", "--out", "merged"], 1);
    assert!(said.contains("no results of shard 1 of 3"), "{said}");
    // Nothing was interrupted, and no command goes on with it.
    let again = ends(dir, &["lab", "report", "merged", "--dry-run"], 1);
    assert!(again.contains("no results of shard 1 of 3") && !again.contains("interrupted"), "{again}");
    let study = json(&dir.join("merged/study.json"));
    assert_eq!((&study["cells"], &study["finished"]), (&serde_json::json!([4, 6]), &Value::Null));
    assert!(study["missed"].to_string().contains("no results of shard 1 of 3"), "{}", study["missed"]);
}

#[test]
fn what_does_not_belong_together_is_refused_with_what_differs() {
    let dir = simulated();
    let dir = dir.path();
    std::fs::write(dir.join("y.toml"), FILE.replace("run_s = 0.2", "run_s = 0.3")).unwrap();
    let sim = |file: &str, machine: &[&str], out: &str| {
        ends(dir, &[&["sim", file, "--shard", "1/3", "--out", out], machine].concat(), 0)
    };
    sim("y.toml", &MACHINE, "y");
    sim("x.toml", &["--cpus", "4", "--kernel", "6.12", "--events-per-s", "1000"], "z");
    std::fs::create_dir(dir.join("empty")).unwrap();
    for (folders, part) in [
        (["parts/0", "y"], "experiment.tenant.1.run_s is 0.2 in the first, 0.3 in the second"),
        (["parts/0", "z"], "is 2 in the first, 4 in the second"),
        (["parts/0", "parts/0"], "shard 0/3 is there twice"),
        (["parts/0", "whole"], "whole: is a whole experiment, not a shard"),
        (["parts/0", "empty"], "name a folder that `evenkeel lab run`"),
    ] {
        let said = ends(dir, &["lab", "merge", folders[0], folders[1], "--out", "merged"], 2);
        assert!(said.contains(part), "{folders:?}: {said}");
        assert!(!dir.join("merged").exists(), "{folders:?}");
    }
}

#[test]
fn wrong_shards_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("x.toml"), FILE).unwrap();
    std::fs::write(dir.join("tasks.toml"), "name = 'x'\n[machine]\ncpus = 1\n[[task]]\nkind = 'spin'\n")
        .unwrap();
    for (args, part) in [
        (vec!["sim", "x.toml", "--shard", "0/2"], "--shard needs --events-per-s"),
        (
            vec!["sim", "x.toml", "--events-per-s", "9", "--shard", "0/7"],
            "6 cells cannot be split into 7 shards",
        ),
        (vec!["sim", "x.toml", "--events-per-s", "9", "--shard", "2/2"], "the last of 2 is 1/2"),
        (vec!["sim", "x.toml", "--events-per-s", "9", "--shard", "one"], "INDEX/COUNT"),
        (vec!["sim", "tasks.toml", "--shard", "0/1"], "--shard does not go with tasks.toml"),
        (vec!["sim", "--fleet", "9", "--shard", "0/2"], "cannot be used with"),
        (vec!["lab", "run", "x.toml", "--shard", "0/3"], "2 repetitions cannot be split into 3 shards"),
        (vec!["lab", "run", "cpu-units-equal", "--shard", "0/2"], "sized for the host"),
        (vec!["lab", "run", "tenants-cpu", "--shard", "0/2"], "sized for the host"),
        (vec!["lab", "run", "neighbour", "--shard", "0/2"], "--shard is for experiments with tenants"),
    ] {
        let said = ends(dir, &args, 2);
        assert!(said.contains(part), "{args:?}: {said}");
    }
}

/// The documents of a manifest, as Kubernetes' parser of YAML reads them.
#[track_caller]
fn documents(manifest: &str) -> Vec<Value> {
    let read = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)";
    let mut python = Command::new("python3");
    python.args(["-c", read]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = python.spawn().unwrap();
    python.stdin.take().unwrap().write_all(manifest.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "{manifest}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn job(dir: &Path, more: &[&str]) -> (Value, Value) {
    let manifest = ends(dir, &[&["lab", "job", "x.toml"], more].concat(), 0);
    let documents = documents(&manifest);
    let [map, job] = documents.as_slice() else { panic!("{manifest}") };
    assert_eq!(
        (&map["kind"], &job["kind"], &job["apiVersion"]),
        (&"ConfigMap".into(), &"Job".into(), &"batch/v1".into())
    );
    assert_eq!(map["data"]["experiment.toml"], FILE, "the file as it is");
    assert_eq!(map["metadata"]["name"], job["metadata"]["name"]);
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!(job["spec"]["completionMode"], "Indexed");
    assert_eq!(pod["automountServiceAccountToken"], false);
    let container = &pod["containers"][0];
    let security = &container["securityContext"];
    assert_eq!(security["capabilities"]["drop"], serde_json::json!(["ALL"]));
    assert_eq!(
        (&security["allowPrivilegeEscalation"], &security["readOnlyRootFilesystem"]),
        (&false.into(), &true.into())
    );
    assert_eq!(security["seccompProfile"]["type"], "RuntimeDefault");
    let names =
        |list: &Value| list.as_array().unwrap().iter().map(|one| one["name"].to_string()).collect::<Vec<_>>();
    assert_eq!(names(&container["volumeMounts"]), names(&pod["volumes"]), "each mount has a volume");
    (job["spec"].clone(), pod.clone())
}

#[test]
fn the_manifest_of_a_measurement_is_one_pod_a_node_with_its_shard() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("x.toml"), FILE).unwrap();
    let (spec, pod) = job(dir.path(), &["--nodes", "2", "--host-path", "/var/lib/results"]);
    assert_eq!(
        (&spec["completions"], &spec["parallelism"], &spec["backoffLimit"]),
        (&2.into(), &2.into(), &3.into())
    );
    let rule = &pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0];
    assert_eq!(rule["topologyKey"], "kubernetes.io/hostname");
    for (label, value) in rule["labelSelector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(&spec["template"]["metadata"]["labels"][label], value, "the rule is about its own pods");
    }
    let container = &pod["containers"][0];
    let args: Vec<&str> =
        container["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    assert_eq!(args[..4], ["lab", "run", "/experiment/experiment.toml", "--shard=$(JOB_COMPLETION_INDEX)/2"]);
    assert_eq!(
        args[4..],
        ["--host-name=$(NODE_NAME)", "--out=/results/lab-half-x/$(JOB_COMPLETION_INDEX)-$(NODE_NAME)"]
    );
    assert_eq!(container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"], "spec.nodeName");
    assert_eq!(container["securityContext"]["capabilities"]["add"], serde_json::json!(["DAC_OVERRIDE"]));
    assert_eq!(pod["volumes"][1]["hostPath"]["path"], "/var/lib/results");
    std::fs::write(dir.path().join("x.toml"), FILE.replace("run_s", "nice = -5\nrun_s")).unwrap();
    let manifest = ends(dir.path(), &["lab", "job", "x.toml", "--nodes", "1", "--claim", "c"], 0);
    let nice = &documents(&manifest)[1]["spec"]["template"]["spec"]["containers"][0]["securityContext"]["capabilities"];
    assert_eq!(nice["add"], serde_json::json!(["DAC_OVERRIDE", "SYS_NICE"]));
}

#[test]
fn the_manifest_of_a_simulation_asks_for_nothing_and_leaves_nothing_to_the_node() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("x.toml"), FILE).unwrap();
    let options = [
        &["--simulate", "3", "--claim", "results", "--name", "sweep-1", "--image", "me/evenkeel:1"],
        &MACHINE[..],
    ]
    .concat();
    let (spec, pod) = job(dir.path(), &options);
    assert_eq!(spec["completions"], 3);
    assert_eq!((pod.get("affinity"), pod.get("hostPID")), (None, None));
    assert_eq!(pod["containers"][0]["securityContext"]["capabilities"].get("add"), None);
    let container = &pod["containers"][0];
    assert_eq!(
        (&container["image"], &container["securityContext"]["runAsUser"]),
        (&"me/evenkeel:1".into(), &65534.into())
    );
    assert_eq!(pod["securityContext"]["fsGroup"], 65534);
    assert_eq!(pod["volumes"][1]["persistentVolumeClaim"]["claimName"], "results");
    // The command of the manifest is one that the program takes: run here, with what the kubelet fills in.
    let place = |arg: &str| {
        arg.replace("$(JOB_COMPLETION_INDEX)", "2")
            .replace("/experiment/experiment.toml", "x.toml")
            .replace("/results/", "r/")
    };
    let args: Vec<String> =
        container["args"].as_array().unwrap().iter().map(|arg| place(arg.as_str().unwrap())).collect();
    ends(dir.path(), &args.iter().map(String::as_str).collect::<Vec<_>>(), 0);
    let record = json(&dir.path().join("r/sweep-1/2/record.json"));
    assert_eq!(
        (&record["shard"], &record["planned_cells"]),
        (&serde_json::json!({"index": 2, "count": 3}), &2.into())
    );
}

#[test]
fn what_no_job_can_run_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
    write("x.toml", FILE);
    write("docker.toml", &FILE.replace("units", "place = 'docker'\nunits"));
    write("tasks.toml", "name = 'x'\n[machine]\ncpus = 1\n[[task]]\nkind = 'spin'\n");
    write("machine.toml", &FILE.replace("[[tenant]]", "[machine]\ncpus = 1\n[[tenant]]"));
    write("odd.toml", &FILE.replace("tabs", "\u{2028}"));
    write("large.toml", &format!("{FILE}# {}\n", "x".repeat(1_000_000)));
    write("wrong.toml", &FILE.replace("run_s", "run_sec"));
    let path = ["--host-path", "/r"];
    for (args, part) in [
        (vec!["x.toml", "--nodes", "2"], "--host-path"),
        (vec!["x.toml", "--claim", "c"], "--nodes"),
        (vec!["x.toml", "--nodes", "3", path[0], path[1]], "2 repetitions cannot be split into 3 shards"),
        (vec!["x.toml", "--nodes", "0", path[0], path[1]], "0 is not in 1..=10000"),
        (vec!["x.toml", "--nodes", "2", "--simulate", "2", path[0], path[1]], "cannot be used with"),
        (vec!["x.toml", "--nodes", "2", "--cpus", "2", path[0], path[1]], "--cpus is for --simulate"),
        (vec!["x.toml", "--simulate", "7", path[0], path[1]], "6 cells cannot be split"),
        (vec!["x.toml", "--simulate", "2", path[0], path[1]], "give --cpus and --kernel"),
        (
            vec!["machine.toml", "--simulate", "2", "--cpus", "2", path[0], path[1]],
            "describes its machine itself",
        ),
        (vec!["tasks.toml", "--simulate", "1", path[0], path[1]], "has no tenants"),
        (vec!["docker.toml", "--nodes", "1", path[0], path[1]], "use cgroup or process"),
        (vec!["odd.toml", "--nodes", "1", path[0], path[1]], "line 9: a character"),
        (vec!["large.toml", "--nodes", "1", path[0], path[1]], "a ConfigMap holds"),
        (vec!["wrong.toml", "--nodes", "1", path[0], path[1]], "wrong.toml: line 7"),
        (vec!["none.toml", "--nodes", "1", path[0], path[1]], "cannot read none.toml"),
        (vec!["cpu-units-equal", "--nodes", "1", path[0], path[1]], "sized for the host"),
        (vec!["x.toml", "--nodes", "1", "--host-path", "r"], "full path"),
        (vec!["x.toml", "--nodes", "1", "--host-path", "/r/../etc"], "full path"),
        (vec!["x.toml", "--nodes", "1", "--host-path", "/"], "full path"),
        (vec!["x.toml", "--nodes", "1", "--host-path", "/a\"b"], "plain characters"),
        (vec!["x.toml", "--nodes", "1", "--claim", ""], "plain characters"),
        (vec!["x.toml", "--nodes", "1", "--claim", "c", "--image", "a\nb"], "plain characters"),
        (vec!["x.toml", "--nodes", "1", "--claim", "c", "--name", "A"], "small letters"),
        (vec!["x.toml", "--nodes", "1", "--claim", "c", "-o", "json"], "no output json"),
    ] {
        let said = ends(dir, &[&["lab", "job"], args.as_slice()].concat(), 2);
        assert!(said.contains(part), "{args:?}: {said}");
    }
}
