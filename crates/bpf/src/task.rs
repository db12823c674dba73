//! What every task has used.

use std::io::Read;

use aya::programs::Iter;
use aya::{Btf, Ebpf};

use crate::BpfError;
use crate::load::{self, object};

/// The iterator program in the kernel.
pub struct TaskProbe {
    ebpf: Ebpf,
}

impl TaskProbe {
    /// Loads it.
    ///
    /// # Errors
    /// The kernel cannot or may not; one line says why.
    pub fn load(btf: &Btf) -> Result<Self, BpfError> {
        let mut ebpf = load::open(object!("task"), btf)?;
        let program: &mut Iter = ebpf
            .program_mut("tasks")
            .ok_or(BpfError::NoBtf)?
            .try_into()
            .map_err(|error| BpfError::refused("loading", error))?;
        program.load("task", btf).map_err(|error| BpfError::refused("loading", error))?;
        Ok(Self { ebpf })
    }

    /// One pass over all tasks.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn read(&mut self, buffer: &mut Vec<u8>) -> Result<(), BpfError> {
        let program: &mut Iter = self
            .ebpf
            .program_mut("tasks")
            .ok_or(BpfError::NoBtf)?
            .try_into()
            .map_err(|e| BpfError::refused("iterator", e))?;
        let id = program.attach().map_err(|e| BpfError::refused("iterator", e))?;
        let link = program.take_link(id).map_err(|e| BpfError::refused("iterator", e))?;
        let mut file = link.into_file().map_err(|e| BpfError::refused("iterator", e))?;
        buffer.clear();
        file.read_to_end(buffer)?;
        Ok(())
    }
}
