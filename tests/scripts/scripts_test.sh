#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Tests of scripts/lib: no network, nothing installed. apt is replaced by a stand-in where an answer of it matters.
set -euo pipefail

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
unset KAGE_LOGS KAGE_VERBOSE KAGE_ROOT
export KAGEMUSHA_CACHE=$place/cache

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../../scripts/lib/common.sh
. "$here/../../scripts/lib/common.sh"
# shellcheck source=../../scripts/lib/apt.sh
. "$KAGE_ROOT/scripts/lib/apt.sh"
# shellcheck source=../../scripts/lib/packages.sh
. "$KAGE_ROOT/scripts/lib/packages.sh"
# shellcheck source=../../scripts/lib/kernels.sh
. "$KAGE_ROOT/scripts/lib/kernels.sh"
# shellcheck source=../../scripts/lib/build.sh
. "$KAGE_ROOT/scripts/lib/build.sh"

checks=0
failures=0
check() { # check WHAT EXPECTED ACTUAL
    checks=$((checks + 1))
    if [ "$2" != "$3" ]; then
        failures=$((failures + 1))
        printf 'FAILED: %s\n  expected: %s\n  actual:   %s\n' "$1" "$2" "$3"
    fi
}
contains() { # contains WHAT NEEDLE TEXT
    checks=$((checks + 1))
    if [[ "$3" != *"$2"* ]]; then
        failures=$((failures + 1))
        printf 'FAILED: %s\n  no "%s" in: %s\n' "$1" "$2" "$3"
    fi
}

result() { # result COMMAND…: passed or failed, run where set -e holds
    ("$@") >/dev/null 2>&1 &
    if wait $!; then echo passed; else echo failed; fi
}

# ---- the tools of an ordinary user -----------------------------------------------------------------------------------

check 'what is in sbin is found with the PATH of an ordinary user' found "$(
    # shellcheck disable=SC2016 # for the inner shell
    PATH=/usr/local/bin:/usr/bin:/bin bash -c '. "$1/scripts/lib/common.sh" && command -v depmod modprobe >/dev/null && echo found' - "$KAGE_ROOT"
)"

# ---- kage without a build --------------------------------------------------------------------------------------------

check 'kage --version needs nothing that is built' "kagemusha $(kage_version)" "$("$KAGE_ROOT/kage" --version)"
mkdir "$place/tree"
echo 'project(kagemusha LANGUAGES C CXX)' >"$place/tree/CMakeLists.txt"
check 'a tree without a version is an error' failed "$(KAGE_ROOT=$place/tree result kage_version)"

# ---- content_key ------------------------------------------------------------------------------------------------

printf 'one' >"$place/a"
printf 'two' >"$place/b"
first=$(content_key word "@$place/a")
check 'the same inputs give the same key' "$first" "$(content_key word "@$place/a")"
printf 'onE' >"$place/a"
check 'a changed byte in a file changes the key' no "$([ "$first" = "$(content_key word "@$place/a")" ] && echo yes || echo no)"
check 'another split of the words changes the key' no "$([ "$(content_key ab c)" = "$(content_key a bc)" ] && echo yes || echo no)"
check 'a missing file is an error' failed "$(result content_key "@$place/none" word)"

# ---- cached ---------------------------------------------------------------------------------------------------------

build_once() {
    echo run >>"$place/runs"
    sleep 0.3
    echo content >"$2/file"
    test "$1" = good
}
make_bad() { cached kind bad 'A step that fails' build_once bad; }

dir=$(cached kind key 'A step' build_once good 2>/dev/null)
check 'the artefact is there' content "$(cat "$dir/file")"
check 'a second request finds it' "$dir" "$(cached kind key 'A step' build_once good 2>/dev/null)"
check 'and does not build again' 1 "$(wc -l <"$place/runs")"

: >"$place/runs"
for _ in 1 2 3; do (cached kind other 'A step' build_once good >/dev/null 2>&1) & done
wait
check 'three runs at once build one time' 1 "$(wc -l <"$place/runs")"

: >"$place/runs"
rc=0
(make_bad >/dev/null 2>&1) &
wait $! || rc=$?
check 'a builder that fails makes the request fail' 1 "$rc"
check 'and leaves no artefact' no "$([ -e "$KAGE_CACHE/kind/bad" ] && echo yes || echo no)"

# A run that was killed in the middle leaves a temporary directory; the next one starts afresh.
mkdir -p "$KAGE_CACHE/kind/.left.tmp"
touch "$KAGE_CACHE/kind/.left.tmp/rubbish"
dir=$(cached kind left 'A step' build_once good 2>/dev/null)
check 'leftovers of a killed run are not in the artefact' no "$([ -e "$dir/rubbish" ] && echo yes || echo no)"

# ---- step ---------------------------------------------------------------------------------------------------------------

