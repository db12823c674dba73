//! Network namespaces that nothing but an open descriptor keeps alive.
//!
//! They have no name and no mount under `/run/netns`: when this process ends, however it ends (`kill -9` too), the
//! kernel closes the descriptor, and the namespace goes with everything in it: links, their other ends in other
//! namespaces, addresses, bridges, queueing disciplines. There is nothing for a later start to sweep up, and nothing of
//! the host's own network is touched, so no name can clash with a link that exists.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use evenkeel_linux::children::check;

use super::NetError;

/// A network namespace made by us; gone when this and everything running in it is gone.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    fd: OwnedFd,
}

impl Namespace {
    /// Makes a new one, with nothing in it but a `lo` that is up. `name` is for messages only.
    ///
    /// # Errors
    /// [`NetError::Denied`] without CAP_SYS_ADMIN; [`NetError::System`] where the kernel has no network namespaces or
    /// no room for more (`user.max_net_namespaces`).
    pub fn make(name: impl Into<String>) -> Result<Self, NetError> {
        let name = name.into();
        let made = on_thread(|| {
            // SAFETY: takes flags only; acts on the calling thread, which is ours and ends below.
            check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
            Ok(File::open("/proc/thread-self/ns/net")?.into())
        });
        let fd: OwnedFd = made.map_err(|error| {
            if error.raw_os_error() == Some(libc::EPERM) {
                NetError::Denied("network namespaces need root (CAP_SYS_ADMIN)".into())
            } else {
                NetError::system("cannot make a network namespace", error)
            }
        })?;
        let namespace = Self { name, fd };
        super::iproute::ip(&namespace, "link set dev lo up\n")?;
        Ok(namespace)
    }

    /// The name it was given, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The descriptor that keeps it alive, for `setns` in a child.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Another descriptor of the same namespace.
    pub fn handle(&self) -> Result<OwnedFd, NetError> {
        self.fd.try_clone().map_err(|e| NetError::system("cannot copy a descriptor", e))
    }

    /// Runs a closure on a thread inside. Sockets it makes stay in this namespace wherever they are used afterwards.
    pub fn run<T: Send>(&self, inside: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_thread(|| {
            enter(self.fd.as_fd())?;
            inside()
        })
    }

    /// As [`Namespace::run`], with `/sys` showing this namespace's devices, in a mount namespace that ends with the
    /// thread.
    ///
    /// # Errors
    /// As [`Namespace::run`], and that `/sys` cannot be mounted.
    pub fn run_with_sysfs<T: Send>(
        &self,
        inside: impl FnOnce(&Path) -> io::Result<T> + Send,
    ) -> io::Result<T> {
        on_thread(|| {
            enter(self.fd.as_fd())?;
            // SAFETY: takes flags only; acts on the calling thread.
            check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
            let (none, root, sysfs, sys) =
                (c"none".as_ptr(), c"/".as_ptr(), c"sysfs".as_ptr(), c"/sys".as_ptr());
            // SAFETY: valid C strings; a null file system type and null data are allowed here.
            check(unsafe {
                libc::mount(none, root, std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE, std::ptr::null())
            })?;
            // SAFETY: valid C strings; sysfs takes no data. Private: the host's mounts do not see it.
            check(unsafe { libc::mount(sysfs, sys, sysfs, 0, std::ptr::null()) })?;
            inside(Path::new("/sys"))
        })
    }
}

/// Puts the calling thread into a network namespace. Only async-signal-safe calls: fit for `pre_exec`.
pub fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: an open descriptor and a flag; acts on the calling thread only.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })
}

/// A thread of its own: what it does to its namespaces ends with it.
fn on_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("lab-netns".into()).spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread in a network namespace failed")))
    })
}
