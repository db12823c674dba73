#!/bin/sh
# Installs evenkeel under PREFIX (default /usr/local), below DESTDIR if set; --remove stops the agent, restores what it
# changed, and takes everything away again; --unit [NAME] prints a systemd unit (evenkeel.service).
# Builds as the caller; only the copying is done as root, and only where the place needs it.
set -eu
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}$prefix
case "$prefix" in
    /usr | /usr/local) unit_dir=${DESTDIR:-}/etc/systemd/system ;;
    *) unit_dir=$root/lib/systemd/system ;;
esac
unit=$unit_dir/evenkeel.service
units="evenkeel.service evenkeel-restore.service evenkeel-serve.service"

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
    sed "s#/usr/local/bin/#$place/bin/#" "packaging/$1"
}
if [ "${1:-}" = --unit ]; then
    print_unit "${2:-evenkeel.service}"
    exit 0
fi

# Below DESTDIR nothing runs, and no service manager has these units.
has_systemd() { [ -z "${DESTDIR:-}" ] && have systemctl && [ -d /run/systemd/system ]; }
# Without it systemd goes on with the units as they were.
reload() {
    if ! has_systemd || [ "$unit_dir" != /etc/systemd/system ]; then return 0; fi
    as_needed systemctl daemon-reload || say "systemctl could not read the units again"
}

completions="share/bash-completion/completions/evenkeel share/zsh/site-functions/_evenkeel share/fish/vendor_completions.d/evenkeel.fish"
if [ "${1:-}" = --remove ]; then
    # No agent is to be left without its binary, and no value without an undo.
    if [ -z "${DESTDIR:-}" ]; then
        for name in $units; do
            if [ -e "$unit_dir/$name" ] && has_systemd; then
                as_needed systemctl disable --now "$name" || say "systemctl could not stop $name"
            fi
        done
        if [ -x "$root/bin/evenkeel" ] && ! as_needed "$root/bin/evenkeel" restore --stop; then
            say "not everything could be restored (see above): nothing is removed; run again, or remove by hand"
            exit 1
        fi
    fi
    for file in bin/evenkeel $completions share/man/man1/evenkeel.1 share/doc/evenkeel/evenkeel.toml; do
        as_needed rm -f "$root/$file"
    done
    for page in "$root"/share/man/man1/evenkeel-*.1; do as_needed rm -f "$page"; done
    for name in $units; do as_needed rm -f "$unit_dir/$name"; done
    reload
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
for name in $units; do print_unit "$name" >"$made/$name"; done

put() { as_needed install -D -m "$1" "$2" "$3"; }
cp "$binary" "$made/evenkeel"
if have strip; then strip --strip-debug "$made/evenkeel"; fi
put 755 "$made/evenkeel" "$root/bin/evenkeel"
for page in "$made"/man/*.1; do put 644 "$page" "$root/share/man/man1/$(basename "$page")"; done
put 644 "$made/bash" "$root/share/bash-completion/completions/evenkeel"
put 644 "$made/zsh" "$root/share/zsh/site-functions/_evenkeel"
put 644 "$made/fish" "$root/share/fish/vendor_completions.d/evenkeel.fish"
for name in $units; do put 644 "$made/$name" "$unit_dir/$name"; done
put 644 examples/evenkeel.toml "$root/share/doc/evenkeel/evenkeel.toml"
reload
say "installed $root/bin/evenkeel, man pages, completions, and $units in $unit_dir (not enabled)"
