//! The CRI client against a runtime played by the test over a Unix socket.

use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_observe::Endpoints;
use evenkeel_observe::runtimes::{Address, ask_located, ask_once, decode_docker};
use tonic::{Request, Response, Status};

#[allow(clippy::all)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/cri_server/runtime.v1.rs"));
}

use proto::runtime_service_server::{RuntimeService, RuntimeServiceServer};

/// A runtime with one pod of one container, one on the host's network, and a pod that ended.
struct Played {
    delay: Duration,
    /// Length of a further annotation of the pod.
    noise: usize,
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
        let mut items = vec![
            sandbox("p1", "web-0", "uid-1", proto::PodSandboxState::SandboxReady),
            proto::PodSandbox {
                annotations: [("evenkeel/guarantee".to_owned(), "30".to_owned())].into(),
                ..sandbox("p3", "node", "uid-3", proto::PodSandboxState::SandboxReady)
            },
            sandbox("p2", "old", "uid-2", proto::PodSandboxState::SandboxNotready),
        ];
        items[0].annotations.extend((self.noise > 0).then(|| ("noise".to_owned(), "x".repeat(self.noise))));
        Ok(Response::new(proto::ListPodSandboxResponse { items }))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<proto::PodSandboxStatusRequest>,
    ) -> Result<Response<proto::PodSandboxStatusResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        let mode = match id.as_str() {
            "p1" => proto::NamespaceMode::Pod,
            "p3" => proto::NamespaceMode::Node,
            other => panic!("{other} has no such annotation"),
        };
        let options = proto::NamespaceOption { network: mode.into(), ..Default::default() };
        let linux =
            proto::LinuxPodSandboxStatus { namespaces: Some(proto::Namespace { options: Some(options) }) };
        let network = proto::PodSandboxNetworkStatus { ip: "10.9.8.7".into() };
        let status = proto::PodSandboxStatus { id, network: Some(network), linux: Some(linux) };
        Ok(Response::new(proto::PodSandboxStatusResponse { status: Some(status) }))
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
    play_with(socket, Played { delay, noise: 0 });
}

fn play_with(socket: &Path, played: Played) {
    let socket = socket.to_owned();
    let (ready, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        executor.block_on(async {
            let listener = tokio::net::UnixListener::bind(socket).unwrap();
            ready.send(()).unwrap();
            let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
            tonic::transport::Server::builder()
                .add_service(RuntimeServiceServer::new(played))
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
    let endpoints = Endpoints { docker: vec![], cri: vec![socket] };
    let facts = ask_once(&endpoints).unwrap();
    assert_eq!(facts.pods["uid-1"].address, None, "nobody asked for it");
    let of = |value| {
        let facts = ask_located(&endpoints, ("evenkeel/guarantee", value)).unwrap();
        (facts.pods["uid-1"].address, facts.pods["uid-3"].address)
    };
    assert_eq!(of("40"), (Address::own("10.9.8.7"), None));
    assert_eq!(of("30"), (None, Some(Address::Host)));
    assert_eq!(of("41"), (None, None), "only who is meant is asked for");
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

/// Who writes a pod writes its annotations: as many as the kubelet copes with cost nobody his name.
#[test]
fn long_annotations_hide_no_pod_and_endless_ones_are_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let facts = |name: &str, noise: usize| {
        let socket = dir.path().join(name);
        play_with(&socket, Played { delay: Duration::ZERO, noise });
        ask_once(&Endpoints { docker: vec![], cri: vec![socket] })
    };
    assert_eq!(facts("long", 12 << 20).expect("an answer of 12 MiB").pods["uid-1"].name, "web-0");
    assert_eq!(facts("endless", 20 << 20), None);
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
    assert_eq!(ask_once(&endpoints).unwrap().containers.len(), 3);
    assert!(start.elapsed() < Duration::from_secs(30));
    let nobody = Endpoints { docker: vec![], cri: vec![dir.path().join("missing")] };
    assert_eq!(ask_once(&nobody), None);
}

#[test]
fn docker_says_where_its_containers_are() {
    let body = br#"[
        {"Id":"own","HostConfig":{"NetworkMode":"bridge"},"NetworkSettings":{"Networks":{
            "z":{"IPAddress":"172.18.0.9"},"bridge":{"IPAddress":"172.17.0.2"},"a":{"IPAddress":""}}}},
        {"Id":"six","NetworkSettings":{"Networks":{"b":{"IPAddress":"","GlobalIPv6Address":"fd00::2"}}}},
        {"Id":"host","HostConfig":{"NetworkMode":"host"},"NetworkSettings":{"Networks":{"host":{"IPAddress":""}}}},
        {"Id":"lies","NetworkSettings":{"Networks":{"b":{"IPAddress":"127.0.0.1"}}}},
        {"Id":"none","HostConfig":{"NetworkMode":"none"}}]"#;
    let facts = decode_docker(body).unwrap();
    let of = |id: &str| facts.containers[id].address;
    assert_eq!(of("own"), Address::own("172.17.0.2"), "of the first network that has one, by name");
    assert_eq!(of("six"), Address::own("fd00::2"));
    assert_eq!(of("host"), Some(Address::Host));
    assert_eq!((of("lies"), of("none")), (None, None));
}
