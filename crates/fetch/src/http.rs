//! Just enough HTTP to ask an address for a page, or to hand it a document: one request a connection.

mod local;
mod wire;

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use evenkeel_base::excerpt;

pub use local::ask;
pub use wire::Trust;
use wire::Wire;

/// Largest answer taken.
const MOST: u64 = 16 << 20;

/// What a request is like, next to its address.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// From the first packet to the last.
    pub within: Duration,
    /// Largest answer taken, bytes.
    pub most: u64,
    /// Sent as `Authorization: Bearer`.
    pub token: Option<&'a str>,
    /// Whose certificates are believed; without, https:// is not asked.
    pub trust: Option<&'a Trust>,
}

/// An address, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub host: String,
    /// Path, with the query.
    pub path: String,
    pub is_tls: bool,
}

/// An http:// address.
pub fn parse(url: &str) -> Result<Address, String> {
    let Some(rest) = url.strip_prefix("http://") else {
        return Err(format!("{url:?}: only http:// addresses are asked"));
    };
    parts(url, rest, false)
}

/// An http:// or https:// address.
pub fn parse_either(url: &str) -> Result<Address, String> {
    let (rest, is_tls) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
        (Some(rest), _) => (rest, true),
        (None, Some(rest)) => (rest, false),
        (None, None) => return Err(format!("{url:?}: only http:// and https:// addresses are asked")),
    };
    parts(url, rest, is_tls)
}

fn parts(url: &str, rest: &str, is_tls: bool) -> Result<Address, String> {
    let (host, path) = match rest.split_once('/') {
        Some((host, path)) => (host, format!("/{path}")),
        None => (rest, "/".into()),
    };
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(format!("{url:?} names no host"));
    }
    let path = path.chars().filter(|c| !c.is_control()).collect::<String>().replace(' ', "%20");
    let with_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let port = if is_tls { 443 } else { 80 };
    let host = if with_port { host.to_owned() } else { format!("{host}:{port}") };
    Ok(Address { host, path, is_tls })
}

