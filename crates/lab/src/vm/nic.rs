//! Network cards of machines: a tap device on a bridge, a macvtap on the uplink, a virtual function of a real card.
//!
//! ```text
//!   virtio    sender eth0 ===== up0 -- bridge sw0 -- t<i> (tap)        -- guest i
//!   macvtap   sender eth0 ===== up0 -- t<i> (macvtap, mode bridge)     -- guest i
//!   vf        sender VF 0 --[switch inside the card]-- VF i+1 -- t<i> (macvtap, mode passthru) -- guest i
//! ```
//!
//! The guest sees virtio-net in each case; a virtual function is handed through as libvirt's `<interface type='direct'>`
//! with mode `passthrough` does, which needs neither an IOMMU nor VFIO.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::net::NetError;
use crate::net::iproute::ip;
use crate::net::namespace::Namespace;

/// How a machine is connected.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum VmNic {
    /// A tap device on a bridge.
    Virtio,
    /// A macvtap on the uplink.
    Macvtap,
    /// A virtual function (SR-IOV) of a network card of this host.
    Vf,
}

/// The card's address, from the machine's: macvtap takes only what is sent to its own.
pub fn mac(address: Ipv4Addr) -> String {
    let [_, _, high, low] = address.octets();
    format!("52:54:00:77:{high:02x}:{low:02x}")
}

/// Makes a macvtap of a link in a namespace and opens it. It goes with the namespace.
///
/// # Errors
/// This kernel has no macvtap, the link is not there, its device cannot be opened.
pub fn macvtap(
    namespace: &Namespace,
    parent: &str,
    mode: &str,
    name: &str,
    mac: &str,
) -> Result<OwnedFd, NetError> {
    ip(
        namespace,
        &format!(
            "link add link {parent} name {name} address {mac} type macvtap mode {mode}\nlink set dev {name} up\n"
        ),
    )?;
    let numbers = namespace.run_with_sysfs(|sys| device_numbers(&sys.join("class/net").join(name)));
    let opened = numbers.and_then(|(major, minor)| namespace.run(|| open_device(major, minor)));
    opened.map_err(|error| NetError::system(format!("opening the device of macvtap {name}"), error))
}

/// Major and minor number of a macvtap's device: `LINK/tapN/dev` or `LINK/macvtap/tapN/dev`.
fn device_numbers(link: &Path) -> io::Result<(u32, u32)> {
    for dir in [link.to_owned(), link.join("macvtap")] {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if !entry.file_name().as_bytes().starts_with(b"tap") {
                continue;
            }
            let Ok(text) = fs::read_to_string(entry.path().join("dev")) else { continue };
            let numbers =
                text.trim().split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            return numbers.ok_or_else(|| io::Error::other(format!("{text:?} is no device number")));
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("{} has no tap device", link.display())))
}

/// Opens a character device by its numbers. The one in `/dev` would be named after the link's index, which another
/// namespace's link may have, too: a node of our own, gone before this returns.
fn open_device(major: u32, minor: u32) -> io::Result<OwnedFd> {
    let path = Path::new("/dev").join(crate::launch::names::fresh_name());
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a valid C string and numbers.
    let made = unsafe { libc::mknod(name.as_ptr(), libc::S_IFCHR | 0o600, libc::makedev(major, minor)) };
    if made != 0 {
        return Err(io::Error::last_os_error());
    }
    let opened = File::options().read(true).write(true).open(&path);
    let _ = fs::remove_file(&path);
    Ok(opened?.into())
}

/// A network card that can be divided into virtual functions.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Card {
    name: String,
    /// Functions it could have (`sriov_totalvfs`).
    most: u32,
    /// Functions switched on (`sriov_numvfs`).
    on: u32,
    /// Links of those that nobody has switched on or bound to something else.
    free: Vec<String>,
}

