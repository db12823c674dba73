//! How a CRI runtime is reached: its socket, the time it has for an answer, and why it is not.

use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
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

/// Why something failed: the errors around it say no more than that it is one of transport.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_nobody_answers_is_said_by_the_system() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, within) = (dir.path().join("none.sock"), Duration::from_secs(5));
        let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = executor.block_on(cri(&socket, within)).unwrap_err();
        assert!(error.contains("No such file"), "{error}");
    }
}
