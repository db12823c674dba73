//! `/api/why`: where the time of one process goes, and who takes it, watched for some seconds because its page asks.
//!
//! Programs are loaded for the time of the question, as `evenkeel why` does: nothing on the host is changed, and the server's own
//! rights suffice. One question at a time, and none that another site puts: a watch costs CPU.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use evenkeel_linux::process::is_alive;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::answer::{number, slow};

/// How long is watched: with the loading well below what a connection may last.
const TIME: Duration = Duration::from_secs(3);

/// Whether somebody asks just now.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    turn: Arc<Semaphore>,
    why: fn(&str, Duration) -> anyhow::Result<Value>,
}

impl Asked {
    /// Nobody asks; `why` watches.
    pub fn new(why: fn(&str, Duration) -> anyhow::Result<Value>) -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), why }
    }

    /// The document `evenkeel.why/v1` of the process `pid=`.
    pub async fn answer(&self, headers: &HeaderMap, query: &str) -> Response {
        if is_from_elsewhere(headers) {
            return (StatusCode::FORBIDDEN, "evenkeel: another site must not ask this\n").into_response();
        }
        let Some(pid) = number::<u32>(query, "pid") else {
            return (StatusCode::BAD_REQUEST, "evenkeel: pid=N says which process\n").into_response();
        };
        let Ok(turn) = self.turn.clone().try_acquire_owned() else {
            let text = "evenkeel: another process is being watched; ask again in some seconds\n";
            return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
        };
        // Not a trouble of this server's, which may be over in some seconds: asking again is of no use.
        if !is_alive(pid) {
            let text = format!("evenkeel: pid:{pid}: no such process\n");
            return (StatusCode::NOT_FOUND, text).into_response();
        }
        let why = self.why;
        slow(move || {
            // Until the watch is over, even if nobody waits for its answer any more.
            let _turn = turn;
            why(&format!("pid:{pid}"), TIME).map_err(|error| format!("{error:#}"))
        })
        .await
    }
}

/// Whether a browser says that a page of another site asks. Who is no browser says nothing.
fn is_from_elsewhere(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(|site| site.as_bytes());
    site.is_some_and(|site| site != b"same-origin" && site != b"none")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn another_site_a_second_question_and_one_about_nobody_are_refused() {
        let asked = Asked::new(|_, _| unreachable!("nothing is watched here"));
        let mut headers = HeaderMap::new();
        let status = |answer: Response| answer.status().as_u16();
        assert_eq!(status(asked.answer(&headers, "pid=x").await), 400);
        let turn = asked.turn.clone().try_acquire_owned();
        assert_eq!(status(asked.answer(&headers, "pid=2").await), 503);
        drop(turn);
        assert_eq!(status(asked.answer(&headers, "pid=4294967295").await), 404, "no process has this number");
        for site in ["cross-site", "same-site"] {
            headers.insert("sec-fetch-site", site.parse().unwrap());
            assert_eq!(status(asked.answer(&headers, "pid=2").await), 403, "{site}");
        }
        headers.insert("sec-fetch-site", "same-origin".parse().unwrap());
        assert_eq!(status(asked.answer(&headers, "pid=x").await), 400);
    }
}