/// Without the port.
fn name(host: &str) -> &str {
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

/// Whether others on the network see what is sent to an address.
pub fn is_in_the_clear(url: &str) -> bool {
    let Ok(Address { host, is_tls: false, .. }) = parse_either(url) else { return false };
    let name = name(&host);
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    name != "localhost" && !address.is_ok_and(|address| address.is_loopback())
}

/// Connects to what an address names; its host as it is written in a request, and the path.
fn open(url: &str, request: &Request<'_>) -> io::Result<(Wire, String, String)> {
    let no = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    let Address { host, path, is_tls } = parse_either(url).map_err(no)?;
    let trust = match (is_tls, request.trust) {
        (true, None) => return Err(no(format!("{url:?}: only http:// addresses are asked"))),
        (true, trust) => trust,
        (false, _) => None,
    };
    let until = Instant::now() + request.within;
    let stream = connect(&host, request.within)?;
    let wire = Wire::new(stream, until, trust.map(|trust| (trust, name(&host))))?;
    let default = if is_tls { ":443" } else { ":80" };
    let written = host.strip_suffix(default).unwrap_or(&host).to_owned();
    Ok((wire, written, path))
}

/// Connects, to the first address that takes it. The time is for all of a name's addresses together; the resolver has its own.
///
/// # Errors
/// The name has no address, or none that takes it in time.
pub fn connect(host: &str, within: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let addresses = host.to_socket_addrs()?;
    let until = Instant::now() + within;
    for address in addresses {
        let left = until.saturating_duration_since(Instant::now());
        match TcpStream::connect_timeout(&address, left.max(Duration::from_millis(1))) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The body of an answer with status 200, of at most 16 MiB.
pub fn get(url: &str, within: Duration) -> io::Result<String> {
    get_with(url, Request { within, most: MOST, token: None, trust: None })
}

/// As [`get`]; the token is in no message.
///
/// # Errors
/// The address is none, no one answers in time, the answer is too large, or its status is not 200.
pub fn get_with(url: &str, request: Request<'_>) -> io::Result<String> {
    let (mut wire, host, path) = open(url, &request)?;
    let token = bearer(request.token);
    // In one piece: a server may answer, and close, after the first.
    let asked =
        format!("GET {path} HTTP/1.0\r\nHost: {host}\r\nUser-Agent: evenkeel\r\nAccept: */*\r\n{token}\r\n");
    wire.write_all(asked.as_bytes())?;
    let answer = whole(&mut wire, request.most)?;
    body_of(&answer)
}

/// What comes until the other end closes.
fn whole(stream: &mut impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut part = [0; 16 << 10];
    loop {
        if answer.len() as u64 > most {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("answers more than {most} bytes"),
            ));
        }
        match stream.read(&mut part) {
            Ok(0) => return Ok(answer),
            Ok(n) => answer.extend(&part[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The line that sends a token.
fn bearer(token: Option<&str>) -> String {
    token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"))
}

/// Largest part of an answer that is read for its status.
const STATUS: usize = 1024;

/// What was answered to a document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// How long the receiver wants to be left alone, where it says that in seconds (`Retry-After`).
    pub retry_after: Option<Duration>,
    /// What it said, as far as that was wanted and came in time. May repeat what it was sent.
    pub body: Vec<u8>,
}

/// Hands over a document. Reads no more of the answer than its status and `most` bytes beyond. The token is in no message.
///
/// # Errors
/// The address is none, no one answers in time, or the answer is no HTTP.
pub fn post(url: &str, kind: &str, body: &[u8], request: Request<'_>) -> io::Result<Answer> {
    let (mut wire, host, path) = open(url, &request)?;
    let token = bearer(request.token);
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: evenkeel\r\nAccept: */*\r\nConnection: close\r\n\
         Content-Type: {kind}\r\nContent-Length: {}\r\n{token}\r\n",
        body.len()
    );
    // In one piece: a server may answer, and close, after the first.
    wire.write_all(&[head.as_bytes(), body].concat())?;
    let most = STATUS + usize::try_from(request.most).unwrap_or(usize::MAX - STATUS);
    let (mut answer, mut part) = (Vec::new(), [0; STATUS]);
    while answer.len() < most && !is_whole(&answer, most) {
        match wire.read(&mut part) {
            Ok(0) => break,
            Ok(n) => answer.extend(&part[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The status counts, whatever should have come after it.
            Err(_) if answer.contains(&b'\n') => break,
            Err(error) => return Err(error),
        }
    }
    taken_apart(&answer)
}

/// Whether nothing more of an answer is wanted.
fn is_whole(answer: &[u8], most: usize) -> bool {
    if most == STATUS {
        return answer.contains(&b'\n');
    }
    let Some(head) = end_of_head(answer) else { return false };
    let length = header(&answer[..head], "content-length").and_then(|value| value.parse::<usize>().ok());
    length.is_some_and(|length| answer.len() - head >= length)
}

/// Where the body begins. Some servers end lines by a newline alone. What comes behind is not looked at: it is asked for each part of
/// a long page that arrives.
fn end_of_head(answer: &[u8]) -> Option<usize> {
    (0..answer.len()).find_map(|at| {
        let end = [b"\r\n\r\n".as_slice(), b"\n\n"].into_iter().find(|end| answer[at..].starts_with(end))?;
        Some(at + end.len())
    })
}

fn header(head: &[u8], name: &str) -> Option<String> {
    let head = String::from_utf8_lossy(head);
    head.lines().skip(1).find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    })
}

fn taken_apart(answer: &[u8]) -> io::Result<Answer> {
    let head = end_of_head(answer).unwrap_or(answer.len());
    let line = String::from_utf8_lossy(&answer[..head]);
    let line = line.lines().next().unwrap_or_default();
    let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
    // What it said is not shown: it may be what it was sent, a token with it.
    let status = status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is no HTTP"))?;
    let seconds = header(&answer[..head], "retry-after").and_then(|value| value.parse().ok());
    Ok(Answer { status, retry_after: seconds.map(Duration::from_secs), body: answer[head..].to_vec() })
}

/// The body of a whole answer.
///
/// # Errors
/// Its status is not 200, or it ends before its end: a part of a page is no page with less on it.
pub fn body_of(answer: &[u8]) -> io::Result<String> {
    let (head, body) = answer.split_at(end_of_head(answer).unwrap_or(answer.len()));
    let first = String::from_utf8_lossy(head);
    let status = first.lines().next().unwrap_or_default();
    if status.split_whitespace().nth(1) != Some("200") {
        return Err(io::Error::other(format!("answered {:?}", excerpt(status))));
    }
    let cut = || io::Error::new(io::ErrorKind::UnexpectedEof, "the answer was cut off");
    if header(head, "transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
        return unchunked(body).map(|body| String::from_utf8_lossy(&body).into_owned()).ok_or_else(cut);
    }
    let length = header(head, "content-length").and_then(|value| value.parse::<usize>().ok());
    if length.is_some_and(|length| body.len() < length) {
        return Err(cut());
    }
    Ok(String::from_utf8_lossy(body).into_owned())
}

/// What is in chunks (RFC 9112, 7.1), which some servers send though HTTP/1.0 has none; `None` where the last one is missing.
fn unchunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let line = std::str::from_utf8(&rest[..end]).ok()?;
        let size = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
        if size == 0 {
            return Some(whole);
        }
        let (chunk, after) = rest[end + 1..].split_at_checked(size)?;
        whole.extend(chunk);
        rest = after.strip_prefix(b"\r\n").or(after.strip_prefix(b"\n"))?;
    }
}

/// A text as a part of a path or of a query.
pub fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_a_part_of_a_path() {
        assert_eq!(encoded("a-1_x.y~"), "a-1_x.y~");
        assert_eq!(encoded("{\"l\":[\"ü\"]}"), "%7B%22l%22%3A%5B%22%C3%BC%22%5D%7D");
    }
    use std::net::TcpListener;

    #[test]
    fn addresses_are_taken_apart() {
        let address =
            |host: &str, path: &str, is_tls| Ok(Address { host: host.into(), path: path.into(), is_tls });
        assert_eq!(parse("http://h/a b"), address("h:80", "/a%20b", false));
        assert_eq!(parse("http://h:9/"), address("h:9", "/", false));
        assert!(parse("https://h").unwrap_err().contains("only http://"));
        assert!(parse("http:///x").is_err());
        assert_eq!(parse_either("https://h/x"), address("h:443", "/x", true));
        assert_eq!(parse_either("http://[::1]:9"), address("[::1]:9", "/", false));
        assert!(parse_either("ftp://h").is_err() && parse_either("https://").is_err());
    }

    #[test]
    fn who_is_elsewhere_is_asked_in_the_clear_by_http() {
        for url in ["http://node1:9190/metrics", "http://10.0.0.7", "http://localhost.evil.example/x"] {
            assert!(is_in_the_clear(url), "{url}");
        }
        for url in [
            "https://node1/",
            "http://127.0.0.1:9190/x",
            "http://localhost",
            "http://[::1]:9190/",
            "http://[::1]",
        ] {
            assert!(!is_in_the_clear(url), "{url}");
        }
    }

    #[test]
    fn a_page_is_got_and_an_error_is_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/x", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            for answer in ["HTTP/1.1 200 OK\r\n\r\nbody", "HTTP/1.1 404 Not Found\r\n\r\n", ""] {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 1000]).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let within = Duration::from_secs(5);
        assert_eq!(get(&url, within).unwrap(), "body");
        assert!(get(&url, within).unwrap_err().to_string().contains("404"));
        assert!(get(&url, within).is_err());
        server.join().unwrap();
        assert!(get(&url, within).is_err());
    }

    #[test]
    fn a_part_of_a_page_is_no_page() {
        let page = |length: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\nup 1\n");
        for whole in ["5", "4", "x", "-1"] {
            assert_eq!(body_of(page(whole).as_bytes()).unwrap(), "up 1\n", "{whole}");
        }
        for cut in ["6", "18446744073709551615"] {
            assert_eq!(body_of(page(cut).as_bytes()).unwrap_err().to_string(), "the answer was cut off");
        }
        // A server of a few lines of shell.
        let short =
            |length: &str| format!("HTTP/1.0 200 OK\nContent-Length: {length}\n\nup 1\n\r\n\r\nup 2\n");
        assert_eq!(body_of(short("14").as_bytes()).unwrap(), "up 1\n\r\n\r\nup 2\n");
        assert_eq!(body_of(short("15").as_bytes()).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        // In chunks, of which the last is empty.
        let chunked = |body: &str| {
            body_of(format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}").as_bytes())
        };
        assert_eq!(
            chunked("5\r\nup 1\n\r\nA;x=y\r\nup 2\nup 3\n\r\n0\r\n\r\n").unwrap(),
            "up 1\nup 2\nup 3\n"
        );
        for cut in [
            "",
            "5\r\nup 1\n\r\n",
            "5\r\nup 1\n",
            "5\r\nup",
            "ffffffffffffffff\r\nup 1\n",
            "x\r\nup 1\n\r\n0\r\n",
        ] {
            assert_eq!(chunked(cut).unwrap_err().to_string(), "the answer was cut off", "{cut:?}");
        }
        // Of an error the status counts.
        let error = b"HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\n";
        assert!(body_of(error).unwrap_err().to_string().contains("503"));
    }

    #[test]
    fn a_document_is_handed_over_and_only_the_status_is_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let mut heads = Vec::new();
            for answer in ["HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.0 500\r\n", "Bearer secret\r\n", ""] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut text = Vec::new();
                while !text.ends_with(b"{}") {
                    let mut part = [0; 1000];
                    let n = stream.read(&mut part).unwrap();
                    text.extend(&part[..n]);
                }
                heads.push(String::from_utf8(text).unwrap());
                stream.write_all(answer.as_bytes()).unwrap();
            }
            // An answer without an end, as long as it is taken.
            let (mut stream, _) = listener.accept().unwrap();
            let mut taken = 0_u64;
            while stream.write_all(&[b'x'; 4096]).is_ok() {
                taken += 4096;
            }
            (heads, taken)
        });
        let url = format!("http://{address}/notices");
        let within = Duration::from_secs(20);
        let post = |token| {
            let request = Request { within, most: 0, token, trust: None };
            post(&url, "application/json", b"{}", request).map(|answer| answer.status)
        };
        assert_eq!(post(Some("secret")).unwrap(), 204);
        assert_eq!(post(None).unwrap(), 500);
        assert_eq!(post(Some("secret")).unwrap_err().to_string(), "the answer is no HTTP");
        assert!(post(None).is_err());
        // Not when the time is over, either.
        assert_eq!(post(None).unwrap_err().to_string(), "the answer is no HTTP");
        let (heads, taken) = server.join().unwrap();
        assert!(heads[0].starts_with("POST /notices HTTP/1.1\r\n"), "{heads:?}");
        assert!(heads[0].contains("\r\nContent-Length: 2\r\n"), "{heads:?}");
        assert!(heads[0].contains("\r\nAuthorization: Bearer secret\r\n"), "{heads:?}");
        assert!(heads[0].contains(&format!("\r\nHost: {address}\r\n")), "{heads:?}");
        assert!(!heads[1].contains("Authorization"), "{heads:?}");
        // What the socket buffers hold, not what the server would send.
        assert!(taken < 64 << 20, "{taken} bytes were taken");
    }

    #[test]
    fn as_much_of_an_answer_is_read_as_is_wanted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let mut open = Vec::new();
            for answer in [
                "HTTP/1.1 503 x\r\nretry-after:  7 \r\nContent-Length: 4\r\n\r\nbusy",
                "HTTP/1.1 503 x\r\nRetry-After: tomorrow\r\nContent-Length: 0\r\n\r\n",
            ] {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 1000]).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
                // Not closed: who waited for that would wait long.
                open.push(stream);
            }
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1000]).unwrap();
            stream.write_all(b"HTTP/1.1 200 x\r\n\r\n").unwrap();
            while stream.write_all(&[b'x'; 4096]).is_ok() {}
        });
        let request = Request { within: Duration::from_secs(3600), most: 5000, token: None, trust: None };
        let ask = || post(&url, "text/plain", b"x", request).unwrap();
        let busy = Answer { status: 503, retry_after: Some(Duration::from_secs(7)), body: b"busy".to_vec() };
        assert_eq!(ask(), busy);
        assert_eq!(ask(), Answer { status: 503, ..Answer::default() });
        let endless = ask();
        assert!(endless.status == 200 && endless.body.len() < 5000 + 2 * STATUS, "{}", endless.body.len());
        server.join().unwrap();
    }

    #[test]
    fn who_hangs_is_left_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let request = Request { within: Duration::from_millis(300), most: 0, token: None, trust: None };
        let error = post(&url, "text/plain", b"x", request).unwrap_err();
        assert_eq!(error.to_string(), "no answer in time");
        drop(listener);
    }
}
