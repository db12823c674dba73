#!/bin/bash
# Builds what a one-node Kubernetes needs, below the target directory: scripts/kubernetes/build.sh, prints where.
#
# The control plane is compiled from Go modules (10 minutes and 4 GB the first time, seconds after that). etcd, CNI plugins and
# conntrack come out of Debian packages that are unpacked, not installed. helm is the one of scripts/test-chart.sh.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
# shellcheck source=scripts/lib.sh
. "$here/../lib.sh"
cd "$here/../.."

# Kubelets after 1.34 refuse cgroup v1 unless they are told otherwise.
version=1.34.4
helm_version=v3.16.4
out=$(realpath -m "$(target_dir)/kubernetes")
have go || die "no Go: the control plane of the test cluster is compiled from Go modules (https://go.dev)"
export GOFLAGS="-p=2 -buildvcs=false" GOTOOLCHAIN=local GOWORK=off CGO_ENABLED=0
export GOMODCACHE=$out/gomod GOCACHE=$out/gocache
mkdir -p "$out/bin" "$out/cni/bin" "$out/img" "$GOMODCACHE" "$GOCACHE"

# The source as published has neither staging/ nor vendor/: the modules that were published from these are named instead.
control_plane() {
    say "compiling Kubernetes $version (10 minutes the first time)"
    local source=$out/src/kubernetes module stamp=''
    module=$(go mod download -json "k8s.io/kubernetes@v$version" | jq -r .Dir)
    rm -rf "$source"
    mkdir -p "$out/src"
    cp -r "$module" "$source"
    chmod -R u+w "$source"
    cd "$source"
    rm -f go.work go.work.sum
    sed -n 's/^\t\(k8s.io\/[a-z-]*\) => .*/\1/p' go.mod | while read -r staged; do go mod edit "-dropreplace=$staged"; done
    sed -i "s#^\(\tk8s.io/[a-z-]*\) v0.0.0\( //.*\)\?\$#\1 v0.${version#1.}\2#" go.mod
    mkdir -p cmd/allinone
    cp "$here/allinone.go" cmd/allinone/main.go
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        stamp="$stamp -X $package.gitVersion=v$version -X $package.gitMajor=1 -X $package.gitMinor=$(echo $version | cut -d. -f2)"
        stamp="$stamp -X $package.gitTreeState=clean -X $package.buildDate=2026-01-01T00:00:00Z"
    done
    nice -n 10 go build -mod=mod -trimpath -ldflags "-s -w $stamp" -o "$out/bin/kube-allinone" ./cmd/allinone
    cd "$OLDPWD"
    for name in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
        ln -sf kube-allinone "$out/bin/$name"
    done
    echo "$version" >"$out/bin/version"
}

debian() {
    say "unpacking etcd and CNI plugins"
    local work
    work=$(mktemp -d)
    (cd "$work" && apt-get download -q etcd-server containernetworking-plugins conntrack >&2)
    for package in "$work"/*.deb; do dpkg -x "$package" "$work/x"; done
    cp "$work/x/usr/bin/etcd" "$work/x/usr/sbin/conntrack" "$out/bin/"
    cp "$work"/x/usr/lib/cni/* "$out/cni/bin/"
    rm -rf "$work"
}

helm() {
    say "building helm $helm_version"
    GOBIN=$(realpath -m "$(target_dir)/helm") GOFLAGS="" nice -n 10 go install "helm.sh/helm/v3/cmd/helm@$helm_version"
}

images() {
    local busybox root
    busybox=$(command -v busybox) || die "no busybox: scripts/packages.sh test"
    root=$(mktemp -d)
    mkdir -p "$root/pause" "$root/busybox/bin" "$root/busybox/tmp"
    cc -Os -static -s -o "$root/pause/pause" "$here/pause.c"
    cp "$busybox" "$root/busybox/bin/busybox"
    "$busybox" --list | grep -v '^busybox$' | while read -r applet; do ln -sf busybox "$root/busybox/bin/$applet"; done
    python3 "$here/image.py" k8s.test/pause:1 "$out/img/pause.tar" "$root/pause" /pause
    python3 "$here/image.py" k8s.test/busybox:1 "$out/img/busybox.tar" "$root/busybox" /bin/sh
    rm -rf "$root"
}

if [ "$(cat "$out/bin/version" 2>/dev/null)" != "$version" ]; then control_plane; fi
if [ ! -x "$out/bin/etcd" ] || [ ! -x "$out/cni/bin/bridge" ]; then debian; fi
[ -x "$(target_dir)/helm/helm" ] || helm
if [ ! -e "$out/img/busybox.tar" ]; then images; fi
printf '%s\n' "$out"
