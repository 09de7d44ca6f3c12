#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# The control tool, which dies with whoever started it: a bench that is killed leaves no VM behind. (QEMU dies with its tool.)
exec setpriv --pdeathsig KILL -- "$KAGE_BENCH_TOOL" "$@"
