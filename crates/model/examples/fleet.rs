//! A fleet on paper: `cargo run --release -p evenkeel-model --example fleet [HOSTS [SEED]]`; `evenkeel sim --fleet HOSTS` prints it
//! as a table.

use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let hosts = args.next().map_or(Ok(10_000), |a| a.parse())?;
    let seed = args.next().map_or(Ok(1), |a| a.parse())?;
    let threads = std::thread::available_parallelism()?.get();
    let start = Instant::now();
    let fleet = evenkeel_model::fleet::judge_all(hosts, seed, threads)?;
    println!("{fleet:#?}");
    println!("{:.0} s on {threads} threads", start.elapsed().as_secs_f64());
    Ok(())
}
