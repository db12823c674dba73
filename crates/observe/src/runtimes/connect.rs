//! How a container runtime is reached: its socket, the time it has for an answer, and why it is not.

use std::path::Path;
use std::time::Duration;

use bollard::{API_DEFAULT_VERSION, Docker};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

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
    // The error itself says no more than that it is one of transport.
    connecting.await.map_err(|error| root_cause(&error))
}

/// Connects to the Docker Engine behind a socket, which has so long for each answer; without one, to the usual one
/// (`DOCKER_HOST`, else `/var/run/docker.sock`), which has bollard's two minutes.
///
/// # Errors
/// No one answers, or not in a version that is known.
pub async fn docker(socket: Option<(&Path, Duration)>) -> Result<Docker, bollard::errors::Error> {
    let docker = match socket {
        Some((socket, within)) => {
            let seconds = within.as_secs().max(1);
            Docker::connect_with_unix(&socket.to_string_lossy(), seconds, API_DEFAULT_VERSION)
        }
        None => Docker::connect_with_unix_defaults(),
    };
    // An older daemon refuses a newer client's version: agree on one first.
    docker?.negotiate_version().await
}

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
        let error = executor.block_on(docker(Some((&socket, within)))).unwrap_err().to_string();
        assert!(error.contains("none.sock"), "{error}");
    }
}
