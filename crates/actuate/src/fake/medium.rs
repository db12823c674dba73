//! The disk in memory.

use std::io;
use std::path::PathBuf;
use std::sync::MutexGuard;

use super::{FakeMedium, State, stop};
use crate::medium::{Medium, Survives};

impl FakeMedium {
    /// Begins an operation; a crash stops after `half` has been done.
    fn begin(&self, half: impl FnOnce(&mut State)) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.0.lock();
        let (result, crash) = state.step();
        if crash {
            half(&mut state);
            drop(state);
            stop();
        }
        match result {
            Ok(()) => Ok(state),
            Err(_) => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }

    fn writable(&self, half: impl FnOnce(&mut State)) -> io::Result<MutexGuard<'_, State>> {
        let state = self.begin(half)?;
        if state.disk_full { Err(io::Error::from_raw_os_error(libc::ENOSPC)) } else { Ok(state) }
    }
}

impl Medium for FakeMedium {
    fn load(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.begin(|_| {})?.journal.clone())
    }

    fn replace(&mut self, bytes: &[u8], survives: Survives) -> io::Result<()> {
        let mut state = self.writable(|_| {})?;
        state.journal = Some(bytes.to_vec());
        state.waits += u64::from(survives == Survives::Boot);
        Ok(())
    }

    fn append(&mut self, bytes: &[u8], survives: Survives) -> io::Result<()> {
        let half = |state: &mut State| {
            let half = &bytes[..bytes.len() * 2 / 3];
            state.journal.get_or_insert_default().extend_from_slice(half);
        };
        let mut state = self.writable(half)?;
        state.journal.get_or_insert_default().extend_from_slice(bytes);
        state.waits += u64::from(survives == Survives::Boot);
        Ok(())
    }

    fn set_aside(&mut self, rest: Option<&[u8]>) -> io::Result<PathBuf> {
        let mut state = if rest.is_some() { self.writable(|_| {})? } else { self.begin(|_| {})? };
        let journal = std::mem::replace(&mut state.journal, rest.map(<[u8]>::to_vec));
        state.aside.push(journal.unwrap_or_default());
        Ok(PathBuf::from(format!("journal.corrupt-{}", state.aside.len())))
    }

    fn remove(&mut self) -> io::Result<()> {
        self.remove_decision()?;
        self.begin(|_| {})?.journal = None;
        Ok(())
    }

    fn load_decision(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.begin(|_| {})?.decision.clone())
    }

    fn replace_decision(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writable(|_| {})?.decision = Some(bytes.to_vec());
        Ok(())
    }

    fn remove_decision(&mut self) -> io::Result<()> {
        self.begin(|_| {})?.decision = None;
        Ok(())
    }

    fn name(&self) -> PathBuf {
        "journal".into()
    }
}
