//! `/sys/devices/system/cpu/cpuN/cpufreq/`: who controls each CPU's frequency.

use evenkeel_base::facts::Governor;

use crate::sysfs::CPU_DIR;
use crate::{ReadError, Root};

/// Reads the governors, ascending by CPU; CPUs whose frequency the kernel does not control are left out.
pub fn read(root: &Root) -> Result<Vec<Governor>, ReadError> {
    let mut governors = Vec::new();
    for cpu in root.numbered(CPU_DIR, "cpu")? {
        let file = |name: &str| -> Result<Option<String>, ReadError> {
            let text = root.read_optional(format!("{CPU_DIR}/cpu{cpu}/cpufreq/{name}"))?;
            Ok(text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()))
        };
        let Some(governor) = file("scaling_governor")? else { continue };
        governors.push(Governor {
            cpu,
            governor,
            driver: file("scaling_driver")?,
            // Some drivers have the file and refuse to read it.
            preference: file("energy_performance_preference").unwrap_or(None),
        });
    }
    Ok(governors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_with_and_without_frequency_control() {
        let dir = tempfile::tempdir().unwrap();
        let files = [
            ("cpu0/online", "1\n"),
            ("cpu1/cpufreq/scaling_governor", "powersave\n"),
            ("cpu1/cpufreq/scaling_driver", "intel_pstate\n"),
            ("cpufreq/policy", "\n"),
        ];
        crate::testing::lay(&dir.path().join(CPU_DIR), &files);
        let read = read(&Root::at(dir.path())).unwrap();
        let expected = Governor {
            cpu: 1,
            governor: "powersave".into(),
            driver: Some("intel_pstate".into()),
            preference: None,
        };
        assert_eq!(read, [expected]);
    }

    #[test]
    fn no_cpus_to_list_is_an_error_with_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let error = read(&Root::at(dir.path())).unwrap_err().to_string();
        assert!(error.contains(CPU_DIR), "{error}");
    }
}
