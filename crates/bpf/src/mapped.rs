//! A BPF map's memory, mapped for reading: what the kernel writes is read without calling it.

use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use aya::Pod;
use aya::maps::Map;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::BpfError;
use crate::load::missing;

/// The entries of an array with `BPF_F_MMAPABLE`. The size of an entry is a multiple of 8 bytes, so entries lie side by side.
#[derive(Debug)]
pub(crate) struct Mapped<T> {
    memory: NonNull<T>,
    entries: usize,
    of: PhantomData<T>,
}

// SAFETY: the memory belongs to the mapping, lives as long as it, and is only read, by whichever thread.
unsafe impl<T: Pod + Send> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T: Pod + Sync> Sync for Mapped<T> {}

impl<T: Pod> Mapped<T> {
    /// Of an array that has this many entries.
    pub fn new(map: &Map, entries: u32) -> Result<Self, BpfError> {
        const { assert!(size_of::<T>().is_multiple_of(8)) };
        let Map::Array(data) = map else { return Err(missing("an array that can be mapped")) };
        let entries = entries as usize;
        // SAFETY: a new mapping at an address of the kernel's choice; nothing else is changed.
        let memory = unsafe {
            let bytes = entries * size_of::<T>();
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, data.fd().as_fd(), 0)
        };
        let memory = memory.map_err(|error| BpfError::refused("mapping a ring", error))?;
        let memory = NonNull::new(memory.cast()).ok_or_else(|| missing("memory"))?;
        Ok(Self { memory, entries, of: PhantomData })
    }

    /// The entry as it is now; the kernel may be writing it.
    ///
    /// # Panics
    /// There is no such entry.
    pub fn read(&self, index: usize) -> T {
        assert!(index < self.entries, "entry {index} of {}", self.entries);
        // SAFETY: within the mapping, aligned (a page begins it), and any bits are a value of a `Pod`.
        unsafe { self.memory.as_ptr().add(index).read_volatile() }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` with this size, and nobody else has it.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.entries * size_of::<T>()) };
    }
}
