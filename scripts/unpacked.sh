# shellcheck shell=bash
# Sourced: other tools to compare with, from Debian's packages, unpacked below target/ and never installed.

unpacked=$(target_dir)/bench-tools

# The path of a command: installed, or from its package and those of its libraries. command_of NAME PACKAGE..
command_of() {
    local name=$1 found
    shift
    if have "$name"; then command -v "$name" && return; fi
    if [ ! -e "$unpacked/$name.done" ] && have apt-get && have dpkg; then
        mkdir -p "$unpacked/$name.debs"
        say "$name is not installed: fetching the package $1 to look inside (nothing is installed)"
        if (cd "$unpacked/$name.debs" && apt-get -qq -o APT::Sandbox::User=root download "$@" >&2); then
            for deb in "$unpacked/$name.debs"/*.deb; do dpkg -x "$deb" "$unpacked/root"; done
            : >"$unpacked/$name.done"
        fi
    fi
    found=$(find "$unpacked/root" -type f -path "*bin/$name" 2>/dev/null | head -1)
    [ -n "$found" ] && echo "$found"
}

# Where the libraries of what is unpacked are, as LD_LIBRARY_PATH has it; empty where there are none.
unpacked_libraries() {
    find "$unpacked/root" -type d -path '*/lib/*-linux-gnu*' 2>/dev/null | paste -sd: || true
}
