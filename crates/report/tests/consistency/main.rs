//! No sentence contradicts its figures: records (nulls, planted effects, one repetition, missing cells, unlike loads, runs cut
//! off) are generated for every built-in experiment of the laboratory and for the experiments on tenants, or made by the
//! simulator; they go through the real study and report, and what is *printed* is read back and reckoned again from the raw
//! record, by code that shares nothing with the study.
//!
//! `EVENKEEL_CONSISTENCY_RECORDS` sets the number of records (short by default).

mod lab;
mod own;
mod printed;
mod shared;
mod sim;
mod tenants;
mod textbook;

use printed::{follows, printed};

#[test]
fn the_reader_sees_a_contradiction() {
    let row = |holds: &str, value: &str, text: &str| {
        let table = format!(
            "## Verdicts\n\n| holds | verdict | test | value | bound |\n| {holds} | {text} | x | {value} | &lt;= 10 |\n"
        );
        follows(&printed(&table)[0])
    };
    assert!(row("yes", "1.19 \\[0.15, 9.38\\]", "It holds.").is_ok());
    assert!(row("no", "94.4 \\[0, 1067\\] %", "It does not.").unwrap_err().contains("says otherwise"));
    assert!(row("yes", "3.7 \\[0, 17.4\\] %", "It holds.").is_err());
    assert!(row("yes", "3.7 %", "It holds.").unwrap_err().contains("without an interval"));
    assert!(row("?", "3.7 \\[0, 17.4\\] %", "Undecided: .").is_ok());
    assert!(row("?", "3.7 \\[0, 7\\] %", "Undecided: .").is_err());
}