fails_in_the_middle() {
    echo 'this is what went wrong'
    false
    echo 'never reached'
}
rc=0
(step 'A failing step' fails_in_the_middle) >"$place/said" 2>&1 &
wait $! || rc=$?
said=$(cat "$place/said")
check 'a step stops at the first error and passes it on' 1 "$rc"
contains 'shows the last lines' 'this is what went wrong' "$said"
contains 'names the log file' "$KAGE_LOGS/" "$said"
check 'nothing ran after the error' no "$([[ $said = *'never reached'* ]] && echo yes || echo no)"
rc=0
(if step 'Not here' true; then :; fi) >/dev/null 2>&1 &
wait $! || rc=$?
check 'a step in a condition is refused: set -e would be ignored in it' 1 "$rc"
said=$(step 'A good step' echo hidden 2>&1)
check 'a good step hides its output' no "$([[ $said = *hidden* ]] && echo yes || echo no)"
check 'but keeps it in a log' 1 "$(grep -rl hidden "$KAGE_LOGS" | wc -l)"

# ---- together ---------------------------------------------------------------------------------------------------------

# Each waits for the other's file: one after the other they would never end.
meets() { # meets MINE OTHER
    touch "$place/$1"
    timeout 60 bash -c "until [ -e '$place/$2' ]; do sleep 0.05; done"
}
first_part() { step 'The first part' meets one-is-here two-is-here; }
second_part() { step 'The second part' meets two-is-here one-is-here; }
fails_soon() { step 'A part that fails' bash -c 'exit 3'; }
runs_long() { step 'A part that runs long' bash -c "echo \$\$ >'$place/long'; exec sleep 300"; }
gone() { # gone PID: it may take the kernel a moment, and its new parent for ever to ask for its status
    timeout 60 bash -c "while grep -qs '^State:[[:space:]]*[^Z[:space:]]' /proc/$1/status; do sleep 0.05; done" &&
        echo gone
}
fails_when_the_other_runs() {
    timeout 60 bash -c "until [ -s '$place/long' ]; do sleep 0.05; done"
    fails_soon
}
rc=0
(together first_part second_part) >"$place/said" 2>&1 &
wait $! || rc=$?
said=$(cat "$place/said")
check 'parts run at the same time' 0 "$rc"
contains 'the steps of the one are shown' 'The first part' "$said"
contains 'and of the other' 'The second part' "$said"
rc=0
(together runs_long fails_when_the_other_runs) >/dev/null 2>&1 &
wait $! || rc=$?
check 'the status of the one that fails is the result' 3 "$rc"
check 'and the other is ended, with what it had started' gone \
    "$(gone "$(cat "$place/long")")"
rm "$place/long"
(together runs_long) >/dev/null 2>&1 &
until [ -s "$place/long" ]; do sleep 0.05; done
kill -TERM $!
rc=0
wait $! || rc=$?
check 'who is ended ends its parts' '130 gone' \
    "$rc $(gone "$(cat "$place/long")")"

# ---- packages ---------------------------------------------------------------------------------------------------------------

contains 'Debian 13 has its own meson' meson "$(needed_packages trixie)"
check 'Debian 12 does not use its own meson' 0 "$(needed_packages bookworm | grep -cx meson)"
check 'the lists together are all' "$(needed_packages trixie | sort)" \
    "$({ needed_packages trixie host && needed_packages trixie test; } | sort)"
check 'the demo needs no tools for checks' 0 "$(needed_packages trixie host | grep -cx clang-tidy-19)"
check 'no package twice' "$(needed_packages trixie | sort | uniq | wc -l)" "$(needed_packages trixie | wc -l)"
check 'what is not installed is found' 'no-such-package' "$(
    needed_packages() { printf 'bash\nno-such-package\ndpkg\n'; }
    missing_packages bookworm
)"
rc=0
said=$( (
    _supported_release() { return 1; }
    install_packages
) 2>&1) || rc=$?
check 'another distribution is refused' 1 "$rc"
contains 'with the list of what is needed' libslirp-dev "$said"

# ---- configuring -----------------------------------------------------------------------------------------------------------

configured() { # configured PACKAGE…: whether it is done again while these are missing
    (
        mkdir -p "$place/clone"
        cd "$place/clone"
        packages=("$@")
        missing_packages() { printf '%s\n' "${packages[@]}"; }
        step() { mkdir -p build/runtime && touch build/runtime/build.ninja && echo "${*:2}"; }
        configure_cpp runtime
    )
}
check 'a new build is configured' 'cmake --fresh --preset runtime' "$(configured mpi grpc)"
check 'and stays so' '' "$(configured mpi grpc)"
check 'until packages come' 'cmake --fresh --preset runtime' "$(configured)"
check 'which is once' '' "$(configured)"

# ---- private apt configuration --------------------------------------------------------------------------------------------

