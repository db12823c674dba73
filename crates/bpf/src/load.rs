//! Loading: the checks that tell a user why it cannot be, the embedded objects, and the kernel's types.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use aya::programs::tp_btf::BtfTracePointLink;
use aya::programs::{BtfTracePoint, Program, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader};

use crate::BpfError;

/// Inode numbers of the first pid and time namespace (`PROC_PID_INIT_INO` and `PROC_TIME_INIT_INO`,
/// include/linux/proc_ns.h).
const FIRST_NAMESPACES: [(&str, u64); 2] = [("pid", 0xEFFF_FFFC), ("time", 0xEFFF_FFFA)];
const BTF: &str = "/sys/kernel/btf/vmlinux";
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
/// Bits of `CapEff` in `/proc/self/status`, include/uapi/linux/capability.h.
const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_PERFMON: u64 = 1 << 38;
const CAP_BPF: u64 = 1 << 39;

/// Embeds an object of the build script, aligned as the loader needs it.
macro_rules! object {
    ($name:literal) => {
        aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o"))
    };
}
pub(crate) use object;

/// The running kernel's types, and a loader that knows them.
#[derive(Debug)]
pub struct Types {
    btf: Btf,
    /// Has read them for itself: there is no way to make one that has not (`EbpfLoader::new` in aya 0.14).
    loader: Mutex<EbpfLoader<'static>>,
    /// The last to be dropped.
    _memory: GivenBack,
}

/// Gives what was freed back to the kernel: the C library keeps it for itself otherwise, where a little of it is still used.
#[derive(Debug)]
struct GivenBack;

impl Drop for GivenBack {
    fn drop(&mut self) {
        #[cfg(target_env = "gnu")]
        // SAFETY: touches nothing that is in use.
        unsafe {
            libc::malloc_trim(0)
        };
    }
}

/// What somebody in this process still holds.
static HELD: Mutex<Weak<Types>> = Mutex::new(Weak::new());

/// The running kernel's types. Reading them takes tens of milliseconds of CPU and megabytes, so whoever asks while somebody
/// holds them gets the same: hold them while everything that is needed is loaded, then drop them.
///
/// # Errors
/// Why programs cannot be used here, as far as that can be told before trying: [`BpfError::NoBtf`],
/// [`BpfError::NotAllowed`], [`BpfError::LockedDown`], [`BpfError::Namespace`]; or BTF that cannot be parsed.
pub fn kernel_types() -> Result<Arc<Types>, BpfError> {
    if !Path::new(BTF).exists() {
        return Err(BpfError::NoBtf);
    }
    for (kind, first) in FIRST_NAMESPACES {
        if std::fs::metadata(format!("/proc/self/ns/{kind}")).is_ok_and(|ns| ns.ino() != first) {
            return Err(BpfError::Namespace(kind));
        }
    }
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    if !may_load(&read("/proc/self/status")) {
        return Err(BpfError::NotAllowed("it takes root, or the capabilities CAP_BPF and CAP_PERFMON"));
    }
    if forbids_reading(&read(LOCKDOWN)) {
        return Err(BpfError::LockedDown);
    }
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(types) = held.upgrade() {
        return Ok(types);
    }
    let btf = Btf::from_sys_fs().map_err(|error| BpfError::refused("reading the kernel's types", error))?;
    let types = Arc::new(Types { btf, loader: Mutex::new(EbpfLoader::new()), _memory: GivenBack });
    *held = Arc::downgrade(&types);
    Ok(types)
}

/// Whether the capabilities suffice for tracing programs; unknown is yes, the kernel will tell.
fn may_load(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(held) = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()) else { return true };
    held & CAP_SYS_ADMIN != 0 || held & (CAP_BPF | CAP_PERFMON) == CAP_BPF | CAP_PERFMON
}

/// Whether the kernel is locked down so far that programs may not read its memory: `none integrity [confidentiality]`.
fn forbids_reading(lockdown: &str) -> bool {
    lockdown.contains("[confidentiality]")
}

