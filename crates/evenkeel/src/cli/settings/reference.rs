//! The commented example and the reference are what the program reads: every key, its default, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use super::*;

/// Keys that files may still have and that do nothing.
const VOID: [&str; 1] = ["recheck"];

fn repository(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

fn example() -> String {
    std::fs::read_to_string(repository("examples/evenkeel.toml")).unwrap()
}

fn parsed(text: &str) -> anyhow::Result<Config> {
    of_text(&global(&[]), Path::new("example"), text)
}

fn global(args: &[&str]) -> Global {
    use clap::Parser as _;
    crate::cli::Cli::try_parse_from([&["evenkeel"], args, &["status"]].concat()).unwrap().global
}

/// One key as the example has it.
#[derive(Debug, Clone, PartialEq)]
struct Key {
    table: String,
    name: String,
    value: String,
    about: String,
    /// Not commented out.
    set: bool,
}

/// The keys with what stands above them, and what stands above each table.
fn keys(text: &str) -> (Vec<Key>, BTreeMap<String, String>) {
    let (mut keys, mut tables) = (Vec::new(), BTreeMap::new());
    let (mut table, mut about) = (String::new(), String::new());
    for line in text.lines() {
        let bare = line.strip_prefix('#').unwrap_or(line);
        if let Some(words) = line.strip_prefix("# ") {
            about = format!("{about} {words}").trim_start().to_owned();
        } else if bare.starts_with('[') {
            table = bare.to_owned();
            tables.insert(table.clone(), std::mem::take(&mut about));
        } else if let Some((name, value)) = bare.split_once(" = ") {
            let (name, value) = (name.to_owned(), value.to_owned());
            let about = std::mem::take(&mut about);
            keys.push(Key { table: table.clone(), name, value, about, set: !line.starts_with('#') });
        } else {
            about.clear();
        }
    }
    (keys, tables)
}

/// The keys that a table of the types has, as the parser names them when it meets another.
fn known(table: &str) -> BTreeSet<String> {
    let text = format!("{table}\nno_such_key = 1\n");
    let error = toml::from_str::<File>(&text).unwrap_err().to_string();
    let list = error.split_once("expected").unwrap().1;
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_example_parses_and_is_the_defaults() {
    let (example, nothing) = (parsed(&example()).unwrap(), parsed("").unwrap());
    assert_eq!(format!("{example:#?}"), format!("{nothing:#?}"));
}

#[test]
fn what_the_example_has_commented_out_parses_too() {
    let text: Vec<String> = example()
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(bare) if !bare.starts_with(' ') => bare.to_owned(),
            _ => line.to_owned(),
        })
        .collect();
    let config = parsed(&text.join("\n")).unwrap();
    assert_eq!((config.guarantees.stated.len(), config.protect.len()), (1, 2));
    assert!(config.guarantees.labels.is_some() && config.guarantees.reserved.is_some());
    assert!(config.limit.is_some() && config.background.is_some());
    assert_eq!(config.rules.least_pct, 20.0);
    let slo = config.protect[0].slo.as_ref().unwrap();
    assert_eq!((slo.quantile, slo.bound_s, slo.unit_s, slo.labels["path"].as_str()), (0.99, 0.05, 1.0, "/"));
    assert_eq!(config.protect[1].slo.as_ref().unwrap().unit_s, 0.001);
    assert_eq!(config.protect[0].protection.requests, Some(slo.target()));
}

#[test]
fn every_key_is_in_the_example_once_with_an_explanation() {
    let (keys, tables) = keys(&example());
    let of_types = known("");
    let named: BTreeSet<String> = tables.keys().map(|t| t.trim_matches(['[', ']']).to_owned()).collect();
    assert_eq!(named, of_types, "tables");
    for table in tables.keys() {
        let here: Vec<&Key> = keys.iter().filter(|key| key.table == *table).collect();
        let names: BTreeSet<String> = here.iter().map(|key| key.name.clone()).collect();
        let mut expected = known(table);
        expected.retain(|key| !VOID.contains(&key.as_str()));
        assert_eq!(names, expected, "{table}");
        assert_eq!(names.len(), here.len(), "{table}: a key stands there twice");
        for key in here {
            assert!(key.about.len() > 10, "{table} {}: not explained", key.name);
        }
    }
}

#[test]
fn the_reference_is_current() {
    let (keys, tables) = keys(&example());
    let mut page = String::from(
        "# Configuration\n\n\
         <!-- Made from examples/evenkeel.toml; after a change: EVENKEEL_WRITE_DOCS=1 cargo test --workspace reference -->\n\n    \
         # evenkeel --config host.toml plan        # what this configuration would do; nothing is written\n\n\
         `run`, `plan`, `check` and `serve` read `--config FILE`, else `/etc/evenkeel/config.toml` where that file exists. The form is\n\
         TOML. A key that is not known, or a value that cannot be, ends the command with status 2 and names file and line. Options of\n\
         the command line win. [examples/evenkeel.toml](../examples/evenkeel.toml) is the same as a file: every key with its default.\n",
    );
    let mut order: Vec<&str> = Vec::new();
    keys.iter().for_each(|key| {
        if order.last() != Some(&key.table.as_str()) {
            order.push(&key.table);
        }
    });
    for table in order {
        let about = tables[table].as_str();
        // What stands above the first table is about the file.
        let about = if table == "[run]" { "What `run` and `plan` do." } else { about };
        write!(
            page,
            "\n## `{table}`\n\n{about}\n\n| key | default | example | meaning |\n|---|---|---|---|\n"
        )
        .unwrap();
        for key in keys.iter().filter(|key| key.table == table) {
            let value = format!("`{}`", key.value);
            let (default, example) = if key.set { (value.as_str(), "") } else { ("", value.as_str()) };
            writeln!(page, "| `{}` | {default} | {example} | {} |", key.name, key.about).unwrap();
        }
    }
    page.push_str("\n`[run] recheck` of earlier versions is still read. It has no effect, and a line on stderr says so.\n");
    let path = repository("docs/configuration.md");
    if std::env::var_os("EVENKEEL_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == page,
        "docs/configuration.md is old: EVENKEEL_WRITE_DOCS=1 cargo test --workspace reference"
    );
}

#[test]
fn the_file_of_the_host_counts_where_no_other_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let default = dir.path().join("config.toml");
    assert_eq!(chosen(&global(&[]), &default).unwrap(), None);
    std::fs::write(&default, "").unwrap();
    assert_eq!(chosen(&global(&[]), &default).unwrap(), Some(default.clone()));
    assert_eq!(chosen(&global(&["--config", "x"]), &default).unwrap(), Some("x".into()));
    assert_eq!(chosen(&global(&["--root", "/tree"]), &default).unwrap(), None);
}
