//! Changes to an input: what random bits seldom hit upon in text made of words and numbers.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom};

/// Numbers at the edge of what some type holds, and words that mean a number.
const NUMBERS: &[&str] = &[
    "0",
    "-0",
    "1",
    "-1",
    "9",
    "127",
    "128",
    "255",
    "256",
    "32767",
    "65535",
    "65536",
    "100000",
    "2147483647",
    "2147483648",
    "-2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "340282366920938463463374607431768211456",
    "0.1",
    "1e-9",
    "1e9",
    "1e300",
    "1e-300",
    "1e308",
    "-1e308",
    "1e999",
    "1e-999",
    "5e-324",
    "nan",
    "-nan",
    "inf",
    "-inf",
    "max",
    "none",
    "null",
    "0x10",
    "1_000",
    "+1",
    "00",
    ".5",
    "5.",
];
/// Pieces that mean something to some parser.
const PIECES: &[&str] = &[
    "\n",
    "\r\n",
    "\n\n",
    " ",
    "  ",
    "\t",
    "\0",
    ",",
    ":",
    ";",
    "-",
    "/",
    "//",
    "/../",
    ".",
    "..",
    "\"",
    "'",
    "\\",
    "\\x",
    "\\x2d",
    "\\u0000",
    "\\040",
    "{",
    "}",
    "[",
    "]",
    "[[",
    "]]",
    "(",
    ") ",
    "=",
    "<",
    ">",
    "%",
    "*",
    "!",
    "#",
    "&",
    "?",
    "|",
    "{}",
    "[]",
    "{\"",
    "\":",
    "true",
    "false",
    "null",
    "\u{feff}",
    "\u{202e}",
    "\u{e9}",
    "\u{1f600}",
    "\u{fffd}",
    "\u{0130}",
    "\u{df}",
    "\u{3000}",
    "\u{85}",
];

/// Changes an input in one to a few places; the result is at most so long.
pub fn change(input: &[u8], others: &[Vec<u8>], longest: usize, random: &mut StdRng) -> Vec<u8> {
    let mut bytes = input.to_vec();
    // Mostly few changes: what has many of them is refused at the first.
    let times = 1 + (random.random::<f64>().powi(3) * 6.0) as usize;
    for _ in 0..times {
        one(&mut bytes, others, longest, random);
    }
    bytes.truncate(longest);
    bytes
}

fn one(bytes: &mut Vec<u8>, others: &[Vec<u8>], longest: usize, random: &mut StdRng) {
    let at = random.random_range(0..=bytes.len());
    match random.random_range(0..22) {
        0 => flip(bytes, random),
        1 => insert(bytes, at, &[random.random()]),
        2 | 3 => remove(bytes, random),
        4 => bytes.truncate(at),
        5 => drop(bytes.drain(..at)),
        6..=9 => number(bytes, random),
        10 | 11 => insert(bytes, at, pick(PIECES, random).as_bytes()),
        12 => {
            let piece = pick(PIECES, random).as_bytes();
            let end = (at + piece.len()).min(bytes.len());
            bytes.splice(at..end, piece.iter().copied());
        }
        13 | 14 => {
            let part = part(bytes, random).to_vec();
            insert(bytes, at, &part);
        }
        15 | 16 => lines(bytes, random),
        17 | 18 => {
            let Some(other) = others.choose(random) else { return };
            let part = part(other, random).to_vec();
            let end = if random.random() { at } else { bytes.len() };
            bytes.splice(at..end, part);
        }
        19 => repeat(bytes, longest.min(16 * (bytes.len() + 16)), random),
        20 if random.random_ratio(1, 4) => repeat(bytes, longest, random),
        _ => words(bytes, random),
    }
}

fn pick<'a>(from: &[&'a str], random: &mut StdRng) -> &'a str {
    from.choose(random).copied().unwrap_or_default()
}

fn insert(bytes: &mut Vec<u8>, at: usize, piece: &[u8]) {
    bytes.splice(at..at, piece.iter().copied());
}