/// Creates the maps of an object, some with another number of entries than it says, and relocates its programs, with other
/// values of some of its constants; none of them is loaded yet. What different objects have by one name needs its number each
/// time: the loader keeps the last.
pub fn open(
    object: &[u8],
    types: &Types,
    entries: &[(&'static str, u32)],
    constants: &[(&'static str, &'static u32)],
) -> Result<Ebpf, BpfError> {
    let mut loader = types.loader.lock().unwrap_or_else(PoisonError::into_inner);
    for (map, entries) in entries {
        loader.map_max_entries(map, *entries);
    }
    for (name, value) in constants {
        loader.override_global(name, *value, false);
    }
    loader.load(object).map_err(|error| BpfError::refused("loading", error))
}

impl Types {
    pub(crate) fn btf(&self) -> &Btf {
        &self.btf
    }
}

/// CPUs there may be, which maps have a place for each of.
pub(crate) fn possible_cpus() -> Result<u32, BpfError> {
    let cpus = aya::util::nr_cpus()
        .map_err(|(file, error)| BpfError::Refused { what: file, reason: error.to_string() })?;
    Ok(u32::try_from(cpus).unwrap_or(u32::MAX).max(1))
}

/// A program of an object by its name.
pub(crate) fn program<'a, P>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut P, BpfError>
where
    &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or_else(|| missing(name))?;
    program.try_into().map_err(|error: ProgramError| BpfError::refused(name, error))
}

/// Loads a program for a tracepoint and attaches it.
pub(crate) fn attach(
    ebpf: &mut Ebpf,
    name: &'static str,
    tracepoint: &'static str,
    types: &Types,
) -> Result<(), BpfError> {
    load(ebpf, name, tracepoint, types)?;
    let program: &mut BtfTracePoint = program(ebpf, name)?;
    program.attach().map_err(|error| BpfError::refused(tracepoint, error))?;
    Ok(())
}

/// Loads a program for a tracepoint; [`attach_loaded`] sets it to work.
pub(crate) fn load(
    ebpf: &mut Ebpf,
    name: &'static str,
    tracepoint: &'static str,
    types: &Types,
) -> Result<(), BpfError> {
    let program: &mut BtfTracePoint = program(ebpf, name)?;
    program.load(tracepoint, types.btf()).map_err(|error| BpfError::refused(tracepoint, error))
}

/// A program that was loaded is at work for as long as what is returned lives.
pub(crate) fn attach_loaded(ebpf: &mut Ebpf, name: &'static str) -> Result<BtfTracePointLink, BpfError> {
    let program: &mut BtfTracePoint = program(ebpf, name)?;
    let id = program.attach().map_err(|error| BpfError::refused(name, error))?;
    program.take_link(id).map_err(|error| BpfError::refused(name, error))
}

/// A map of an object by its name; the object no longer has it.
pub(crate) fn take_map(ebpf: &mut Ebpf, name: &'static str) -> Result<aya::maps::Map, BpfError> {
    ebpf.take_map(name).ok_or_else(|| missing(name))
}

/// A map or program is not there.
pub(crate) fn missing(name: &'static str) -> BpfError {
    BpfError::Refused { what: name, reason: "not in the object".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_that_suffice() {
        let may = |held: u64| may_load(&format!("Name:\tx\nCapEff:\t{held:016x}\nCapBnd:\t0\n"));
        assert!(may(CAP_SYS_ADMIN) && may(CAP_BPF | CAP_PERFMON) && may(u64::MAX));
        assert!(!may(0) && !may(CAP_BPF) && !may(CAP_PERFMON) && !may(!CAP_SYS_ADMIN & !CAP_BPF));
        // A kernel or a tree that does not say leaves it to the trial.
        assert!(may_load("") && may_load("CapEff:\tx\n"));
    }

    #[test]
    fn only_confidentiality_forbids_reading() {
        assert!(forbids_reading("none integrity [confidentiality]\n"));
        assert!(!forbids_reading("none [integrity] confidentiality\n"));
        assert!(!forbids_reading("[none] integrity confidentiality\n") && !forbids_reading(""));
    }
}
