//! Services asked for their requests, for the pages.

use anyhow::Context;
use evenkeel_agent::scraped;
use evenkeel_listen::Tally;
use evenkeel_observe::Endpoints;

use super::Failure;

/// Asks from now on where that is wanted, in a thread of its own, which ends with the process.
pub fn start(tally: Tally, wanted: bool) -> Result<(), Failure> {
    if !wanted {
        return Ok(());
    }
    let tell = move |requests, notes: Vec<String>| {
        tally.scraped(requests);
        notes.iter().for_each(|note| tally.tell(note));
    };
    scraped::start(Endpoints::well_known(), tell)
        .context("cannot start asking services for their requests")
        .map_err(Failure::Cannot)
}
