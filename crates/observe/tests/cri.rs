//! The CRI client against a runtime played by the test over a Unix socket.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_observe::Endpoints;
use evenkeel_observe::runtimes::ask_once;
use tonic::{Request, Response, Status};

#[allow(missing_docs, clippy::all)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/cri_server/runtime.v1.rs"));
}

use proto::runtime_service_server::{RuntimeService, RuntimeServiceServer};

/// A runtime with one pod of one container, and a pod that ended.
struct Played {
    delay: Duration,
}

fn sandbox(id: &str, name: &str, uid: &str, state: proto::PodSandboxState) -> proto::PodSandbox {
    proto::PodSandbox {
        id: id.into(),
        metadata: Some(proto::PodSandboxMetadata {
            name: name.into(),
            uid: uid.into(),
            namespace: "shop".into(),
            attempt: 0,
        }),
        state: state.into(),
        annotations: [("evenkeel/guarantee".to_owned(), "40".to_owned())].into(),
        ..Default::default()
    }
}

#[tonic::async_trait]
impl RuntimeService for Played {
    async fn version(
        &self,
        _: Request<proto::VersionRequest>,
    ) -> Result<Response<proto::VersionResponse>, Status> {
        tokio::time::sleep(self.delay).await;
        let runtime_name = "cri-o".to_owned();
        Ok(Response::new(proto::VersionResponse { runtime_name, ..Default::default() }))
    }

    async fn list_pod_sandbox(
        &self,
        _: Request<proto::ListPodSandboxRequest>,
    ) -> Result<Response<proto::ListPodSandboxResponse>, Status> {
        let items = vec![
            sandbox("p1", "web-0", "uid-1", proto::PodSandboxState::SandboxReady),
            sandbox("p2", "old", "uid-2", proto::PodSandboxState::SandboxNotready),
        ];
        Ok(Response::new(proto::ListPodSandboxResponse { items }))
    }

    async fn list_containers(
        &self,
        _: Request<proto::ListContainersRequest>,
    ) -> Result<Response<proto::ListContainersResponse>, Status> {
        let metadata = proto::ContainerMetadata { name: "web".into(), attempt: 1 };
        let container = proto::Container {
            id: "c1".into(),
            pod_sandbox_id: "p1".into(),
            metadata: Some(metadata),
            labels: [("app".to_owned(), "shop".to_owned())].into(),
            ..Default::default()
        };
        Ok(Response::new(proto::ListContainersResponse { containers: vec![container] }))
    }
}

/// Plays the runtime at a socket until the test ends.
fn play(socket: &Path, delay: Duration) {
    let socket = socket.to_owned();
    let (ready, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        executor.block_on(async {
            let listener = tokio::net::UnixListener::bind(socket).unwrap();
            ready.send(()).unwrap();
            let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
            tonic::transport::Server::builder()
                .add_service(RuntimeServiceServer::new(Played { delay }))
                .serve_with_incoming(incoming)
                .await
                .unwrap();
        });
    });
    wait.recv().unwrap();
}

#[test]
fn pods_and_containers_are_named_by_cri() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cri.sock");
    play(&socket, Duration::ZERO);
    let facts = ask_once(&Endpoints { docker: vec![], cri: vec![socket] }).unwrap();
    let (web, pause) = (&facts.containers["c1"], &facts.containers["p1"]);
    assert_eq!(
        (web.name.as_str(), web.runtime.as_str(), web.pod.as_deref()),
        ("web", "cri-o", Some("uid-1"))
    );
    assert_eq!(web.labels, [("app".to_owned(), "shop".to_owned())]);
    assert_eq!((pause.name.as_str(), pause.pod.as_deref()), ("pause", Some("uid-1")));
    let pod = &facts.pods["uid-1"];
    assert_eq!((pod.namespace.as_str(), pod.name.as_str(), pod.annotations.len()), ("shop", "web-0", 1));
    assert!(!facts.pods.contains_key("uid-2"), "a pod that ended is not told");
}

#[test]
fn a_runtime_that_does_not_answer_is_left_out_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let (slow, fast, dead) = (dir.path().join("slow"), dir.path().join("fast"), dir.path().join("dead"));
    play(&slow, Duration::from_secs(600));
    play(&fast, Duration::ZERO);
    // A socket nobody listens on: bound and dropped.
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    let start = Instant::now();
    let endpoints = Endpoints { docker: vec![("docker".into(), dead.clone())], cri: vec![slow, fast, dead] };
    assert_eq!(ask_once(&endpoints).unwrap().containers.len(), 2);
    assert!(start.elapsed() < Duration::from_secs(30));
    let nobody = Endpoints { docker: vec![], cri: vec![dir.path().join("missing")] };
    assert_eq!(ask_once(&nobody), None);
}
