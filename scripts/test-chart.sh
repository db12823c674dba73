#!/bin/bash
# Checks the Helm chart and the plain manifests: scripts/test-chart.sh [--write] [HELM]
#
# Debian has no helm: without HELM it is built by Go (minutes, cached under the target directory). --write renders the plain
# manifests again. What the manifests may ask of a node is checked by scripts/check-manifests.py, with each setting.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

write=
if [ "${1:-}" = --write ]; then write=yes && shift; fi
helm=${1:-$(target_dir)/helm/helm}
if [ ! -x "$helm" ]; then
    have go || die "no helm: name one, or install Go, which builds it"
    say "building helm"
    GOBIN=$(realpath -m "$(dirname "$helm")") go install helm.sh/helm/v3/cmd/helm@v3.16.4
fi
chart=packaging/kubernetes/chart plain=packaging/kubernetes/evenkeel.yaml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
render() { "$helm" template evenkeel $chart --namespace evenkeel --kube-version 1.30.0 "$@"; }

"$helm" lint --quiet --strict --kube-version 1.30.0 $chart
{
    echo "# Made by scripts/test-chart.sh --write from the chart's defaults. Before: kubectl create namespace evenkeel, and"
    echo "# kubectl -n evenkeel create secret generic evenkeel-token --from-literal=token=\"\$(openssl rand -hex 32)\""
    echo "# openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj /CN=evenkeel \\"
    echo "#     -addext basicConstraints=critical,CA:FALSE \\"
    echo "#     -addext subjectAltName=DNS:evenkeel.evenkeel.svc,DNS:localhost,IP:127.0.0.1 -keyout tls.key -out tls.crt"
    echo "# kubectl -n evenkeel create secret tls evenkeel-tls --cert=tls.crt --key=tls.key"
    echo "# The image is the one that \`make packages\` writes: load it into the nodes, or push it and name it below."
    render --set token.existingSecret=evenkeel-token --set tls.existingSecret=evenkeel-tls | grep -v 'managed-by: Helm' |
        sed 's/^  name: evenkeel$/  name: evenkeel\n  namespace: evenkeel/'
} >"$work/plain"
if [ -n "$write" ]; then cp "$work/plain" $plain; fi
diff $plain "$work/plain" || die "$plain is old: scripts/test-chart.sh --write"

# An agent's certificate, alone in its file: clients refuse an authority's. Some versions of openssl write both CA:TRUE and CA:FALSE.
is_agents() { [ "$(openssl storeutl -noout -text -certs "$1" | grep -oE 'CA:(TRUE|FALSE)')" = CA:FALSE ]; }
sed -n '/^# openssl/,/tls.crt$/s/^# *//p' $plain >"$work/make"
(cd "$work" && sh make 2>/dev/null)
is_agents "$work/tls.crt" || die "$plain: its certificate is an authority's"

check() { python3 scripts/check-manifests.py "$@"; }
check observes $plain
render >"$work/default" && check observes "$work/default"
render --set apply=true --set 'scope={pod:prod/*}' >"$work/apply" && check acts "$work/apply"
render --set privileged=true >"$work/privileged" && check privileged "$work/privileged"
render --set expose=true --set podMonitor.enabled=true >"$work/exposed" && check exposed "$work/exposed"
# What the chart made is a token, and a certificate that its own authority signed for the name that is asked for.
made() { python3 scripts/check-manifests.py secret "$work/exposed" "$1"; }
[ "$(made token | wc -c)" -eq 48 ] || die "no token of 48 characters"
for file in ca.crt tls.crt tls.key; do made $file >"$work/$file"; done
openssl verify -CAfile "$work/ca.crt" -verify_hostname evenkeel.evenkeel.svc "$work/tls.crt" >/dev/null || die "no certificate"
is_agents "$work/tls.crt" || die "the chart's certificate is an authority's"
render --set expose=true --set-string 'exposeAddress=[::]' >"$work/six"
grep -qF -- '- --listen=[::]:9190' "$work/six" || die "exposeAddress is left out"
[ "$(openssl pkey -in "$work/tls.key" -pubout)" = "$(openssl x509 -in "$work/tls.crt" -noout -pubkey)" ] || die "another's key"
render --set apply=true --set tiers=true >"$work/tiers" && check acts "$work/tiers"
grep -q -- '- --tiers=auto' "$work/tiers" || die "tiers: the command does not have them"
if grep -q -- '--scope' "$work/tiers"; then die "tiers: with a scope, which the command refuses"; fi
render --set apply=true --set 'config=[[background]]' >"$work/background" && check acts "$work/background"
render --set apply=true --set 'args={--guarantees-only}' --set 'config=[[guarantee]]' >"$work/promises"
check acts "$work/promises"
render --set apply=true --set 'scope={container:web #1}' --set seLinuxOptions.type=spc_t >"$work/odd" && check acts "$work/odd"
grep -q -- '- "--scope=container:web #1"' "$work/odd" || die "a scope with a # is cut short"
grep -A 1 'seLinuxOptions:' "$work/odd" | grep -q 'type: spc_t' || die "seLinuxOptions are left out"
printf '  # Ours\n[labels]\n' >"$work/indented.toml"
render --set-file config="$work/indented.toml" >"$work/indented" && check observes "$work/indented"
render --set 'imagePullSecrets[0].name=registry' >"$work/pulled" && check observes "$work/pulled"
grep -A 1 'imagePullSecrets:' "$work/pulled" | grep -q 'name: registry' || die "imagePullSecrets are left out"
render --kube-version 1.31.0 >"$work/newer" && check observes "$work/newer"
[ "$(grep -c 'recursiveReadOnly: IfPossible' "$work/newer")" -eq 2 ] || die "what is mounted below /sys/fs/cgroup and /run/containerd is writable"
for wrong in apply=true podMonitor.enabled=true 'apply=true,tiers=true,scope={pod:a/b}' 'apply=true,config=# [[background]]' \
    'apply=true,scope={all}' exposeAddress=10.0.0.1; do
    if render --set "$wrong" >/dev/null 2>"$work/why"; then die "--set $wrong alone should be refused"; fi
    grep -q needs "$work/why" || die "--set $wrong: refused without saying why: $(cat "$work/why")"
done
echo "31 passed, 0 failed"
