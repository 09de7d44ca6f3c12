# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=bash
#
# Debian packages and sources without touching the machine's own apt set-up. A fresh machine has neither source entries
# nor the other suites that we need (QEMU 10.0.x is trixie's, kernel 6.1 is bookworm's). Their addresses are those
# of the machine's own entries with another suite name, so no address is ever written in this project, a mirror or a
# proxy of the machine is used as it is, and signatures are checked against Debian's keyring as always.
# Everything lives in $KAGE_CACHE/apt.

KAGE_APT_MAX_AGE_MIN=${KAGE_APT_MAX_AGE_MIN:-1440} # refresh the package lists once a day

debian_codename() {
    # shellcheck disable=SC1091
    (. /etc/os-release && echo "${VERSION_CODENAME:-}")
}

# Base address of the archive that serves one of the given releases of this machine. What says of itself that it is
# Debian comes first (others have releases of the same names), then what has not been fetched yet and says nothing;
# among those the order of the arguments decides: _apt_base bookworm stable.
_apt_base() {
    # shellcheck disable=SC2016 # apt's placeholders, not the shell's
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)' 2>/dev/null |
        awk -v releases="$*" '
            BEGIN { count = split(releases, wanted, " ") }
            $3 == "main" && ($4 == "Debian" || $4 == "" || $4 ~ /ORIGIN/) {
                for (i = 1; i <= count; i++)
                    if ($2 == wanted[i]) {
                        rank = i + ($4 == "Debian" ? 0 : count)
                        if (!best || rank < best) { best = rank; address = $1 }
                    }
            }
            END { if (best) print address }'
}

_apt_keyring() {
    local keyring
    for keyring in /usr/share/keyrings/debian-archive-keyring.gpg /usr/share/keyrings/debian-archive-keyring.pgp; do
        if [ -r "$keyring" ]; then
            echo "$keyring"
            return
        fi
    done
    die "Debian's keyring is missing: install the package debian-archive-keyring"
}

# Writes the private configuration; prints its path.
private_apt_config() {
    local home=$KAGE_CACHE/apt code base security keyring suite
    code=$(debian_codename)
    base=$(_apt_base "$code" stable oldstable)
    security=$(_apt_base "$code-security" stable-security oldstable-security)
    [ -n "$base" ] || die "apt knows no archive for '$code' (apt-get indextargets shows what it knows); add the Debian archive to its sources"
    keyring=$(_apt_keyring)
    mkdir -p "$home/state/lists/partial" "$home/cache/archives/partial" "$home/preferences.d"
    {
        for suite in bookworm bookworm-backports trixie; do
            # Kernels and build tools of Debian 12's backports are of no use on Debian 13, and the other way round.
            if [ "$suite" = bookworm-backports ] && [ "$code" != bookworm ]; then continue; fi
            printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$base" "$suite"
        done
        printf 'deb-src [signed-by=%s] %s trixie main\n' "$keyring" "$base"
        if [ -n "$security" ]; then
            for suite in bookworm-security trixie-security; do
                printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$security" "$suite"
            done
            printf 'deb-src [signed-by=%s] %s trixie-security main\n' "$keyring" "$security"
        fi
    } >"$home/sources.list.new"
    if ! cmp -s "$home/sources.list.new" "$home/sources.list" 2>/dev/null; then
        mv "$home/sources.list.new" "$home/sources.list"
        rm -f "$home/updated"
    else
        rm -f "$home/sources.list.new"
    fi
    cat >"$home/apt.conf" <<CONF
Dir::Etc::sourcelist "$home/sources.list";
Dir::Etc::sourceparts "-";
Dir::Etc::preferences "$home/preferences";
Dir::Etc::preferencesparts "$home/preferences.d";
Dir::State "$home/state";
Dir::State::lists "$home/state/lists";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "$home/cache";
Dir::Cache::archives "$home/cache/archives";
Dir::Cache::pkgcache "$home/cache/pkgcache.bin";
Dir::Cache::srcpkgcache "";
Acquire::Languages "none";
Acquire::Retries "3";
APT::Sandbox::User "";
APT::Get::AllowUnauthenticated "false";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
CONF
    echo "$home/apt.conf"
}

# private_apt get|cache ARG…: apt-get or apt-cache with the private configuration. A build of packages has everything in its
# source package, and asks no archive: KAGEMUSHA_OFFLINE=1.
private_apt() {
    local tool=$1
    [ "${KAGEMUSHA_OFFLINE:-0}" != 1 ] || die "KAGEMUSHA_OFFLINE=1, and the archive was to be asked: apt-$*"
    shift
    "apt-$tool" -c "$KAGE_CACHE/apt/apt.conf" "$@"
}

# Nothing to do: the lists are young enough, and nobody has changed apt's set-up or this file since. (Asking apt takes
# seconds of processor time, and the scripts are called often.)
_apt_is_fresh() {
    local home=$KAGE_CACHE/apt
    [ -e "$home/apt.conf" ] && [ -n "$(find "$home/updated" -mmin "-$KAGE_APT_MAX_AGE_MIN" 2>/dev/null)" ] &&
        [ -z "$(find /etc/apt "${BASH_SOURCE[0]}" -newer "$home/apt.conf" -print -quit 2>/dev/null)" ]
}

private_apt_update() {
    local home=$KAGE_CACHE/apt lock rc=0
    [ "${KAGEMUSHA_OFFLINE:-0}" != 1 ] || return 0
    mkdir -p "$home"
    exec {lock}>"$home/.lock"
    flock "$lock"
    if _apt_is_fresh; then
        exec {lock}>&-
        return
    fi
    private_apt_config >/dev/null
    if [ -z "$(find "$home/updated" -mmin "-$KAGE_APT_MAX_AGE_MIN" 2>/dev/null)" ]; then
        # Offline with lists from last time is good enough; without any it is not.
        (step "Reading the archive's package lists" private_apt get update -q) &
        wait $! || rc=$?
        if [ "$rc" -eq 0 ]; then
            touch "$home/updated"
        elif [ ! -e "$home/updated" ]; then
            die "the package lists could not be fetched (network? proxy?)"
        fi
    fi
    exec {lock}>&-
}

# fetch_debs DIR NAME[=VERSION]…: downloads these packages into DIR (no dependencies, nothing is installed).
fetch_debs() {
    local dir=$1
    shift
    (cd "$dir" && private_apt get download -q "$@")
}
