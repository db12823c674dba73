//! Just enough HTTP to ask an address for a page, or to hand it a document: one request a connection.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Largest answer taken.
const MOST: u64 = 16 << 20;

/// What a request is like, beside its address.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// From the first packet to the last.
    pub within: Duration,
    /// Largest answer taken, bytes.
    pub most: u64,
    /// Sent as `Authorization: Bearer`.
    pub token: Option<&'a str>,
}

/// Host with port, and path.
///
/// # Errors
/// It is no address of this kind, in words.
pub fn parse(url: &str) -> Result<(String, String), String> {
    let Some(rest) = url.strip_prefix("http://") else {
        return Err(format!("{url:?}: only http:// addresses are asked"));
    };
    let (host, path) = match rest.split_once('/') {
        Some((host, path)) => (host, format!("/{path}")),
        None => (rest, "/".into()),
    };
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(format!("{url:?} names no host"));
    }
    let path = path.chars().filter(|c| !c.is_control()).collect::<String>().replace(' ', "%20");
    let with_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Ok((if with_port { host.to_owned() } else { format!("{host}:80") }, path))
}

/// Connects, to the first address that takes it. The time is for all of a name's addresses together; the resolver has its own.
pub(super) fn connect(host: &str, within: Duration) -> io::Result<TcpStream> {
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

/// The body of an answer with status 200.
pub(super) fn get(url: &str, within: Duration) -> io::Result<String> {
    get_with(url, Request { within, most: MOST, token: None })
}

/// As [`get`]; the token is in no message.
///
/// # Errors
/// The address is none, nobody answers in time, the answer is too large, or its status is not 200.
pub fn get_with(url: &str, Request { within, most, token }: Request<'_>) -> io::Result<String> {
    let (host, path) = parse(url).map_err(|what| io::Error::new(io::ErrorKind::InvalidInput, what))?;
    let until = Instant::now() + within;
    let mut stream = connect(&host, within)?;
    stream.set_write_timeout(Some(within))?;
    let name = host.rsplit_once(':').map_or(host.as_str(), |(name, _)| name);
    // In one piece: a server may answer, and close, after the first.
    let token = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let request =
        format!("GET {path} HTTP/1.0\r\nHost: {name}\r\nUser-Agent: evenkeel\r\nAccept: */*\r\n{token}\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut part = [0; 16 << 10];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the answer has no end"));
        }
        if answer.len() as u64 > most {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("answers more than {most} bytes"),
            ));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(n) => answer.extend(&part[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    body_of(&answer)
}

/// Largest part of an answer that is read for its status.
const STATUS: usize = 1024;

/// Hands over a document; returns the answer's status, of which nothing else is read. The token is in no message.
///
/// # Errors
/// The address is none, nobody answers in time, or the answer is no HTTP.
pub fn post(
    url: &str,
    kind: &str,
    body: &str,
    Request { within, most: _, token }: Request<'_>,
) -> io::Result<u16> {
    let (host, path) = parse(url).map_err(|what| io::Error::new(io::ErrorKind::InvalidInput, what))?;
    let until = Instant::now() + within;
    let mut stream = connect(&host, within)?;
    let name = host.strip_suffix(":80").unwrap_or(&host);
    let token = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {name}\r\nUser-Agent: evenkeel\r\nAccept: */*\r\nConnection: close\r\n\
         Content-Type: {kind}\r\nContent-Length: {}\r\n{token}\r\n{body}",
        body.len()
    );
    let mut rest = request.as_bytes();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => rest = &rest[n..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(in_time(error)),
        }
    }
    let (mut answer, mut part) = (Vec::new(), [0; STATUS]);
    while answer.len() < STATUS && !answer.contains(&b'\n') {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(n) => answer.extend(&part[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(in_time(error)),
        }
    }
    let line = String::from_utf8_lossy(&answer);
    let line = line.lines().next().unwrap_or_default();
    let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
    // What it said is not shown: it may be what it was sent, the token with it.
    status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is no HTTP"))
}

/// The time that is left.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(in_time(io::ErrorKind::TimedOut.into())) } else { Ok(left) }
}

/// A socket's time that is over reads as if it would block.
fn in_time(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
        }
        _ => error,
    }
}

/// The body of a whole answer.
///
/// # Errors
/// Its status is not 200.
pub fn body_of(answer: &[u8]) -> io::Result<String> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").or_else(|| text.split_once("\n\n")).unwrap_or((&text, ""));
    let status = head.lines().next().unwrap_or_default();
    if status.split_whitespace().nth(1) != Some("200") {
        return Err(io::Error::other(format!("answered {:?}", super::reading::excerpt(status))));
    }
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn addresses_are_taken_apart() {
        assert_eq!(parse("http://h/a b").unwrap(), ("h:80".into(), "/a%20b".into()));
        assert_eq!(parse("http://h:9/").unwrap().0, "h:9");
        assert!(parse("https://h").unwrap_err().contains("only http://"));
        assert!(parse("http:///x").is_err());
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
        let post = |token| post(&url, "application/json", "{}", Request { within, most: 0, token });
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
    fn who_hangs_is_left_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let request = Request { within: Duration::from_millis(300), most: 0, token: None };
        let error = post(&url, "text/plain", "x", request).unwrap_err();
        assert_eq!(error.to_string(), "no answer in time");
        drop(listener);
    }
}
