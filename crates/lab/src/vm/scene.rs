//! Virtual machines on a bridge, each serving flows, or computing.

use std::fs;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use evenkeel_base::CpuSet;

use super::VmError;
use super::image::{self, Image};
use super::machine::{Accel, Machine, Spec, tap};
use super::nic::{VmNic, free_functions, mac, macvtap};
use crate::launch::group::LabGroup;
use crate::mounts::CgroupMounts;
use crate::net::NetError;
use crate::net::figures::split;
use crate::net::iproute::ip;
use crate::net::measure::{Measured, Served, Timing, measure};
use crate::net::scene::PORT;
use crate::net::steering::steer;
use crate::net::wiring::{Nic, UPLINK, Wiring, tenant_address};
use evenkeel_workload::Kind;
use evenkeel_workload::load::LoadSpec;
use evenkeel_workload::rr::{Role, Rr};

/// Memory of a guest, MiB: kernel, initramfs twice (packed and unpacked), and a load.
const MEMORY_MIB: u32 = 320;
/// How long guests may take to come up: emulated ones take seconds each, one after the other on few CPUs.
pub const BOOT_WITHIN: Duration = Duration::from_secs(60);

/// What all machines of an experiment share.
#[derive(Debug)]
pub struct Stock {
    image: Image,
    /// What runs the guests' instructions.
    pub accel: Accel,
    /// Why it is not KVM; empty when it is.
    pub why: String,
}

impl Stock {
    /// Makes the image and finds out whether KVM boots a guest, by booting one.
    ///
    /// # Errors
    /// No qemu, no kernel; a guest that does not even boot when emulated says so later.
    pub fn prepare(cache: &Path, binary: &Path, wanted: Option<Accel>) -> Result<Self, VmError> {
        super::machine::find_emulator()?;
        let image = image::make(cache, binary)?;
        let (accel, why) = match wanted {
            Some(accel) => (accel, String::new()),
            None => match try_kvm(&image) {
                Ok(()) => (Accel::Kvm, String::new()),
                Err(why) => (Accel::Tcg, why),
            },
        };
        Ok(Self { image, accel, why })
    }

    /// What machines boot.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Release of the guests' kernel.
    pub fn kernel(&self) -> &str {
        &self.image.release
    }
}

/// Boots a guest under KVM; why that does not work.
fn try_kvm(image: &Image) -> Result<(), String> {
    if let Err(error) = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        return Err(format!("/dev/kvm: {error}"));
    }
    let spec = Spec {
        name: format!("{}probe", crate::launch::names::PREFIX),
        vcpus: 1,
        memory_mib: MEMORY_MIB,
        accel: Accel::Kvm,
        tap: None,
        load: vec!["idle".into()],
        cpus: None,
    };
    let booted = Machine::start(image, spec).and_then(|mut machine| machine.wait_up(Duration::from_secs(10)));
    booted.map_err(|error| {
        format!("/dev/kvm is there, but boots no guest: {}", error.to_string().lines().next().unwrap_or(""))
    })
}

/// Machines that serve flows.
#[derive(Debug)]
pub struct VmScene {
    // Machines first: their tap devices are in the switch's namespace.
    machines: Vec<Machine>,
    network: Network,
    flows: u32,
}

impl VmScene {
    /// Boots `count` machines of `vcpus` vCPUs with a server each for its share of `flows` flows.
    ///
    /// # Errors
    /// See [`VmError`]; nothing is left then.
    pub fn build(
        stock: &Stock,
        nic: VmNic,
        count: usize,
        vcpus: u32,
        flows: u32,
        steered: Option<&CpuSet>,
    ) -> Result<Self, VmError> {
        let each = split(flows, count).map_err(NetError::Parameters)?;
        let network = Network::build(nic, count, steered)?;
        let mut scene = Self { machines: Vec::new(), network, flows };
        for index in 0..count {
            let fd = scene.network.card(index)?;
            let address = SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), PORT);
            let mut load = LoadSpec::new(Kind::Rr(Rr::new(Role::Server, address, each)));
            load.common.threads = Some(each);
            let spec = Spec {
                name: name(index),
                vcpus,
                memory_mib: MEMORY_MIB,
                accel: stock.accel,
                tap: Some((fd, tenant_address(index))),
                load: load.arguments(),
                cpus: None,
            };
            scene.machines.push(Machine::start(&stock.image, spec)?);
        }
        for machine in &mut scene.machines {
            machine.wait_up(BOOT_WITHIN)?;
        }
        Ok(scene)
    }

    pub fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// Measures once; the flows are new each time.
    pub fn measure(&self, timing: Timing) -> Result<Measured, NetError> {
        let servers: Vec<Served<'_>> = self
            .machines
            .iter()
            .enumerate()
            .map(|(index, machine)| Served {
                name: machine.name().to_owned(),
                address: SocketAddr::new(tenant_address(index).into(), PORT),
                pids: vec![machine.pid()],
                link: Some((&self.network.wiring.switch, link(index))),
            })
            .collect();
        measure(&self.network.wiring.sender, &servers, self.flows, timing)
    }
}

