//! Blocks of the history.

use evenkeel_base::run::RunRecord;
use evenkeel_store::StoredSample;
use evenkeel_store::block::BlockReader;
use evenkeel_store::rates::Accumulator;

use super::amount::amount;
use crate::Target;

/// Samples of one block looked at: each is as long as the block has tasks.
const SAMPLES: usize = 1000;

fn read(block: &[u8]) {
    let Ok(mut block) = BlockReader::new(block) else { return };
    let mut sums = Accumulator::default();
    for _ in 0..SAMPLES {
        let Ok(Some(sample)) = block.advance() else { break };
        let (boot_id, sample) = ("boot".into(), sample.clone());
        sums.add(StoredSample { session: 1, boot_id, sample });
    }
    let names = block.names();
    let Some(rates) = sums.finish(|id| names.get(&id).cloned()) else { return };
    amount("a time", rates.seconds);
    let tasks = rates.tasks.iter().flat_map(|task| [Some(task.cpu_pct), task.wait_pct]);
    let cpus = rates.cpus.iter().flat_map(|cpu| [Some(cpu.busy_pct), cpu.steal_pct]);
    tasks.chain(cpus).flatten().for_each(|share| amount("a share", share));
}

pub const TARGETS: &[Target] = &[
    Target::bytes("history-block", read),
    // Hardly any change of a compressed block is still one.
    Target::bytes("history-rows", |bytes| read(&zstd::bulk::compress(bytes, 1).unwrap_or_default())),
    Target::text("run-record", |text| {
        let _ = serde_json::from_str::<RunRecord>(text);
    }),
];
