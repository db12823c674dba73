//! Waits of every task of a command, those that ended included: the kernel's taskstats.
//!
//! A task's `run_delay` is gone with the task. The kernel tells it at every exit to whoever registered for it
//! (`Documentation/accounting/taskstats.rst`, generic netlink, needs CAP_NET_ADMIN and the initial namespaces).
//! Exits of the whole host arrive; which of them were the command's follows from the parents: whoever
//! ends has a parent that ends later, and orphans come to us (`PR_SET_CHILD_SUBREAPER`).

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use evenkeel_linux::process::sees_every_process;

const NETLINK_GENERIC: libc::c_int = 16;
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const TASKSTATS_CMD_GET: u8 = 1;
const TASKSTATS_CMD_ATTR_REGISTER_CPUMASK: u16 = 3;
const TASKSTATS_TYPE_STATS: u16 = 3;
const TASKSTATS_TYPE_AGGR_PID: u16 = 4;
const HEADER: usize = 16;
const GENL_HEADER: usize = 4;
/// Offsets in `struct taskstats` (`include/uapi/linux/taskstats.h`), which only ever grows at its end.
const OFFSET_DELAY_TOTAL: usize = 24;
const OFFSET_PID: usize = 128;
const OFFSET_PPID: usize = 132;
const OFFSET_NVCSW: usize = 272;
const OFFSET_NIVCSW: usize = 280;

/// What one thread had when it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exit {
    pub tid: u32,
    pub ppid: u32,
    /// Time runnable but not running, nanoseconds.
    pub waited_ns: u64,
    pub voluntary: u64,
    pub involuntary: u64,
}

/// Sums over the threads of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub waited_ns: u64,
    pub voluntary: u64,
    pub involuntary: u64,
}

impl Sum {
    pub fn add(&mut self, more: Self) {
        self.waited_ns = self.waited_ns.saturating_add(more.waited_ns);
        self.voluntary = self.voluntary.saturating_add(more.voluntary);
        self.involuntary = self.involuntary.saturating_add(more.involuntary);
    }
}

/// Sums up the exits, in the order they were told, of the descendants of `root`. `alive` are processes of the command
/// that have not ended.
///
/// A parent's own exit is told after its child's, but for two that end at the same instant on two CPUs, so the nearest
/// telling of the parent's number is the parent: a number comes back only after thousands of others.
pub(super) fn descendants(exits: &[Exit], root: u32, alive: &BTreeSet<u32>) -> Sum {
    let mut at: HashMap<u32, Vec<usize>> = HashMap::new();
    for (index, exit) in exits.iter().enumerate() {
        at.entry(exit.tid).or_default().push(index);
    }
    let parent_of = |index: usize| {
        let tellings = at.get(&exits[index].ppid)?;
        let after = tellings.partition_point(|&i| i < index);
        let near = [after.checked_sub(1), Some(after)].into_iter().flatten().filter_map(|i| tellings.get(i));
        near.copied().min_by_key(|&i| (i.abs_diff(index), i < index))
    };
    // Unknown, or whether it belongs to the command; a chain of parents is followed once.
    let mut known: Vec<Option<bool>> = vec![None; exits.len()];
    let mut sum = Sum::default();
    for start in 0..exits.len() {
        let (mut chain, mut index) = (Vec::new(), start);
        let belongs = loop {
            if let Some(known) = known[index] {
                break known;
            }
            // A circle of reused numbers: not ours.
            known[index] = Some(false);
            chain.push(index);
            let ppid = exits[index].ppid;
            if ppid == root || alive.contains(&ppid) {
                break true;
            }
            match parent_of(index) {
                Some(parent) if parent != index => index = parent,
                _ => break false,
            }
        };
        for index in chain {
            known[index] = Some(belongs);
        }
        if belongs {
            let Exit { waited_ns, voluntary, involuntary, .. } = exits[start];
            sum.add(Sum { waited_ns, voluntary, involuntary });
        }
    }
    sum
}

/// Exits that are remembered until their sum is taken: the host's, whoever's they are.
const MOST: usize = 1 << 18;

/// Exits told by the kernel.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    exits: Vec<Exit>,
    /// Of those that are not remembered any more.
    sum: Sum,
    /// The kernel had more to tell than the socket could hold.
    lost: bool,
    buffer: Vec<u8>,
}

