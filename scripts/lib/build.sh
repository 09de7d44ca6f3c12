# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=bash
#
# The parts that `kage` puts together, each as a step that does nothing when it is up to date. Sourced after common.sh.
# What later parts and the tests need is exported: KAGE_BUILD_DIR, KAGE_QEMU, KAGE_KERNEL, KAGE_ASSETS.

export KAGE_KERNEL=${KAGE_KERNEL:-6.12-cloud}
# shellcheck disable=SC2034 # kage uses it
KAGE_CLANG_FORMAT=clang-format-19 # by version: each lays out a little differently, and both Debians have this one

# What everything but `./kage build` is built with: the preset `default` when somebody has ever built that here, else
# `runtime`, which compiles many files as one. That takes a newcomer half of the time.
runtime_preset() { [ -e "$KAGE_ROOT/build/default/build.ninja" ] && echo default || echo runtime; }

# configure_cpp PRESET: for the first time, and anew where packages came since, as the tests' do after the demo. CMake keeps
# what it did not find, and what it found half of.
configure_cpp() {
    local preset=$1 absent
    absent=$(missing_packages "$(debian_codename)" | xargs)
    if [ -e "build/$preset/build.ninja" ] && [ "$(cat "build/$preset/.absent" 2>/dev/null || echo unknown)" = "$absent" ]; then
        return
    fi
    step "Configuring the C++ parts ($preset)" cmake --fresh --preset "$preset"
    echo "$absent" >"build/$preset/.absent"
}

