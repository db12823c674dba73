//! Tracks of a trace for what the agent said: each promise, and what the loop did.

use std::io::{self, Write};

use super::perfetto::{counter, describe, instant, put, slice};
use super::{Promise, Recording};

/// Numbers of tracks from here on: those of owners are far below.
const FIRST: u64 = 1 << 32;

/// Writes the tracks, where an agent said anything.
pub(super) fn tracks(recording: &Recording, to: &mut impl Write) -> io::Result<()> {
    let story = recording.story();
    if !story.marks.is_empty() {
        put(to, describe(FIRST, "changes of the loop", None, None))?;
    }
    for (at_ms, what) in &story.marks {
        put(to, instant(at_ns(recording, *at_ms), FIRST, what))?;
    }
    for (promise, parent) in story.promises.iter().zip((FIRST + 8..).step_by(8)) {
        promised(recording, promise, parent, to)?;
    }
    Ok(())
}

/// An instant of the trace, within its time.
fn at_ns(recording: &Recording, wall_ms: u64) -> u64 {
    let (from, to) = recording.interval_ns();
    recording.monotonic_ns(wall_ms.saturating_mul(1_000_000)).clamp(from, to)
}

/// A track with its states one after the other, and below it what it got and what is promised. A value is that of the look's
/// interval, which ended then; a gap is where nothing is known.
fn promised(recording: &Recording, promise: &Promise, parent: u64, to: &mut impl Write) -> io::Result<()> {
    put(to, describe(parent, &promise.title, None, None))?;
    let (state, got, bound) = (parent + 1, parent + 2, parent + 3);
    put(to, describe(state, "promise", Some(parent), None))?;
    let mut moments = promise.moments.iter().peekable();
    while let Some((begun_ms, _, name)) = moments.next() {
        while moments.next_if(|(_, _, next)| next == name).is_some() {}
        let end = moments.peek().map_or(recording.interval_ns().1, |next| at_ns(recording, next.0));
        let begun = at_ns(recording, *begun_ms);
        for packet in slice(begun, end.max(begun), state, name) {
            put(to, packet)?;
        }
    }
    put(to, describe(got, &promise.unit, Some(parent), Some("1")))?;
    for (at_ms, value) in promise.moments.iter().filter_map(|(at, value, _)| Some((at, (*value)?))) {
        put(to, counter(at_ns(recording, *at_ms), got, value))?;
    }
    if let (Some(value), Some(first)) = (promise.bound, promise.moments.first()) {
        put(to, describe(bound, &format!("bound: {}", promise.unit), Some(parent), Some("1")))?;
        put(to, counter(at_ns(recording, first.0), bound, value))?;
    }
    Ok(())
}
