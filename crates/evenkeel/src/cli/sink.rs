//! What happens while the loop runs, for whoever watches: on stderr.

use std::collections::BTreeSet;

use evenkeel_console as console;

use super::{Failure, stop};

/// Lines that are remembered.
const MOST: usize = 200;

#[derive(Debug)]
pub struct ConsoleSink {
    terminal: bool,
    once: BTreeSet<String>,
}

impl ConsoleSink {
    /// From now on signals stop the loop instead of ending the program.
    pub fn new() -> Result<Self, Failure> {
        stop::on_signals()?;
        Ok(Self { terminal: console::is_watched(), once: BTreeSet::new() })
    }

    /// Whether somebody may be watching.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// A line that the next one replaces; terminals only.
    pub fn passing(&mut self, text: &str) {
        if self.terminal {
            console::passing(text);
        }
    }

    /// A line that stays.
    pub fn lasting(&mut self, text: &str) {
        say!("{text}");
    }

    /// A line that stays, unless it was there before.
    pub fn once(&mut self, text: String) {
        if self.is_new(text.clone()) {
            self.lasting(&text);
        }
    }

    fn is_new(&mut self, text: String) -> bool {
        self.once.len() < MOST && self.once.insert(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_once_is_said_once_and_is_not_remembered_without_end() {
        let mut sink = ConsoleSink { terminal: false, once: BTreeSet::new() };
        assert!(sink.is_new("a".into()) && !sink.is_new("a".into()) && sink.is_new("b".into()));
        let new = (0..2 * MOST).filter(|n| sink.is_new(n.to_string())).count();
        assert_eq!((new, sink.once.len()), (MOST - 2, MOST));
    }
}
