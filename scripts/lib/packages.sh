# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=bash
#
# Which Debian packages building and testing needs, and their installation. The lists are in scripts/packages.
# Sourced after common.sh and apt.sh.

KAGE_SUITES='bookworm trixie' # Debian 12 and 13

# needed_packages RELEASE [host|test]: the names for that release, one per line; of one list, or of both.
needed_packages() {
    local list lists=()
    for list in ${2:-host test}; do
        lists+=("$KAGE_ROOT/scripts/packages/$list.list")
    done
    sed 's/#.*//' "${lists[@]}" |
        awk -v release="@$1" 'NF == 1 || (NF == 2 && $2 == release) { print $1 }'
}

# missing_packages RELEASE [host|test]: those of them that are not installed, nor provided by another one of them (a nodejs of
# others has npm inside). dpkg is asked once for all: sixty times takes seconds.
missing_packages() {
    local needed
    needed=$(needed_packages "$@")
    # It fails when it has never heard of one of them, and answers for the others all the same.
    # shellcheck disable=SC2016,SC2086 # dpkg's placeholders, not the shell's; one word per package
    { dpkg-query -W -f '${Package} ${db:Status-Status} ${Provides}\n' $needed 2>/dev/null || true; } |
        awk -v needed="$needed" '$2 == "installed" { there[$1] = 1; gsub(",", ""); for (i = 3; i <= NF; i++) there[$i] = 1 }
            END { count = split(needed, name); for (i = 1; i <= count; i++) if (!(name[i] in there)) print name[i] }'
}

_supported_release() {
    local codename
    command -v apt-get >/dev/null && command -v dpkg-query >/dev/null || return 1
    codename=$(debian_codename)
    # shellcheck disable=SC1091
    [ "$(. /etc/os-release && echo "$ID")" = debian ] || return 1
    [[ " $KAGE_SUITES " = *" $codename "* ]] && echo "$codename"
}

_refuse_distribution() {
    local name=unknown
    # shellcheck disable=SC1091
    [ ! -r /etc/os-release ] || name=$(. /etc/os-release && echo "$PRETTY_NAME")
    note "This is $name. Kagemusha sets itself up on Debian 12 (bookworm) and Debian 13 (trixie) only."
    note "Elsewhere it needs what these Debian packages hold (names as in Debian 13):"
    needed_packages trixie | xargs -n 8 | sed 's/^/    /' >&2
    note "besides a QEMU 10.0.x source tree (10.0.13 or newer) and Debian kernels for the guest. The easiest way is a"
    note "Debian 13 container or virtual machine: debootstrap, podman run -it debian:trixie, or an installation."
    exit 1
}

# install_packages [host|test]: installs what is missing of that list, or of both; says what. Nothing happens when everything
# is there.
install_packages() {
    local release missing=() as_root=()
    release=$(_supported_release) || _refuse_distribution
    mapfile -t missing < <(missing_packages "$release" "$@")
    [ ${#missing[@]} -gt 0 ] || return 0
    note "Missing Debian packages (${#missing[@]}):"
    printf '%s\n' "${missing[@]}" | xargs -n 8 | sed 's/^/    /' >&2
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            note "You are not root and there is no sudo. Install them as root, then start again:"
            note "    apt-get install ${missing[*]}"
            exit 1
        fi
        as_root=(sudo)
        note "They are installed with sudo apt-get; it may ask for your password."
        sudo -v || die "sudo refused; as root: apt-get install ${missing[*]}"
    fi
    step "Refreshing the machine's package lists" "${as_root[@]}" apt-get update -q
    step "Installing ${#missing[@]} packages" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -q --no-install-recommends -o Dpkg::Use-Pty=0 "${missing[@]}"
}
