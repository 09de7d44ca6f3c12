#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# compare_ffmpeg.sh NATIVE LOOPBACK: ffmpeg's CUDA filters, unmodified, on the PTX device (the library NATIVE) and
# through the guest's library, the device and a worker (LOOPBACK, with KAGEMUSHA_LOOPBACK_… and LD_LIBRARY_PATH as
# it wants them): each frame's checksum must be the same, and each filter that this ffmpeg has must give frames.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/native" "$work/loopback"
ln -s "$1" "$work/native/libcuda.so.1"
ln -s "$2" "$work/loopback/libcuda.so.1"
path=${LD_LIBRARY_PATH:-}
source='testsrc=size=64x48:rate=5:duration=0.6'

# sums FOLDER ARGUMENTS…: the checksums of the frames that a graph gives on the library in this folder
sums() {
    folder=$1
    shift
    LD_LIBRARY_PATH="$work/$folder${path:+:$path}" ffmpeg -hide_banner -nostdin -loglevel error \
        -init_hw_device cuda=gpu:0 -filter_hw_device gpu "$@" -f framemd5 - 2>"$work/$folder.errors" | sed '/^#/d'
}

failed=0
compare() {
    filter=$1
    shift
    if ! ffmpeg -hide_banner -filters 2>/dev/null | grep -qw "$filter"; then
        echo "$filter: this ffmpeg does not have it"
        return
    fi
    sums native "$@" >"$work/native.sums" || true
    sums loopback "$@" >"$work/loopback.sums" || true
    frames=$(wc -l <"$work/native.sums")
    if [ "$frames" -gt 0 ] && cmp -s "$work/native.sums" "$work/loopback.sums"; then
        echo "$filter: $frames frames, the same"
    else
        echo "$filter: DIFFERENT"
        for folder in native loopback; do
            echo "-- $folder"
            cat "$work/$folder.sums" "$work/$folder.errors"
        done
        failed=1
    fi
}

# one PIXELS GRAPH: a source in this format through a graph
one() {
    compare "${2%%=*}" -f lavfi -i "$source" -vf "format=$1,hwupload_cuda,$2,hwdownload,format=${3:-$1}"
}

one yuv420p scale_cuda=40:30
one p010 scale_cuda=40:30:interp_algo=lanczos:format=nv12 nv12
one yuv420p yadif_cuda=1
one yuv420p bwdif_cuda=1
one nv12 thumbnail_cuda=2
one yuv420p chromakey_cuda=0x00ff00:0.2:0.1 yuva420p
one yuv420p bilateral_cuda=window_size=5
one yuv420p colorspace_cuda=range=tv
compare overlay_cuda -f lavfi -i "$source" -f lavfi -i color=red:size=16x12:rate=5:duration=0.6 -filter_complex \
    '[0]format=yuv420p,hwupload_cuda[a];[1]format=yuva420p,hwupload_cuda[b];[a][b]overlay_cuda=10:8,hwdownload,format=yuv420p'
exit $failed
