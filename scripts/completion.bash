# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=bash
#
# Completion for bash: `. scripts/completion.bash`. Commands and options are asked from the tool itself (--help); names of
# VMs from `status`.
_kagemusha() {
    local word=${COMP_WORDS[COMP_CWORD]} tool=${COMP_WORDS[0]} command=${COMP_WORDS[1]:-} words checkout=''
    case $tool in
    */kage) # of a checkout; a package's is the tool itself
        if [ -d "${tool%/*}/scripts" ]; then checkout=${tool%/*}; fi
        ;;
    esac
    if [ -n "$checkout" ]; then
        tool=$checkout/build
        if [ -x "$tool/default/control/kagemusha" ]; then tool+=/default; else tool+=/runtime; fi
        tool+=/control/kagemusha
    fi
    COMPREPLY=()
    if [ "$command" = bench ] && [ "$COMP_CWORD" -gt 1 ] && [ -n "$checkout" ]; then
        tool=$checkout/bench/run
        if [[ $word = -* ]]; then
            mapfile -t COMPREPLY < <(compgen -W "$("$tool" --help 2>/dev/null | grep -oE -- '--[a-z-]+' | sort -u)" -- "$word")
        elif [ "$COMP_CWORD" -eq 2 ]; then
            mapfile -t COMPREPLY < <(compgen -W "compare report" -- "$word")
        else
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
        fi
        return
    fi
    [ -x "$tool" ] || tool=$(command -v "$tool") || return
    if [ "$COMP_CWORD" -eq 1 ]; then
        words=$("$tool" --help 2>/dev/null | sed -n '/^Subcommands:/,$s/^  \([a-z-]*\) .*/\1/p')
        [ -z "$checkout" ] || words+=' bench'
    elif [[ $word = -* ]]; then
        words=$("$tool" "$command" --help 2>/dev/null | grep -oE '(^|[ ,])--[a-z-]+' | tr -d ' ,')
    else
        case $command in
        status | stop | protect | switchover | drill)
            words=$("$tool" status 2>/dev/null | sed -n 's/^\([^ ]*\) (process .*/\1/p')
            ;;
        run | standby | qemu-command)
            mapfile -t COMPREPLY < <(compgen -f -X '!*.toml' -- "$word")
            return
            ;;
        esac
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o default -F _kagemusha kagemusha kage ./kage
