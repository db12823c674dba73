//! Sets of logical CPUs, in the kernel's list (`0-3,8`) and mask (`ff,ffffffff`) notations.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Largest CPU number accepted; far above `CONFIG_NR_CPUS` (8192) of any distribution, small enough that a
/// malformed list cannot make us allocate without bound.
pub const MAX_CPU: u32 = 65_535;

/// Longest list, bytes: every second CPU up to [`MAX_CPU`] takes half of it.
const LONGEST: usize = 400_000;

/// A set of logical CPU numbers. Equality ignores how the set was written.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CpuSet {
    /// Bit `n % 64` of word `n / 64` is CPU `n`; no trailing zero words, so derived equality is set equality.
    words: Vec<u64>,
}

/// Why a CPU list or mask was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a CPU list: {text:?}: {reason}")]
pub struct CpuSetError {
    text: String,
    reason: &'static str,
}

impl CpuSetError {
    fn new(text: &str, reason: &'static str) -> Self {
        Self { text: text.chars().take(80).collect(), reason }
    }
}

impl CpuSet {
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// The CPUs `0..n`.
    pub fn first_n(n: u32) -> Self {
        (0..n).collect()
    }

    /// The set of one CPU.
    pub fn single(cpu: u32) -> Self {
        std::iter::once(cpu).collect()
    }

    /// Adds a CPU; numbers above [`MAX_CPU`] are ignored.
    pub fn insert(&mut self, cpu: u32) {
        if cpu > MAX_CPU {
            return;
        }
        let word = cpu as usize / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (cpu % 64);
    }

    /// Adds the CPUs from one to another, at most [`MAX_CPU`], a word at a time: a list may name large ranges often.
    fn insert_range(&mut self, low: u32, high: u32) {
        let (first, last) = (low as usize / 64, high as usize / 64);
        if self.words.len() <= last {
            self.words.resize(last + 1, 0);
        }
        for word in first..=last {
            let from = if word == first { u64::MAX << (low % 64) } else { u64::MAX };
            let to = if word == last { u64::MAX >> (63 - high % 64) } else { u64::MAX };
            self.words[word] |= from & to;
        }
    }

    /// Removes a CPU if it is there.
    pub fn remove(&mut self, cpu: u32) {
        if let Some(word) = self.words.get_mut(cpu as usize / 64) {
            *word &= !(1 << (cpu % 64));
        }
        self.trim();
    }

