//! Just enough HTTP to ask an address for a page: a GET of version 1.0, whose answer ends with the connection.

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
        return Err(format!(
            "{url:?}: only http:// addresses are asked; use a [measure] command such as curl for others"
        ));
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

/// Connects, to the first address that takes it.
pub(super) fn connect(host: &str, within: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in host.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, within.max(Duration::from_millis(1))) {
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
}
