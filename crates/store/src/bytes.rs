//! Variable-length numbers in byte columns.

/// A block's bytes do not mean what they should.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("history block is damaged: {0}")]
pub struct Damaged(pub &'static str);

/// Appends `value` in base 128, low digits first.
pub fn put(column: &mut Vec<u8>, mut value: u128) {
    while value >= 0x80 {
        column.push(value as u8 | 0x80);
        value >>= 7;
    }
    column.push(value as u8);
}

/// Appends the difference `to - from` (modulo 2^64, so that any two values are fine), small for small moves either
/// way.
pub fn put_delta(column: &mut Vec<u8>, from: u64, to: u64) {
    put(column, u128::from(zigzag(to.wrapping_sub(from))));
}

/// Appends an optional value: 0 for unknown, else one more than its zigzag difference from `from`.
pub fn put_option(column: &mut Vec<u8>, from: u64, to: Option<u64>) {
    put(column, to.map_or(0, |to| u128::from(zigzag(to.wrapping_sub(from))) + 1));
}

/// Appends a text with its length.
pub fn put_text(column: &mut Vec<u8>, text: &str) {
    put(column, text.len() as u128);
    column.extend_from_slice(text.as_bytes());
}

fn zigzag(difference: u64) -> u64 {
    let signed = difference as i64;
    ((signed << 1) ^ (signed >> 63)) as u64
}

fn unzigzag(code: u64) -> u64 {
    (code >> 1) ^ (code & 1).wrapping_neg()
}

/// Reads what the `put` functions wrote.
#[derive(Debug, Clone, Default)]
pub struct Column {
    bytes: Vec<u8>,
    at: usize,
}

impl Column {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, at: 0 }
    }

    pub fn byte(&mut self) -> Result<u8, Damaged> {
        let byte = *self.bytes.get(self.at).ok_or(Damaged("a column ends early"))?;
        self.at += 1;
        Ok(byte)
    }

    /// See [`put`].
    pub fn number(&mut self) -> Result<u128, Damaged> {
        let mut value = 0u128;
        for shift in (0..126).step_by(7) {
            let byte = self.byte()?;
            value |= u128::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Damaged("a number is too long"))
    }

    /// A number that must fit 64 bits.
    pub fn word(&mut self) -> Result<u64, Damaged> {
        u64::try_from(self.number()?).map_err(|_| Damaged("a number is too large"))
    }

    /// A number that must fit 32 bits.
    pub fn small(&mut self) -> Result<u32, Damaged> {
        u32::try_from(self.number()?).map_err(|_| Damaged("a number is too large"))
    }

    /// See [`put_delta`].
    pub fn delta(&mut self, from: u64) -> Result<u64, Damaged> {
        Ok(from.wrapping_add(unzigzag(self.word()?)))
    }

    /// See [`put_option`].
    pub fn option(&mut self, from: u64) -> Result<Option<u64>, Damaged> {
        match self.number()? {
            0 => Ok(None),
            code => {
                let code = u64::try_from(code - 1).map_err(|_| Damaged("a number is too large"))?;
                Ok(Some(from.wrapping_add(unzigzag(code))))
            }
        }
    }

    /// A run of bytes with its length in front.
    pub fn chunk(&mut self) -> Result<Vec<u8>, Damaged> {
        let len = usize::try_from(self.number()?).map_err(|_| Damaged("a length is too large"))?;
        let end = self.at.checked_add(len).ok_or(Damaged("a length is too large"))?;
        let chunk = self.bytes.get(self.at..end).ok_or(Damaged("a column ends early"))?.to_vec();
        self.at = end;
        Ok(chunk)
    }

    /// See [`put_text`].
    pub fn text(&mut self) -> Result<String, Damaged> {
        String::from_utf8(self.chunk()?).map_err(|_| Damaged("a text is not UTF-8"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_survive(pairs in proptest::collection::vec((any::<u64>(), any::<Option<u64>>()), 0..50)) {
            let mut bytes = Vec::new();
            for (a, b) in &pairs {
                put(&mut bytes, u128::from(*a));
                put_delta(&mut bytes, *a, b.unwrap_or(u64::MAX));
                put_option(&mut bytes, *a, *b);
            }
            let mut column = Column::new(bytes);
            for (a, b) in &pairs {
                prop_assert_eq!(column.word().unwrap(), *a);
                prop_assert_eq!(column.delta(*a).unwrap(), b.unwrap_or(u64::MAX));
                prop_assert_eq!(column.option(*a).unwrap(), *b);
            }
            prop_assert!(column.byte().is_err());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut column = Column::new(bytes);
            while column.text().is_ok() {}
            let _ = column.option(7);
        }
    }

    #[test]
    fn small_moves_are_one_byte() {
        let mut bytes = Vec::new();
        put_delta(&mut bytes, 1_000_000, 999_950);
        assert_eq!(bytes.len(), 1);
    }
}
