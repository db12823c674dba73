//! `evenkeel lab list`.

use evenkeel_lab::builtin::BUILTINS;
use evenkeel_lab::fairness::plan::Which;
use serde_json::json;

use crate::cli::{Failure, Format, Global, Outcome};

/// List the built-in experiments.
///
/// Example: evenkeel lab list
#[derive(Debug, clap::Args)]
pub struct Args {}

pub fn run(global: &Global, _args: Args) -> Outcome {
    match global.output {
        Format::Text => {
            let width = BUILTINS.iter().map(|b| b.name.len()).max().unwrap_or(0);
            for builtin in BUILTINS {
                println!("{:width$}  {}", builtin.name, builtin.about);
            }
            for which in Which::ALL {
                println!("{:width$}  {}", which.name(), which.about());
            }
        }
        Format::Json => {
            let experiments: Vec<_> = BUILTINS
                .iter()
                .map(|b| json!({"name": b.name, "about": b.about, "sources": b.sources}))
                .chain(Which::ALL.map(|w| json!({"name": w.name(), "about": w.about(), "sources": []})))
                .collect();
            println!("{:#}", json!({"schema": "evenkeel.lab-list/v1", "experiments": experiments}));
        }
        Format::Csv => {
            println!("name,about");
            for builtin in BUILTINS {
                println!("{},\"{}\"", builtin.name, builtin.about.replace('"', "\"\""));
            }
            for which in Which::ALL {
                println!("{},\"{}\"", which.name(), which.about());
            }
        }
        Format::Svg => {
            return Err(Failure::Usage(anyhow::anyhow!("lab list has no picture: use -o text, json or csv")));
        }
    }
    Ok(0)
}
