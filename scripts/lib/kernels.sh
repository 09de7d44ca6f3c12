# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=bash
#
# The guest kernels: Debian's own, in four flavours, unpacked and never installed (installing one runs initramfs and
# boot loader hooks on the host). Each unpacked place holds
#   boot/vmlinuz-RELEASE, lib/modules/RELEASE/     the kernel and its modules
#   usr/src/linux-headers-RELEASE/                 what an external module is built against (already relocated)
#   release, version                               one line each
# Sourced after common.sh and apt.sh.
#
# KAGEMUSHA_GUEST_SOURCE=DIR takes the packages from there (`guest-image source DIR` has put them there), not from the archive.

KAGE_KERNELS=(6.1-cloud 6.1-amd64 6.12-cloud 6.12-amd64)
_kernel_format=1 # raise when _unpack_kernel does something else
export KAGE_DEFAULT_KERNEL=6.12-cloud

_kernel_suffix() { # 6.1-cloud → cloud-amd64, 6.1-amd64 → amd64
    case $1 in
    *-cloud) echo cloud-amd64 ;;
    *-amd64) echo amd64 ;;
    *) die "unknown kernel flavour '$1'; known: ${KAGE_KERNELS[*]}" ;;
    esac
}

# The packages that a guest with this kernel and its module are made of, or nothing if one of them is not in the archive: of
# a security update it has some for hours before it has the signed ones, and no more those that they replace.
_kernel_packages() { # FLAVOUR VERSION
    local version=$2 suffix headers release about common kbuild found
    suffix=$(_kernel_suffix "$1")
    # The package names carry the release (6.1.0-56-cloud-amd64): follow the dependencies of the meta package.
    headers=$(private_apt cache show "linux-headers-$suffix=$version" | sed -n 's/^Depends: \(linux-headers-[^ ,]*\).*/\1/p' | sed -n 1p)
    release=${headers#linux-headers-}
    [ -n "$release" ] || die "linux-headers-$suffix=$version does not name its headers"
    about=$(private_apt cache show "$headers=$version" 2>/dev/null) || return 0
    common=$(grep -o 'linux-headers-[^ ,]*-common' <<<"$about" | sed -n 1p)
    kbuild=$(grep -o 'linux-kbuild-[^ ,]*' <<<"$about" | sed -n 1p)
    found=$(private_apt cache madison "linux-image-$release" "$headers" "$common" "$kbuild" |
        awk -v version="$version" '$3 == version { print $1 "=" $3 }' | sort -u)
    [ "$(wc -l <<<"$found")" != 4 ] || echo "$found"
}

# Newest version of one flavour that this machine can build modules against. With a second argument one that is unpacked
# here is not looked for in the archive. 6.12 comes from Debian 12's backports on Debian 12: the build programs inside
# trixie's header packages need a newer C library.
_kernel_version() {
    local flavour=$1 series=${1%-*} suffix suites version
    suffix=$(_kernel_suffix "$flavour")
    case $series:$(debian_codename) in
    6.1:*) suites='bookworm' ;;
    6.12:bookworm) suites='bookworm-backports' ;;
    6.12:*) suites='trixie' ;;
    *) die "unknown kernel series '$series'" ;;
    esac
    while read -r version; do
        if [ -n "${2:-}" ] && [ -e "$KAGE_CACHE/kernels/$flavour-$version-$_kernel_format/version" ] ||
            [ -n "$(_kernel_packages "$flavour" "$version")" ]; then
            echo "$version"
            return
        fi
    done < <(private_apt cache madison "linux-headers-$suffix" |
        awk -F ' *[|] *' -v suites="$suites" -v series="$series" \
            '{ split($3, place, " "); split(place[2], suite, "/"); sub(/-security$/, "", suite[1])
               if (suite[1] == suites && index($2, series ".") == 1) print $2 }' |
        sort -rV | uniq)
}

_fetch_kernel_debs() { # FLAVOUR VERSION DIR
    local wanted
    mapfile -t wanted < <(_kernel_packages "$1" "$2")
    fetch_debs "$3" "${wanted[@]}"
}

_unpack_kernel() {
    local flavour=$1 version=$2 dir=$3 release common deb name
    mkdir "$dir/debs"
    if [ -n "${KAGEMUSHA_GUEST_SOURCE:-}" ]; then
        cp "$KAGEMUSHA_GUEST_SOURCE/kernel/$flavour"/*.deb "$dir/debs/"
    else
        _fetch_kernel_debs "$flavour" "$version" "$dir/debs"
    fi
    release=$(basename "$dir"/debs/linux-image-*.deb)
    release=${release#linux-image-}
    release=${release%%_*}
    common=$(basename "$dir"/debs/linux-headers-*-common_*.deb)
    common=${common%%_*}
    for deb in "$dir"/debs/*.deb; do
        dpkg-deb -x "$deb" "$dir"
    done
    rm -r "$dir/debs"
    if [ -d "$dir/usr/lib/modules" ] && [ ! -e "$dir/lib/modules" ]; then # merged /usr, from Debian 13 on
        mkdir -p "$dir/lib"
        ln -s ../usr/lib/modules "$dir/lib/modules"
    fi
    if [ ! -e "$dir/lib/modules/$release/modules.dep" ]; then
        depmod -b "$dir" "$release"
    fi
    # The header packages point at each other by absolute path, as if installed. make gets the place of the unpacked
    # ones when it is called (see build-modules), so that the directory can be moved: @KERNEL_ROOT@.
    while IFS= read -r -d '' name; do
        sed -i "s|/usr/src/linux-headers|\$(KERNEL_ROOT)/usr/src/linux-headers|g; s|/usr/lib/linux-kbuild|\$(KERNEL_ROOT)/usr/lib/linux-kbuild|g" "$name"
    done < <(grep -lZE '/usr/(src/linux-headers|lib/linux-kbuild)' "$dir/usr/src/linux-headers-$release/Makefile" \
        "$dir/usr/src/linux-headers-$release/.kernelvariables" "$dir/usr/src/$common/Makefile" 2>/dev/null || true)
    rm -rf "$dir/usr/share/doc" "$dir/usr/share/lintian" "$dir/usr/share/bug"
    printf '%s\n' "$release" >"$dir/release"
    printf '%s\n' "$version" >"$dir/version"
}

# kernel_dir FLAVOUR: prints the unpacked place, fetching it first if needed.
kernel_dir() {
    local flavour=$1 version
    if [ -n "${KAGEMUSHA_GUEST_SOURCE:-}" ]; then
        version=$(cat "$KAGEMUSHA_GUEST_SOURCE/kernel/$flavour.version")
    else
        version=$(_kernel_version "$flavour" unpacked)
    fi
    [ -n "$version" ] || die "no package of kernel $flavour found in the archive"
    cached kernels "$flavour-$version-$_kernel_format" "Fetching guest kernel $version ($flavour)" \
        _unpack_kernel "$flavour" "$version"
}
