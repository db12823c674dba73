//! What happens while the loop runs, for whoever watches: on stderr.

use evenkeel_console as console;

use super::{Failure, stop};

#[derive(Debug)]
pub struct ConsoleSink {
    terminal: bool,
}

impl ConsoleSink {
    /// From now on signals stop the loop instead of ending the program.
    pub fn new() -> Result<Self, Failure> {
        stop::on_signals()?;
        Ok(Self { terminal: console::is_watched() })
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
}
