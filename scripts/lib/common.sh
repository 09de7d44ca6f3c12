# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=bash
#
# Shared by every script here: where things are, how progress is shown, how a step keeps its whole output in a log file
# and how results are cached by content. Sourced, never run. The sourcing script has set -euo pipefail.

shopt -s inherit_errexit # $(…) stops at the first error, too

KAGE_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
KAGE_CACHE=${KAGEMUSHA_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/kagemusha} # a service may have no HOME
KAGE_LOGS=${KAGE_LOGS:-$KAGE_CACHE/logs}
export KAGE_ROOT KAGE_CACHE KAGE_LOGS

# depmod and modprobe are in sbin, which Debian leaves out of the PATH of ordinary users.
export PATH=$PATH:/usr/sbin:/sbin

# The distribution's own tools: another cmake, meson or python3 in front of them in PATH (in a home directory, under
# /usr/local) would not see Debian's packages.
export KAGE_PYTHON=/usr/bin/python3

kage_jobs() { # how many compile jobs: KAGEMUSHA_JOBS, else one per core
    echo "${KAGEMUSHA_JOBS:-$(nproc)}"
}

kage_version() { # of this tree, without what packages add
    local version
    version=$(sed -n 's/^project(kagemusha VERSION \([0-9.]*\).*/\1/p' "$KAGE_ROOT/CMakeLists.txt")
    [ -n "$version" ] || die "CMakeLists.txt names no version"
    echo "$version"
}

# On a terminal the seconds of a step tick; not when several run at once, each of which would write over the others.
_ticks=${KAGE_TICKS:-$([ -t 2 ] && echo 1 || echo 0)}
if [ -t 2 ]; then
    _bold=$'\e[1m' _red=$'\e[31m' _plain=$'\e[0m'
else
    _bold='' _red='' _plain=''
fi

note() { printf '%s\n' "$*" >&2; }

die() {
    printf '%skage: %s%s\n' "$_red" "$*" "$_plain" >&2
    exit 1
}

# step TITLE COMMAND…: one line of progress for one piece of work. The command's output goes to a log file of its own;
# on failure its last lines and its path are shown. On a terminal the seconds tick, so that a long step is visibly alive.
step() {
    local title=$1 log started pid rc tick='' ignored
    shift
    # Inside `if step…` or `step… ||` bash ignores set -e in everything that runs: a step would go on after an error.
    # shellcheck disable=SC2034
    ignored=$(
        set +e
        (
            set -e
            false
            echo yes
        )
        :
    )
    [ -z "$ignored" ] || die "step '$title': called where set -e is ignored (a mistake in the script)"
    mkdir -p "$KAGE_LOGS"
    log=$KAGE_LOGS/$(date -u +%Y%m%d-%H%M%S)-$$-$(printf '%s' "$title" | tr -cs 'A-Za-z0-9.\n' '-' | cut -c1-50).log
    started=$SECONDS
    if [ "${KAGE_VERBOSE:-0}" = 1 ]; then
        note "${_bold}==> $title${_plain}"
        ("$@") > >(tee "$log" >&2) 2>&1 </dev/null &
        rc=0
        wait $! || rc=$?
    else
        if [ "$_ticks" = 0 ]; then
            note "  ... $title"
        fi
        # In the background and not in an `if`: there bash would ignore set -e inside functions that run as a step.
        ("$@") >"$log" 2>&1 </dev/null &
        pid=$!
        if [ "$_ticks" = 1 ]; then
            while kill -0 "$pid" 2>/dev/null; do
                printf '\r  %4ds %s %s' $((SECONDS - started)) "$title" "$tick" >&2
                sleep 1
                tick=$([ -n "$tick" ] && echo ' ' || echo '.')
            done
            printf '\r\e[K' >&2
        fi
        rc=0
        wait "$pid" || rc=$?
    fi
    if [ "$rc" -ne 0 ]; then
        printf '%s  FAILED after %ds: %s%s\n' "$_red" $((SECONDS - started)) "$title" "$_plain" >&2
        note "  last lines of $log:"
        tail -n "${KAGE_LOG_TAIL:-25}" "$log" | sed 's/^/    | /' >&2
        return "$rc"
    fi
    printf '  %4ds %s\n' $((SECONDS - started)) "$title" >&2
}

# together PART…: runs these functions at the same time; their steps show when they begin and what they took. The first that
# fails ends the others, with all that they have started, and its status is the result. Ctrl-C ends all of them.
together() {
    local part pids=() left rc=0
    set -m # each gets a process group of its own, which can be ended as a whole
    for part in "$@"; do
        (
            set +m
            _ticks=0
            export KAGE_TICKS=0 # for scripts that it calls
            "$part"
        ) </dev/null &
        pids+=($!)
    done
    set +m
    # shellcheck disable=SC2064 # the groups of this call
    trap "_end_groups ${pids[*]}; exit 130" INT TERM HUP
    left=$#
    while [ "$left" -gt 0 ]; do
        wait -n || rc=$?
        [ "$rc" -eq 0 ] || break
        left=$((left - 1))
    done
    [ "$rc" -eq 0 ] || _end_groups "${pids[@]}"
    trap - INT TERM HUP
    return "$rc"
}

_end_groups() { # PID…: of their leaders
    local pid
    for pid in "$@"; do
        kill -TERM -- "-$pid" 2>/dev/null || true
    done
    wait
}

# Logs of more than two weeks ago help nobody.
prune_logs() {
    if [ -d "$KAGE_LOGS" ]; then
        find "$KAGE_LOGS" -type f -name '*.log' -mtime +14 -delete 2>/dev/null || true
    fi
}

# content_key WORD…: a short name for what these words (and files, written @path) say. Two inputs that differ in one
# byte get different names.
content_key() {
    local item
    {
        for item in "$@"; do
            case $item in
            @*)
                printf 'file:%s\n' "$(basename "${item#@}")"
                cat -- "${item#@}"
                ;;
            *) printf 'word:%s\n' "$item" ;;
            esac
        done
    } | sha256sum | cut -c1-16
}

# cached KIND KEY TITLE BUILDER ARG…: prints the directory of the artefact; runs BUILDER as a step named TITLE, with ARGs
# and a last argument, an empty temporary directory to fill, if the artefact is not there yet. The directory appears under its final name only
# when complete; a lock keeps two runs from building the same thing twice.
cached() {
    local kind=$1 key=$2 title=$3 dir temp lock
    shift 3
    dir=$KAGE_CACHE/$kind/$key
    if [ ! -e "$dir/.complete" ]; then
        mkdir -p "$KAGE_CACHE/$kind"
        exec {lock}>"$KAGE_CACHE/$kind/.$key.lock"
        if ! flock -n "$lock"; then
            note "  ... waiting for another run that builds $kind"
            flock "$lock"
        fi
        if [ ! -e "$dir/.complete" ]; then
            # Only the holder of the lock comes here: leftovers of a killed run are ours to remove.
            rm -rf -- "$dir" "$KAGE_CACHE/$kind/.$key.tmp"
            temp=$KAGE_CACHE/$kind/.$key.tmp
            mkdir -p "$temp"
            step "$title" "$@" "$temp" >&2
            touch "$temp/.complete"
            mv -T -- "$temp" "$dir"
        fi
        exec {lock}>&-
    fi
    touch -c "$dir/.complete" # last use, for `kage clean`
    printf '%s\n' "$dir"
}
