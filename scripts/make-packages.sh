#!/bin/sh
# Makes the packages: scripts/make-packages.sh [--binary FILE] [--version VERSION] [--out DIR] [--arch ARCHITECTURE] [--fast]
# [deb|rpm|oci]..
#
# Without kinds, all of them. Without --binary, the static program is built first (scripts/static.sh), which runs on every
# distribution of the architecture: this host's, or arm64. A given program says itself what it was built for. --fast packs
# less tightly, for tests. Results go to DIR (packages/ under the target directory); their paths are printed.
# Nothing is fetched, and the same program and commit give the same .deb and image.
set -eu
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

level=9 deb_pack=-Zxz arch='' binary='' out=$(target_dir)/packages kinds=''
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
while [ $# -gt 0 ]; do
    case "$1" in
        --binary) binary=${2:?--binary needs a file} && shift 2 ;;
        --version) version=${2:?--version needs a version} && shift 2 ;;
        --out) out=${2:?--out needs a directory} && shift 2 ;;
        --arch) arch=${2:?--arch needs an architecture} && shift 2 ;;
        --fast) level=1 deb_pack='-Zgzip -z1' && shift ;;
        deb | rpm | oci) kinds="$kinds $1" && shift ;;
        *) die "usage: scripts/make-packages.sh [--binary FILE] [--version VERSION] [--out DIR] [--arch ARCHITECTURE] [--fast] [deb|rpm|oci].." ;;
    esac
done
kinds=${kinds:-deb rpm oci}
case "$kinds" in *rpm*) have rpmbuild || scripts/packages.sh package ;; esac
case "$kinds" in *oci*) have python3 || scripts/packages.sh package ;; esac
[ -n "$binary" ] || binary=$(scripts/static.sh "$(architecture "$arch")")
[ -x "$binary" ] || die "$binary is not there, or cannot be run"
# The machine in the ELF header.
case "$(od -An -tx1 -j18 -N2 "$binary" | tr -d ' ')" in
    3e00) built_for=x86_64 ;;
    b700) built_for=aarch64 ;;
    *) die "no packages for $binary: it is neither for x86-64 nor for arm64" ;;
esac
[ -z "$arch" ] || [ "$(architecture "$arch")" = $built_for ] || die "$binary is for $built_for, not for $arch"
deb_arch=$(debian_architecture $built_for) rpm_arch=$built_for strip=strip run=''
if is_foreign $built_for; then
    scripts/packages.sh cross
    strip=$built_for-linux-gnu-strip run=$(emulator $built_for)
    # Which packages its shared libraries are in is not known here.
    if "$built_for-linux-gnu-readelf" -l "$binary" | grep -q INTERP; then die "$binary is not static"; fi
fi
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

mkdir -p "$out"
out=$(cd "$out" && pwd)
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
stage=$made/stage
put() { install -D -m "$1" "$2" "$stage/$3"; }

cp "$binary" "$made/evenkeel"
if have "$strip"; then "$strip" "$made/evenkeel"; fi
# It prints its own manual and completions.
evenkeel() {
    # shellcheck disable=SC2086 # an emulator and its options
    $run "$binary" "$@"
}
put 755 "$made/evenkeel" usr/bin/evenkeel
mkdir "$made/man"
evenkeel man "$made/man"
for page in "$made"/man/*.1; do
    gzip -9n "$page"
    put 644 "$page.gz" "usr/share/man/man1/$(basename "$page").gz"
done
for shell in bash zsh fish; do evenkeel completions "$shell" >"$made/$shell"; done
put 644 "$made/bash" usr/share/bash-completion/completions/evenkeel
put 644 "$made/zsh" usr/share/zsh/site-functions/_evenkeel
put 644 "$made/fish" usr/share/fish/vendor_completions.d/evenkeel.fish
for unit in evenkeel.service evenkeel-restore.service evenkeel-serve.service; do
    PREFIX=/usr scripts/install.sh --unit $unit >"$made/$unit"
    put 644 "$made/$unit" "usr/lib/systemd/system/$unit"
done
put 644 examples/evenkeel.toml etc/evenkeel/config.toml
put 644 packaging/evenkeel.default etc/default/evenkeel
put 644 examples/evenkeel.toml usr/share/doc/evenkeel/evenkeel.toml
put 644 LICENSE usr/share/doc/evenkeel/copyright
put 644 README.md usr/share/doc/evenkeel/README.md
put 644 CHANGELOG.md usr/share/doc/evenkeel/CHANGELOG.md
# Help, manual pages and the configuration name them.
for page in docs/*.md docs/lab/*.toml; do put 644 "$page" "usr/share/doc/evenkeel/$page"; done
find "$stage" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

make_deb() {
    root=$made/deb
    cp -a "$stage" "$root"
    mkdir "$root/DEBIAN"
    # A static program needs nothing; one with shared libraries needs at least the C library's.
    depends='' && if ldd "$made/evenkeel" >/dev/null 2>&1; then depends='Depends: libc6, libgcc-s1'; fi
    {
        echo "Package: evenkeel"
        echo "Version: $version"
        echo "Architecture: $deb_arch"
        echo "Maintainer: The evenkeel project <evenkeel@localhost>"
        echo "Section: admin"
        echo "Priority: optional"
        echo "Installed-Size: $(du -sk "$stage" | cut -f1)"
        [ -z "$depends" ] || echo "$depends"
        echo "Description: keeps CPU sharing on a Linux host even"
        echo " Shows who gets the CPU and who is kept waiting, checks how the host is set up for"
        echo " sharing, and evens things out in a closed loop that proves each change or takes it"
        echo " back. After installation only the agent that watches runs."
    } >"$root/DEBIAN/control"
    printf '%s\n' /etc/evenkeel/config.toml /etc/default/evenkeel >"$root/DEBIAN/conffiles"
    for script in postinst prerm postrm; do
        {
            printf '#!/bin/sh\nset -e\n'
            cat packaging/maintainer/common.sh "packaging/maintainer/deb-$script"
        } >"$root/DEBIAN/$script"
        chmod 755 "$root/DEBIAN/$script"
    done
    (cd "$root" && find etc usr -type f | sort | xargs md5sum >DEBIAN/md5sums)
    find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    # shellcheck disable=SC2086 # two options
    dpkg-deb --root-owner-group $deb_pack --build "$root" "$out/evenkeel_${version}_$deb_arch.deb" >&2
    printf '%s\n' "$out/evenkeel_${version}_$deb_arch.deb"
}

make_rpm() {
    rpmbuild -bb --quiet --target "$rpm_arch" --define "_topdir $made/rpm" --define "staged $stage" \
        --define "maintainer $PWD/packaging/maintainer" --define "version_ $version" --define "_binary_payload w$level.gzdio" \
        --define "use_source_date_epoch_as_buildtime 1" --define "_rpmdir $made" --define "_rpmfilename evenkeel.rpm" \
        packaging/evenkeel.spec >&2
    mv "$made/evenkeel.rpm" "$out/evenkeel-$version-1.$rpm_arch.rpm"
    printf '%s\n' "$out/evenkeel-$version-1.$rpm_arch.rpm"
}

make_oci() {
    python3 packaging/oci.py "$made/evenkeel" "$version" "$deb_arch" "$SOURCE_DATE_EPOCH" "$level" \
        "$out/evenkeel-$version-$deb_arch.oci.tar"
    printf '%s\n' "$out/evenkeel-$version-$deb_arch.oci.tar"
}

for kind in $kinds; do "make_$kind"; done