mkdir -p "$place/bin"
cat >"$place/bin/apt-get" <<'STUB'
#!/bin/sh
[ "$1" = indextargets ] || exit 1
cat "$FAKE_TARGETS"
STUB
chmod +x "$place/bin/apt-get"

config_for() { # config_for CODENAME TARGETS…: the sources that are derived for such a machine
    local codename=$1
    shift
    printf '%s\n' "$@" >"$place/targets"
    (
        export FAKE_TARGETS=$place/targets PATH=$place/bin:$PATH
        debian_codename() { echo "$codename"; }
        _apt_keyring() { echo /keyring; }
        private_apt_config >/dev/null
        cat "$KAGE_CACHE/apt/sources.list"
    )
}

twelve=$(config_for bookworm 'http://other.invalid/ bookworm main Somebody' 'http://other.invalid/ stable main' \
    'http://mirror.invalid/debian/ bookworm main Debian' 'http://mirror.invalid/security/ bookworm-security main')
contains 'the address of the machine with another suite' \
    'deb-src [signed-by=/keyring] http://mirror.invalid/debian/ trixie main' "$twelve"
contains 'backports on Debian 12' 'http://mirror.invalid/debian/ bookworm-backports main' "$twelve"
contains 'security updates' 'http://mirror.invalid/security/ bookworm-security main' "$twelve"
check 'archives of others are not used' 0 "$(grep -c other.invalid <<<"$twelve")"
check 'every line is checked against the keyring' 0 "$(grep -vc 'signed-by=/keyring' <<<"$twelve")"

thirteen=$(config_for trixie 'http://mirror.invalid/debian/ trixie main')
check 'no backports of Debian 12 on Debian 13' 0 "$(grep -c backports <<<"$thirteen")"
check 'no security archive known: none used' 0 "$(grep -c security <<<"$thirteen")"
check 'a machine without an archive is told' failed "$(result config_for trixie '')"

# ---- kernels ------------------------------------------------------------------------------------------------------------

# An archive in which each kernel has its four packages, but for those of which $half has a version: of them it has no image.
half=
private_apt() { # cache madison PACKAGE…, cache show PACKAGE=VERSION
    local package=${3%%=*} version=${3#*=} name
    case "$2 $package" in
    'madison linux-headers-cloud-amd64')
        cat <<'LIST'
linux-headers-cloud-amd64 | 6.12.117-1 | http://mirror.invalid/security trixie-security/main amd64 Packages
linux-headers-cloud-amd64 | 6.12.107-1 | http://mirror.invalid/debian trixie/main amd64 Packages
linux-headers-cloud-amd64 | 6.12.95-1~bpo12+1 | http://mirror.invalid/debian bookworm-backports/main amd64 Packages
linux-headers-cloud-amd64 |  6.1.99-2 | http://mirror.invalid/security bookworm-security/main amd64 Packages
linux-headers-cloud-amd64 |  6.1.176-1 | http://mirror.invalid/debian bookworm/main amd64 Packages
LIST
        ;;
    'show linux-headers-cloud-amd64') echo "Depends: linux-headers-$version-cloud-amd64 (= $version)" ;;
    show*) echo "Depends: linux-headers-$version-common (= $version), linux-kbuild-$version, gcc-12" ;;
    madison*)
        for name in "${@:3}"; do
            version=${name#linux-*-}
            version=${version%-cloud-amd64}
            version=${version%-common}
            [ "$name" = "linux-image-$half-cloud-amd64" ] ||
                echo "$name | $version | http://mirror.invalid/debian bookworm/main amd64 Packages"
        done
        ;;
    esac
}
debian_codename() { echo bookworm; }
check '6.12 on Debian 12 is the backport' '6.12.95-1~bpo12+1' "$(_kernel_version 6.12-cloud)"
check '6.1 is the newest of release and security' 6.1.176-1 "$(_kernel_version 6.1-cloud)"
debian_codename() { echo trixie; }
check '6.12 on Debian 13 is its own' 6.12.117-1 "$(_kernel_version 6.12-cloud)"
check '6.1 on Debian 13 is that of Debian 12' 6.1.176-1 "$(_kernel_version 6.1-cloud)"
half=6.12.117-1
check 'a kernel of which the archive has only some packages is not the newest' 6.12.107-1 "$(_kernel_version 6.12-cloud)"
check 'and none of it is fetched' '' "$(_kernel_packages 6.12-cloud 6.12.117-1)"
half=
check 'its four packages are fetched' "linux-headers-6.1.176-1-cloud-amd64=6.1.176-1
linux-headers-6.1.176-1-common=6.1.176-1
linux-image-6.1.176-1-cloud-amd64=6.1.176-1
linux-kbuild-6.1.176-1=6.1.176-1" "$(_kernel_packages 6.1-cloud 6.1.176-1)"
check 'an unknown flavour is refused' failed "$(result _kernel_version 6.6-cloud)"

printf '%d checks, %d failed\n' "$checks" "$failures"
[ "$failures" -eq 0 ]
