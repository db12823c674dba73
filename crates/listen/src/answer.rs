//! What answers are made of: numbers of a query, documents, pages, and work that takes a while.

use axum::http::StatusCode;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

/// What a page may do: its own script and style, and questions to this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A number in a query; none where it is larger than what it numbers.
pub fn number<T: std::str::FromStr>(query: &str, name: &str) -> Option<T> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}

/// What takes a while is done elsewhere.
pub async fn slow(work: impl FnOnce() -> Result<Value, String> + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(document)) => json(&document),
        Ok(Err(why)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "internal error\n").into_response(),
    }
}

pub fn json(document: &Value) -> Response {
    page("application/json", format!("{document}\n"))
}

pub fn page(kind: &'static str, text: impl IntoResponse) -> Response {
    let headers = [
        (CONTENT_TYPE, kind),
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    (headers, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_too_large_names_nobody() {
        assert_eq!(number::<u32>("a=1&tid=7", "tid"), Some(7));
        assert_eq!(number::<u32>("tid=4294967297", "tid"), None, "cut to 32 bits it would be task 1");
        assert_eq!(number::<u32>("tid=-1", "tid"), None);
    }
}
