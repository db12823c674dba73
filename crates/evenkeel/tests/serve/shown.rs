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
    // A beginning is typed: what was there of another time goes, and the field keeps the focus.
    chrome.value(
        "(() => { const field = main.querySelector('input'); field.focus(); main.append(h('p', {id: 'old'})); \
         field.value = '2020-01-01T00:00'; field.dispatchEvent(new Event('change')); })()",
    );
    chrome.until("document.getElementById('old') === null && past.data?.moments.length === 0");
    assert_eq!(chrome.value("document.activeElement.value"), "2020-01-01T00:00");
    assert_eq!(chrome.value("main.querySelectorAll('h1, input').length"), 2);
    chrome.value("past.from = '', document.activeElement.blur(), 0");
    // Of a week the shades say from which day to which.
    let days = "(() => { const to = 6 * 864e5, text = shades([[0, [1]], [to, [1]]]).textContent; return text.includes(date(0)) && text.includes(date(to)); })()";
    assert_eq!(chrome.value(days), true);
}
