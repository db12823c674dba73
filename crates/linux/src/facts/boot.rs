//! `/proc/cmdline`: what the kernel was booted with.

use evenkeel_base::facts::KernelParams;

use crate::{ReadError, Root};

/// Splits the command line as the kernel's `next_arg` does: at spaces outside double quotes. `-` in names counts as
/// `_`, as for the kernel; what follows ` -- ` is for init.
pub fn parse(text: &str) -> KernelParams {
    let text = text.trim();
    let (mut params, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in text.chars().chain(std::iter::once(' ')) {
        match c {
            '"' => quoted = !quoted,
            c if c.is_ascii_whitespace() && !quoted => {
                if word == "--" {
                    break;
                }
                if !word.is_empty() {
                    params.push(match word.split_once('=') {
                        Some((name, value)) => (name.replace('-', "_"), Some(value.to_owned())),
                        None => (word.replace('-', "_"), None),
                    });
                }
                word.clear();
            }
            c => word.push(c),
        }
    }
    KernelParams { text: text.to_owned(), params }
}

pub fn read(root: &Root) -> Result<KernelParams, ReadError> {
    Ok(parse(&root.read("proc/cmdline")?))
}

#[cfg(test)]
mod tests {
    use evenkeel_base::CpuSet;
    use evenkeel_base::facts::BootedHost;

    use super::*;

    fn isolcpus(text: &str, release: (u32, u32)) -> Vec<String> {
        let possible = CpuSet::first_n(8);
        let on = BootedHost { possible: &possible, release: Some(release) };
        parse(text).isolcpus(&on).into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn parameters_as_the_kernel_takes_them() {
        let read = parse(
            "quiet isolcpus=1 isolcpus=managed_irq,2-3 dyndbg=\"file a.c +p\" rcu-nocbs=2 -- single x=1\n",
        );
        assert_eq!(read.values("isolcpus").collect::<Vec<_>>(), ["1", "managed_irq,2-3"]);
        assert_eq!(read.value("dyndbg"), Some("file a.c +p"));
        assert_eq!(read.value("rcu_nocbs"), Some("2"));
        assert_eq!(read.value("quiet"), Some(""));
        assert_eq!(read.values("isolcpus").last(), read.value("isolcpus"));
        assert_eq!((read.value("x"), read.value("single"), read.value("isol")), (None, None, None));
    }

    #[test]
    fn of_two_isolcpus_about_the_same_the_kernel_refuses_the_later() {
        for (text, taken) in [
            ("quiet", &[][..]),
            ("isolcpus=1 isolcpus=2-3", &["1"]),
            ("isolcpus=2-3 isolcpus=domain,2,3", &["2-3", "domain,2,3"]),
            ("isolcpus=1 isolcpus=managed_irq,domain,2-3 isolcpus=managed_irq,2", &["1", "managed_irq,2"]),
            ("nohz_full=2 isolcpus=nohz,domain,3 isolcpus=odd,3", &["odd,3"]),
            ("isolcpus=nohz,2 nohz_full=3", &["nohz,2"]),
            ("isolcpus= isolcpus isolcpus=1-N isolcpus=1-N isolcpus=1", &["1-N", "1-N"]),
            // Of one with an invalid flag or list nothing is taken.
            ("isolcpus=all isolcpus=domain,all isolcpus=N isolcpus=1", &["1"]),
            ("isolcpus=managed-irq,2-3 isolcpus=1", &["1"]),
            ("isolcpus=3-2 isolcpus=domain isolcpus=2-3", &["2-3"]),
            ("nohz_full=domain,2 nohz_full=all isolcpus=nohz,1,", &[]),
            ("isolcpus=1,,2, isolcpus=1-2", &["1,,2,", "1-2"]),
        ] {
            assert_eq!(isolcpus(text, (6, 18)), taken, "{text}");
        }
    }

    #[test]
    fn n_is_the_last_cpu_and_a_list_beyond_it_is_refused() {
        for text in ["isolcpus=nohz,domain,1-7 nohz_full=1-N", "nohz_full=1-N isolcpus=nohz,domain,1-7"] {
            assert_eq!(isolcpus(text, (6, 18)), ["nohz,domain,1-7"], "{text}");
        }
        assert_eq!(isolcpus("nohz_full=1-6 isolcpus=nohz,domain,1-N", (6, 18)), [""; 0]);
        assert_eq!(isolcpus("isolcpus=4-9 isolcpus=4-7", (6, 18)), ["4-7"]);
    }

    #[test]
    fn an_older_kernel_has_one_list_for_all_flags() {
        for (text, old, new) in [
            ("isolcpus=1 isolcpus=managed_irq,2", &["1"][..], &["1", "managed_irq,2"][..]),
            ("isolcpus=1 isolcpus=managed_irq,1", &["1", "managed_irq,1"], &["1", "managed_irq,1"]),
            ("nohz_full=2 isolcpus=1", &[], &["1"]),
        ] {
            assert_eq!((isolcpus(text, (5, 17)), isolcpus(text, (5, 18))), (own(old), own(new)), "{text}");
        }
    }

    fn own(values: &[&str]) -> Vec<String> {
        values.iter().map(|&value| value.to_owned()).collect()
    }

    #[test]
    fn each_flag_has_the_cpus_of_the_first_that_is_taken() {
        let read = parse("nohz_full=1-3 isolcpus=managed_irq,2-3 isolcpus=1 isolcpus=domain,managed_irq,1");
        let possible = CpuSet::first_n(4);
        let on = BootedHost { possible: &possible, release: None };
        let cpus =
            ["nohz", "managed_irq", "domain", "odd"].map(|flag| read.isolated_from(flag, &on).to_string());
        assert_eq!(cpus, ["1-3", "2-3", "1", ""]);
    }
}
