//! The manifest as text: what is asked of the cluster stands with its reason.

use std::fmt;

pub struct Manifest<'a> {
    /// Of Job and ConfigMap.
    pub name: &'a str,
    pub image: &'a str,
    pub experiment: &'a str,
    pub shards: u32,
    /// Options of `sim` where it is simulated.
    pub simulation: Option<&'a [String]>,
    pub volume: Volume<'a>,
    /// Tenants have nice values below 0.
    pub nice: bool,
}

/// Where results go.
pub enum Volume<'a> {
    HostPath(&'a str),
    Claim(&'a str),
}

/// The user of a simulation that writes to a claimed volume.
const NOBODY: u32 = 65534;
/// What pods that measure have in common, so that no two share a node.
const MEASURES: &str = "evenkeel.io/lab: measures";

impl fmt::Display for Manifest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, image, shards, .. } = self;
        let simulates = self.simulation.is_some();
        let labels = format!("app.kubernetes.io/name: evenkeel-lab, app.kubernetes.io/instance: {name}");
        write!(
            f,
            "\
# Made by `evenkeel lab job`. Each pod leaves a folder in the results' volume, below {name}/.
# Bring these together: evenkeel lab merge FOLDER.. --out DIR
apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}
  labels: {{ {labels} }}
data:
  experiment.toml: |2
"
        )?;
        for line in self.experiment.lines() {
            // Lines of spaces stay what they are; an empty one needs none.
            if line.is_empty() { writeln!(f)? } else { writeln!(f, "    {line}")? }
        }
        write!(
            f,
            "\
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
  labels: {{ {labels} }}
spec:
  # The index is the shard. A pod that fails is started again, and goes on with what its folder holds.
  completionMode: Indexed
  completions: {shards}
  parallelism: {shards}
  backoffLimit: {}
  template:
    metadata:
      labels: {{ {labels}{} }}
    spec:
      restartPolicy: Never
      automountServiceAccountToken: false
      enableServiceLinks: false
",
            shards.max(&3),
            if simulates { String::new() } else { format!(", {MEASURES}") },
        )?;
        if simulates {
            self.simulated(f)?
        } else {
            self.measured(f)?
        }
        write!(
            f,
            "      containers:
        - name: lab
          image: \"{image}\"
          imagePullPolicy: IfNotPresent
          args:
"
        )?;
        self.args().iter().try_for_each(|arg| writeln!(f, "            - \"{arg}\""))?;
        self.container(f)
    }
}

impl Manifest<'_> {
    /// What pods that measure ask of a node.
    fn measured(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "      # Cgroups carry the pid of their maker, by which the next run knows what a killed one left.
      hostPID: true
      # One pod a node: experiments must not measure one another.
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            - topologyKey: kubernetes.io/hostname
              labelSelector: {{ matchLabels: {{ {MEASURES} }} }}
              namespaceSelector: {{}}
"
        )
    }

    /// What simulations ask: nothing but room.
    fn simulated(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Volume::Claim(_) = self.volume {
            writeln!(
                f,
                "      # The volume's files are this group's.\n      securityContext: {{ fsGroup: {NOBODY} }}"
            )?;
        }
        Ok(())
    }

    /// The command in the pod. The kubelet fills in `$(..)`.
    fn args(&self) -> Vec<String> {
        let (name, shards) = (self.name, self.shards);
        let words = if self.simulation.is_some() { &["sim"][..] } else { &["lab", "run"] };
        let mut args: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        args.push("/experiment/experiment.toml".into());
        args.push(format!("--shard=$(JOB_COMPLETION_INDEX)/{shards}"));
        match self.simulation {
            Some(options) => {
                args.extend_from_slice(options);
                args.push(format!("--out=/results/{name}/$(JOB_COMPLETION_INDEX)"));
            }
            None => {
                args.push("--host-name=$(NODE_NAME)".into());
                args.push(format!("--out=/results/{name}/$(JOB_COMPLETION_INDEX)-$(NODE_NAME)"));
            }
        }
        args
    }

    fn container(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, simulates) = (self.name, self.simulation.is_some());
        if !simulates {
            f.write_str(
                "          env:
            - { name: NODE_NAME, valueFrom: { fieldRef: { fieldPath: spec.nodeName } } }
",
            )?;
        }
        let (user, why) = match (simulates, &self.volume) {
            (true, Volume::Claim(_)) => (NOBODY, ""),
            (true, Volume::HostPath(_)) => (0, "    # the kubelet makes the directory for root"),
            (false, _) => (0, "    # cgroups of the node are root's"),
        };
        write!(
            f,
            "          securityContext:
            runAsUser: {user}{why}
            readOnlyRootFilesystem: true
            allowPrivilegeEscalation: false
            seccompProfile: {{ type: RuntimeDefault }}
            capabilities:
              drop: [ALL]
"
        )?;
        if !simulates {
            f.write_str(
                "              add:
                - DAC_OVERRIDE       # the top directory of a cgroup hierarchy may not be written by its owner, either
",
            )?;
            if self.nice {
                f.write_str(
                    "                - SYS_NICE           # nice values below 0 of the file's tenants\n",
                )?;
            }
        }
        let cpu = if simulates { "1" } else { "100m" };
        write!(
            f,
            "          resources:
            requests: {{ cpu: {cpu}, memory: 128Mi }}
          volumeMounts:
            - {{ name: experiment, mountPath: /experiment, readOnly: true }}
            - {{ name: results, mountPath: /results }}
            - {{ name: tmp, mountPath: /tmp }}
"
        )?;
        if !simulates {
            f.write_str(
                "            # The tenants' cgroups, which the experiment makes and removes.
            - { name: cgroup, mountPath: /sys/fs/cgroup }
",
            )?;
        }
        write!(f, "      volumes:\n        - {{ name: experiment, configMap: {{ name: {name} }} }}\n")?;
        match self.volume {
            Volume::HostPath(path) => writeln!(
                f,
                "        - {{ name: results, hostPath: {{ path: \"{path}\", type: DirectoryOrCreate }} }}"
            )?,
            Volume::Claim(claim) => writeln!(
                f,
                "        - {{ name: results, persistentVolumeClaim: {{ claimName: \"{claim}\" }} }}"
            )?,
        }
        f.write_str("        - { name: tmp, emptyDir: { sizeLimit: 64Mi } }\n")?;
        if !simulates {
            f.write_str("        - { name: cgroup, hostPath: { path: /sys/fs/cgroup, type: Directory } }\n")?;
        }
        Ok(())
    }
}
