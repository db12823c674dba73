//! The traffic class of each packet by the group its socket is of (`bpf/classify.bpf.c`), for `tc` to attach.

use std::path::Path;

use aya::programs::SchedClassifier;
use aya::{Ebpf, EbpfLoader, Pod};

use crate::BpfError;
use crate::load::{object, program};

/// Owners that one classifier tells apart.
pub const MOST: usize = 200;

/// Whose packets get which class.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owner {
    /// Inode of a cgroup v2 ...
    pub id: u64,
    /// ... and its depth; 0 where `id` is a `net_cls` class.
    pub level: u32,
    pub class: u32,
}

// SAFETY: `repr(C)` without padding, any bits are a value.
unsafe impl Pod for Owner {}

#[derive(Debug)]
pub struct Classifier(Ebpf);

impl Classifier {
    /// Loads it, with [`MOST`] owners at most.
    pub fn load(owners: &[Owner]) -> Result<Self, BpfError> {
        let mut table = [Owner::default(); MOST];
        table.iter_mut().zip(owners).for_each(|(to, from)| *to = *from);
        let count = owners.len() as u32;
        let mut ebpf = EbpfLoader::new()
            .override_global("COUNT", &count, true)
            .override_global("OWNERS", &table, true)
            .load(object!("classify"))
            .map_err(|error| BpfError::refused("loading", error))?;
        let classify: &mut SchedClassifier = program(&mut ebpf, "classify")?;
        classify.load().map_err(|error| BpfError::refused("classify", error))?;
        Ok(Self(ebpf))
    }

    /// Makes it a file of a BPF file system.
    pub fn pin(&mut self, path: &Path) -> Result<(), BpfError> {
        let classify: &mut SchedClassifier = program(&mut self.0, "classify")?;
        classify.pin(path).map_err(|error| BpfError::refused("pinning the classifier", error))
    }
}
