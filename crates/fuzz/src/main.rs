//! The targets under libFuzzer, which looks for inputs that reach new code. `scripts/fuzz.sh` builds it, with coverage, and starts
//! it by environment: `FUZZ_TARGET` names the target, `FUZZ_DO` what is done instead of fuzzing: `list`, `samples` (written to
//! the folder `FUZZ_PATH`) or `shrink` (the file `FUZZ_PATH`, into the corpus). libFuzzer takes the arguments.

#![no_main]

use std::io;
use std::path::Path;
use std::sync::OnceLock;

use evenkeel_fuzz::{Target, check, corpus, mutate, targets};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

struct Chosen {
    target: &'static Target,
    samples: Vec<Vec<u8>>,
}

static CHOSEN: OnceLock<Chosen> = OnceLock::new();

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// Ends the process where something else than fuzzing is to be done.
fn start() {
    if let Some(status) = prepare().unwrap_or_else(|error| {
        eprintln!("{error}");
        Some(2)
    }) {
        std::process::exit(status);
    }
}

fn prepare() -> io::Result<Option<i32>> {
    let (task, name, path) = (variable("FUZZ_DO"), variable("FUZZ_TARGET"), variable("FUZZ_PATH"));
    if task == "list" {
        targets::all().for_each(|target| println!("{}", target.name));
        return Ok(Some(0));
    }
    let unknown = || io::Error::other(format!("FUZZ_TARGET={name}: no such target"));
    let target = targets::all().find(|target| target.name == name).ok_or_else(unknown)?;
    let samples: Vec<Vec<u8>> = corpus::samples(target)?.into_iter().map(|(_, bytes)| bytes).collect();
    match task.as_str() {
        "samples" => {
            for (number, bytes) in samples.iter().enumerate() {
                std::fs::write(Path::new(&path).join(format!("sample-{number}")), bytes)?;
            }
            Ok(Some(0))
        }
        "shrink" => shrink(target, Path::new(&path)).map(Some),
        _ => {
            let _ = CHOSEN.set(Chosen { target, samples });
            Ok(None)
        }
    }
}

/// Makes an input that fails small and keeps it in the corpus.
fn shrink(target: &Target, file: &Path) -> io::Result<i32> {
    // libFuzzer's own hook would end the process.
    check::keep_panics_quiet();
    let small = check::smallest(target, &std::fs::read(file)?);
    match check::check(target, &small) {
        Ok(()) => println!("{}: {} does not fail any more", target.name, file.display()),
        Err(fault) => {
            let kept = corpus::keep(target, &small)?;
            println!("{}: {} of {} bytes: {fault}", target.name, kept.display(), small.len());
        }
    }
    Ok(0)
}

libfuzzer_sys::fuzz_target!(init: start(), |input: &[u8]| {
    let Some(chosen) = CHOSEN.get() else { return };
    if let Err(fault) = check::check(chosen.target, input) {
        eprintln!("{}: {fault}", chosen.target.name);
        std::process::abort();
    }
});

// Every other change is one of ours, which know words and numbers; the rest are libFuzzer's, which knows what was compared.
libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, longest: usize, seed: u32| {
    let mut random = StdRng::seed_from_u64(u64::from(seed));
    let ours = CHOSEN.get().filter(|_| random.random());
    let Some(chosen) = ours else { return libfuzzer_sys::fuzzer_mutate(data, size, longest) };
    // Most of what libFuzzer keeps is broken in some new way: what a tool really writes is where numbers get through.
    let whole = random.random_ratio(1, 3).then(|| chosen.samples.choose(&mut random)).flatten();
    let input = whole.map_or(&data[..size], |sample| &sample[..sample.len().min(longest)]);
    let changed = mutate::change(input, &chosen.samples, longest, &mut random);
    data[..changed.len()].copy_from_slice(&changed);
    changed.len()
});
