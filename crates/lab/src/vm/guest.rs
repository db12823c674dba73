//! Inside a guest: evenkeel as the first process. Mounts what a load needs, loads the drivers, sets the address, runs
//! the load, and tells on the console, between lines that start with `@@`, how it went.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::image::MODULE_DIR;

/// Said on the console when the load was started.
pub const READY: &str = "@@ready";
/// Said, with the status behind it, when the load has ended.
pub const EXIT: &str = "@@exit";
/// Said, with the ticks behind it, when the load has ended: steal of all CPUs as the guest counts it.
pub const STEAL: &str = "@@steal";
/// Said, with the reason behind it, when the guest could not start the load.
pub const FAILED: &str = "@@failed";

/// What the guest is to do.
#[derive(Debug, Clone, clap::Args)]
pub struct Guest {
    /// Address of eth0, in a network of 16 bits; none for a guest without network.
    #[arg(long)]
    pub address: Option<Ipv4Addr>,
    /// Arguments of `load`, joined by commas: the kernel's command line splits at blanks.
    #[arg(long)]
    pub load: String,
}

/// Does it, and switches the machine off. Does nothing in a process that is not the first: it would mount over a host.
pub fn main(guest: &Guest) -> io::Result<()> {
    if std::process::id() != 1 {
        return Err(io::Error::other("`guest` is for the first process of a virtual machine only"));
    }
    match run(guest) {
        Ok(status) => {
            if let Some(ticks) = steal_ticks() {
                report(format_args!("{STEAL} {ticks}"));
            }
            report(format_args!("{EXIT} {status}"));
        }
        Err(error) => report(format_args!("{FAILED} {error}")),
    }
    // The serial port has to be empty before the power goes.
    std::thread::sleep(Duration::from_millis(300));
    // SAFETY: takes a flag; ends the machine this process is the first of (checked above).
    unsafe { libc::reboot(libc::RB_POWER_OFF) };
    Ok(())
}

/// A line on the serial port, which the host reads. Where that is closed there is nobody to tell.
fn report(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{line}");
}

fn run(guest: &Guest) -> io::Result<i32> {
    for (kind, at) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        mount(kind, at)?;
    }
    if let Some(address) = guest.address {
        load_modules()?;
        set_up("lo", None)?;
        wait_for_link("eth0")?;
        set_up("eth0", Some(address))?;
    }
    let mut child =
        Command::new("/init").arg("load").args(guest.load.split(',')).stdin(Stdio::null()).spawn()?;
    report(format_args!("{READY}"));
    Ok(child.wait()?.code().unwrap_or(-1))
}

fn mount(kind: &str, at: &str) -> io::Result<()> {
    let (kind, target) = (CString::new(kind)?, CString::new(at)?);
    // SAFETY: valid C strings; these file systems take no data.
    let result = unsafe { libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) };
    let error = io::Error::last_os_error();
    // The kernel mounts devtmpfs itself where it is configured to.
    if result == 0 || error.raw_os_error() == Some(libc::EBUSY) {
        return Ok(());
    }
    Err(io::Error::other(format!("mounting {at}: {error}")))
}

/// Loads the drivers, whatever their dependencies: one that lacks another's symbols (ENOENT) is tried again.
fn load_modules() -> io::Result<()> {
    let mut waiting: Vec<_> =
        fs::read_dir(Path::new("/").join(MODULE_DIR))?.flatten().map(|e| e.path()).collect();
    waiting.sort();
    loop {
        let before = waiting.len();
        let mut refused = None;
        let mut left = Vec::new();
        for path in waiting {
            let file = File::open(&path)?;
            // SAFETY: an open descriptor, an empty parameter string, no flags.
            let result = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) };
            let error = io::Error::last_os_error();
            if result != 0 && error.raw_os_error() != Some(libc::EEXIST) {
                refused = Some(io::Error::other(format!("loading {}: {error}", path.display())));
                left.push(path);
            }
        }
        match refused {
            None => return Ok(()),
            Some(error) if left.len() == before => return Err(error),
            Some(_) => waiting = left,
        }
    }
}

fn wait_for_link(name: &str) -> io::Result<()> {
    let until = Instant::now() + Duration::from_secs(30);
    while !Path::new("/sys/class/net").join(name).exists() {
        if Instant::now() >= until {
            return Err(io::Error::other(format!("there is no {name}: no network card was found")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Gives a link its address in a network of 16 bits, if any, and switches it on.
fn set_up(name: &str, address: Option<Ipv4Addr>) -> io::Result<()> {
    // SAFETY: creates a socket; the result is checked.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just created, owned by no one else.
    let socket = unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(socket) };
    // SAFETY: a struct of plain numbers may be zero.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from as libc::c_char;
    }
    let ask = |code: libc::c_ulong, request: &mut libc::ifreq| {
        // SAFETY: an open socket and a request of the size these codes take.
        let result = unsafe { libc::ioctl(socket.as_raw_fd(), code as _, std::ptr::from_mut(request)) };
        if result < 0 {
            return Err(io::Error::other(format!("setting up {name}: {}", io::Error::last_os_error())));
        }
        Ok(())
    };
    if let Some(address) = address {
        for (code, value) in
            [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, Ipv4Addr::new(255, 255, 0, 0))]
        {
            let internet = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: 0,
                sin_addr: libc::in_addr { s_addr: u32::from(value).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: both are plain structs of 16 bytes; the kernel reads it as what the family says.
            request.ifr_ifru.ifru_addr =
                unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(internet) };
            ask(code as libc::c_ulong, &mut request)?;
        }
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    ask(libc::SIOCSIFFLAGS as libc::c_ulong, &mut request)
}

/// Steal of all CPUs since boot, in ticks of 10 ms.
fn steal_ticks() -> Option<u64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    text.lines().next()?.split_ascii_whitespace().nth(8)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_refuses_to_run_on_a_host() {
        let guest = Guest { address: None, load: "spin".into() };
        assert!(main(&guest).unwrap_err().to_string().contains("virtual machine only"));
    }
}