/// Links of `count` virtual functions of one card that nobody uses.
///
/// # Errors
/// In words what this host lacks, and how it is had.
pub fn free_functions(sys: &Path, count: usize) -> Result<Vec<String>, String> {
    let cards = cards(sys);
    if let Some(card) = cards.iter().find(|card| card.free.len() >= count) {
        return Ok(card.free[..count].to_vec());
    }
    if cards.is_empty() {
        return Err("no network card of this host can be divided (SR-IOV): there is no \
             /sys/class/net/*/device/sriov_totalvfs; use macvtap"
            .into());
    }
    let each: Vec<String> = cards
        .iter()
        .map(|card| {
            let Card { name, most, on, free } = card;
            match on {
                0 => format!(
                    "{name} has no virtual function switched on (sriov_numvfs is 0, up to {most}; echo {} \
                     >/sys/class/net/{name}/device/sriov_numvfs makes them)",
                    (count as u32).min(*most)
                ),
                _ => format!("{name} has {} unused of its {on} virtual functions", free.len()),
            }
        })
        .collect();
    Err(format!(
        "{count} unused virtual functions of one card are needed (one for the sender): {}",
        each.join("; ")
    ))
}

/// Cards with SR-IOV, by name.
fn cards(sys: &Path) -> Vec<Card> {
    let links = sys.join("class/net");
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u32>().ok();
    let mut found: Vec<Card> = fs::read_dir(&links)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let device = entry.path().join("device");
            let most = number(device.join("sriov_totalvfs")).filter(|most| *most > 0)?;
            let on = number(device.join("sriov_numvfs"))?;
            let mut free: Vec<(u32, String)> = (0..on)
                .filter_map(|index| {
                    let nets = fs::read_dir(device.join(format!("virtfn{index}")).join("net")).ok()?;
                    let name = nets.flatten().next()?.file_name().into_string().ok()?;
                    is_down(&links.join(&name)).then_some((index, name))
                })
                .collect();
            free.sort();
            let free = free.into_iter().map(|(_, name)| name).collect();
            Some(Card { name: entry.file_name().into_string().ok()?, most, on, free })
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Whether a link is switched off: `flags` in hexadecimal, IFF_UP is 1.
fn is_down(link: &Path) -> bool {
    let flags = fs::read_to_string(link.join("flags")).ok();
    flags
        .and_then(|text| u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok())
        .is_some_and(|flags| flags & 1 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        evenkeel_linux::testing::lay(&dir.path().join("class/net"), files);
        dir
    }

    #[test]
    fn unused_virtual_functions_are_found_and_their_lack_is_explained() {
        let none = tree(&[("lo/flags", "0x9\n")]);
        assert!(free_functions(none.path(), 2).unwrap_err().contains("no network card"));
        let off = tree(&[("eth2/device/sriov_totalvfs", "8\n"), ("eth2/device/sriov_numvfs", "0\n")]);
        let error = free_functions(off.path(), 3).unwrap_err();
        assert!(
            error.contains("eth2 has no virtual function switched on") && error.contains("echo 3"),
            "{error}"
        );
        let on = tree(&[
            ("eth2/device/sriov_totalvfs", "8\n"),
            ("eth2/device/sriov_numvfs", "3\n"),
            ("eth2/device/virtfn0/net/eth2v0/flags", "0x1002\n"),
            ("eth2/device/virtfn1/net/eth2v1/flags", "0x1003\n"),
            ("eth2/device/virtfn2/net/eth2v2/flags", "0x1002\n"),
            ("eth2v0/flags", "0x1002\n"),
            ("eth2v1/flags", "0x1003\n"),
            ("eth2v2/flags", "0x1002\n"),
        ]);
        assert_eq!(free_functions(on.path(), 2), Ok(vec!["eth2v0".to_owned(), "eth2v2".to_owned()]));
        let error = free_functions(on.path(), 3).unwrap_err();
        assert!(error.contains("eth2 has 2 unused of its 3"), "{error}");
    }

    #[test]
    fn a_macvtaps_device_is_found_by_either_path() {
        for path in ["t0/tap7/dev", "t0/macvtap/tap7/dev"] {
            let dir = tree(&[(path, "240:3\n")]);
            assert_eq!(device_numbers(&dir.path().join("class/net/t0")).unwrap(), (240, 3));
        }
        let dir = tree(&[("t0/flags", "0x1\n")]);
        assert_eq!(
            device_numbers(&dir.path().join("class/net/t0")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
