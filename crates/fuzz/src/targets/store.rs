//! Blocks of the history.

use evenkeel_base::run::RunRecord;
use evenkeel_store::block::BlockReader;

use crate::Target;

/// Samples of one block looked at: each is as long as the block has tasks.
const SAMPLES: usize = 1000;

fn read(block: &[u8]) {
    let Ok(mut block) = BlockReader::new(block) else { return };
    for _ in 0..SAMPLES {
        match block.advance() {
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return,
        }
    }
}

pub const TARGETS: &[Target] = &[
    Target::bytes("history-block", read),
    // Hardly any change of a compressed block is still one.
    Target::bytes("history-rows", |bytes| read(&zstd::bulk::compress(bytes, 1).unwrap_or_default())),
    Target::text("run-record", |text| {
        let _ = serde_json::from_str::<RunRecord>(text);
    }),
];
