//! A BPF scheduler without a single program: tasks run in the order in which they come, from the kernel's own queue, and no quota
//! is enforced. It is in charge for as long as this process lives. Test material for what starts, ends and judges such schedulers:
//! `scx_fifo [NAME]`, which is called `fifo` in `/sys/kernel/sched_ext/root/ops` unless it has another name.
//!
//! No library of ours loads `struct sched_ext_ops`, so the four system calls are made by hand, and the kernel's types are read for
//! what they need: the structure's number and size, and where its name is.

use std::error::Error;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

type Failure = Box<dyn Error>;

/// See `union bpf_attr` in `include/uapi/linux/bpf.h`.
#[repr(C, align(8))]
#[derive(Default)]
struct Attributes([u32; 20]);

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const BTF_LOAD: libc::c_long = 18;
const LINK_CREATE: libc::c_long = 28;
const MAP_TYPE_STRUCT_OPS: u32 = 26;
const F_LINK: u32 = 1 << 13;
const ATTACH_STRUCT_OPS: u32 = 44;

impl Attributes {
    fn pointer(&mut self, at: usize, to: *const u8) {
        let bytes = (to as u64).to_ne_bytes();
        for half in 0..2 {
            let word = [0, 1, 2, 3].map(|byte| bytes[4 * half + byte]);
            self.0[at + half] = u32::from_ne_bytes(word);
        }
    }

    fn call(&self, command: libc::c_long) -> Result<i32, Failure> {
        // SAFETY: the kernel reads as many bytes as are said; pointers among them are the caller's, who keeps what they point to.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const self.0, size_of::<Self>()) };
        let error = io::Error::last_os_error();
        if result < 0 { Err(format!("bpf(2), command {command}: {error}").into()) } else { Ok(result as i32) }
    }

    fn open(&self, command: libc::c_long) -> Result<OwnedFd, Failure> {
        let fd = self.call(command)?;
        // SAFETY: a descriptor just returned by the kernel is open and ours alone.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// The kernel's types, see `Documentation/bpf/btf.rst`.
struct Types(Vec<u8>);

/// Types of our own, which a map must have, whatever is in them: an `int`.
fn own_types() -> Result<OwnedFd, Failure> {
    // The header (magic and version, lengths and places of types and names), and the type.
    let words: [u32; 10] = [0x0001_eb9f, 24, 0, 16, 16, 5, 1, 1 << 24, 4, 1 << 24 | 32];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).chain(*b"\0int\0").collect();
    let mut load = Attributes::default();
    load.pointer(0, bytes.as_ptr());
    load.0[4] = bytes.len() as u32;
    load.open(BTF_LOAD)
}

/// A structure: its number, its size, and where each member is, in bytes.
struct Structure {
    number: u32,
    size: usize,
    members: Vec<(String, usize)>,
}

impl Types {
    fn word(&self, at: usize) -> Result<u32, Failure> {
        let bytes = self.0.get(at..at + 4).ok_or("the kernel's types end early")?;
        Ok(u32::from_ne_bytes(bytes.try_into()?))
    }

    fn name(&self, strings: usize, offset: u32) -> Result<String, Failure> {
        let text = self.0.get(strings + offset as usize..).ok_or("a name beyond the end")?;
        let end = text.iter().position(|byte| *byte == 0).ok_or("a name without an end")?;
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }

    fn structure(&self, wanted: &str) -> Result<Structure, Failure> {
        let header = self.word(4)? as usize;
        let types = header + self.word(8)? as usize;
        let end = types + self.word(12)? as usize;
        let strings = header + self.word(16)? as usize;
        let (mut at, mut number) = (types, 1);
        while at < end {
            let (name, info, size) = (self.word(at)?, self.word(at + 4)?, self.word(at + 8)?);
            let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
            at += 12;
            if kind == 4 && self.name(strings, name)? == wanted {
                let member = |member: usize| -> Result<_, Failure> {
                    let at = at + 12 * member;
                    // Of a structure with bit fields the upper byte is a field's length.
                    let mask = if info >> 31 == 1 { 0x00ff_ffff } else { u32::MAX };
                    Ok((self.name(strings, self.word(at)?)?, (self.word(at + 8)? & mask) as usize / 8))
                };
                let members = (0..count).map(member).collect::<Result<_, _>>()?;
                return Ok(Structure { number, size: size as usize, members });
            }
            at += match kind {
                1 | 14 | 17 => 4,
                3 => 12,
                4 | 5 | 15 | 19 => 12 * count,
                6 | 13 => 8 * count,
                _ => 0,
            };
            number += 1;
        }
        Err(format!("this kernel has no structure {wanted}").into())
    }
}

impl Structure {
    fn member(&self, name: &str) -> Result<usize, Failure> {
        let found = self.members.iter().find(|(member, _)| member == name);
        Ok(found.ok_or_else(|| format!("no member {name}"))?.1)
    }
}

fn load(name: &str) -> Result<OwnedFd, Failure> {
    let types = Types(std::fs::read("/sys/kernel/btf/vmlinux")?);
    let value = types.structure("bpf_struct_ops_sched_ext_ops")?;
    let place = value.member("data")? + types.structure("sched_ext_ops")?.member("name")?;
    let mut map = Attributes::default();
    map.0[..5].copy_from_slice(&[MAP_TYPE_STRUCT_OPS, 4, value.size as u32, 1, F_LINK]);
    // btf_fd, btf_vmlinux_value_type_id
    let own = own_types()?;
    (map.0[12], map.0[15]) = (own.as_raw_fd() as u32, value.number);
    let map = map.open(MAP_CREATE)?;
    let fd = map.as_raw_fd() as u32;
    let mut ops = vec![0u8; value.size];
    ops.get_mut(place..place + name.len()).ok_or("too long a name")?.copy_from_slice(name.as_bytes());
    let key = 0u32;
    let mut update = Attributes::default();
    update.0[0] = fd;
    update.pointer(2, (&raw const key).cast());
    update.pointer(4, ops.as_ptr());
    update.call(MAP_UPDATE_ELEM)?;
    let mut link = Attributes::default();
    link.0[..3].copy_from_slice(&[fd, 0, ATTACH_STRUCT_OPS]);
    link.open(LINK_CREATE)
}

fn main() -> Result<(), Failure> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "fifo".to_owned());
    let _link = load(&name)?;
    loop {
        std::thread::park();
    }
}
