#!/bin/bash
# Starts a one-node Kubernetes: scripts/kubernetes/up.sh FOLDER, where FOLDER is what build.sh printed. down.sh ends it.
#
# All of it lives in network and mount namespaces of its own, in which /run is empty and what is written below /var/lib and
# /var/log goes to FOLDER/run: neither a runtime of the host nor its files are touched. Cgroups are the host's. Do not pipe its
# output: what it starts would keep the pipe.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"

out=$(realpath "${1:?usage: scripts/kubernetes/up.sh FOLDER}")
run=$out/run bin=$out/bin address=10.201.0.1 node=node1
is_root || die "root is needed for namespaces and cgroups"
[ ! -e "$run" ] || die "$run is there: a cluster is up, or one was left behind (scripts/kubernetes/down.sh $out)"
left=$(find /sys/fs/cgroup -maxdepth 2 -name 'kubepods*' -print -quit)
[ -z "$left" ] || die "this host has pods already ($left): not beside another Kubernetes"
mkdir -p "$run"/{pids,logs,pki,etcd,cni,kubelet,pods,containerd,over}
# The kubelet changes some of these for the whole host.
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    echo "$name $(cat "/proc/sys/$name")"
done >"$run/sysctls"

# The holder of the namespaces; everything else enters them.
unshare --net --mount --propagation private sleep infinity >/dev/null 2>&1 </dev/null &
holder=$!
echo $holder >"$run/pids/holder"
for _ in $(seq 50); do
    [ "$(readlink /proc/$holder/ns/mnt)" != "$(readlink /proc/self/ns/mnt)" ] && [ "$(cat /proc/$holder/comm)" = sleep ] && break
    sleep 0.1
done
inside() { nsenter -t $holder -n -m "$@"; }
inside mount -t tmpfs -o mode=755 run /run
for dir in /var/lib /var/log; do
    mkdir -p "$run/over$dir/upper" "$run/over$dir/work"
    inside mount -t overlay -o "lowerdir=$dir,upperdir=$run/over$dir/upper,workdir=$run/over$dir/work" over $dir
done
inside mkdir -p /run/containerd /run/netns
inside mount --make-rshared /
inside ip link set lo up
inside ip link add node0 type bridge
inside ip address add $address/24 dev node0
inside ip link set node0 up
# API server and kubelet look for a default route.
inside ip route add default via 10.201.0.254 dev node0

cd "$run/pki"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout ca.key -out ca.crt -subj /CN=test-ca -days 30 2>/dev/null
certificate() {
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2" 2>/dev/null
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile <(echo "$3") -out "$1.crt" 2>/dev/null
}
certificate apiserver /CN=kube-apiserver "subjectAltName=IP:127.0.0.1,IP:$address,IP:10.96.0.1,DNS:localhost,DNS:kubernetes.default.svc"
certificate kubelet-client /O=system:masters/CN=apiserver-kubelet-client "extendedKeyUsage=clientAuth"
openssl genrsa -out sa.key 2048 2>/dev/null
openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
: >tokens.csv
account() { # file, user, groups
    local token
    token=$(openssl rand -hex 16)
    echo "$token,$2,$2,\"$3\"" >>tokens.csv
    cat >"$run/$1.kubeconfig" <<Y
apiVersion: v1
kind: Config
clusters: [{name: k, cluster: {server: "https://127.0.0.1:6443", certificate-authority: $run/pki/ca.crt}}]
users: [{name: u, user: {token: "$token"}}]
contexts: [{name: c, context: {cluster: k, user: u}}]
current-context: c
Y
}
account admin admin system:masters
account controllers system:kube-controller-manager ""
account scheduler system:kube-scheduler ""
account kubelet system:node:$node system:nodes
cd "$out"