/// A part, mostly a short one.
fn part<'a>(bytes: &'a [u8], random: &mut StdRng) -> &'a [u8] {
    let from = random.random_range(0..=bytes.len());
    let most = if random.random_ratio(3, 4) { 24 } else { bytes.len() };
    &bytes[from..from + random.random_range(0..=most.min(bytes.len() - from))]
}

fn flip(bytes: &mut [u8], random: &mut StdRng) {
    if let Some(byte) = bytes.iter_mut().choose(random) {
        *byte ^= 1 << random.random_range(0..8);
    }
}

fn remove(bytes: &mut Vec<u8>, random: &mut StdRng) {
    let length = part(bytes, random).len();
    let from = random.random_range(0..=bytes.len() - length);
    bytes.drain(from..from + length);
}

/// Puts another number in the place of one.
fn number(bytes: &mut Vec<u8>, random: &mut StdRng) {
    let digits = |byte: &u8| byte.is_ascii_digit();
    let starts = (0..bytes.len()).filter(|at| digits(&bytes[*at]) && (*at == 0 || !digits(&bytes[at - 1])));
    let Some(from) = starts.choose(random) else { return };
    let length = bytes[from..].iter().take_while(|byte| digits(byte)).count();
    let drawn = if random.random_ratio(1, 4) {
        (random.random::<u64>() >> random.random_range(0..64)).to_string()
    } else {
        pick(NUMBERS, random).to_owned()
    };
    bytes.splice(from..from + length, drawn.bytes());
}

/// Repeats, removes or moves a line.
fn lines(bytes: &mut Vec<u8>, random: &mut StdRng) {
    let mut lines: Vec<Vec<u8>> = bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    let Some(from) = (0..lines.len()).choose(random) else { return };
    let to = random.random_range(0..=lines.len());
    let line = if random.random() { lines[from].clone() } else { lines.remove(from) };
    if random.random_ratio(3, 4) {
        lines.insert(to.min(lines.len()), line);
    }
    *bytes = lines.concat();
}

fn words(bytes: &mut Vec<u8>, random: &mut StdRng) {
    let mut words: Vec<Vec<u8>> =
        bytes.split_inclusive(|byte| !byte.is_ascii_alphanumeric()).map(<[u8]>::to_vec).collect();
    if words.len() > 1 {
        let (a, b) = (random.random_range(0..words.len()), random.random_range(0..words.len()));
        words.swap(a, b);
        *bytes = words.concat();
    }
}

/// Repeats a part in its place until the whole has the length: what takes time with the square of it then shows.
fn repeat(bytes: &mut Vec<u8>, length: usize, random: &mut StdRng) {
    let from = random.random_range(0..=bytes.len());
    let part = if random.random() {
        let to = from + random.random_range(0..=12.min(bytes.len() - from));
        bytes[from..to].to_vec()
    } else {
        // From the start of a line to the end of one.
        let from = bytes[..from].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let to = bytes[from..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| from + at + 1);
        bytes[from..to].to_vec()
    };
    if !part.is_empty() && bytes.len() < length {
        let times = (length - bytes.len()) / part.len();
        insert(bytes, from, &part.repeat(times));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn changes_are_many_stay_in_bounds_and_come_again_with_the_seed() {
        let draw = |seed| {
            let mut random = StdRng::seed_from_u64(seed);
            let others = [b"total time: 10.0002s\n".to_vec(), Vec::new()];
            let inputs = [&b"usage_usec 17\nnr_periods 2\n"[..], b"", b"1"];
            let one = |n: usize| change(inputs[n % 3], &others, 1000, &mut random);
            (0..3000).map(one).collect::<Vec<_>>()
        };
        let all = draw(1);
        assert!(all.iter().all(|bytes| bytes.len() <= 1000));
        assert!(all.iter().any(|bytes| bytes.len() > 500), "long ones, too");
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert!(different.len() > 1000, "{}", different.len());
        assert_eq!(all, draw(1));
        assert_ne!(all, draw(2));
    }
}
