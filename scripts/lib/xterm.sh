# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=bash
#
# xterm.js, the portal's terminals: Debian 13's package libjs-xterm. Debian 12's has an xterm.js without its parts, so there
# Debian 13's is unpacked into the cache. Sourced after common.sh and apt.sh.

_xterm_format=2 # raise when _unpack_xterm does something else

_unpack_xterm() { # VERSION FOLDER
    (cd "$2" && private_apt get download -q "libjs-xterm=$1")
    dpkg-deb --fsys-tarfile "$2"/libjs-xterm_*.deb |
        tar -C "$2" --strip-components=5 -xf - ./usr/share/javascript/xterm/xterm.js ./usr/share/javascript/xterm/xterm.css
    dpkg-deb --fsys-tarfile "$2"/libjs-xterm_*.deb | tar -C "$2" -xOf - ./usr/share/doc/libjs-xterm/copyright >"$2/copyright"
    rm "$2"/libjs-xterm_*.deb
}

# xterm_dir: prints the folder of xterm.js and xterm.css, fetching them first if needed.
xterm_dir() {
    local version
    if [ "$(debian_codename)" != bookworm ]; then
        echo /usr/share/javascript/xterm
        return
    fi
    private_apt_update
    version=$(private_apt cache show libjs-xterm | sed -n 's/^Version: //p' | sort -V | tail -n 1)
    cached xterm "$version-$_xterm_format" "Fetching xterm.js $version" _unpack_xterm "$version"
}
