//! Whatever reads what somebody else wrote, fed with what nobody would write: text and bytes from a file, a kernel, a runtime, a
//! tool, a socket or an option.
//!
//! A [`Target`] is a name and a function of the input; [`targets`] lists them, one file for each crate's parsers. The function
//! panics where an answer makes no sense. [`check`](check::check) runs it once and reports a panic, too much memory, or more
//! CPU time than the length of the input explains.
//!
//! `make fuzz` gives each target ten minutes under libFuzzer, which looks for inputs that reach new code. `cargo test` replays
//! `corpus/` and adds some seconds of [drawn changes](mutate). What either finds is made small and kept in
//! `corpus/TARGET/`, where every later run begins.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod check;
pub mod corpus;
pub mod memory;
pub mod mutate;
pub mod targets;

/// Longest input, bytes: long enough that time with the square of the length shows, short enough to be tried often.
pub const LONGEST: usize = 64 << 10;

/// One parser, or several that read the same.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name: on the command line, and of its folder in the corpus.
    pub name: &'static str,
    /// What is done with an input.
    pub run: Run,
    /// Files of this repository that are samples of its input, or folders whose files with this ending are.
    pub samples: &'static [&'static str],
    /// How many times more CPU time than other targets it may take: patterns are compiled, loads are a command line.
    pub heavy: u32,
}

/// What a target takes.
#[derive(Debug, Clone, Copy)]
pub enum Run {
    /// Text: bytes that are not UTF-8 are replaced, as the readers of kernel files do.
    Text(fn(&str)),
    Bytes(fn(&[u8])),
}

impl Target {
    pub const fn text(name: &'static str, run: fn(&str)) -> Self {
        Self { name, run: Run::Text(run), samples: &[], heavy: 1 }
    }

    pub const fn bytes(name: &'static str, run: fn(&[u8])) -> Self {
        Self { name, run: Run::Bytes(run), samples: &[], heavy: 1 }
    }

    /// With samples that are in the repository anyway: a file, or `FOLDER/*ENDING`.
    #[must_use]
    pub const fn samples(self, samples: &'static [&'static str]) -> Self {
        Self { samples, ..self }
    }

    /// That may take so many times more CPU time than others.
    #[must_use]
    pub const fn heavy(self, heavy: u32) -> Self {
        Self { heavy, ..self }
    }

    pub fn call(&self, input: &[u8]) {
        match self.run {
            Run::Text(run) => run(&String::from_utf8_lossy(input)),
            Run::Bytes(run) => run(input),
        }
    }
}
