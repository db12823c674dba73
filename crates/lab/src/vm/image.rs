//! What a guest boots: a kernel from a Debian package and an initramfs made on the spot, of evenkeel's own binary (with
//! the libraries it was linked against, if any) and the kernel's drivers for virtio.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::VmError;
use super::cpio::Archive;
use crate::private::PrivateDir;

/// Drivers. One that is built into the kernel has no file: left out.
const MODULES: [&str; 9] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
    "virtio_mmio",
];
/// Directory of the modules inside.
pub const MODULE_DIR: &str = "modules";

/// A kernel and an initramfs; the latter is removed on drop.
#[derive(Debug)]
pub struct Image {
    pub kernel: PathBuf,
    /// Its release, as its file name has it.
    pub release: String,
    /// The initramfs; removed with the image.
    pub initramfs: PathBuf,
    _dir: PrivateDir,
}

/// Makes an image that runs `binary`. `cache` keeps the kernel's package, unpacked, between runs.
///
/// # Errors
/// No kernel is there and none can be had (no apt-get, no network), or the image cannot be written.
pub fn make(cache: &Path, binary: &Path) -> Result<Image, VmError> {
    let kernel = kernel(cache)?;
    let name = kernel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let release = name.trim_start_matches("vmlinuz-").to_owned();
    let modules = module_files(&kernel, &release);
    let dir = PrivateDir::temporary().map_err(|e| VmError::system("making a directory", e))?;
    let image = Image { kernel, release, initramfs: dir.path().join("initramfs"), _dir: dir };
    write(&image.initramfs, &[("init", binary)], &modules)
        .map_err(|e| VmError::system(format!("making {}", image.initramfs.display()), e))?;
    Ok(image)
}

/// A kernel for guests: the one that `EVENKEEL_VM_KERNEL` names, an installed one, or the distribution's, which `cache` keeps.
///
/// # Errors
/// None is there and none can be had (no apt-get, no network).
pub fn kernel(cache: &Path) -> Result<PathBuf, VmError> {
    if let Some(named) = std::env::var_os("EVENKEEL_VM_KERNEL") {
        let named = PathBuf::from(named);
        return match File::open(&named) {
            Ok(_) => Ok(named),
            Err(error) => Err(VmError::NoKernel(format!("{}: {error}", named.display()))),
        };
    }
    // An installed kernel with its modules, then what an earlier run fetched.
    for boot in [Path::new("/boot"), &cache.join("boot")] {
        if let Some(kernel) = newest_kernel(boot) {
            return Ok(kernel);
        }
    }
    fetch(cache)?;
    newest_kernel(&cache.join("boot"))
        .ok_or_else(|| VmError::NoKernel("the package holds no boot/vmlinuz-*".into()))
}

fn newest_kernel(boot: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(boot).ok()?.flatten().map(|entry| entry.path());
    entries
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-")))
        .filter(|path| File::open(path).is_ok())
        // A kernel whose drivers are not there has no network.
        .filter(|path| {
            let release = path.file_name().unwrap_or_default().to_string_lossy().replace("vmlinuz-", "");
            !module_files(path, &release).is_empty()
        })
        .max_by_key(|path| (numbers(path), path.clone()))
}

/// The numbers in a kernel's name: as text 6.9 comes after 6.12.
fn numbers(kernel: &Path) -> Vec<u64> {
    let name = kernel.file_name().unwrap_or_default().to_string_lossy();
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

/// Downloads the distribution's kernel for virtual machines and unpacks what is needed; nothing is installed.
fn fetch(cache: &Path) -> Result<(), VmError> {
    let ubuntu = fs::read_to_string("/etc/os-release").is_ok_and(|text| text.contains("\nID=ubuntu"));
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let meta = if ubuntu { "linux-image-virtual".to_owned() } else { format!("linux-image-cloud-{arch}") };
    let run = |program: &'static str, arguments: &[&str]| -> Result<String, VmError> {
        let output = Command::new(program).args(arguments).current_dir(cache).output().map_err(|e| {
            VmError::NoKernel(format!("there is none in /boot, and {program} cannot be run ({e})"))
        })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(VmError::NoKernel(format!("{program} {}: {said}", arguments.join(" "))))
    };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(cache)
        .map_err(|e| VmError::system(format!("making {}", cache.display()), e))?;
    // The metapackage names the kernel's package of the day.
    let package = || -> Result<String, VmError> {
        let depends = run("apt-cache", &["depends", &meta])?;
        let mut words = depends.split_ascii_whitespace();
        let found = words.find(|word| {
            word.strip_prefix("linux-image-")
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        });
        found.map(str::to_owned).ok_or_else(|| VmError::NoKernel(format!("{meta} names no kernel")))
    };
    let name = match package() {
        Ok(name) => name,
        Err(_) => {
            run("apt-get", &["update", "-q"])?;
            package()?
        }
    };
    run("apt-get", &["download", "-q", &name])?;
    let modules = if ubuntu { name.replace("linux-image-", "linux-modules-") } else { name.clone() };
    if modules != name {
        run("apt-get", &["download", "-q", &modules])?;
    }
    for entry in fs::read_dir(cache).map_err(|e| VmError::system(cache.display().to_string(), e))?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            run("dpkg-deb", &["-x", &path.display().to_string(), "."])?;
            let _ = fs::remove_file(&path);
        }
    }
    Ok(())
}

