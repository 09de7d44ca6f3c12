# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# What a bundle consists of: our programs with the libraries that they need, for a machine on which nothing can be installed
# or fetched. Its C library must not be older than this one's. Sourced.

# use_assets BUILD FLAVOUR: where the parts of a guest are; then `asset NAME` prints one.
use_assets() {
    bundle_assets=$("$1/control/kagemusha" assets --kernel "$2")
}

asset() { python3 -c 'import json,sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1" <<<"$bundle_assets"; }

# put_stripped DIRECTORY FILE…
put_stripped() {
    local into=$1 file
    shift
    mkdir -p "$into"
    for file in "$@"; do
        strip -o "$into/$(basename "$file")" "$file"
    done
}

# put_libraries DIRECTORY FILE…: everything that the files are linked with, but the C library, and what the GPU's driver and
# our own build bring.
put_libraries() {
    local into=$1 file
    shift
    mkdir -p "$into"
    for file in "$@"; do
        LD_LIBRARY_PATH=$(dirname "$(asset device_library)") ldd "$file"
    done | awk '$3 ~ /^\// { print $3 }' | sort -u |
        grep -vE '/(libc|libm|libpthread|libdl|librt|libresolv|ld-linux[^/]*|libnvidia[^/]*|libblkid|libuuid|libkagemusha_device)\.so' |
        xargs -r -I{} cp -Ln {} "$into/"
}

# put_device_library DIRECTORY: under the name that QEMU asks for.
put_device_library() {
    local library
    library=$(asset device_library)
    mkdir -p "$1"
    strip -o "$1/$(readelf -d "$library" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')" "$library"
}

# put_firmware DIRECTORY: what QEMU's `pc` machine starts a kernel with.
put_firmware() {
    local file
    mkdir -p "$1"
    for file in /usr/share/seabios/bios-256k.bin /usr/share/qemu/linuxboot_dma.bin /usr/share/seabios/vgabios-stdvga.bin /usr/share/qemu/kvmvapic.bin; do
        [ ! -e "$file" ] || cp -L "$file" "$1/"
    done
}

# put_root DIRECTORY: the guest image's files, without what no measurement uses.
put_root() {
    unsquashfs -q -n -d "$1" "$(asset root_image)" >/dev/null
    find "$1/usr/lib/hashcat/modules" -name 'module_*.so' ! -name 'module_00000.so' ! -name 'module_01400.so' -delete
    rm -rf "$1"/usr/bin/python3* "$1"/usr/lib/python3* "$1"/usr/share/{python3,hashcat/rules,hashcat/masks,hashcat/charsets}
}
