//! Reading samples back, of finished blocks and of those that are not.

use std::collections::VecDeque;
use std::sync::Arc;

use evenkeel_base::Sample;
use rusqlite::params;

use crate::block::{BlockReader, Infos};
use crate::db::{Store, StoreError};
use crate::tail::Parts;

#[derive(Debug, Clone, PartialEq)]
pub struct StoredSample {
    /// Session (one writer from its start to its end) it belongs to: only samples of one session have comparable
    /// monotonic clocks for sure.
    pub session: i64,
    /// Boot of the host it was taken in: task identities are unique within it.
    pub boot_id: Arc<str>,
    pub sample: Sample,
}

impl Store {
    /// Samples taken from `from_ns` to `to_ns` inclusive (wall clock, nanoseconds since 1970), oldest first. The last of
    /// this writer may be pending and not among them; [`Self::flush`] first.
    ///
    /// # Errors
    /// When the list of blocks cannot be read; damage within a block is an item of the iterator.
    pub fn samples(&self, from_ns: u64, to_ns: u64) -> Result<Samples<'_>, StoreError> {
        let wrap = self.wrap();
        // Blocks and unfinished ones as of one instant: the writer makes the ones of the others.
        let instant = self.db.unchecked_transaction().map_err(&wrap)?;
        let mut statement = self
            .db
            .prepare_cached(
                "SELECT b.id, b.session, s.boot_id, b.first_wall_ns FROM block b JOIN session s ON s.id = b.session
                 WHERE b.last_wall_ns >= ?1 AND b.first_wall_ns <= ?2 ORDER BY b.session, b.first_wall_ns, b.id",
            )
            .map_err(&wrap)?;
        let mut boots: Vec<Arc<str>> = Vec::new();
        let mut blocks = statement
            .query_map(params![from_ns as i64, to_ns.min(i64::MAX as u64) as i64], |row| {
                let boot: String = row.get(2)?;
                let first = row.get::<_, i64>(3)?.max(0) as u64;
                Ok((row.get(0)?, row.get(1)?, boot, first))
            })
            .map_err(&wrap)?
            .map(|row| {
                row.map(|(id, session, boot, first_wall_ns)| {
                    let boot_id =
                        boots.iter().find(|known| ***known == *boot).cloned().unwrap_or_else(|| {
                            boots.push(boot.into());
                            boots[boots.len() - 1].clone()
                        });
                    BlockRef { data: Data::Block(id), session, boot_id, first_wall_ns }
                })
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(&wrap)?;
        drop(statement);
        let unfinished = self.unfinished()?;
        instant.commit().map_err(&wrap)?;
        let within = |parts: &Parts| parts.last_wall_ns >= from_ns && parts.first_wall_ns <= to_ns;
        blocks.extend(unfinished.into_iter().filter(within).map(|parts| BlockRef {
            data: Data::Parts(parts.data.into()),
            session: parts.session,
            boot_id: parts.boot_id,
            first_wall_ns: parts.first_wall_ns,
        }));
        blocks.sort_by_key(|block| (block.session, block.first_wall_ns));
        let blocks = blocks.into();
        Ok(Samples { store: self, blocks, open: None, names: Infos::new(), names_of_open: 0, from_ns, to_ns })
    }
}

#[derive(Debug)]
struct BlockRef {
    data: Data,
    session: i64,
    boot_id: Arc<str>,
    first_wall_ns: u64,
}

#[derive(Debug)]
enum Data {
    /// Row of `block`.
    Block(i64),
    /// Of an unfinished block, what is still to be read.
    Parts(VecDeque<Vec<u8>>),
}

/// Iterator over stored samples, see [`Store::samples`].
#[derive(Debug)]
pub struct Samples<'a> {
    store: &'a Store,
    blocks: VecDeque<BlockRef>,
    open: Option<(BlockRef, BlockReader)>,
    names: Infos,
    /// Names of the open block already copied.
    names_of_open: usize,
    from_ns: u64,
    to_ns: u64,
}

impl Samples<'_> {
    /// Names of the tasks met so far.
    pub fn names(&self) -> &Infos {
        &self.names
    }

    fn step(&mut self) -> Result<Option<StoredSample>, StoreError> {
        loop {
            if self.open.is_none() {
                let Some(mut block) = self.blocks.pop_front() else { return Ok(None) };
                let data = match &mut block.data {
                    Data::Parts(parts) => match parts.pop_front() {
                        Some(data) => data,
                        None => continue,
                    },
                    Data::Block(id) => match self.store.block(*id) {
                        // Thinned by the writer since the list was made.
                        Err(StoreError::Sqlite { error: rusqlite::Error::QueryReturnedNoRows, .. }) => {
                            continue;
                        }
                        other => other?,
                    },
                };
                let reader = BlockReader::new(&data)
                    .map_err(|damage| StoreError::damaged(&self.store.path, damage))?;
                self.open = Some((block, reader));
                self.names_of_open = 0;
            }
            let Some((block, reader)) = &mut self.open else { continue };
            match reader.advance() {
                Ok(Some(sample)) if sample.wall_ns < self.from_ns || sample.wall_ns > self.to_ns => (),
                Ok(Some(sample)) => {
                    let sample = sample.clone();
                    let known = reader.names();
                    if known.len() != self.names_of_open {
                        self.names_of_open = known.len();
                        self.names.extend(known.iter().map(|(id, info)| (*id, info.clone())));
                    }
                    return Ok(Some(StoredSample {
                        session: block.session,
                        boot_id: block.boot_id.clone(),
                        sample,
                    }));
                }
                Ok(None) => {
                    let next = match &mut block.data {
                        Data::Parts(parts) => parts.pop_front().map(|data| reader.follow(&data)),
                        Data::Block(_) => None,
                    };
                    match next {
                        Some(Ok(())) => (),
                        None => self.open = None,
                        Some(Err(damage)) => {
                            self.open = None;
                            return Err(StoreError::damaged(&self.store.path, damage));
                        }
                    }
                }
                Err(damage) => {
                    self.open = None;
                    return Err(StoreError::damaged(&self.store.path, damage));
                }
            }
        }
    }
}

impl Iterator for Samples<'_> {
    type Item = Result<StoredSample, StoreError>;

    /// After an error (a damaged block) iteration goes on with the next block.
    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}