    /// Whether the CPU is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.words.get(cpu as usize / 64).is_some_and(|w| w & (1 << (cpu % 64)) != 0)
    }

    /// Number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Whether no CPU is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            (0..64u32).filter(move |bit| word & (1 << bit) != 0).map(move |bit| index as u32 * 64 + bit)
        })
    }

    pub fn first(&self) -> Option<u32> {
        self.iter().next()
    }

    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let len = self.words.len().max(other.words.len());
        self.zip(other, len, |a, b| a | b)
    }

    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let len = self.words.len().min(other.words.len());
        self.zip(other, len, |a, b| a & b)
    }

    /// CPUs in this set and not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.zip(other, self.words.len(), |a, b| a & !b)
    }

    /// Whether every CPU of this set is in the other.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    /// Whether the sets share a CPU.
    pub fn intersects(&self, other: &Self) -> bool {
        !self.intersection(other).is_empty()
    }

    /// The set as 64-bit words, CPU 0 in bit 0 of word 0; for affinity system calls.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The set held by the words of an affinity system call.
    pub fn from_words(words: &[u64]) -> Self {
        let mut set = Self { words: words.iter().copied().take(MAX_CPU as usize / 64 + 1).collect() };
        set.trim();
        set
    }

    /// As the kernel writes masks (`rps_cpus`, `smp_affinity`): hexadecimal words of 32 bits, the highest first,
    /// separated by commas; `0` for none.
    pub fn to_mask(&self) -> String {
        let halves = self.words().iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]);
        let words: Vec<u32> = halves.collect();
        let Some(top) = words.iter().rposition(|word| *word != 0) else { return "0".to_owned() };
        let mut text = format!("{:x}", words[top]);
        for word in words[..top].iter().rev() {
            text += &format!(",{word:08x}");
        }
        text
    }

    /// Reads the kernel's hexadecimal mask notation, most significant group first: `ff` or `1,00000003`.
    pub fn parse_mask(text: &str) -> Result<Self, CpuSetError> {
        let text = text.trim();
        let mut set = Self::new();
        let mut base = 0u32;
        for group in text.rsplit(',') {
            let value = u32::from_str_radix(group.trim(), 16).map_err(|_| {
                CpuSetError::new(text, "a mask is groups of hexadecimal digits, joined by commas")
            })?;
            for bit in (0..32).filter(|bit| value & (1 << bit) != 0) {
                if base + bit > MAX_CPU {
                    return Err(CpuSetError::new(text, "a CPU number is above 65535"));
                }
                set.insert(base + bit);
            }
            base = base.saturating_add(32);
        }
        Ok(set)
    }

    fn zip(&self, other: &Self, len: usize, op: impl Fn(u64, u64) -> u64) -> Self {
        let word = |set: &Self, i: usize| set.words.get(i).copied().unwrap_or(0);
        let mut set = Self { words: (0..len).map(|i| op(word(self, i), word(other, i))).collect() };
        set.trim();
        set
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<T: IntoIterator<Item = u32>>(iter: T) -> Self {
        let mut set = Self::new();
        for cpu in iter {
            set.insert(cpu);
        }
        set
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    /// Reads the kernel's list notation: numbers and ranges joined by commas, `0-3,8`; a range may carry
    /// `:used/group` (`0-31:2/8`), see the kernel's `bitmap_parselist`. Blank text is the empty set.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |s: &str| -> Result<u32, CpuSetError> {
            let n: u32 = s.trim().parse().map_err(|_| CpuSetError::new(text, "expected a CPU number"))?;
            if n > MAX_CPU { Err(CpuSetError::new(text, "a CPU number is above 65535")) } else { Ok(n) }
        };
        let mut set = Self::new();
        if text.trim().is_empty() {
            return Ok(set);
        }
        if text.len() > LONGEST {
            return Err(CpuSetError::new(text, "it is longer than the list of any host"));
        }
        for item in text.trim().split(',') {
            let (range, stride) = match item.split_once(':') {
                Some((range, stride)) => (range, Some(stride)),
                None => (item, None),
            };
            let (low, high) = match range.split_once('-') {
                Some((low, high)) => (number(low)?, number(high)?),
                None => (number(range)?, number(range)?),
            };
            if low > high {
                return Err(CpuSetError::new(text, "a range runs backwards"));
            }
            let (used, group) = match stride {
                None => (1, 1),
                Some(stride) => {
                    let (used, group) = stride
                        .split_once('/')
                        .ok_or_else(|| CpuSetError::new(text, "a stride is written used/group"))?;
                    (number(used)?, number(group)?)
                }
            };
            if group == 0 || used == 0 || used > group {
                return Err(CpuSetError::new(text, "a stride needs 0 < used <= group"));
            }
            if used == group {
                set.insert_range(low, high);
                continue;
            }
            for from in (low..=high).step_by(group as usize) {
                set.insert_range(from, high.min(from + used - 1));
            }
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    /// The shortest list notation; the empty set prints as nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(low) = cpus.next() {
            let mut high = low;
            while cpus.peek() == Some(&(high + 1)) {
                high += 1;
                cpus.next();
            }
            if low == high {
                write!(f, "{separator}{low}")?;
            } else {
                write!(f, "{separator}{low}-{high}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn reads_the_kernels_lists() {
        assert_eq!(set("0-3,8\n").iter().collect::<Vec<_>>(), [0, 1, 2, 3, 8]);
        assert_eq!(set(""), CpuSet::new());
        assert_eq!(set("0-7:1/4").to_string(), "0,4");
        for bad in ["a", "3-1", "0-4294967295", "1,,2", "0-7:4", "0-7:5/4", "-1", "1-", "70000"] {
            assert!(bad.parse::<CpuSet>().is_err(), "{bad} was accepted");
        }
    }

    #[test]
    fn ranges_and_strides_are_what_they_are_cpu_by_cpu() {
        for (low, high, used, group) in
            [(0, 63, 1, 1), (0, 64, 1, 1), (63, 64, 1, 1), (5, 200, 3, 7), (1, 130, 64, 65), (7, 7, 1, 9)]
        {
            let one_by_one: CpuSet = (low..=high).filter(|cpu| (cpu - low) % group < used).collect();
            assert_eq!(
                set(&format!("{low}-{high}:{used}/{group}")),
                one_by_one,
                "{low}-{high}:{used}/{group}"
            );
        }
        assert_eq!(set("0-65535").len(), 65_536);
        let endless = "0-65535,".repeat(100_000);
        assert!(endless.parse::<CpuSet>().unwrap_err().to_string().contains("longer"));
        let alternate: CpuSet = (0..=MAX_CPU).step_by(2).collect();
        assert_eq!(set(&alternate.to_string()), alternate);
    }

    #[test]
    fn reads_masks() {
        assert_eq!(CpuSet::parse_mask("1,00000003\n").unwrap(), set("0-1,32"));
        assert!(CpuSet::parse_mask("xyz").is_err());
        assert_eq!((set("0-1,32").to_mask().as_str(), set("").to_mask().as_str()), ("1,00000003", "0"));
    }

    #[test]
    fn removing_the_highest_keeps_equality() {
        let mut a = set("0,200");
        a.remove(200);
        assert_eq!(a, set("0"));
    }

    proptest! {
        #[test]
        fn print_then_parse_is_identity(cpus in proptest::collection::vec(0u32..5000, 0..200)) {
            let set: CpuSet = cpus.into_iter().collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set.clone());
            prop_assert_eq!(CpuSet::from_words(set.words()), set.clone());
            prop_assert_eq!(CpuSet::parse_mask(&set.to_mask()).unwrap(), set);
        }

        #[test]
        fn algebra_holds(a in proptest::collection::vec(0u32..300, 0..60), b in proptest::collection::vec(0u32..300, 0..60)) {
            let (a, b): (CpuSet, CpuSet) = (a.into_iter().collect(), b.into_iter().collect());
            let both = a.intersection(&b);
            prop_assert_eq!(a.union(&b).len() + both.len(), a.len() + b.len());
            prop_assert!(both.is_subset(&a) && both.is_subset(&b));
            prop_assert_eq!(a.difference(&b).union(&both), a.clone());
            prop_assert!(!a.difference(&b).intersects(&b));
        }
    }
}
