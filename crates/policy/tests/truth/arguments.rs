//! What the examples `truth` and `truth_monitor` take.

pub const USAGE: &str =
    "usage: [TRIALS [PART OF A ROW'S NAME [THREADS]]]; 2000 trials a row and two threads unless given";

/// Trials a row, part of a row's name, and threads; the error is what to tell who asked for something else.
pub fn read(args: impl IntoIterator<Item = String>) -> Result<(u64, String, u64), String> {
    let mut args = args.into_iter();
    let number = |text: Option<String>, unset: u64| match text {
        None => Ok(unset),
        Some(text) => match text.parse() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("{text:?} is no number of trials or threads\n{USAGE}")),
        },
    };
    let trials = number(args.next(), 2000)?;
    let part = args.next().unwrap_or_default();
    // Two at a time: the tables are for a host of 2 CPUs.
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get().min(2));
    let threads = number(args.next(), cpus as u64)?;
    match args.next() {
        Some(more) => Err(format!("{more:?} is one argument too many\n{USAGE}")),
        None => Ok((trials, part, threads)),
    }
}
