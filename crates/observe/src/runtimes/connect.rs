//! How a container runtime is reached: its socket, the time it has for an answer, and why it is not.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker};
use hyper::Response;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// Most bytes that a runtime may answer: what the kubelet takes of its own (`maxMsgSize` of its CRI client). Pods have annotations of up
/// to 256 KiB each, and runtimes list them all.
pub const MOST: usize = 16 << 20;

/// Where CRI runtimes that run containers themselves listen by default.
pub const CRI_SOCKETS: [&str; 4] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
];

/// Connects to the CRI runtime behind a socket, which has so long for each answer.
///
/// # Errors
/// Why nobody answers there, in words.
pub async fn cri(socket: &Path, within: Duration) -> Result<Channel, String> {
    let path = socket.to_owned();
    // The address is not used: the connector opens the socket.
    let endpoint = Endpoint::from_static("http://cri.invalid").timeout(within);
    let connecting = endpoint.connect_with_connector(tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    }));
    connecting.await.map_err(|error| root_cause(&error))
}

/// Connects to the Docker Engine behind a socket, which has so long and [`MOST`] bytes for its answers; without one, to the usual
/// one (`DOCKER_HOST`, else `/var/run/docker.sock`), which has bollard's two minutes.
///
/// # Errors
/// Why no one answers, or not in a version that is known, in words.
pub async fn docker(socket: Option<(&Path, Duration)>) -> Result<Docker, String> {
    let docker = match socket {
        Some((socket, within)) => {
            let seconds = within.as_secs().max(1);
            // The address is not used: the connector opens the socket.
            Docker::connect_with_custom_transport(
                bounded(socket),
                Some("http://docker.invalid"),
                seconds,
                API_DEFAULT_VERSION,
            )
        }
        None => Docker::connect_with_unix_defaults(),
    };
    let docker = docker.map_err(|error| root_cause(&error))?;
    // An older daemon refuses a newer client's version: agree on one first.
    docker.negotiate_version().await.map_err(|error| root_cause(&error))
}

/// Asks by connections that end after [`MOST`] bytes: bollard itself takes whatever comes.
fn bounded(socket: &Path) -> impl Fn(BollardRequest) -> Answer + Send + Sync + use<> {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        Box::pin(async move {
            let stream = UnixStream::connect(&socket).await;
            let stream =
                stream.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", socket.display())))?;
            Ok::<_, io::Error>(TokioIo::new(Bounded { stream, left: MOST }))
        })
    });
    // One for each request: each may answer so much.
    let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
    move |request: BollardRequest| -> Answer {
        let answer = client.request(request);
        Box::pin(async move { Ok(answer.await?) })
    }
}

/// What [`bounded`] returns.
type Answer = Pin<Box<dyn Future<Output = Result<Response<Incoming>, bollard::errors::Error>> + Send>>;

/// A socket from which so much is read.
struct Bounded {
    stream: UnixStream,
    left: usize,
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let taken = buf.filled().len() - before;
        let Some(left) = self.left.checked_sub(taken) else {
            return Poll::Ready(Err(io::Error::other(format!("answers more than {MOST} bytes"))));
        };
        self.left = left;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Connection for Bounded {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// Why something failed: the errors around it say no more than that it is one of transport.
pub(super) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn why_nobody_answers_is_said_by_the_system() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, within) = (dir.path().join("none.sock"), Duration::from_secs(5));
        let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = executor.block_on(cri(&socket, within)).unwrap_err();
        assert!(error.contains("No such file"), "{error}");
        let error = executor.block_on(docker(Some((&socket, within)))).unwrap_err();
        assert!(error.contains("none.sock: No such file"), "{error}");
    }

    /// An engine that answers each request with this much of a list, whether asked for it or not.
    async fn endless(listener: tokio::net::UnixListener, taken: Arc<AtomicUsize>) {
        while let Ok((mut stream, _)) = listener.accept().await {
            let taken = taken.clone();
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 4096]).await;
                let mut part = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[".to_owned();
                while let Ok(n) = stream.write(part.as_bytes()).await {
                    taken.fetch_add(n, Relaxed);
                    part = " ".repeat(1 << 16);
                }
            });
        }
    }

    #[test]
    fn an_engine_that_answers_without_end_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("docker.sock");
        let taken = Arc::<AtomicUsize>::default();
        let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = executor.block_on(async {
            tokio::spawn(endless(tokio::net::UnixListener::bind(&socket).unwrap(), taken.clone()));
            docker(Some((&socket, Duration::from_secs(60)))).await.unwrap_err()
        });
        assert!(error.contains("more than 16777216 bytes"), "{error}");
        // What is on its way in the socket comes on top.
        assert!(taken.load(Relaxed) < MOST + (4 << 20), "{taken:?}");
    }
}
