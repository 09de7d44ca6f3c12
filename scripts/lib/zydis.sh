# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=bash
#
# Zydis, the decoder of x86 instructions that the tracer uses, as Debian's source package: its tarball and that of
# the headers it needs (zycore-c), as apt checks them against the signed index. The place holds src/ and include/, no more than what the guest's
# module and the tests compile. Sourced after common.sh and apt.sh.
#
# KAGEMUSHA_ZYDIS_SOURCE=DIR uses such a place instead of fetching one.

_zydis_format=1 # raise when _unpack_zydis does something else

_unpack_zydis() {
    local zydis=$1 zycore=$2 dir=$3
    mkdir "$dir/tar"
    (cd "$dir/tar" && private_apt get source -q --download-only --tar-only "zydis=$zydis" "zycore-c=$zycore")
    mkdir "$dir/zydis" "$dir/zycore"
    tar -C "$dir/zydis" --strip-components=1 -xf "$dir"/tar/zydis_*.orig.tar.*
    tar -C "$dir/zycore" --strip-components=1 -xf "$dir"/tar/zycore-c_*.orig.tar.*
    mv "$dir/zydis/src" "$dir/zydis/include" "$dir/zydis/LICENSE" "$dir/"
    mv "$dir/zycore/include/Zycore" "$dir/include/"
    rm -r "$dir/tar" "$dir/zydis" "$dir/zycore"
    [ -f "$dir/src/Decoder.c" ] || die "the source package of Zydis $zydis has no src/Decoder.c"
}

_newest_source() { # the newest version of a source package that the private lists have
    private_apt cache showsrc --only-source "$1" | sed -n 's/^Version: //p' | sort -V | tail -n 1
}

# zydis_dir: prints the unpacked place, fetching it first if needed.
zydis_dir() {
    local zydis zycore
    if [ -n "${KAGEMUSHA_ZYDIS_SOURCE:-}" ]; then
        [ -f "$KAGEMUSHA_ZYDIS_SOURCE/src/Decoder.c" ] ||
            die "KAGEMUSHA_ZYDIS_SOURCE=$KAGEMUSHA_ZYDIS_SOURCE has no src/Decoder.c"
        printf '%s\n' "$KAGEMUSHA_ZYDIS_SOURCE"
        return
    fi
    zydis=$(_newest_source zydis)
    zycore=$(_newest_source zycore-c)
    [ -n "$zydis" ] && [ -n "$zycore" ] || die "no source packages zydis and zycore-c found in the archive"
    cached zydis "$zydis-$zycore-$_zydis_format" "Fetching Zydis $zydis" _unpack_zydis "$zydis" "$zycore"
}
