//! What pages show after a choice, in a real browser.

use super::chrome::Chrome;

/// Past hours are those that were chosen last.
pub fn past_hours_are_those_chosen(chrome: &mut Chrome) {
    // The answer to an earlier question comes later, after an error.
    let answers = "(async () => { const real = ask, answers = []; past.error = 'an old one'; \
                   ask = path => path.startsWith('api/history') ? new Promise(done => answers.push(done)) : real(path); \
                   const both = [askPast(), askPast()]; [1, 0].forEach(at => answers[at]({at, moments: []})); \
                   await Promise.all(both); ask = real; return [past.data.at, past.error]; })()";
    assert_eq!(chrome.value(answers), serde_json::json!([1, null]));
    // The last hour is not the one before the page was left.
    chrome.value("past.data.old = true, location.hash = '#/past', 0");
    chrome.until("past.data && !past.data.old");
}
