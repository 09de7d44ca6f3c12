# SPDX-License-Identifier: GPL-2.0-or-later
"""
`kage bench`: what protection costs a program. The same programs (bench/suite) run natively, in a VM, and in VMs that are
replicated in part and as a whole, in turns, so that all of them see the same machine.

Pure, with tests (price_test.py): figures (statistics), plan (what runs next, how long it takes), table (results → rows),
text and page (rows → report), compare. Acting: hosts (the VMs), facts (the machine), main.
"""
