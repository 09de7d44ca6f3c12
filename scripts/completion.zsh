#compdef kagemusha kage
# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck disable=all
#
# Completion for zsh: in a folder of $fpath, as _kagemusha. Commands and options are asked from the tool itself (--help); names
# of VMs from `status`.
_kagemusha() {
    local tool=$words[1] command=${words[2]:-}
    local -a found
    if (( CURRENT == 2 )); then
        found=(${(f)"$($tool --help 2>/dev/null | sed -n '/^Subcommands:/,$s/^  \([a-z-]*\)  *\(.*\)/\1:\2/p')"})
        _describe -t commands command found
    elif [[ $words[CURRENT] == -* ]]; then
        found=(${(f)"$($tool $command --help 2>/dev/null | grep -oE '(^|[ ,])--[a-z-]+' | tr -d ' ,')"})
        compadd -a found
    else
        case $command in
        status | stop | protect | switchover | drill)
            found=(${(f)"$($tool status 2>/dev/null | sed -n 's/^\([^ ]*\) (process .*/\1/p')"})
            compadd -a found
            ;;
        run | standby | qemu-command) _files -g '*.toml' ;;
        *) _files ;;
        esac
    fi
}
_kagemusha "$@"
