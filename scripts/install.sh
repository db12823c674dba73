#!/bin/sh
# Installs evenkeel under PREFIX (default /usr/local), below DESTDIR if set; --remove stops the agent, restores what it
# changed, and takes everything away again; --unit prints the systemd unit.
# Builds as the caller; only the copying is done as root, and only where the place needs it.
set -eu
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}$prefix
case "$prefix" in
    /usr | /usr/local) unit=${DESTDIR:-}/etc/systemd/system/evenkeel.service ;;
    *) unit=$root/lib/systemd/system/evenkeel.service ;;
esac

# The nearest directory that exists decides whether root is needed.
writable() {
    place=$1
    while [ ! -e "$place" ]; do place=$(dirname "$place"); done
    [ -w "$place" ]
}
if writable "$root/bin" && writable "$unit"; then
    as_needed() { "$@"; }
else
    as_needed() { as_root "$@"; }
fi

# The unit with the place of the binary; whatever sed would take for something else in it is escaped.
print_unit() {
    place=$(printf '%s\n' "$prefix" | sed 's/[\\&#]/\\&/g')
    sed "s#/usr/local/bin/#$place/bin/#" packaging/evenkeel.service
}
if [ "${1:-}" = --unit ]; then
    print_unit
    exit 0
fi

completions="share/bash-completion/completions/evenkeel share/zsh/site-functions/_evenkeel share/fish/vendor_completions.d/evenkeel.fish"
if [ "${1:-}" = --remove ]; then
    # Below DESTDIR nothing runs. Elsewhere no agent is to be left without its binary, and no value without an undo.
    if [ -z "${DESTDIR:-}" ]; then
        if [ -e "$unit" ] && have systemctl && [ -d /run/systemd/system ]; then
            as_needed systemctl disable --now evenkeel.service || say "systemctl could not stop evenkeel.service"
        fi
        if [ -x "$root/bin/evenkeel" ] && ! as_needed "$root/bin/evenkeel" restore --stop; then
            say "not everything could be restored (see above): nothing is removed; run again, or remove by hand"
            exit 1
        fi
    fi
    for file in bin/evenkeel $completions share/man/man1/evenkeel.1; do
        as_needed rm -f "$root/$file"
    done
    for page in "$root"/share/man/man1/evenkeel-*.1; do as_needed rm -f "$page"; done
    as_needed rm -f "$unit"
    say "removed from $root; the state in /var/lib/evenkeel is kept"
    exit 0
fi

scripts/packages.sh build
need_cargo
cargo build --release --locked -p evenkeel >&2
binary=$(target_dir)/release/evenkeel

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
mkdir "$made/man"
"$binary" man "$made/man"
for shell in bash zsh fish; do "$binary" completions "$shell" >"$made/$shell"; done
print_unit >"$made/unit"

put() { as_needed install -D -m "$1" "$2" "$3"; }
cp "$binary" "$made/evenkeel"
if have strip; then strip --strip-debug "$made/evenkeel"; fi
put 755 "$made/evenkeel" "$root/bin/evenkeel"
for page in "$made"/man/*.1; do put 644 "$page" "$root/share/man/man1/$(basename "$page")"; done
put 644 "$made/bash" "$root/share/bash-completion/completions/evenkeel"
put 644 "$made/zsh" "$root/share/zsh/site-functions/_evenkeel"
put 644 "$made/fish" "$root/share/fish/vendor_completions.d/evenkeel.fish"
put 644 "$made/unit" "$unit"
say "installed $root/bin/evenkeel, man pages, completions, and $unit (not enabled)"
