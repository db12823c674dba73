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
    use super::*;

    #[test]
    fn parameters_as_the_kernel_takes_them() {
        let read = parse(
            "quiet isolcpus=1 isolcpus=managed_irq,2-3 dyndbg=\"file a.c +p\" rcu-nocbs=2 -- single x=1\n",
        );
        assert_eq!(read.value("isolcpus"), Some("managed_irq,2-3"));
        assert_eq!(read.value("dyndbg"), Some("file a.c +p"));
        assert_eq!(read.value("rcu_nocbs"), Some("2"));
        assert_eq!(read.value("quiet"), Some(""));
        assert_eq!((read.value("x"), read.value("single"), read.value("isol")), (None, None, None));
    }
}
