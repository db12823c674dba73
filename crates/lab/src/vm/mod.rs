//! Virtual machines as tenants: plain qemu, a kernel from a Debian package, and evenkeel itself as the guest's first
//! process.
//!
//! * [`image`]: the kernel, and an initramfs made on the spot; [`guest`]: what runs inside.
//! * [`machine`]: one machine, from its start to its end; [`nic`]: how it is connected; [`scene`]: several, serving flows.
//!
//! A machine has no disk, no name outside this process but its process's, and dies with its starter. KVM is used where
//! it boots a guest; else the processor is emulated (TCG), which is recorded with every result: emulated guests are
//! tens of times slower at what they do, so that figures tell about sharing, not about speed.

use std::io;
use std::path::PathBuf;

use crate::net::NetError;

pub mod cpio;
pub mod guest;
pub mod image;
pub mod machine;
pub mod nic;
pub mod scene;

/// Why a virtual machine could not be used.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    #[error("{program} is not installed: apt-get install {package}")]
    Missing { program: String, package: &'static str },
    #[error("no kernel for guests: {0}; name one with EVENKEEL_VM_KERNEL=/path/to/vmlinuz")]
    NoKernel(String),
    #[error("{name} did not come up: {what}; its console's last lines:\n{console}")]
    NotUp { name: String, what: String, console: String },
    /// A system call or file failed.
    #[error("{what}: {error}")]
    System { what: String, error: io::Error },
    /// Its network.
    #[error(transparent)]
    Net(#[from] NetError),
    /// Its cgroup.
    #[error(transparent)]
    Tenant(#[from] crate::launch::LaunchError),
    #[error("{path}: {what}", path = path.display())]
    Result { path: PathBuf, what: String },
}

impl VmError {
    /// An error of the operating system with what was tried.
    pub fn system(what: impl Into<String>, error: impl Into<io::Error>) -> Self {
        Self::System { what: what.into(), error: error.into() }
    }
}