# build_cpp PRESET [TARGET…]: all of the C++ parts, or these targets only.
build_cpp() {
    local preset=$1 target=()
    shift
    [ $# -eq 0 ] || target=(--target "$@")
    cd "$KAGE_ROOT" || return
    configure_cpp "$preset"
    step "Building the C++ parts ($preset${*:+: }$*)" nice cmake --build --preset "$preset" -j "$(kage_jobs)" \
        "${target[@]}"
    export KAGE_BUILD_DIR=$KAGE_ROOT/build/$preset
}

# ---- what a VM consists of -----------------------------------------------------------------------------------------
#
# QEMU, kernel, initramfs, root image and module of the guest: where they are is kept in build/parts, in files that say
# NAME=PATH, and handed to the tool as KAGE_ASSETS (control/assets.cpp). Each script looks up by itself
# whether it has anything to do, but that means asking the archive, which takes seconds; so nothing is asked while
# nothing has changed that the answers come from: parts_key.

parts_dir() { echo "$KAGE_ROOT/build/parts"; }

# One word for: our sources of these parts, the choices in the environment, and the archive's lists. Those are refreshed
# once a day, so what the archive has that is new is seen by then.
parts_key() {
    (
        cd "$KAGE_ROOT" || exit
        echo "$KAGE_ROOT $KAGE_CACHE $KAGE_KERNEL ${KAGEMUSHA_QEMU_SOURCE:-} ${KAGEMUSHA_ZYDIS_SOURCE:-}"
        stat -c %Y "$KAGE_CACHE/apt/updated" 2>/dev/null || echo never
        find scripts qemu-device guest-driver/kernel tracer/core tracer/kernel proto/abi replicator/include -type f -print0 |
            LC_ALL=C sort -z | xargs -0 sha256sum
        sha256sum replicator/ffi/CMakeLists.txt /etc/os-release
    ) | sha256sum | cut -c1-16
}

# Nothing is to be done for the parts: all of them are there, from the same sources.
parts_are_fresh() {
    local dir line
    dir=$(parts_dir)
    _apt_is_fresh && [ "$(cat "$dir/key" 2>/dev/null)" = "$(parts_key)" ] || return 1
    while read -r line; do
        [ -e "${line#*=}" ] || return 1 # somebody has emptied the cache
    done < <(cat "$dir/qemu" "$dir/guest")
}

keep_part() { # keep_part PART NAME=PATH…
    local dir
    dir=$(parts_dir)
    mkdir -p "$dir"
    printf '%s\n' "${@:2}" >"$dir/$1.$$"
    mv "$dir/$1.$$" "$dir/$1"
}

build_qemu() {
    local qemu
    qemu=$("$KAGE_ROOT/scripts/build-qemu")
    keep_part qemu "qemu=$qemu"
}

# build_guest: image, kernel and module of the one kernel that is used when nobody asks for another.
build_guest() {
    local root boot module
    root=$("$KAGE_ROOT/scripts/guest-image" root)
    boot=$("$KAGE_ROOT/scripts/guest-image" initramfs "$KAGE_KERNEL")
    module=$("$KAGE_ROOT/scripts/build-modules" "$KAGE_KERNEL")
    keep_part guest "root_image=$root" "kernel=${boot%% *}" "initramfs=${boot#* }" "module=${module#* }"
}

build_kernels() { # build_kernels FLAVOUR…: what guests with these need
    local flavour
    for flavour in "$@"; do
        "$KAGE_ROOT/scripts/guest-image" initramfs "$flavour" >/dev/null
    done
    "$KAGE_ROOT/scripts/build-modules" "$@" >/dev/null
}

# Tells the tool and the tests where everything is. Who has set KAGE_ASSETS or KAGE_MODULE has other plans.
use_parts() {
    local dir line file=$KAGE_BUILD_DIR/assets.json
    dir=$(parts_dir)
    while read -r line; do
        touch -c "$(dirname "${line#*=}")/.complete" # last use, for `kage clean`
    done < <(cat "$dir/qemu" "$dir/guest")
    KAGE_QEMU=$(sed -n 's/^qemu=//p' "$dir/qemu")
    export KAGE_QEMU
    [ -z "${KAGE_ASSETS:-}" ] && [ -z "${KAGE_MODULE:-}" ] || return 0
    "$KAGE_PYTHON" - "$KAGE_KERNEL" "$KAGE_BUILD_DIR" "$dir/qemu" "$dir/guest" >"$file.$$" <<'PYTHON'
import json, sys
flavour, build, *files = sys.argv[1:]
assets = {"flavour": flavour, "icd": build + "/guest-driver/opencl/libkagemusha_opencl.so",
          "cuda": build + "/guest-driver/cuda/lib/libcuda.so.1.0",
          "device_library": build + "/replicator/ffi/libkagemusha_device.so",
          "worker": build + "/replicator/worker/kagemusha-worker"}
for file in files:
    with open(file, encoding="utf-8") as lines:
        assets.update(line.rstrip("\n").split("=", 1) for line in lines)
json.dump(assets, sys.stdout, indent=2)
PYTHON
    mv "$file.$$" "$file" # whole, also when another `kage` writes it
    export KAGE_ASSETS=$file
}

# build_vm PRESET [TARGET…]: everything that a VM needs; of the C++ parts these targets (default: all, with tests and
# benches). QEMU and C++ take longest, and most of the guest is waiting for the archive: all of it at the same time.
build_vm() {
    local key
    cpp_part=("$@")
    private_apt_update # once, before all of them want it
    if parts_are_fresh; then
        build_cpp_part
    else
        key=$(parts_key) # before the work: sources that change meanwhile are for the next time
        rm -f "$(parts_dir)/key"
        together build_qemu build_cpp_part build_guest
        keep_part key "$key"
    fi
    export KAGE_BUILD_DIR=$KAGE_ROOT/build/$1
    use_parts
}

build_cpp_part() { build_cpp "${cpp_part[@]}"; }

# build_docs: pages of the public headers (docs/Doxyfile), whose warnings are errors.
build_docs() {
    cd "$KAGE_ROOT" || return
    mkdir -p build/docs
    {
        cat docs/Doxyfile
        echo "OUTPUT_DIRECTORY = build/docs"
    } >build/docs/Doxyfile
    step "Making the pages of the public headers" doxygen build/docs/Doxyfile
    note "$KAGE_ROOT/build/docs/html/index.html"
}

# ---- layout (the other checks: scripts/tidy) -------------------------------------------------------------------------

# Our C++ only: kernel and QEMU code keep the layout of their projects.
cpp_files() {
    cd "$KAGE_ROOT" || return
    local folders=()
    mapfile -t folders < <(ls -d replicator guest-driver/opencl tracer control tests bench 2>/dev/null)
    find "${folders[@]}" -type f \( -name '*.cpp' -o -name '*.hpp' -o -path 'replicator/*.h' \) | LC_ALL=C sort
}
