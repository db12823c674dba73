//! Loading: the checks that tell a user why it cannot be, the embedded objects, and the kernel's types.

use std::path::Path;

use aya::{Btf, Ebpf, EbpfLoader};

use crate::BpfError;

/// Inode number of the first pid namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
const BTF: &str = "/sys/kernel/btf/vmlinux";

/// Embeds an object of the build script, aligned as the loader needs it.
macro_rules! object {
    ($name:literal) => {
        aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o"))
    };
}
pub(crate) use object;

/// The running kernel's types. Parsing them takes tens of milliseconds and megabytes: load what is needed, then drop it.
///
/// # Errors
/// [`BpfError::NoBtf`], [`BpfError::PidNamespace`], or BTF that cannot be parsed.
pub fn kernel_types() -> Result<Btf, BpfError> {
    if !Path::new(BTF).exists() {
        return Err(BpfError::NoBtf);
    }
    use std::os::unix::fs::MetadataExt;
    if std::fs::metadata("/proc/self/ns/pid").is_ok_and(|ns| ns.ino() != FIRST_PID_NAMESPACE) {
        return Err(BpfError::PidNamespace);
    }
    Btf::from_sys_fs().map_err(|error| BpfError::refused("reading the kernel's types", error))
}

/// Creates the maps of an object and relocates its programs; none of them is loaded yet.
///
/// # Errors
/// As the kernel or the loader says.
pub fn open(object: &[u8], btf: &Btf) -> Result<Ebpf, BpfError> {
    EbpfLoader::new().btf(Some(btf)).load(object).map_err(|error| BpfError::refused("loading", error))
}
