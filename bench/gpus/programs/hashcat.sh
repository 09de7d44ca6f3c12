#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# hashcat, again and again: which words of seven letters and digits have these SHA-256 sums? Each time all of them have to be found.
#
#     hashcat.sh WORDS STOP    WORDS: a file with the words, sorted; STOP: a file whose existence ends it
set -u
sums=$(mktemp) found=$(mktemp) said=$(mktemp)
while read -r word; do printf %s "$word" | sha256sum | cut -d ' ' -f 1; done <"$1" >"$sums"
for ((step = 0; ; step++)); do
    hashcat -m 1400 -a 3 -1 '?l?d' --potfile-disable --outfile-format 2 -o "$found" "$sums" '?1?1?1?1?1?1?1' >"$said" 2>&1
    status=$?
    [ "$step" != 0 ] || grep -m1 -i 'device #1' "$said"
    sort -o "$found" "$found"
    if [ "$(<"$found")" != "$(<"$1")" ]; then
        echo "FAILED with status $status: $(tail -n 20 "$said")"
        exit 1
    fi
    echo "step $step result $(md5sum <"$found")"
    : >"$found"
    [ ! -e "$2" ] || exit 0
done
