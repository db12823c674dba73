//! What requests and the files of a server hold, for `crates/fuzz`: no interface. Each function panics where the result makes no
//! sense.

use std::path::Path;

use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, HeaderValue};

use crate::access::Token;
use crate::answer::number;
use crate::server::Names;

pub fn query(text: &str) {
    let _ = number::<u32>(text, "tid");
}

/// The Host header of a request.
pub fn host_header(text: &str) {
    let names = Names::named(Some("node1".to_owned()));
    let _ = names.knows(text);
    // Who is not this host is not known where only this host can ask.
    let strange = Names::named(None).knows(text) && text.to_ascii_lowercase().contains("evil");
    assert!(!strange, "{text:?}");
}

/// A token's file, and the header of a request that is to have it.
pub fn authorization(text: &str) {
    const SECRET: &str = "0123456789abcdef-secret";
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_str(first) {
        headers.insert(AUTHORIZATION, value);
    }
    if let Ok(token) = Token::parse(Path::new("token"), SECRET)
        && token.admits(&headers)
    {
        // In clear, or in base 64 behind a name of any length.
        assert!(first.contains(SECRET) || first.to_ascii_lowercase().starts_with("basic "), "{first:?}");
    }
    if let Ok(token) = Token::parse(Path::new("token"), rest) {
        let _ = token.admits(&headers);
        assert!(!token.admits(&HeaderMap::new()));
    }
}
