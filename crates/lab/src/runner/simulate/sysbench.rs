//! `sysbench cpu`, the one command whose work is known: its events are those of `primes`.

use evenkeel_workload::Kind;
use evenkeel_workload::load::LoadSpec;
use evenkeel_workload::primes::Primes;

/// The load a command line stands for. The message says why there is none.
pub(super) fn load(words: &[String]) -> Result<LoadSpec, String> {
    let program = words.first().map_or("", |word| word.rsplit('/').next().unwrap_or(word));
    let is = |word: &str| words.iter().any(|w| w == word);
    if program != "sysbench" || !is("cpu") || !is("run") {
        return Err(format!(
            "what the command {program:?} demands is not known, so it cannot be simulated: put a built-in load in its \
             place (load = \"primes\"), or measure with `lab run`"
        ));
    }
    let number = |name: &str, default: f64| -> Result<f64, String> {
        let mut found = default;
        for (index, word) in words.iter().enumerate() {
            let Some(rest) = word.strip_prefix(name) else { continue };
            let value = match rest.strip_prefix('=') {
                Some(value) => value,
                None if rest.is_empty() => words.get(index + 1).map_or("", String::as_str),
                None => continue,
            };
            found = value.parse().ok().filter(|v: &f64| (0.0..1e12).contains(v)).ok_or_else(|| {
                format!("sysbench {name} {value:?} is not a number, so it cannot be simulated")
            })?;
        }
        Ok(found)
    };
    if words.iter().any(|w| w.starts_with("--rate") || w.starts_with("--thread-init-timeout")) {
        return Err("sysbench --rate is not simulated".into());
    }
    let mut spec =
        LoadSpec::new(Kind::Primes(Primes { max_prime: number("--cpu-max-prime", 10_000.0)? as u64 }));
    spec.common.seconds = Some(number("--time", 10.0)?).filter(|s| *s > 0.0);
    spec.common.events = Some(number("--events", 0.0)? as u64).filter(|n| *n > 0);
    spec.common.threads = Some((number("--threads", 1.0)? as u32).clamp(1, 4096));
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<LoadSpec, String> {
        load(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn sysbench_is_known_and_others_are_not() {
        let spec = of("/usr/bin/sysbench cpu --time=3 --threads 4 run").unwrap();
        assert_eq!(
            (spec.common.seconds, spec.common.threads, spec.common.events),
            (Some(3.0), Some(4), None)
        );
        let spec = of("sysbench cpu --events=50 --time=0 run").unwrap();
        assert_eq!((spec.common.seconds, spec.common.events), (None, Some(50)));
        assert_eq!(of("sysbench cpu run").unwrap().common.seconds, Some(10.0));
        for line in
            ["make -j4", "sysbench memory run", "sysbench cpu --time=x run", "sysbench cpu --rate=9 run"]
        {
            assert!(of(line).unwrap_err().contains("simulated"), "{line}");
        }
        assert!(load(&[]).is_err());
    }
}