start() { # name, command..
    local name=$1
    shift
    setsid nsenter -t $holder -n -m "$@" >"$run/logs/$name.log" 2>&1 </dev/null &
    echo $! >"$run/pids/$name"
}
await() { # what, seconds, command..
    local what=$1 end=$((SECONDS + $2))
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || die "$what: not within the time; see $run/logs"
        sleep 0.5
    done
}
# The control plane yields to what is measured. containerd does not: pods inherit what it has.
yields=(nice -n 5 env "PATH=$bin:/usr/sbin:/usr/bin:/sbin:/bin")
start etcd "${yields[@]}" "$bin/etcd" --data-dir "$run/etcd" --listen-client-urls http://127.0.0.1:2379 \
    --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync
start apiserver "${yields[@]}" "$bin/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 --secure-port=6443 \
    --advertise-address=$address --tls-cert-file="$run/pki/apiserver.crt" --tls-private-key-file="$run/pki/apiserver.key" \
    --client-ca-file="$run/pki/ca.crt" --token-auth-file="$run/pki/tokens.csv" \
    --kubelet-client-certificate="$run/pki/kubelet-client.crt" --kubelet-client-key="$run/pki/kubelet-client.key" \
    --kubelet-preferred-address-types=InternalIP --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file="$run/pki/sa.pub" --service-account-signing-key-file="$run/pki/sa.key" \
    --service-cluster-ip-range=10.96.0.0/16 --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true

cat >"$run/containerd.toml" <<Y
version = 2
root = "$run/containerd"
[plugins."io.containerd.internal.v1.opt"]
  path = "$run/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "k8s.test/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$out/cni/bin"
    conf_dir = "$run/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
Y
cat >"$run/cni/10-bridge.conflist" <<Y
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true,
 "ipam": {"type": "host-local", "dataDir": "$run/cni-addresses", "ranges": [[{"subnet": "10.244.0.0/24"}]]}}]}
Y
start containerd env "PATH=$bin:/usr/sbin:/usr/bin:/sbin:/bin" containerd --config "$run/containerd.toml"
await containerd 60 inside ctr version
for image in pause busybox; do inside ctr -n k8s.io images import "$out/img/$image.tar" >/dev/null; done

# kubectl, helm and ctr, inside the namespaces and as administrator.
for tool in "$bin/kubectl" "$(dirname "$out")/helm/helm" ctr; do
    name=$(basename "$tool")
    printf '#!/bin/sh\nexec nsenter -t %s -n -m --wd="$PWD" env KUBECONFIG=%s HOME=%s CONTAINERD_NAMESPACE=k8s.io %s "$@"\n' \
        $holder "$run/admin.kubeconfig" "$run" "$tool" >"$run/$name"
    chmod +x "$run/$name"
done
await "the API server" 180 "$run/kubectl" get --raw /readyz
start controllers "${yields[@]}" "$bin/kube-controller-manager" --kubeconfig="$run/controllers.kubeconfig" \
    --authentication-kubeconfig="$run/controllers.kubeconfig" --authorization-kubeconfig="$run/controllers.kubeconfig" \
    --bind-address=127.0.0.1 --leader-elect=false --use-service-account-credentials=true \
    --service-account-private-key-file="$run/pki/sa.key" --root-ca-file="$run/pki/ca.crt"
start scheduler "${yields[@]}" "$bin/kube-scheduler" --kubeconfig="$run/scheduler.kubeconfig" --bind-address=127.0.0.1 \
    --authentication-kubeconfig="$run/scheduler.kubeconfig" --authorization-kubeconfig="$run/scheduler.kubeconfig" --leader-elect=false
cat >"$run/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 0.0.0.0
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $run/pki/ca.crt}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
podLogsDir: $run/pods
volumePluginDir: $run/kubelet/plugins
resolvConf: ""
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: "100Mi", nodefs.available: "1%", imagefs.available: "1%"}
Y
start kubelet "${yields[@]}" "$bin/kubelet" --config="$run/kubelet.yaml" --kubeconfig="$run/kubelet.kubeconfig" --root-dir="$run/kubelet" \
    --cert-dir="$run/kubelet/pki" --hostname-override=$node --node-ip=$address --v=2
await "the node" 120 "$run/kubectl" wait --for=condition=Ready node/$node --timeout=5s
# A pod made before its account is refused.
await "the default account" 60 "$run/kubectl" get serviceaccount default
"$run/kubectl" version