/// The network of machines, without them.
#[derive(Debug)]
struct Network {
    wiring: Wiring,
    nic: VmNic,
    /// Links of virtual functions in the switch's namespace, one a machine.
    functions: Vec<String>,
}

impl Network {
    fn build(nic: VmNic, count: usize, steered: Option<&CpuSet>) -> Result<Self, NetError> {
        let (wiring, functions) = match nic {
            VmNic::Virtio => (Wiring::build(Nic::Veth, 0)?, Vec::new()),
            VmNic::Macvtap => (Wiring::build(Nic::Macvlan, 0)?, Vec::new()),
            VmNic::Vf => {
                if steered.is_some() {
                    return Err(NetError::Parameters(
                        "RPS is set on the uplink, and machines on virtual functions have none: use --rps off".into(),
                    ));
                }
                let found = free_functions(Path::new("/sys"), count + 1).map_err(NetError::Parameters)?;
                (Wiring::of_links(&found)?, found[1..].to_vec())
            }
        };
        if let Some(cpus) = steered {
            steer(&wiring.switch, UPLINK, cpus)?;
        }
        Ok(Self { wiring, nic, functions })
    }

    /// A machine's card as a descriptor.
    fn card(&self, index: usize) -> Result<OwnedFd, NetError> {
        let (switch, link) = (&self.wiring.switch, link(index));
        let mac = mac(tenant_address(index));
        match self.nic {
            VmNic::Virtio => {
                let fd = tap(switch, &link)?;
                ip(switch, &format!("link set dev {link} master sw0 up\n"))?;
                Ok(fd)
            }
            VmNic::Macvtap => macvtap(switch, UPLINK, "bridge", &link, &mac),
            VmNic::Vf => macvtap(switch, &self.functions[index], "passthru", &link, &mac),
        }
    }
}

fn link(index: usize) -> String {
    format!("t{index}")
}

fn name(index: usize) -> String {
    format!("{}{}-vm{index}", crate::launch::names::PREFIX, std::process::id())
}

/// Machines that compute, each in a cgroup with a weight.
#[derive(Debug)]
pub struct CpuScene {
    /// The machines, in the order of their weights.
    pub machines: Vec<Machine>,
    groups: Vec<LabGroup>,
}

impl CpuScene {
    /// Boots a machine for each weight (100 is the default of cgroup v2), which spins on all its vCPUs.
    ///
    /// # Errors
    /// See [`VmError`]; nothing is left then.
    pub fn build(stock: &Stock, weights: &[u64], vcpus: u32, cpus: Option<&CpuSet>) -> Result<Self, VmError> {
        let mounts = CgroupMounts::find().map_err(crate::launch::LaunchError::from)?;
        let mut scene = Self { machines: Vec::new(), groups: Vec::new() };
        for (index, weight) in weights.iter().enumerate() {
            let group = LabGroup::make(&mounts, &crate::launch::names::fresh_name())?;
            group.set_weight(*weight)?;
            let load = vec!["spin".into(), format!("--threads={vcpus}")];
            let spec = Spec {
                name: name(index),
                vcpus,
                memory_mib: MEMORY_MIB,
                accel: stock.accel,
                tap: None,
                load,
                cpus,
            };
            let machine = Machine::start(&stock.image, spec)?;
            group.admit(machine.pid())?;
            scene.machines.push(machine);
            scene.groups.push(group);
        }
        for machine in &mut scene.machines {
            machine.wait_up(BOOT_WITHIN)?;
        }
        Ok(scene)
    }

    /// qemu's processes.
    pub fn pids(&self) -> Vec<u32> {
        self.machines.iter().map(Machine::pid).collect()
    }
}
