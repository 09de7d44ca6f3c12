# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=bash
#
# The parts that `kage` puts together, each as a step that does nothing when it is up to date. Sourced after common.sh.
# What later parts and the tests need is exported: KAGE_BUILD_DIR, KAGE_QEMU, KAGE_KERNEL.

export KAGE_KERNEL=${KAGE_KERNEL:-6.12-cloud}
# shellcheck disable=SC2034 # kage uses it
KAGE_CLANG_FORMAT=clang-format-19 # by version: each lays out a little differently, and both Debians have this one

# build_cpp PRESET: replicator, guest OpenCL driver, tools and tests.
build_cpp() {
    local preset=$1
    cd "$KAGE_ROOT" || return
    if [ ! -e "build/$preset/build.ninja" ]; then
        step "Configuring the C++ parts ($preset)" cmake --preset "$preset"
    fi
    step "Building the C++ parts ($preset)" nice cmake --build --preset "$preset" -j "$(kage_jobs)"
    if [ "$preset" = default ]; then
        export KAGE_BUILD_DIR=$KAGE_ROOT/build/default
    fi
}

build_qemu() {
    KAGE_QEMU=$("$KAGE_ROOT/scripts/build-qemu")
    export KAGE_QEMU
}

# build_guest [flavour…]: image, kernels, modules; default: the one kernel that is used when nobody asks.
build_guest() {
    local flavour
    [ $# -gt 0 ] || set -- "$KAGE_KERNEL"
    "$KAGE_ROOT/scripts/guest-image" root >/dev/null
    for flavour in "$@"; do
        "$KAGE_ROOT/scripts/guest-image" initramfs "$flavour" >/dev/null
    done
    "$KAGE_ROOT/scripts/build-modules" "$@" >/dev/null
}

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