impl Listener {
    /// Registers for the exits on all CPUs.
    ///
    /// # Errors
    /// No privilege, no taskstats in this kernel, or a namespace the kernel does not tell about.
    pub fn open() -> io::Result<Self> {
        // The kernel tells the numbers of the first one.
        if !sees_every_process()? {
            return Err(io::Error::other("not in the host's pid namespace"));
        }
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: creates a descriptor, owned from here on.
        let socket = unsafe {
            let fd = libc::socket(libc::AF_NETLINK, kind, NETLINK_GENERIC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let size: libc::c_int = 8 << 20;
        // SAFETY: the option's value is a c_int that lives through the call. Refusal leaves the default size.
        unsafe {
            let at = (&raw const size).cast();
            let len = size_of::<libc::c_int>() as libc::socklen_t;
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, at, len);
        }
        let (exits, sum, buffer) = (Vec::new(), Sum::default(), vec![0; 64 << 10]);
        let mut listener = Self { socket, exits, sum, lost: false, buffer };
        let family = listener.family()?;
        let cpus = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
        let mut mask = cpus.trim().as_bytes().to_vec();
        mask.push(0);
        let message =
            message(family, TASKSTATS_CMD_GET, true, &[(TASKSTATS_CMD_ATTR_REGISTER_CPUMASK, &mask)]);
        listener.send(&message)?;
        // The answer is an acknowledgement, but exits may come before it.
        listener.wait(|kind, body| (kind == libc::NLMSG_ERROR as u16).then(|| status(body)))??;
        Ok(listener)
    }

    fn family(&mut self) -> io::Result<u16> {
        let message =
            message(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, false, &[(CTRL_ATTR_FAMILY_NAME, b"TASKSTATS\0")]);
        self.send(&message)?;
        self.wait(|kind, body| {
            if kind == libc::NLMSG_ERROR as u16 {
                return Some(Err(status(body)
                    .err()
                    .unwrap_or_else(|| io::Error::other("no answer about taskstats"))));
            }
            let found = attributes(body.get(GENL_HEADER..)?).find(|(kind, _)| *kind == CTRL_ATTR_FAMILY_ID);
            found.and_then(|(_, value)| Some(Ok(u16::from_ne_bytes(value.get(..2)?.try_into().ok()?))))
        })?
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        // SAFETY: the kernel reads exactly the bytes of the message.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Receives until `wanted` finds its answer, at most a second.
    fn wait<T>(&mut self, mut wanted: impl FnMut(u16, &[u8]) -> Option<T>) -> io::Result<T> {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(1);
        loop {
            let mut found = None;
            self.receive(|kind, body| found = found.take().or_else(|| wanted(kind, body)))?;
            if let Some(found) = found {
                return Ok(found);
            }
            if std::time::Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }

    /// Takes all that has arrived.
    fn receive(&mut self, mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        loop {
            let at = self.buffer.as_mut_ptr().cast();
            // SAFETY: the kernel writes at most the length of the buffer.
            let n = unsafe { libc::recv(self.socket.as_raw_fd(), at, self.buffer.len(), 0) };
            match usize::try_from(n) {
                Ok(n) => {
                    for (kind, body) in messages(&self.buffer[..n]) {
                        if let Some(exit) = exit_of(kind, body) {
                            self.exits.push(exit);
                        }
                        each(kind, body);
                    }
                }
                Err(_) => match io::Error::last_os_error() {
                    e if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    e if e.kind() == io::ErrorKind::Interrupted => {}
                    e if e.raw_os_error() == Some(libc::ENOBUFS) => self.lost = true,
                    e => return Err(e),
                },
            }
        }
    }

    /// Takes all that has arrived.
    fn drain(&mut self) {
        if self.receive(|_, _| ()).is_err() {
            self.lost = true;
        }
    }

    /// As [`Self::drain`], while the command runs: once exits are many, they are summed up and forgotten. `alive` says which descendants
    /// of this process have not ended. An exit whose parent is none of them, and is no exit itself, is a stranger's.
    pub fn drain_some(&mut self, alive: impl FnOnce() -> BTreeSet<u32>) {
        // In this order: whoever ends in between is among the exits.
        let alive = (self.exits.len() >= MOST).then(alive);
        self.drain();
        if let Some(alive) = alive {
            self.sum.add(descendants(&self.exits, std::process::id(), &alive));
            self.exits.clear();
        }
    }

    /// The sum over the descendants of this process so far, and whether anything was lost.
    pub fn sum(&self, alive: &BTreeSet<u32>) -> (Sum, bool) {
        let mut sum = descendants(&self.exits, std::process::id(), alive);
        sum.add(self.sum);
        (sum, self.lost)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn aligned(len: usize) -> usize {
    (len + 3) & !3
}

fn message(family: u16, command: u8, acknowledge: bool, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut body = vec![command, 1, 0, 0];
    for (kind, value) in attributes {
        body.extend(((value.len() + 4) as u16).to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(*value);
        body.resize(aligned(body.len()), 0);
    }
    let flags = libc::NLM_F_REQUEST | if acknowledge { libc::NLM_F_ACK } else { 0 };
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend((flags as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let body = bytes.get(HEADER..len)?;
        bytes = bytes.get(aligned(len)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// The threads that what was received tells of.
pub(crate) fn exits_in(bytes: &[u8]) -> impl Iterator<Item = Exit> {
    messages(bytes).filter_map(|(kind, body)| exit_of(kind, body))
}

fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
        let value = bytes.get(4..len)?;
        bytes = bytes.get(aligned(len)..).unwrap_or_default();
        Some((kind & 0x3fff, value))
    })
}

fn status(body: &[u8]) -> io::Result<()> {
    let code = body.get(..4).and_then(|code| Some(i32::from_ne_bytes(code.try_into().ok()?)));
    match code {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        None => Err(io::Error::other("a netlink error without a code")),
    }
}

/// The thread a message tells of; sums over a process (`AGGR_TGID`) are left out, its threads were told one by one.
fn exit_of(kind: u16, body: &[u8]) -> Option<Exit> {
    if kind == libc::NLMSG_ERROR as u16 || kind == GENL_ID_CTRL {
        return None;
    }
    let (_, aggregate) =
        attributes(body.get(GENL_HEADER..)?).find(|(kind, _)| *kind == TASKSTATS_TYPE_AGGR_PID)?;
    let (_, stats) = attributes(aggregate).find(|(kind, _)| *kind == TASKSTATS_TYPE_STATS)?;
    let four = |at: usize| Some(u32::from_ne_bytes(stats.get(at..at + 4)?.try_into().ok()?));
    let eight = |at: usize| Some(u64::from_ne_bytes(stats.get(at..at + 8)?.try_into().ok()?));
    Some(Exit {
        tid: four(OFFSET_PID)?,
        ppid: four(OFFSET_PPID)?,
        waited_ns: eight(OFFSET_DELAY_TOTAL)?,
        voluntary: eight(OFFSET_NVCSW)?,
        involuntary: eight(OFFSET_NIVCSW)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exit(tid: u32, ppid: u32, waited_ns: u64) -> Exit {
        Exit { tid, ppid, waited_ns, voluntary: 1, involuntary: 0 }
    }

    #[test]
    fn only_descendants_are_summed() {
        // 10 is us; 11 our child, 12 its child, 13 an orphan of 12 that came to us; 21 and 22 strangers
        let exits = [exit(12, 11, 1), exit(22, 21, 100), exit(21, 1, 100), exit(13, 10, 2), exit(11, 10, 4)];
        assert_eq!(
            descendants(&exits, 10, &BTreeSet::new()),
            Sum { waited_ns: 7, voluntary: 3, involuntary: 0 }
        );
        // The child of one that still runs.
        assert_eq!(descendants(&[exit(31, 30, 8)], 10, &BTreeSet::from([30])).waited_ns, 8);
        assert_eq!(descendants(&[exit(31, 30, 8)], 10, &BTreeSet::new()).waited_ns, 0);
    }

    #[test]
    fn a_reused_number_is_told_apart_by_nearness() {
        // 12 ends as our grandchild (under 11), later 12 and 11 come back as strangers.
        let mut exits = vec![exit(12, 11, 1), exit(11, 10, 2)];
        exits.extend((0..50).map(|n| exit(1000 + n, 1, 100)));
        exits.extend([exit(12, 11, 100), exit(11, 1, 100)]);
        assert_eq!(descendants(&exits, 10, &BTreeSet::new()).waited_ns, 3);
        // A circle is nobody's.
        assert_eq!(descendants(&[exit(5, 6, 1), exit(6, 5, 1)], 10, &BTreeSet::new()).waited_ns, 0);
    }

    #[test]
    fn a_hosts_exits_of_days_are_summed_up_and_forgotten() {
        let own = std::process::id();
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut listener = Listener {
            socket: socket.into(),
            exits: vec![exit(1000, 1, 100); MOST - 2],
            sum: Sum::default(),
            lost: false,
            buffer: vec![0; 64],
        };
        listener.exits.extend([exit(31, 30, 8), exit(12, own, 1)]);
        listener.drain_some(|| BTreeSet::from([30]));
        assert_eq!((listener.exits.len(), listener.sum.waited_ns), (0, 9));
        listener.exits.push(exit(30, own, 4));
        listener.drain_some(|| unreachable!("few are no matter"));
        assert_eq!(listener.sum(&BTreeSet::new()).0.waited_ns, 13);
    }

    proptest! {
        #[test]
        fn any_forest_is_summed_by_its_tree(parents in proptest::collection::vec(0usize..30, 1..30)) {
            // Task i+1 has a parent among 0..=i; 0 is us when even, a stranger when the chain ends at task 1 (odd root).
            let parent = |i: usize| parents[i] % (i + 1);
            let mut belongs = vec![true];
            for i in 0..parents.len() {
                belongs.push(if i == 0 { parents[0] % 2 == 0 } else { belongs[parent(i)] && (parent(i) != 0 || parents[i] % 2 == 0) });
            }
            // Ended in reverse order of birth: children before parents.
            let exits: Vec<Exit> = (0..parents.len()).rev().map(|i| {
                let stranger = parent(i) == 0 && parents[i] % 2 == 1;
                exit(100 + i as u32 + 1, if stranger { 1 } else { 100 + parent(i) as u32 }, 1 << i)
            }).collect();
            let expected: u64 = (0..parents.len()).filter(|&i| belongs[i + 1]).map(|i| 1u64 << i).sum();
            prop_assert_eq!(descendants(&exits, 100, &BTreeSet::new()).waited_ns, expected);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for (kind, body) in messages(&bytes) {
                let _ = (exit_of(kind, body), status(body));
            }
            let _ = attributes(&bytes).count();
        }
    }
}
