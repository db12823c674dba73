//! A Docker Engine as the tenants of loads and of experiments use it.
//!
//! No registry is needed: the image is empty (an empty tar, imported on the spot), what runs is bound in read-only from
//! the host. Containers carry their starter's name in a label, so that those of dead starters can be told and removed.

use std::collections::HashMap;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error as EngineError;
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, CreateImageOptionsBuilder, InspectContainerOptions,
    KillContainerOptionsBuilder, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder,
    RemoveImageOptionsBuilder, StartContainerOptions,
};
use evenkeel_observe::runtimes::connect;
use futures_util::TryStreamExt;
use tokio::runtime::Runtime;

use crate::launch::LaunchError;

/// How long the engine may take for one answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The engine's API without async: every call runs on a thread of its own, so that it works from anywhere.
#[derive(Debug)]
pub(crate) struct Engine {
    docker: Docker,
    runtime: Runtime,
}

impl Engine {
    /// The engine behind a socket, or the usual one.
    pub(crate) fn connect(socket: Option<&Path>) -> Result<Self, LaunchError> {
        let no_answer = |error: String| {
            LaunchError::NoContainers(format!(
                "no Docker Engine answers ({error}); start dockerd, set DOCKER_HOST to its unix:// socket, or choose \
                 cgroups as the place"
            ))
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| LaunchError::system("cannot make an event loop", e))?;
        let socket = socket.map(|socket| (socket, TIMEOUT));
        let docker = on_a_thread(|| runtime.block_on(connect::docker(socket))).map_err(no_answer)?;
        Ok(Self { docker, runtime })
    }

    /// Does one thing with a client, and waits for it.
    fn call<T: Send>(&self, work: impl AsyncWork<T>) -> T {
        let docker = self.docker.clone();
        // The future is made over there: it need not cross.
        on_a_thread(|| self.runtime.block_on(work.run(docker)))
    }

    /// Imports an empty image for the containers of one starter; gives its name.
    pub(crate) fn empty_image(&self, starter: &str) -> Result<String, EngineError> {
        let options = CreateImageOptionsBuilder::new().from_src("-").repo(starter).tag("empty").build();
        // An empty tar is two blocks of zeros.
        let tar = bollard::body_full(vec![0; 1024].into());
        self.call(async move |docker: Docker| {
            docker.create_image(Some(options), Some(tar), None).try_collect::<Vec<_>>().await
        })?;
        Ok(image_of(starter))
    }

    /// Removes containers, with their images, whose starter by this label is `stale`.
    pub(crate) fn sweep(&self, label: &str, stale: impl Fn(&str) -> bool) -> Result<(), EngineError> {
        let filters = HashMap::from([("label", vec![label])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        for container in self.call(async move |docker: Docker| docker.list_containers(Some(options)).await)? {
            let starter = container.labels.unwrap_or_default().remove(label).unwrap_or_default();
            if stale(&starter)
                && let Some(id) = container.id
            {
                self.remove(&id);
                self.remove_image(&image_of(&starter));
            }
        }
        Ok(())
    }

    /// Makes a container that does not run yet; gives its id.
    pub(crate) fn create(&self, name: &str, body: ContainerCreateBody) -> Result<String, EngineError> {
        let options = CreateContainerOptionsBuilder::new().name(name).build();
        let made =
            self.call(async move |docker: Docker| docker.create_container(Some(options), body).await)?;
        Ok(made.id)
    }

    /// Starts one; gives its first process as the host numbers it, `None` if it ended at once.
    pub(crate) fn start(&self, id: &str) -> Result<Option<u32>, EngineError> {
        let inspected = self.call(async move |docker: Docker| {
            docker.start_container(id, None::<StartContainerOptions>).await?;
            docker.inspect_container(id, None::<InspectContainerOptions>).await
        })?;
        let pid = inspected.state.and_then(|state| state.pid).and_then(|pid| u32::try_from(pid).ok());
        Ok(pid.filter(|pid| *pid > 0))
    }

    /// Asks one to end (SIGTERM).
    pub(crate) fn ask_to_end(&self, id: &str) {
        let options = KillContainerOptionsBuilder::new().signal("SIGTERM").build();
        let _ = self.call(async move |docker: Docker| docker.kill_container(id, Some(options)).await);
    }

    /// Removes one, running or not.
    pub(crate) fn remove(&self, id: &str) {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let gone = self.call(async move |docker: Docker| docker.remove_container(id, Some(options)).await);
        if let Err(error) = gone {
            tracing::warn!("cannot remove container {id}: {error}");
        }
    }

    /// Removes an image.
    pub(crate) fn remove_image(&self, image: &str) {
        let options = RemoveImageOptionsBuilder::new().force(true).build();
        let gone =
            self.call(async move |docker: Docker| docker.remove_image(image, Some(options), None).await);
        if let Err(error) = gone {
            tracing::warn!("cannot remove image {image}: {error}");
        }
    }
}

/// Does it on a thread of its own, which may wait in an event loop wherever the caller is.
fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

fn image_of(starter: &str) -> String {
    format!("{starter}:empty")
}

/// A closure that makes a future of a client; a trait so that it can cross to another thread.
trait AsyncWork<T>: Send {
    fn run(self, docker: Docker) -> impl Future<Output = T>;
}

impl<T, F, R> AsyncWork<T> for F
where
    F: FnOnce(Docker) -> R + Send,
    R: Future<Output = T>,
{
    fn run(self, docker: Docker) -> impl Future<Output = T> {
        self(docker)
    }
}
