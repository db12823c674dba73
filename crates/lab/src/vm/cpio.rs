//! Archives as the kernel unpacks an initramfs: cpio in its "newc" form
//! (`Documentation/driver-api/early-userspace/buffer-format.rst`).

use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_755;
const SYMLINK: u32 = 0o120_777;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// An archive being written.
#[derive(Debug)]
pub struct Archive<W: Write> {
    to: W,
    inode: u32,
    written: u64,
}

impl<W: Write> Archive<W> {
    pub fn new(to: W) -> Self {
        Self { to, inode: 0, written: 0 }
    }

    /// A directory; its parents must come before it. Names have no slash in front.
    pub fn directory(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, DIRECTORY, (0, 0), &[])
    }

    /// An executable file.
    pub fn file(&mut self, name: &str, data: &[u8]) -> io::Result<()> {
        self.entry(name, FILE, (0, 0), data)
    }

    pub fn symlink(&mut self, name: &str, target: &str) -> io::Result<()> {
        self.entry(name, SYMLINK, (0, 0), target.as_bytes())
    }

    /// A character device.
    pub fn device(&mut self, name: &str, major: u32, minor: u32) -> io::Result<()> {
        self.entry(name, CHARACTER_DEVICE, (major, minor), &[])
    }

    /// Ends the archive and returns the writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.inode = 0;
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), data: &[u8]) -> io::Result<()> {
        let size =
            u32::try_from(data.len()).map_err(|_| io::Error::other(format!("{name}: 4 GiB or more")))?;
        self.inode += 1;
        let name_size = name.len() as u32 + 1;
        // Magic, inode, mode, uid, gid, links, mtime, size, device of the file (2), device it is (2), name size, check.
        let fields = [self.inode, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0]
            .map(|n| format!("{n:08X}"));
        let header = format!("070701{}", fields.concat());
        self.put(header.as_bytes())?;
        self.put(name.as_bytes())?;
        self.put(&[0])?;
        self.pad()?;
        self.put(data)?;
        self.pad()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.to.write_all(bytes)
    }

    /// Names and data end at multiples of four.
    fn pad(&mut self) -> io::Result<()> {
        let gap = (4 - self.written % 4) % 4;
        self.put(&[0; 4][..gap as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_laid_out_as_the_kernel_wants_it() {
        let mut archive = Archive::new(Vec::new());
        archive.directory("dev").unwrap();
        archive.device("dev/console", 5, 1).unwrap();
        archive.file("init", b"12345").unwrap();
        archive.symlink("l", "init").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("070701").count(), 5);
        // "dev" and its end make 114 bytes with the header: two more up to the next entry.
        assert_eq!(&bytes[116..122], b"070701");
        assert!(
            text.contains("0000000500000001") && text.contains("init\0\0") && text.contains("12345\0\0\0")
        );
        assert!(text.trim_end_matches('\0').ends_with("TRAILER!!!"));
    }
}