/// The files of [`MODULES`] that there are for a kernel, with the modules' names, in their order.
fn module_files(kernel: &Path, release: &str) -> Vec<(&'static str, PathBuf)> {
    // /boot/vmlinuz-R goes with /lib/modules/R, CACHE/boot/vmlinuz-R with CACHE/lib/modules/R.
    let root = kernel.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let base = ["lib/modules", "usr/lib/modules"].map(|dir| root.join(dir).join(release).join("kernel"));
    let places = ["drivers/virtio", "drivers/net", "net/core"];
    let find = |module: &str| {
        let names = ["ko", "ko.xz", "ko.zst", "ko.gz"].map(|extension| format!("{module}.{extension}"));
        let dirs = base.iter().flat_map(|base| places.iter().map(move |place| base.join(place)));
        dirs.flat_map(|dir| names.clone().map(|name| dir.join(name))).find(|path| path.is_file())
    };
    MODULES.iter().filter_map(|module| Some((*module, find(module)?))).collect()
}

/// Writes an initramfs of files, each with its name inside, and of the libraries that programs among them were linked against.
pub fn pack(to: &Path, files: &[(&str, &Path)]) -> io::Result<()> {
    write(to, files, &[])
}

fn write(to: &Path, files: &[(&str, &Path)], modules: &[(&'static str, PathBuf)]) -> io::Result<()> {
    let mut archive = Archive::new(BufWriter::new(File::create(to)?));
    let mut made = std::collections::BTreeSet::new();
    for dir in ["dev", "proc", "sys", "tmp", MODULE_DIR] {
        archive.directory(dir)?;
        made.insert(dir.to_owned());
    }
    // Before devtmpfs is mounted the kernel wants a console for the first process.
    archive.device("dev/console", 5, 1)?;
    let mut put = |name: &str, data: &[u8]| -> io::Result<()> {
        for (at, _) in name.match_indices('/') {
            if made.insert(name[..at].to_owned()) {
                archive.directory(&name[..at])?;
            }
        }
        archive.file(name, data)
    };
    for (name, file) in files {
        put(name, &stripped(file)?)?;
    }
    let mut needed = std::collections::BTreeSet::new();
    for (_, file) in files {
        needed.extend(libraries(file)?);
    }
    for library in needed {
        put(library.to_string_lossy().trim_start_matches('/'), &fs::read(&library)?)?;
    }
    for (name, path) in modules {
        archive.file(&format!("{MODULE_DIR}/{name}.ko"), &unpacked(path)?)?;
    }
    archive.finish().map(drop)
}

/// The program without debug information, which is most of a debug build: by `strip`, where there is one.
fn stripped(binary: &Path) -> io::Result<Vec<u8>> {
    let dir = PrivateDir::temporary()?;
    let to = dir.path().join("stripped");
    let done = Command::new("strip").arg("--strip-debug").arg("-o").arg(&to).arg(binary).output();
    match done {
        Ok(output) if output.status.success() => fs::read(&to),
        _ => fs::read(binary),
    }
}

/// Libraries a dynamically linked program needs, its loader included; none for a static one, which `ldd` refuses.
fn libraries(binary: &Path) -> io::Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(binary).output()?;
    Ok(paths_of_ldd(&String::from_utf8_lossy(&output.stdout)))
}

/// Lines such as `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x..)` and `/lib64/ld-linux-x86-64.so.2 (0x..)`.
pub(crate) fn paths_of_ldd(text: &str) -> Vec<PathBuf> {
    text.lines()
        .filter_map(|line| line.split_ascii_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

/// A module's bytes, decompressed by the tool its ending names.
fn unpacked(path: &Path) -> io::Result<Vec<u8>> {
    let tool = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(path),
    };
    let output = Command::new(tool).arg("-dc").arg(path).output()?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(io::Error::other(format!(
            "{tool} -dc {}: {}",
            path.display(),
            String::from_utf8_lossy(&output.stderr)
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_ldd() {
        let text =
            "\tlinux-vdso.so.1 (0x7ffd)\n\tlibc.so.6 => /lib/libc.so.6 (0x7f)\n\t/lib64/ld.so (0x7f)\n";
        assert_eq!(paths_of_ldd(text), [PathBuf::from("/lib/libc.so.6"), PathBuf::from("/lib64/ld.so")]);
        assert!(paths_of_ldd("\tstatically linked\n").is_empty());
    }

    #[test]
    fn modules_are_taken_in_their_order_wherever_they_lie() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["net/core/failover.ko", "drivers/net/virtio_net.ko.xz", "drivers/virtio/virtio_pci.ko"];
        let base = dir.path().join("lib/modules/6.9/kernel");
        evenkeel_linux::testing::lay(&base, &files.map(|file| (file, "x")));
        fs::create_dir(dir.path().join("boot")).unwrap();
        assert_eq!(newest_kernel(&dir.path().join("boot")), None);
        let kernel = dir.path().join("boot/vmlinuz-6.9");
        fs::write(&kernel, "k").unwrap();
        let names: Vec<_> = module_files(&kernel, "6.9").into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["virtio_pci", "failover", "virtio_net"]);
        assert_eq!(newest_kernel(&dir.path().join("boot")), Some(kernel));
        for (newer, than) in [("6.12", "6.9"), ("6.12.0-18-amd64", "6.12.0-9-amd64")] {
            for release in [newer, than] {
                let module = format!("{release}/kernel/drivers/virtio/virtio_pci.ko");
                evenkeel_linux::testing::lay(&dir.path().join("lib/modules"), &[(&module, "x")]);
                fs::write(dir.path().join(format!("boot/vmlinuz-{release}")), "k").unwrap();
            }
            let newer = dir.path().join(format!("boot/vmlinuz-{newer}"));
            assert_eq!(newest_kernel(&dir.path().join("boot")), Some(newer));
        }
    }
}
